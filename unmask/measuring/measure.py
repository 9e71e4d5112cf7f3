"""Measuring a model on passages: hidden tokens, hidden words of the raw text, and tokens hidden one at a time.

Figures of hidden tokens are broken down by their kinds:

    word_frequency   how often the token's word stands in the passages that are measured
    word_pieces      of how many tokens its word consists
    piece            whether it begins its word
    part_of_speech   where the text is annotated

The words of these are the tokenizer's (`unmask.tokenizer.word_starts`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import token_in_word
from unmask.measuring.passages import Passage, hidden, uniform
from unmask.measuring.pseudo_likelihood import one_by_one, with_special
from unmask.measuring.questions import Answer, Ask, Question
from unmask.measuring.uncertainty import Breakdown, Ratio, plain_interval
from unmask.tokenizer.tokenizer import Tokenizer

FREQUENCIES = (1, 2, 10, 100, 1000)  # where bands begin
FREQUENCY_NAMES = ("1", "2-9", "10-99", "100-999", "1000+")
LENGTH_NAMES = ("1", "2", "3", "4+")
PIECE_NAMES = ("first", "continuation")

Kinds = Mapping[str, NDArray[np.int64]]


def kinds_of(passages: Sequence[Passage], *, with_pos: bool) -> list[Kinds]:
    """The kinds of the tokens of each passage, as numbers of the names above; parts of speech are numbered from 0."""
    words = [_words(passage) for passage in passages]
    known, counts = np.unique(np.concatenate([hashes for hashes, _ in words]), return_counts=True)
    return [
        _kinds(passage, hashes, number, counts[np.searchsorted(known, hashes)], with_pos=with_pos)
        for passage, (hashes, number) in zip(passages, words, strict=True)
    ]


def _words(passage: Passage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A hash of each word [num_words], and the number of each token's word [S]."""
    starts = passage.word_starts.copy()
    starts[0] = True
    begin = np.flatnonzero(starts)
    number = np.cumsum(starts) - 1
    place = np.arange(len(starts)) - begin[number]
    return np.add.reduceat(token_in_word(passage.input_ids.astype(np.int64), place), begin), number


def _kinds(
    passage: Passage,
    hashes: NDArray[np.int64],
    number: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    with_pos: bool,
) -> Kinds:
    pieces = np.bincount(number, minlength=len(hashes))
    kinds = {
        "word_frequency": (np.searchsorted(FREQUENCIES, counts, side="right") - 1)[number],
        "word_pieces": np.minimum(pieces[number], len(LENGTH_NAMES)) - 1,
        "piece": (np.diff(number, prepend=-1) == 0).astype(np.int64),
    }
    return {**kinds, "part_of_speech": passage.pos - 1} if with_pos else kinds


SEED = 20181011  # fixed for ever, so that numbers of different models compare
_TOKENS, _WORDS, _PSEUDO = 1, 2, 3
_SPELLED = 8 * math.log(2.0)  # nats a byte of what the vocabulary cannot say

Where = TypeVar("Where")


@dataclass(frozen=True)
class MeasuredPassages:
    """A model, and how it is measured.

    Attributes:
        ask: What answers questions: `unmask.measuring.questions.ask` with the model's network.
        tokenizer: Its tokenizer.
        length: Positions of a text that it is shown at once, special tokens included; longer passages are cut.
        masks: How many masks each passage gets.
        count: Told how many more tokens were looked at.
    """

    ask: Ask
    tokenizer: Tokenizer
    length: int
    masks: int
    count: Callable[[int], None]


@dataclass(frozen=True)
class TokenFigures:
    """What hidden tokens came to: ratios by hidden tokens, and breakdowns by name."""

    loss: Ratio
    accuracy: Ratio
    accuracy_top5: Ratio
    breakdown: Mapping[str, Breakdown]


