"""Pseudo-log-likelihoods of sentences: how likely a masked language model finds a text, token by token.

    sentence     the  em  ##broid  ##ery  fades          (of the word `embroidery`)

    plain        the  em  [MASK]   ##ery  fades          to predict ##broid, all else is seen
    word_l2r     the  em  [MASK]   [MASK] fades          the pieces behind it in its word are not

A word of several pieces is nearly given away by its other pieces, so the plain form finds long rare words too likely;
the other does not.

Source: Salazar et al. 2020 (Masked language model scoring), section 2, for `plain`; Kauf and Ivanova 2023 (A better
way to do masked language model scoring), for `word_l2r`. Words are the tokenizer's (`unmask.tokenizer.word_starts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.measuring.questions import Answer, Question, ask
from unmask.progress import Notify, Progress, ignore
from unmask.runner import Predictor
from unmask.text.reading import check_characters
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer

Form = Literal["plain", "word_l2r"]
_TOLD = 256  # tokens between two tellings of the progress


@dataclass(frozen=True)
class Likelihoods:
    """Of some sentences.

    Attributes:
        totals: [num_sentences], float64: pseudo-log-likelihoods in nats: sums over the tokens, never above 0.
        num_tokens: [num_sentences], int64: tokens of each, without special tokens.
    """

    totals: NDArray[np.float64]
    num_tokens: NDArray[np.int64]

    @property
    def pseudo_perplexity(self) -> float:
        """exp of the mean loss of a token over all sentences. Source: Salazar et al. 2020, section 2."""
        return float(np.exp(min(-self.totals.sum() / self.num_tokens.sum(), 700.0)))


def checked_form(form: str) -> Form:
    """Raises: SettingsError: It is no form of the pseudo-log-likelihood."""
    for known in get_args(Form):
        if form == known:
            return known
    raise SettingsError(f"unknown form {form!r} of the pseudo-log-likelihood; known are {', '.join(get_args(Form))}")


def pseudo_log_likelihoods(
    network: Predictor,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    form: Form = "plain",
    notify: Notify = ignore,
) -> Likelihoods:
    """Scores sentences, each by itself.

    Every token of the text is predicted once, an unknown token too; special tokens are not. Sentences of the same
    tokens are scored once, so that what a model cannot tell apart (white space, letters that the tokenizer lowers,
    unknown words) has equal scores, to the last bit.

    Args:
        network: The model.
        tokenizer: Its tokenizer. A `[MASK]` in a sentence is text like any other.
        sentences: Any number.
        form: `plain` or `word_l2r`; see the module's docstring.
        notify: Told now and then how many tokens were predicted.

    Raises:
        ModelError: A loss is no finite number.
        SettingsError: A sentence is empty, holds what is no character, or is longer than the model, with its number,
            counted from 1; or it is one text instead of several.
    """
    if isinstance(sentences, str):
        raise SettingsError(f"give a list of sentences: [{sentences[:40]!r}]")
    for number, sentence in enumerate(sentences, 1):
        check_characters(sentence, f"sentence {number} ({sentence[:60]!r})")
    encoded = tokenizer.encode_corpus(sentences)
    lengths = np.array([len(tokens.input_ids) for tokens in encoded], dtype=np.int64)
    _check(sentences, lengths, longest=network.config.max_position_embeddings - len(tokenizer.special.around))
    numbers: dict[tuple[bytes, bytes], int] = {}
    which = np.array([numbers.setdefault(_asked(tokens, form), len(numbers)) for tokens in encoded], dtype=np.int64)
    first = np.unique(which, return_index=True)[1]  # of those that ask for the same

    def questions() -> Iterator[Question]:
        for number in first.tolist():
            yield from one_by_one(encoded[number].input_ids, encoded[number].word_starts, tokenizer, form=form)

    answers = _told(ask(network, questions()), int(lengths[first].sum()), notify)
    losses = np.array([answer.losses[0] for answer in answers])
    owner = np.repeat(np.arange(len(first)), lengths[first])
    totals = -np.bincount(owner, weights=losses, minlength=len(first)).astype(np.float64)
    return Likelihoods(totals[which], lengths)


def _asked(tokens: EncodedText, form: Form) -> tuple[bytes, bytes]:
    """All that the questions of a sentence depend on; where words begin says what `word_l2r` hides."""
    return tokens.input_ids.tobytes(), b"" if form == "plain" else tokens.word_starts.tobytes()


def _told(answers: Iterable[Answer], total: int, notify: Notify) -> Iterator[Answer]:
    """Passes answers on, and tells how many there were."""
    for number, answer in enumerate(answers, 1):
        yield answer
        if number % _TOLD == 0 or number == total:
            notify(Progress("each token hidden in turn", number, total))


def one_by_one(
    input_ids: NDArray[np.int32],
    word_starts: NDArray[np.bool_],
    tokenizer: Tokenizer,
    *,
    form: Form = "plain",
    places: NDArray[np.int64] | None = None,
) -> Iterator[Question]:
    """A question for each token of a text.

    Args:
        input_ids: [S]: without special tokens.
        word_starts: [S].
        tokenizer: For the special tokens.
        form: `plain` or `word_l2r`.
        places: [N]: the tokens that are asked for; None: all.
    """
    special = tokenizer.special
    places = np.arange(len(input_ids)) if places is None else places
    whole = with_special(input_ids, tokenizer)
    first = int(special.cls is not None)
    word = np.cumsum(word_starts)
    ends = np.searchsorted(word, word, side="right")  # of each token's word
    for place in places.tolist():
        copy = whole.copy()
        end = place + 1 if form == "plain" else int(ends[place])
        copy[first + place : first + end] = special.mask
        yield Question(copy, np.array([first + place]), whole[first + place : first + place + 1])


def with_special(input_ids: NDArray[np.int32] | NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """A text's tokens with what stands around a text, as int64."""
    special = tokenizer.special
    before = [] if special.cls is None else [special.cls]
    behind = [] if special.sep is None else [special.sep]
    return np.concatenate([before, input_ids, behind]).astype(np.int64)


def _check(sentences: Sequence[str], lengths: NDArray[np.int64], *, longest: int) -> None:
    wrong = (lengths == 0) | (lengths > longest)
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    if lengths[first] == 0:
        raise SettingsError(f"sentence {first + 1} ({sentences[first]!r}) is empty; leave it out")
    raise SettingsError(
        f"sentence {first + 1} has {lengths[first]} tokens, but the model takes {longest} beside the special tokens; "
        f"split it: {sentences[first][:60]!r}..."
    )
