"""Measuring a model on passages: hidden tokens, hidden words of the raw text, and tokens hidden one at a time.

Figures of hidden tokens are broken down by their kinds:

    word_frequency   how often the token's word occurs in the measured passages
    word_pieces      number of tokens of its word
    piece            whether it begins its word
    part_of_speech   if the text is annotated

These words are the tokenizer's (`unmask.tokenizer.words`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.hashing import GOLDEN, mix, mix_ints, token_in_word
from unmask.data.corpus import Corpus
from unmask.data.documents import Document, cut_pieces
from unmask.data.store import TokenStore
from unmask.measure.questions import Ask, Question, one_by_one, with_special
from unmask.measure.uncertainty import Ratio, plain_interval
from unmask.tokenizer.spans import IDEOGRAPHS
from unmask.tokenizer.tokenizer import Tokenizer

# Models with different tokenizers are compared on words of the raw text: runs of up to 32 characters without white
# space. Ideographs and kana, written without spaces, form words of up to 16 characters, which end at a punctuation mark
# or other letter; a single ideograph would be too small, since tokens of a large vocabulary cover two or three. Common
# tokenizers never cross white space and rarely punctuation, so few of their tokens cover parts of two such words. (The
# words of `unmask.tokenizer.spans`, which end at all punctuation, are crossed more often.)
#
#     text        The cat, 東京タワーへ。
#     words       The   cat,   東京タワーへ   。
#
# Which words are hidden depends on a hash of the text and on the word's number in it, not on the tokenizer.
#
# A passage is a part of the raw text of at most 2,000 characters, cut after white space, whatever the tokenizer. For
# prepared data, which has no text, it is 480 tokens. A hash of each passage and of its place chooses a share of them,
# so the sample is spread over the whole text, repeated passages included, and is the same for every model.
#
# Shapes: S = tokens of a text, N = pairs of a token and a word that it covers.

_WORD = re.compile(rf"[{IDEOGRAPHS}]{{1,16}}|[^\s{IDEOGRAPHS}]{{1,32}}")
_HALF = 1 << 63


def spaced_words(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the words of a text begin and end, in characters, and their UTF-8 bytes; each [num_words]."""
    words = [(match.start(), match.end(), len(match.group().encode())) for match in _WORD.finditer(text)]
    begin, end, num_bytes = np.array(words, dtype=np.int64).reshape(-1, 3).T
    return begin, end, num_bytes