def measure_tokens(
    measured: MeasuredPassages,
    passages: Sequence[Passage],
    kinds: Sequence[Kinds],
    names: Mapping[str, Sequence[str]],
    rate: float,
) -> TokenFigures:
    """Hides tokens, each with the probability `rate`, and predicts them.

    What is hidden depends on the passage's hash, the token's place and the mask's number: the same for every model with
    the same tokenizer, however long the texts are that it takes, and whatever else is measured.

    Args:
        measured: The model.
        passages: What it is measured on.
        kinds: Of the tokens of each passage.
        names: Of the kinds, by breakdown.
        rate: Share of the tokens.
    """
    figures = TokenFigures(Ratio(), Ratio(), Ratio(), {name: Breakdown(each) for name, each in names.items()})

    def items() -> Iterator[tuple[Question, tuple[int, NDArray[np.int64]]]]:
        for number, passage in enumerate(passages):
            ordinary = measured.tokenizer.ordinary[passage.input_ids]
            draws = uniform(passage.key, len(passage.input_ids), SEED, _TOKENS)
            for mask in range(measured.masks):
                chosen = hidden(draws, rate, mask, measured.masks) & ordinary
                yield from ((q, (number, at)) for q, at in _questions(measured, passage, chosen))

    for (number, at), answer in _asked(measured.ask, items()):
        document, count = passages[number].document, len(at)
        right = answer.ranks == 0
        figures.loss.add(document, float(answer.losses.sum()), count)
        figures.accuracy.add(document, float(right.sum()), count)
        figures.accuracy_top5.add(document, float((answer.ranks < 5).sum()), count)
        for name, breakdown in figures.breakdown.items():
            breakdown.add(kinds[number][name][at], answer.losses, right)
    return figures


def measure_words(measured: MeasuredPassages, passages: Sequence[Passage], rate: float) -> Ratio:
    """Bits per byte: hides words of the raw text, all pieces of a word together, and predicts them.

    The same words are hidden for every model, and their negative log-likelihood is divided by the UTF-8 bytes of just
    these words. So models with different tokenizers compare. A token is hidden where it shows anything of a hidden
    word. Few tokens stand on several words (see `unmask.measuring.passages`). Of the loss of such a token the share
    counts that its bytes in hidden words have; so over all choices of words each token is paid for once, as each byte
    is. What it still leaks, and where it is not fair:

    - A model sees how many pieces each hidden word has, and so learns something of its length and its rarity. A
      tokenizer with more pieces a word tells more, one by characters tells the word's exact length.
    - Pieces of a word are predicted independently of each other, which costs models with many pieces more.
    - Where a tokenizer changes the text (lower case, accents), it predicts less than the bytes say.
    - Texts with more positions than the model takes are cut, and a model with longer texts sees more context.
    - A token that reaches beyond a hidden word hides some characters more, which other models see.

    What a vocabulary cannot say (an unknown token, a character that is dropped) costs 8 bits a byte, as if it were
    spelled out.

    Args:
        measured: The model.
        passages: What it is measured on.
        rate: Share of the words.

    Returns:
        Bits divided by bytes.
    """
    bits = Ratio()

    def items() -> Iterator[tuple[Question, tuple[int, NDArray[np.float64]]]]:
        for passage in passages:
            draws = uniform(passage.key, len(passage.word_bytes), SEED, _WORDS)
            said = np.bincount(passage.standing.word, minlength=len(draws)) > 0
            for mask in range(measured.masks):
                chosen = hidden(draws, rate, mask, measured.masks)
                share = passage.standing.share_in(chosen, len(passage.input_ids))
                spelled = (passage.unknown_bytes * share).sum() + passage.word_bytes[chosen & ~said].sum()
                bits.add(passage.document, float(spelled) * _SPELLED / math.log(2.0), passage.word_bytes[chosen].sum())
                asked = _questions(measured, passage, share > 0.0)
                yield from ((question, (passage.document, share[at])) for question, at in asked)

    for (document, share), answer in _asked(measured.ask, items()):
        bits.add(document, float((answer.losses * share).sum()) / math.log(2.0), 0.0)
    return bits


