"""Measuring a model on passages: hidden tokens, hidden words of the raw text, and tokens hidden one at a time.

Figures of hidden tokens are broken down by their kinds:

    word_frequency   how often the token's word stands in the passages that are measured
    word_pieces      of how many tokens its word consists
    piece            whether it begins its word
    part_of_speech   where the text is annotated

The words of these are the tokenizer's (`unmask.tokenizer.words`).
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
from unmask.tokenizer.tokenizer import Tokenizer

# A word of raw text, by which models with different tokenizers compare, is a run of characters that are no white space,
# of at most 32. Ideographs and kana, which are written without spaces, are words of their own, up to a sign, a letter
# or 16 characters; a single ideograph would be too small, since tokens of a large vocabulary stand on two or three. The
# usual tokenizers never cross white space and seldom a sign, so few of their tokens stand on two such words. (The words
# of `unmask.tokenizer.spans`, which end at every sign, are more often crossed.)
#
#     text        The cat, 東京タワーへ。
#     words       The   cat,   東京タワーへ   。
#
# Which words are hidden depends on a hash of the text and on the word's number in it: not on the tokenizer.
#
# A passage is a part of the raw text of at most 2,000 characters, cut behind white space, whatever the tokenizer; of
# prepared data, where there is no text, it is so many tokens. A share of them is taken, chosen by a hash of each and of
# its place, so that the taken ones are spread over the whole text, equal ones too, and are the same for every model.
#
# Shapes: S = tokens of a text, N = pairs of a token and a word that it stands on.

# Ideographs with the marks that repeat them, and kana of either width.
_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]{{1,16}}|[^\s{_UNSPACED}]{{1,32}}")
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
    """On which of some sorted stretches of characters, which do not overlap, each token stands: the number of the first
    with which it shares a character, and the number behind the last; equal where there is none."""
    first = np.searchsorted(end, token_begin, side="right")
    return first, np.maximum(first, np.searchsorted(begin, token_end, side="left"))


class Standing(NamedTuple):
    """On which words the tokens of a text stand: a line for each token and each word of which it shows something.

    text     a a a a b b      words    aaaa bb          token   0    1    1    2
    tokens   --- ----- -               (0)  (1)         word    0    0    1    1
                                                        share   1   2/3  1/3   1
    """

    token: NDArray[np.int64]  # [N]
    word: NDArray[np.int64]  # [N]
    share: NDArray[np.float64]  # [N]: how much of the token is the word's, by UTF-8 bytes; those of a token add up to 1

    @property
    def num_crossing(self) -> int:
        return int((np.bincount(self.token) > 1).sum())

    def share_in(self, chosen: NDArray[np.bool_], num_tokens: int) -> NDArray[np.float64]:
        """[num_tokens]: how much of each token is in the chosen words; 0, and 1 for a single word, are exact."""
        inside = chosen[self.word]
        return np.bincount(self.token[inside], weights=self.share[inside], minlength=num_tokens).astype(np.float64)


def standing_of(
    text: str,
    token_begin: NDArray[np.int64],
    token_end: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Standing:
    """On which words of a text its tokens stand, by the characters of both; see `spaced_words`."""
    first, stop = touched(token_begin, token_end, begin, end)
    number = stop - first
    token = np.repeat(np.arange(len(first)), number)
    word = first[token] + np.arange(len(token)) - (np.cumsum(number) - number)[token]
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    low, high = np.maximum(token_begin[token], begin[word]), np.minimum(token_end[token], end[word])
    shared = bytes_before[high] - bytes_before[low]
    whole = np.bincount(token, weights=shared, minlength=len(first))[token]
    # A token without a character of its own, within a word, is the word's.
    share = np.divide(shared, whole, out=np.ones(len(token)), where=whole > 0)
    return Standing(token, word, share)


def uniform(key: int, size: int, *more: int) -> NDArray[np.float64]:
    """[size]: numbers in [0, 1) that depend on the key, the place and further integers alone."""
    bits = mix(np.arange(size, dtype=np.int64) * np.int64(GOLDEN) + np.int64(mix_ints(key, *more)))
    return (bits.astype(np.float64) + _HALF) / (2.0 * _HALF) % 1.0  # rounding may make a 1 of the largest


def hidden(draws: NDArray[np.float64], rate: float, number: int, num_masks: int) -> NDArray[np.bool_]:
    """Which of some units a mask hides.

    The masks are turned against each other by equal parts of 1, so that as long as rate x masks is at most 1 none of
    the units is hidden twice, and more masks tell as much more as they can. What is hidden at a low rate is hidden at
    higher ones too. The draws of the units are in [0, 1).
    """
    return (draws + number / num_masks) % 1.0 < rate


PASSAGE_CHARS = 2_000
PASSAGE_TOKENS = 480
BYTES_PER_TOKEN = 4  # by which a number of tokens is a length of text, alike for all tokenizers
_TAKEN = 7
_BATCH = 64


class Passage(NamedTuple):
    """A stretch of a document."""

    document: int  # number of the document, or of its group, where groups were held out
    key: int  # a hash of the text, or of the tokens where there is no text
    input_ids: NDArray[np.int32]  # [S]: without special tokens
    word_starts: NDArray[np.bool_]  # [S]: the tokenizer's words
    standing: Standing  # on which of the text's words the tokens stand
    word_bytes: NDArray[np.int64]  # [num_words]: UTF-8 bytes of those words
    unknown_bytes: NDArray[np.int64]  # [S]: bytes of the text behind unknown tokens; 0 at others, and without a text
    pos: NDArray[np.int64]  # [S]: number of each token's part of speech, counted from 1; 0: none


def share_of_text(corpus: Corpus, max_tokens: int) -> float:
    """What share of a text is about so many tokens, at four bytes each; 1 where there are no more."""
    total = corpus.num_bytes
    if total is None:
        with closing(corpus.pieces()) as pieces:
            total = sum(len(piece.text.encode()) for piece, _ in pieces)
    return min(1.0, max_tokens * BYTES_PER_TOKEN / max(total, 1))


def passages_of_text(corpus: Corpus, tokenizer: Tokenizer, *, share: float, labels: list[str]) -> Iterator[Passage]:
    """Takes a share of the passages of raw text. Where it is read with the annotation `pos`, they have parts of speech,
    and new ones are put at the end of `labels`."""
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

                # A lone mark of a space, on no word, stands where the token does that it begins.
                begin, end, num_bytes = spaced_words(block.text)
                first, stop = touched(token_begin, token_end, begin, end)
                mark = np.flatnonzero((first == stop)[:-1] & starts[:-1] & ~starts[1:])
                token_begin, token_end = token_begin.copy(), token_end.copy()
                token_begin[mark], token_end[mark] = token_begin[mark + 1], token_end[mark + 1]
                standing = standing_of(block.text, token_begin, token_end, begin, end)
                yield Passage(block.document, key, ids, starts, standing, num_bytes, unknown, pos)


def _is_taken(share: float, key: int, *place: int) -> bool:
    """Whether a passage is in the sample: by its hash, and by where it stands, since texts may repeat themselves."""
    return share >= 1.0 or bool(uniform(key, 1, _TAKEN, *place)[0] < share)


def cut(piece: Document) -> Iterator[Document]:
    """Cuts a text into parts of at most 2,000 characters, without blank ones."""
    return (part for part in cut_pieces([piece], PASSAGE_CHARS) if part.text.strip())


PIECES_AT_ONCE = 256


def passages_of_store(store: TokenStore, tokenizer: Tokenizer, *, share: float) -> Iterator[Passage]:
    """Takes a share of the passages of prepared tokens. Their words are the tokenizer's, since there is no text."""
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
    # Of each token [S]; a passage of prepared text may begin within a word.
    return np.cumsum(np.append(True, starts[1:])) - 1