def touched(
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of the spans of characters (sorted, without overlap) each token shares a character with: the number of the
    first one, and one past the last; equal if there is none."""
    first = np.searchsorted(end, token_begin, side="right")
    return first, np.maximum(first, np.searchsorted(begin, token_end, side="left"))


class Standing(NamedTuple):
    """Which words the tokens of a text cover: one entry for each token and each word that it covers in part.

    text     a a a a b b      words    aaaa bb          token   0    1    1    2
    tokens   --- ----- -               (0)  (1)         word    0    0    1    1
                                                        share   1   2/3  1/3   1
    """

    token: NDArray[np.int64]  # [N]
    word: NDArray[np.int64]  # [N]
    share: NDArray[np.float64]  # [N]: share of the token's UTF-8 bytes in the word; the shares of a token add up to 1

    @property
    def num_crossing(self) -> int:
        return int((np.bincount(self.token) > 1).sum())

    def share_in(self, chosen: NDArray[np.bool_], num_tokens: int) -> NDArray[np.float64]:
        """[num_tokens]: the share of each token in the chosen words; 0, and 1 for a token of one word, are exact."""
        inside = chosen[self.word]
        return np.bincount(self.token[inside], weights=self.share[inside], minlength=num_tokens).astype(np.float64)


def standing_of(
    text: str,
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Standing:
    """Which words of a text its tokens cover, from the characters of both; see `spaced_words`."""
    first, stop = touched(token_begin, token_end, begin, end)
    number = stop - first
    token = np.repeat(np.arange(len(first)), number)
    word = first[token] + np.arange(len(token)) - (np.cumsum(number) - number)[token]
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    low, high = np.maximum(token_begin[token], begin[word]), np.minimum(token_end[token], end[word])
    shared = bytes_before[high] - bytes_before[low]
    whole = np.bincount(token, weights=shared, minlength=len(first))[token]
    # A token within a word that has no character of its own belongs to the word.
    share = np.divide(shared, whole, out=np.ones(len(token)), where=whole > 0)
    return Standing(token, word, share)


def uniform(key: int, size: int, *more: int) -> NDArray[np.float64]:
    """[size]: numbers in [0, 1) that depend only on the key, the place and further integers."""
    bits = mix(np.arange(size, dtype=np.int64) * np.int64(GOLDEN) + np.int64(mix_ints(key, *more)))
    return (bits.astype(np.float64) + _HALF) / (2.0 * _HALF) % 1.0  # rounding may turn the largest into 1


def hidden(draws: NDArray[np.float64], rate: float, number: int, num_masks: int) -> NDArray[np.bool_]:
    """Which units mask `number` of `num_masks` hides, by their draws in [0, 1).

    The masks are rotated by equal parts of 1. So no unit is hidden twice while rate x masks is at most 1, and each mask
    adds as much information as possible. Units hidden at a low rate are hidden at higher rates, too.
    """
    return (draws + number / num_masks) % 1.0 < rate


PASSAGE_CHARS = 2_000
PASSAGE_TOKENS = 480
BYTES_PER_TOKEN = 4  # converts a number of tokens to a length of text, the same for all tokenizers
_TAKEN = 7
_BATCH = 64


class Passage(NamedTuple):
    document: int  # number of the document, or of its group if groups were held out
    key: int  # a hash of the text, or of the tokens if there is no text
    input_ids: NDArray[np.int32]  # [S]: without special tokens
    word_starts: NDArray[np.bool_]  # [S]: whether the token begins one of the tokenizer's words
    standing: Standing  # which words of the text the tokens cover
    word_bytes: NDArray[np.int64]  # [num_words]: UTF-8 bytes of those words
    unknown_bytes: NDArray[np.int64]  # [S]: bytes of text that an unknown token covers; 0 for others, and without text
    pos: NDArray[np.int64]  # [S]: number of each token's part of speech, counted from 1; 0: none


def share_of_text(corpus: Corpus, max_tokens: int) -> float:
    """The share of a text that is about `max_tokens` tokens, at four bytes each; 1 if the text has no more."""
    total = corpus.num_bytes
    if total is None:
        with closing(corpus.pieces()) as pieces:
            total = sum(len(piece.text.encode()) for piece, _ in pieces)
    return min(1.0, max_tokens * BYTES_PER_TOKEN / max(total, 1))


def passages_of_text(corpus: Corpus, tokenizer: Tokenizer, *, share: float, labels: list[str]) -> Iterator[Passage]:
    """Samples a share of the passages of raw text. If it is read with the annotation `pos`, they have parts of speech,
    and new ones are appended to `labels`."""
    unk = tokenizer.special.unk
    with closing(corpus.pieces()) as pieces:
        blocks = (block for piece, _ in pieces for block in cut(piece))
        hashes = ((block, hashlib.blake2b(block.text.encode(), digest_size=8).digest()) for block in blocks)
        keyed = ((block, int.from_bytes(bits, "little", signed=True)) for block, bits in hashes)
        taken = ((block, key) for block, key in keyed if _is_taken(share, key, block.document, block.offset))
        while batch := list(islice(taken, _BATCH)):
            encoded, places = tokenizer.encode_placed([block.text for block, _ in batch])
            tokenizer.watch(encoded.unknown)
            stops = np.cumsum(places.lengths)
            text_begin = np.cumsum([0, *(len(block.text) for block, _ in batch)])
            for number, (block, key) in enumerate(batch):
                tokens = slice(int(stops[number] - places.lengths[number]), int(stops[number]))
                token_begin, token_end = (array[tokens] - text_begin[number] for array in (places.begin, places.end))
                ids, starts = encoded.input_ids[tokens], encoded.word_starts[tokens]
                unknown, pos = np.zeros((2, len(ids)), dtype=np.int64)
                for place in np.flatnonzero(ids == unk) if unk is not None else ():
                    unknown[place] = len(block.text[token_begin[place] : token_end[place]].strip().encode())

                if spans := () if block.spans is None else block.spans.get("pos", ()):
                    labels += dict.fromkeys(span.label for span in spans if span.label not in labels)
                    begin, end = np.array([(span.begin, span.end) for span in spans], dtype=np.int64).T
                    first, stop = touched(token_begin, token_end, begin, end)
                    label_numbers = np.array([0, *(labels.index(span.label) + 1 for span in spans)])
                    pos = label_numbers[np.where(first < stop, first + 1, 0)]

                # A token that is only a space mark covers no word: give it the characters of the token that follows.
                begin, end, num_bytes = spaced_words(block.text)
                first, stop = touched(token_begin, token_end, begin, end)
                mark = np.flatnonzero((first == stop)[:-1] & starts[:-1] & ~starts[1:])
                token_begin, token_end = token_begin.copy(), token_end.copy()
                token_begin[mark], token_end[mark] = token_begin[mark + 1], token_end[mark + 1]
                standing = standing_of(block.text, token_begin, token_end, begin, end)
                yield Passage(block.document, key, ids, starts, standing, num_bytes, unknown, pos)


def _is_taken(share: float, key: int, *place: int) -> bool:
    """Whether a passage is in the sample, by its hash and its place, since texts may repeat themselves."""
    return share >= 1.0 or bool(uniform(key, 1, _TAKEN, *place)[0] < share)


def cut(piece: Document) -> Iterator[Document]:
    return (part for part in cut_pieces([piece], PASSAGE_CHARS) if part.text.strip())


PIECES_AT_ONCE = 256


def passages_of_store(store: TokenStore, tokenizer: Tokenizer, *, share: float) -> Iterator[Passage]:
    """Samples a share of the passages of prepared tokens. Their words are the tokenizer's, since there is no text."""
    for first in range(0, len(store), PIECES_AT_ONCE):
        texts = store.gather(np.arange(first, min(first + PIECES_AT_ONCE, len(store))))
        pieces = (texts.begin, texts.lengths, texts.document, texts.offset, texts.draw)
        for place, length, document, offset, draw in zip(*(column.tolist() for column in pieces), strict=True):
            for begin in range(0, length, PASSAGE_TOKENS):
                passage = slice(place + begin, place + min(begin + PASSAGE_TOKENS, length))
                ids, starts = texts.input_ids[passage].astype(np.int32), texts.word_starts[passage].astype(bool)
                key = int(token_in_word(ids.astype(np.int64), np.arange(len(ids))).sum())
                if not _is_taken(share, key, document, offset, begin):
                    continue
                pos = np.zeros(len(ids), dtype=np.int64)
                if "pos" in store.annotations:
                    pos = texts.annotations["pos"][passage].astype(np.int64)
                words = _word_numbers(starts)
                num_bytes = np.bincount(words, weights=tokenizer.token_bytes[ids]).astype(np.int64)
                token = np.flatnonzero(num_bytes[words] > 0)
                standing = Standing(token, words[token], np.ones(len(token)))
                unknown = np.zeros(len(ids), dtype=np.int64)
                yield Passage(draw, key, ids, starts, standing, num_bytes, unknown, pos)


def _word_numbers(starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    # [S]: the number of each token's word. A passage of prepared text may begin within a word.
    return np.cumsum(np.append(True, starts[1:])) - 1


FREQUENCIES = (1, 2, 10, 100, 1000)  # lower ends of the bands
FREQUENCY_NAMES = ("1", "2-9", "10-99", "100-999", "1000+")
LENGTH_NAMES = ("1", "2", "3", "4+")
PIECE_NAMES = ("first", "continuation")

Kinds = Mapping[str, NDArray[np.int64]]


def kinds_of(passages: Sequence[Passage], *, with_pos: bool) -> list[Kinds]:
    """The kinds of each passage's tokens, as indices of the names above; parts of speech are numbered from 0."""
    words = []  # a hash of each word [num_words], and the number of each token's word [S]
    for passage in passages:
        number = _word_numbers(passage.word_starts)
        begin = np.flatnonzero(np.diff(number, prepend=-1))
        place = np.arange(len(number)) - begin[number]
        words.append((np.add.reduceat(token_in_word(passage.input_ids.astype(np.int64), place), begin), number))
    known, counts = np.unique(np.concatenate([hashes for hashes, _ in words]), return_counts=True)
    kinds: list[Kinds] = []
    for passage, (hashes, number) in zip(passages, words, strict=True):
        frequency = np.searchsorted(FREQUENCIES, counts[np.searchsorted(known, hashes)], side="right") - 1
        pieces = np.minimum(np.bincount(number, minlength=len(hashes)), len(LENGTH_NAMES)) - 1
        of_tokens = {
            "word_frequency": frequency[number],
            "word_pieces": pieces[number],
            "piece": (np.diff(number, prepend=-1) == 0).astype(np.int64),
        }
        kinds.append({**of_tokens, "part_of_speech": passage.pos - 1} if with_pos else of_tokens)
    return kinds


SEED = 20181011  # never changes, so that figures of different models compare
_TOKENS, _WORDS, _PSEUDO = 1, 2, 3
_SPELLED = 8 * math.log(2.0)  # nats per byte that the vocabulary cannot represent


@dataclass(frozen=True)
class MeasuredPassages:
    ask: Ask  # answers questions: `unmask.measure.questions.ask` with the model's network
    tokenizer: Tokenizer
    length: int  # maximum positions of an input, special tokens included; longer passages are cut
    masks: int  # number of masks per passage
    count: Callable[[int], None]  # called with the number of tokens processed since the last call

    @property
    def room(self) -> int:
        return self.length - len(self.tokenizer.special.around)


class TokenFigures(NamedTuple):
    """Figures of hidden tokens: means over hidden tokens; and for each kind that occurs, its loss, accuracy and number
    of tokens, by the names of breakdown and kind."""

    loss: Ratio
    accuracy: Ratio
    accuracy_top5: Ratio
    breakdown: Mapping[str, dict[str, dict[str, Any]]]


def measure_tokens(
    measured: MeasuredPassages,
    passages: Sequence[Passage],
    kinds: Sequence[Kinds],
    names: Mapping[str, Sequence[str]],
    rate: float,
) -> TokenFigures:
    """Hides tokens, each with the probability `rate`, and predicts them.

    Which tokens are hidden depends on the passage's hash, the token's place and the mask's number. So they are the same
    for every model with the same tokenizer, whatever its maximum length and whatever else is measured. `kinds` are
    those of each passage's tokens, `names` the names of kinds by breakdown.
    """
    loss, accuracy, top5 = Ratio(), Ratio(), Ratio()
    # Sums of losses, right answers and tokens by kind; tokens whose kind is negative are left out.
    sums = {name: np.zeros((3, len(each))) for name, each in names.items()}

    def questions() -> Iterator[Question]:
        for number, passage in enumerate(passages):
            ordinary = measured.tokenizer.ordinary[passage.input_ids]
            draws = uniform(passage.key, len(passage.input_ids), SEED, _TOKENS)
            for mask in range(measured.masks):
                chosen = hidden(draws, rate, mask, measured.masks) & ordinary
                for question in _questions(measured, passage, chosen):
                    yield question._replace(origin=(number, question.origin))

    for answer in measured.ask(questions()):
        number, at = answer.origin
        document, count = passages[number].document, len(at)
        right = answer.ranks == 0
        loss.add(document, float(answer.losses.sum()), count)
        accuracy.add(document, float(right.sum()), count)
        top5.add(document, float((answer.ranks < 5).sum()), count)
        for name, each in names.items():
            kind = kinds[number][name][at]
            for row, weights in enumerate((answer.losses, right, np.ones(count))):
                sums[name][row] += np.bincount(kind[kind >= 0], weights=weights[kind >= 0], minlength=len(each))
    breakdown = {
        name: {
            kind: {"loss": total / count, "accuracy": right / count, "predicted_tokens": int(count)}
            for kind, total, right, count in zip(names[name], *of_kinds.tolist(), strict=True)
            if count
        }
        for name, of_kinds in sums.items()
    }
    return TokenFigures(loss, accuracy, top5, breakdown)


def measure_words(measured: MeasuredPassages, passages: Sequence[Passage], rate: float) -> Ratio:
    """Bits per byte: hides words of the raw text, all pieces of a word together, and predicts them.

    The same words are hidden for every model, and their negative log-likelihood is divided by the UTF-8 bytes of just
    these words. So models with different tokenizers compare. A token is hidden if it covers any part of a hidden word.
    Few tokens cover several words (see the file's top). The loss of such a token counts by the share of its bytes in
    hidden words, so over all choices of words each token counts once, as each byte does. The measure still has leaks
    and biases:

    - A model sees the number of pieces of a hidden word, which tells something of its length and rarity. A tokenizer
      with more pieces per word tells more; one of characters tells the word's exact length.
    - Pieces of a word are predicted independently of each other, which costs models with many pieces more.
    - If a tokenizer changes the text (lower case, accents, joiners in words), the model predicts less than the bytes
      suggest.
    - Texts beyond the model's length are cut, so a model that takes longer texts sees more context.
    - A token that extends beyond a hidden word hides a few more characters, which other models see.

    Text that the vocabulary cannot represent (an unknown token, a word without any token) costs 8 bits per byte, as if
    it were spelled out.
    """
    bits = Ratio()

    def questions() -> Iterator[Question]:
        for passage in passages:
            draws = uniform(passage.key, len(passage.word_bytes), SEED, _WORDS)
            is_covered = np.bincount(passage.standing.word, minlength=len(draws)) > 0
            for mask in range(measured.masks):
                chosen = hidden(draws, rate, mask, measured.masks)
                share = passage.standing.share_in(chosen, len(passage.input_ids))
                spelled = (passage.unknown_bytes * share).sum() + passage.word_bytes[chosen & ~is_covered].sum()
                bits.add(passage.document, float(spelled) * _SPELLED / math.log(2.0), passage.word_bytes[chosen].sum())
                for question in _questions(measured, passage, share > 0.0):
                    yield question._replace(origin=(passage.document, share[question.origin]))

    for answer in measured.ask(questions()):
        document, share = answer.origin
        bits.add(document, float((answer.losses * share).sum()) / math.log(2.0), 0.0)
    return bits


def measure_pseudo(measured: MeasuredPassages, passages: Sequence[Passage], max_tokens: int) -> Ratio:
    """Hides about `max_tokens` tokens one at a time, for pseudo-perplexity. Passages' hashes choose them; unknown
    tokens are skipped.

    Source: Salazar et al. 2020, section 2, on a sample of the tokens.
    """
    losses = Ratio()
    share = max_tokens / max(1, sum(len(passage.input_ids) for passage in passages))

    def questions() -> Iterator[Question]:
        for passage in passages:
            ordinary = measured.tokenizer.ordinary[passage.input_ids]
            chosen = (uniform(passage.key, len(passage.input_ids), SEED, _PSEUDO) < share) & ordinary
            for begin, end in segments(passage.word_starts, measured.room):
                places = np.flatnonzero(chosen[begin:end])
                ids, starts = passage.input_ids[begin:end], passage.word_starts[begin:end]
                for question in one_by_one(ids, starts, measured.tokenizer, places=places):
                    yield question._replace(origin=passage.document)
            measured.count(int(chosen.sum()))

    for answer in measured.ask(questions()):
        losses.add(answer.origin, float(answer.losses[0]), 1.0)
    return losses


def segments(word_starts: NDArray[np.bool_], room: int) -> Iterator[tuple[int, int]]:
    """Cuts a passage into segments of at most `room` tokens, about equally long, so that none has little context. It
    cuts where a word begins, if one begins in the second half of a segment."""
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


def _questions(measured: MeasuredPassages, passage: Passage, chosen: NDArray[np.bool_]) -> Iterator[Question]:
    """A question for each segment with hidden tokens; its origin is their positions in the passage."""
    special = measured.tokenizer.special
    first = int(special.cls is not None)
    for begin, end in segments(passage.word_starts, measured.room):
        at = begin + np.flatnonzero(chosen[begin:end])
        if len(at):
            ids = with_special(passage.input_ids[begin:end], measured.tokenizer)
            places = at - begin + first
            targets = ids[places]
            ids[places] = special.mask
            yield Question(ids, places, targets, at)
    measured.count(len(passage.input_ids))


def plain(figures: TokenFigures, bits: Ratio) -> dict[str, Any]:
    """The figures of a rate, as `--json` prints them."""
    loss, accuracy, top5, bytewise = (
        ratio.result for ratio in (figures.loss, figures.accuracy, figures.accuracy_top5, bits)
    )
    perplexity, *bounds = (math.exp(min(value, 700.0)) for value in (loss.value, *(loss.interval or ())))
    return {
        "loss": loss.value,
        "loss_stderr": loss.stderr,
        "loss_interval": plain_interval(loss.interval),
        "accuracy": accuracy.value,
        "accuracy_interval": plain_interval(accuracy.share_interval),
        "accuracy_top5": top5.value,
        "accuracy_top5_interval": plain_interval(top5.share_interval),
        "perplexity": perplexity,
        "perplexity_interval": bounds or None,
        "bits_per_byte": bytewise.value if bits.denominator else None,
        "bits_per_byte_stderr": bytewise.stderr,
        "bits_per_byte_interval": plain_interval(bytewise.interval),
        "predicted_tokens": int(figures.loss.denominator),
        "predicted_bytes": int(bits.denominator),
        "predicted_documents": loss.draws,
        "breakdown": figures.breakdown,
    }