def measure_pseudo(measured: MeasuredPassages, passages: Sequence[Passage], max_tokens: int) -> Ratio:
    """Hides tokens one at a time, all others seen: what pseudo-perplexity is made of.

    Args:
        measured: The model.
        passages: What it is measured on.
        max_tokens: About how many tokens are hidden, chosen by the passage's hash.

    Source: Salazar et al. 2020, section 2, on a sample of the tokens.
    """
    losses = Ratio()
    share = max_tokens / max(1, sum(len(passage.input_ids) for passage in passages))

    def items() -> Iterator[tuple[Question, int]]:
        for passage in passages:
            chosen = uniform(passage.key, len(passage.input_ids), SEED, _PSEUDO) < share
            for begin, end in segments(passage.word_starts, measured.length - _around(measured)):
                places = np.flatnonzero(chosen[begin:end])
                ids, starts = passage.input_ids[begin:end], passage.word_starts[begin:end]
                asked = one_by_one(ids, starts, measured.tokenizer, places=places)
                yield from ((question, passage.document) for question in asked)
            measured.count(int(chosen.sum()))

    for document, answer in _asked(measured.ask, items()):
        losses.add(document, float(answer.losses[0]), 1.0)
    return losses


def segments(word_starts: NDArray[np.bool_], room: int) -> Iterator[tuple[int, int]]:
    """Cuts a passage into stretches of at most `room` tokens, where a word begins if one does in the second half.

    The stretches are about equally long, so that none has little context.
    """
    length = len(word_starts)
    begin = 0
    while begin < length:
        left = length - begin
        size = math.ceil(left / math.ceil(left / room))
        end = begin + size
        if end < length:
            starts = np.flatnonzero(word_starts[begin + size // 2 : end + 1])
            end = begin + size // 2 + int(starts[-1]) if len(starts) else end
        end = max(end, begin + 1)
        yield begin, end
        begin = end


def _questions(
    measured: MeasuredPassages, passage: Passage, chosen: NDArray[np.bool_]
) -> Iterator[tuple[Question, NDArray[np.int64]]]:
    """A question for each stretch with hidden tokens, and which tokens of the passage these are."""
    special = measured.tokenizer.special
    first = int(special.cls is not None)
    for begin, end in segments(passage.word_starts, measured.length - _around(measured)):
        at = begin + np.flatnonzero(chosen[begin:end])
        if len(at):
            ids = with_special(passage.input_ids[begin:end], measured.tokenizer)
            places = at - begin + first
            targets = ids[places]
            ids[places] = special.mask
            yield Question(ids, places, targets), at
    measured.count(len(passage.input_ids))


def _around(measured: MeasuredPassages) -> int:
    return len(measured.tokenizer.special.around)


def _asked(ask: Ask, items: Iterable[tuple[Question, Where]]) -> Iterator[tuple[Where, Answer]]:
    """Answers, each with what came with its question."""
    waiting: deque[Where] = deque()

    def questions() -> Iterator[Question]:
        for question, where in items:
            waiting.append(where)
            yield question

    for answer in ask(questions()):
        yield waiting.popleft(), answer


def plain(figures: TokenFigures, bits: Ratio) -> dict[str, Any]:
    """The figures of a rate, as `--json` prints them."""
    loss, accuracy, top5, bytewise = (
        ratio.result for ratio in (figures.loss, figures.accuracy, figures.accuracy_top5, bits)
    )
    return {
        "loss": loss.value,
        "loss_stderr": loss.stderr,
        "loss_interval": plain_interval(loss.interval),
        "accuracy": accuracy.value,
        "accuracy_interval": plain_interval(accuracy.share_interval),
        "accuracy_top5": top5.value,
        "accuracy_top5_interval": plain_interval(top5.share_interval),
        "perplexity": _exp(loss.value),
        "perplexity_interval": None if loss.interval is None else [_exp(bound) for bound in loss.interval],
        "bits_per_byte": bytewise.value if bits.denominator else None,
        "bits_per_byte_stderr": bytewise.stderr,
        "bits_per_byte_interval": plain_interval(bytewise.interval),
        "predicted_tokens": int(figures.loss.denominator),
        "predicted_bytes": int(bits.denominator),
        "predicted_documents": loss.draws,
        "breakdown": {name: breakdown.figures() for name, breakdown in figures.breakdown.items()},
    }


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))