FREQUENCIES = (1, 2, 10, 100, 1000)  # where bands begin
FREQUENCY_NAMES = ("1", "2-9", "10-99", "100-999", "1000+")
LENGTH_NAMES = ("1", "2", "3", "4+")
PIECE_NAMES = ("first", "continuation")

Kinds = Mapping[str, NDArray[np.int64]]


def kinds_of(passages: Sequence[Passage], *, with_pos: bool) -> list[Kinds]:
    """The kinds of the tokens of each passage, as numbers of the names above; parts of speech are numbered from 0."""
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


SEED = 20181011  # fixed for ever, so that numbers of different models compare
_TOKENS, _WORDS, _PSEUDO = 1, 2, 3
_SPELLED = 8 * math.log(2.0)  # nats a byte of what the vocabulary cannot say


@dataclass(frozen=True)
class MeasuredPassages:
    """A model, and how it is measured."""

    ask: Ask  # what answers questions: `unmask.measure.questions.ask` with the model's network
    tokenizer: Tokenizer  # its tokenizer
    length: int  # positions of a text that it is shown at once, special tokens included; longer passages are cut
    masks: int  # how many masks each passage gets
    count: Callable[[int], None]  # called with how many more tokens were looked at

    @property
    def room(self) -> int:
        return self.length - len(self.tokenizer.special.around)


