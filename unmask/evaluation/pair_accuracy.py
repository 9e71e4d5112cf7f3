"""In how many minimal pairs a model prefers the sentence that is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.evaluation.intervals import wilson
from unmask.evaluation.minimal_pairs import Pair
from unmask.evaluation.pseudo import Form, pseudo_log_likelihoods
from unmask.evaluation.uncertainty import FEW, ratio_over_draws
from unmask.progress import Notify, ignore
from unmask.tokens.tokenizer import Tokenizer
from unmask.using.runner import Predictor

TIE = 1e-4  # nats: what the order in which numbers are added up may change


@dataclass(frozen=True)
class Accuracy:
    """A share of pairs.

    Attributes:
        accuracy: Of the pairs; ties are one half.
        interval: That holds the true accuracy in 95 of 100 cases; it tells nothing of the training's seed.
        interval_over: What it takes as drawn: `paradigms`, by Student's t (`unmask.evaluation.uncertainty`), since the
            pairs of a paradigm are made from one pattern and stand or fall together; `pairs` of a single paradigm, or
            of paradigms that all came out the same, by Wilson's interval, which speaks of other pairs of just these
            paradigms.
        pairs: How many.
        num_paradigms: Of how many paradigms.
        ties: How many of them are told neither way.
    """

    accuracy: float
    interval: tuple[float, float]
    interval_over: Literal["paradigms", "pairs"]
    pairs: int
    num_paradigms: int
    ties: int


@dataclass(frozen=True)
class PairResult:
    """Of a set of minimal pairs: `overall`, and by the name of each phenomenon and paradigm."""

    overall: Accuracy
    phenomena: dict[str, Accuracy]
    paradigms: dict[str, Accuracy]


def score_pairs(
    network: Predictor,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    form: Form = "plain",
    notify: Notify = ignore,
) -> PairResult:
    """Scores both sentences of each pair; the higher pseudo-log-likelihood is what the model prefers.

    Sums are compared, not means over tokens, as in the source; a sentence with more tokens has a lower sum. Sentences
    of the same tokens tie.

    Args:
        network, tokenizer, form, notify: As for `pseudo_log_likelihoods`.
        pairs: At least one.

    Raises:
        ModelError: A loss is no finite number.
        SettingsError: A sentence is longer than the model; with file and line.

    Source: Salazar et al. 2020, section 4.2.
    """
    check_lengths(pairs, tokenizer, longest=network.config.max_position_embeddings)
    totals = pseudo_log_likelihoods(network, tokenizer, _sentences(pairs), form=form, notify=notify).totals
    return tally(pairs, totals[0::2] - totals[1::2])


def check_lengths(pairs: Sequence[Pair], tokenizer: Tokenizer, *, longest: int) -> None:
    """Makes sure that a model takes all sentences.

    Args:
        pairs: Any number.
        tokenizer: Of the model.
        longest: Positions that the model takes, special tokens included.

    Raises:
        SettingsError: A sentence has no tokens, or more; with file and line.
    """
    room = longest - len(tokenizer.special.around)
    for number, encoded in enumerate(tokenizer.encode_corpus(_sentences(pairs))):
        if not 0 < len(encoded.input_ids) <= room:
            raise SettingsError(
                f"{pairs[number // 2].where}: a sentence of {len(encoded.input_ids)} tokens, but the model takes 1 to "
                f"{room} beside the special tokens; leave the pair out"
            )


def _sentences(pairs: Sequence[Pair]) -> list[str]:
    """The right one and the wrong one of each pair in turn."""
    return [sentence for pair in pairs for sentence in (pair.good, pair.bad)]


def tally(pairs: Sequence[Pair], differences: NDArray[np.float64]) -> PairResult:
    """Adds up.

    Args:
        pairs: At least one.
        differences: [num_pairs]: score of the right sentence minus that of the wrong one.
    """
    points = np.where(np.abs(differences) <= TIE, 0.5, differences > 0)
    paradigm = np.unique([pair.paradigm for pair in pairs], return_inverse=True)[1]
    return PairResult(
        _accuracy(points, paradigm),
        _by_name([pair.phenomenon for pair in pairs], points, paradigm),
        _by_name([pair.paradigm for pair in pairs], points, paradigm),
    )


def few_paradigms(found: Accuracy) -> str | None:
    """What must be said where an accuracy rests on few paradigms; None where it rests on enough."""
    if found.interval_over == "pairs":
        return "the interval is over pairs of just these paradigms: of others it tells nothing"
    if found.num_paradigms < FEW:
        return (
            f"there are {found.num_paradigms} paradigms only: the interval over them is wide, and less reliable than "
            f"with {FEW} or more"
        )
    return None


def _by_name(names: list[str], points: NDArray[np.float64], paradigm: NDArray[np.int64]) -> dict[str, Accuracy]:
    known = np.array(names)
    return {name: _accuracy(points[known == name], paradigm[known == name]) for name in sorted(set(names))}


def _accuracy(points: NDArray[np.float64], paradigm: NDArray[np.int64]) -> Accuracy:
    """Of some pairs, by the number of the paradigm of each."""
    won, count = float(points.sum()), len(points)
    found = ratio_over_draws(np.bincount(paradigm, weights=points), np.bincount(paradigm))
    interval = found.share_interval
    return Accuracy(
        accuracy=won / count,
        interval=wilson(won, count) if interval is None else interval,
        interval_over="pairs" if interval is None else "paradigms",
        pairs=count,
        num_paradigms=found.draws,
        ties=int((points == 0.5).sum()),
    )
