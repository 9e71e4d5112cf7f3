"""Scoring a model on minimal pairs, as a command and in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import SettingsError
from unmask.evaluation.minimal_pairs import read_pairs
from unmask.evaluation.pair_accuracy import Accuracy, few_paradigms, score_pairs
from unmask.evaluation.pseudo import checked_form
from unmask.inference.model import Model
from unmask.inference.scorable import Scorable, as_scorable


def score(
    model: Model | Scorable,
    pairs: str | Path,
    *,
    form: str = "plain",
    pairs_per_paradigm: int | None = None,
    notify: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Scores a model on minimal pairs in BLiMP's format.

    Args:
        model: Any masked language model; see `unmask.inference.scorable.load_scorable`.
        pairs: A file of JSON lines, a folder of such, or a tar archive of such.
        form: `plain` or `word_l2r` pseudo-log-likelihoods; see `unmask.evaluation.pseudo`.
        pairs_per_paradigm: The first so many of each paradigm are taken; None takes all.
        notify: Told what is done, how many tokens of it, and of how many.

    Returns:
        `accuracy` over all pairs, ties one half, `interval` (95 %), `interval_over` (`paradigms`, or `pairs` where
        there is one paradigm or all came out the same), `pairs`, `num_paradigms`, `ties`, `phenomena` (name to
        accuracy), `phenomena_intervals`, `by_phenomenon` and `paradigms` (name to the first six of these), `warning`
        (where there are few paradigms; None else), `form`.

    Raises:
        UnmaskError: As `read_pairs`, `score_pairs` and `checked_form`; or the number of pairs is below 1.
    """
    known = checked_form(form)
    if pairs_per_paradigm is not None and pairs_per_paradigm < 1:
        raise SettingsError(f"pairs a paradigm: a number from 1 on, not {pairs_per_paradigm}")
    read = read_pairs(Path(pairs))
    if pairs_per_paradigm is not None:
        taken: dict[str, int] = {}
        kept = []
        for pair in read:
            taken[pair.paradigm] = taken.get(pair.paradigm, 0) + 1
            if taken[pair.paradigm] <= pairs_per_paradigm:
                kept.append(pair)
        read = kept
    scorable = as_scorable(model)
    told = None if notify is None else partial(notify, "each token hidden in turn")
    result = score_pairs(scorable.network, scorable.tokenizer, read, form=known, notify=told)
    return {
        **_plain(result.overall),
        "phenomena": {name: found.accuracy for name, found in result.phenomena.items()},
        "phenomena_intervals": {name: list(found.interval) for name, found in result.phenomena.items()},
        "by_phenomenon": {name: _plain(found) for name, found in result.phenomena.items()},
        "warning": few_paradigms(result.overall),
        "paradigms": {name: _plain(found) for name, found in result.paradigms.items()},
        "form": known,
    }


def _plain(found: Accuracy) -> dict[str, Any]:
    return {**asdict(found), "interval": list(found.interval)}