class TokenFigures(NamedTuple):
    """Figures of hidden tokens: ratios by hidden tokens, and loss, accuracy and number of tokens of each kind that
    there is, by the name of the breakdown and of the kind."""

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

    What is hidden depends on the passage's hash, the token's place and the mask's number: the same for every model with
    the same tokenizer, however long the texts are that it takes, and whatever else is measured. `kinds` are those of
    the tokens of each passage, `names` their names by breakdown.
    """
    loss, accuracy, top5 = Ratio(), Ratio(), Ratio()
    # Losses, right answers and tokens of each kind; those of a negative number are left out.
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
    these words. So models with different tokenizers compare. A token is hidden where it shows anything of a hidden
    word. Few tokens stand on several words (see `unmask.measure.text`). Of the loss of such a token the share
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
    """
    bits = Ratio()

    def questions() -> Iterator[Question]:
        for passage in passages:
            draws = uniform(passage.key, len(passage.word_bytes), SEED, _WORDS)
            said = np.bincount(passage.standing.word, minlength=len(draws)) > 0
            for mask in range(measured.masks):
                chosen = hidden(draws, rate, mask, measured.masks)
                share = passage.standing.share_in(chosen, len(passage.input_ids))
                spelled = (passage.unknown_bytes * share).sum() + passage.word_bytes[chosen & ~said].sum()
                bits.add(passage.document, float(spelled) * _SPELLED / math.log(2.0), passage.word_bytes[chosen].sum())
                for question in _questions(measured, passage, share > 0.0):
                    yield question._replace(origin=(passage.document, share[question.origin]))

    for answer in measured.ask(questions()):
        document, share = answer.origin
        bits.add(document, float((answer.losses * share).sum()) / math.log(2.0), 0.0)
    return bits


def measure_pseudo(measured: MeasuredPassages, passages: Sequence[Passage], max_tokens: int) -> Ratio:
    """Hides about so many tokens, chosen by the passage's hash, one at a time, for pseudo-perplexity.

    Source: Salazar et al. 2020, section 2, on a sample of the tokens.
    """
    losses = Ratio()
    share = max_tokens / max(1, sum(len(passage.input_ids) for passage in passages))

    def questions() -> Iterator[Question]:
        for passage in passages:
            chosen = uniform(passage.key, len(passage.input_ids), SEED, _PSEUDO) < share
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
    """Cuts a passage into stretches of at most `room` tokens, where a word begins if one does in the second half, and
    about equally long, so that none has little context."""
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
    """A question for each stretch with hidden tokens; its origin is which tokens of the passage these are."""
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
