"""Inputs of the network: records as token ids, packed into rows, so that no time goes into padding.

Texts get the special tokens of the tokenizer's template and are cut to the model's length; cut ones are counted. Inputs
share rows as segments, which do not attend to each other, so no output depends on other inputs. Networks that cannot
separate segments get padded rows of one input each.

Shape suffixes: B = rows, S = positions, N = places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, ModelError, SettingsError
from unmask.data.packing import pack_pieces
from unmask.data.rows import Rows, text_rows
from unmask.model.transformers import TaskConfig
from unmask.tasks.files import Record
from unmask.tokenizer.tokenizer import SpecialIds, Tokenizer, UnknownText

Ids = NDArray[np.int32]
LEAST_WINDOW = 16  # minimum tokens of the text beside a question
ROW = 128  # positions of a row, unless an example is longer
_MUCH = 10  # if more than one of 10 texts is too long, the note says what to do
_STEP = 32  # longer rows are multiples of it, since each new shape costs time
_truncating = Lock()  # truncation is a state of the tokenizer, which threads share
_AT_ONCE = 256  # texts that are encoded or joined at once: an encoding takes some 100 bytes a token


# Texts longer than the model are read in windows, each with special tokens around it:
#
#     text, model of 7 positions        [CLS] a b c d e f g h [SEP]
#     cut                               [CLS] a b c d e [SEP] [CLS] f g h [SEP]
#     the window around d               [CLS] b c d e f [SEP]


def cut(input_ids: Ids, longest: int, special: SpecialIds) -> list[Ids]:
    """Cuts a text into as few windows as possible, of about equal length, each with special tokens."""
    if len(input_ids) <= longest:
        return [input_ids]
    before, text, behind = _without_special(input_ids, special)
    number = -(-len(text) // (longest - len(before) - len(behind)))
    bounds = [len(text) * n // number for n in range(number + 1)]
    return [np.concatenate([before, text[begin:end], behind]) for begin, end in pairwise(bounds)]


def around(input_ids: Ids, place: int, longest: int, special: SpecialIds) -> tuple[Ids, int]:
    """A window of a text with a place near its middle, if the text's ends allow it; and the place in the window."""
    if len(input_ids) <= longest:
        return input_ids, place
    before, text, behind = _without_special(input_ids, special)
    room = longest - len(before) - len(behind)
    begin = min(max(place - len(before) - room // 2, 0), len(text) - room)
    return np.concatenate([before, text[begin : begin + room], behind]), place - begin


def _without_special(input_ids: Ids, special: SpecialIds) -> tuple[Ids, Ids, Ids]:
    """The [CLS] of a text, its own tokens, and its [SEP]."""
    begin = int(len(input_ids) > 0 and special.cls is not None and input_ids[0] == special.cls)
    end = len(input_ids)
    end -= int(end > begin and special.sep is not None and input_ids[-1] == special.sep)
    return input_ids[:begin], input_ids[begin:end], input_ids[end:]


class InputEncoder:
    """A tokenizer that puts special tokens around texts and cuts them to `max_length`, by default the model's.

    Special tokens written in a text become special tokens, as in transformers, so that a model used there sees the same
    input as in training.
    """

    def __init__(self, tokenizer: Tokenizer, config: TaskConfig, *, max_length: int | None = None) -> None:
        longest = config.max_position_embeddings
        if max_length is not None and max_length > longest:
            raise SettingsError(f"finetune.max_length {max_length} is more than the model's {longest} positions")
        self.tokenizer = tokenizer
        self.max_length = max_length or longest
        self.with_types = config.num_types > 1
        self._whole = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self._cut = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self._cut.enable_truncation(self.max_length, strategy="longest_first")

    def texts(self, firsts: Sequence[str], seconds: Sequence[str] | None) -> Iterator[tokenizers.Encoding]:
        """Encodes texts, or pairs of them; those that are too long are cut, and have an `overflowing`. Raises a
        ModelError if the tokenizer does not separate pairs, a TokenizerError for an unknown character."""
        self._check(firsts, seconds)
        yield from _encoded(self._cut, firsts if seconds is None else list(zip(firsts, seconds, strict=True)))

    def sentences(self, words: Sequence[Sequence[str]]) -> Iterator[list[tuple[int, tokenizers.Encoding]]]:
        """Encodes sentences of words, joined by spaces, in parts with the number of their first word. A sentence that
        is too long is halved between words until its parts fit."""
        for sentence in words:
            self._check(sentence)
        whole = _encoded(self._whole, [" ".join(sentence) for sentence in words])
        for sentence, encoding in zip(words, whole, strict=True):
            parts, rest = list[tuple[int, tokenizers.Encoding]](), [(0, len(sentence), encoding)]
            while rest:
                begin, end, encoded = rest.pop()
                if len(encoded) <= self.max_length:
                    parts.append((begin, encoded))
                elif end - begin == 1:  # a long word can be cut, since only its first piece is tagged
                    parts.append((begin, self._cut.encode(sentence[begin])))
                else:
                    middle = (begin + end) // 2
                    halves = ((middle, end), (begin, middle))
                    rest += [
                        (first, last, self._whole.encode(" ".join(sentence[first:last]))) for first, last in halves
                    ]
            yield parts

    def windows(
        self, firsts: Sequence[str], seconds: Sequence[str], ids: Sequence[str], *, stride: int
    ) -> Iterator[list[tokenizers.Encoding]]:
        """The windows of each question's text. Neighbouring windows share `stride` tokens, or half of the room that the
        question leaves, if that is less. Errors are as for `texts`, and a CorpusError if any question leaves no room,
        before the first window."""
        self._check(firsts, seconds)
        pair, single = (self._whole.num_special_tokens_to_add(is_pair) for is_pair in (True, False))
        rooms = [self.max_length - pair + single - len(encoding) for encoding in _encoded(self._cut, firsts)]
        if long := [id_ for id_, room in zip(ids, rooms, strict=True) if room < LEAST_WINDOW]:
            most = max(self.max_length - pair - LEAST_WINDOW, 0)
            raise CorpusError(
                f"{len(long):,} of {len(ids):,} questions, such as {long[0]!r}, have more than {most} tokens, which "
                f"leaves fewer than {LEAST_WINDOW} of {self.max_length} positions for a text: shorten them, leave them "
                "out, or use a model with more positions"
            )
        for first, second, room in zip(firsts, seconds, rooms, strict=True):
            with _truncating:
                self._whole.enable_truncation(self.max_length, stride=min(stride, room // 2), strategy="only_second")
                encoding = self._whole.encode(first, second)
                self._whole.no_truncation()
            yield [encoding, *encoding.overflowing]

    def example(
        self,
        record: int,
        encoding: Any,
        places: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        targets: Mapping[str, Any],
    ) -> Example:
        """All examples of a file are in memory, so integers are as small as their values allow."""
        input_ids = np.array(encoding.ids, dtype=np.int32)
        type_ids = np.array(encoding.type_ids, dtype=np.int8) if self.with_types else None
        places, items = places.astype(np.int32, copy=False), items.astype(np.int32, copy=False)
        return Example(record, input_ids, type_ids, places, items, targets)

    def _check(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> None:
        if seconds is not None and (
            self.tokenizer.special.sep is None or self._whole.num_special_tokens_to_add(True) < 2
        ):
            raise ModelError("pairs and questions need a tokenizer that puts [SEP] between two texts")
        self.tokenizer.check_known([*texts, *(seconds or ())])


def _encoded(tokenizer: tokenizers.Tokenizer, inputs: Sequence[Any]) -> Iterator[tokenizers.Encoding]:
    for begin in range(0, len(inputs), _AT_ONCE):
        yield from tokenizer.encode_batch(inputs[begin : begin + _AT_ONCE])


def first_pieces(words: Sequence[str], encoding: tokenizers.Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the words' first tokens in a text of words joined by spaces, and the numbers of these words;
    words without a token of their own are left out.

    Example: `un ##mask it` for the words `unmask`, `it`, with [CLS] before them: positions 1, 3.
    """
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    positions = np.flatnonzero(~special & (offsets[:, 1] > offsets[:, 0]))
    ends = offsets[positions, 1]
    sizes = np.array([len(word) for word in words], dtype=np.int64)
    word_ends = np.cumsum(sizes + 1) - 1
    word_begins = word_ends - sizes
    place = np.searchsorted(ends, word_begins, side="right")  # the first token that ends after the word begins
    inside = place < len(positions)
    inside[inside] &= offsets[positions[place[inside]], 0] < word_ends[inside]
    numbers = np.flatnonzero(inside)
    first: NDArray[np.int64] = positions[place[numbers]]
    return first, numbers.astype(np.int64)


@dataclass(frozen=True)
class Example:
    """An input of the network: a text, a pair, a part of a sentence, or a question with a window of its text."""

    record: int  # number of the record that it was made from
    input_ids: NDArray[np.integer[Any]]  # [S], with special tokens
    type_ids: NDArray[np.integer[Any]] | None  # [S]: 1 in the second text; None if the model has no token types
    places: NDArray[np.integer[Any]]  # [N]: positions whose outputs are needed
    # [N, ...]: for tags, the number of the word at each place; for answers, the characters [begin, end) of the
    # context at each place (-1 at `[CLS]`, for no answer).
    items: NDArray[np.integer[Any]]
    # By name, the target at each place, -1 or NaN if it is unknown; for answers, the positions of both ends.
    targets: Mapping[str, NDArray[np.int64] | NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)


class EncodedInput(NamedTuple):
    examples: list[Example]  # in the order of the records; a record may have several
    truncated: int = 0  # number of records whose ends were cut off
    split: int = 0  # number of records in several examples, which keep all of their text
    lost: int = 0  # number of records whose whole answer is in no example: they are trained as having none

    def unknown_in(self, records: Sequence[Record], tokenizer: Tokenizer) -> UnknownText:
        """The parts of the records' text that became `[UNK]`."""
        unknown = UnknownText()
        for part, group in groupby(self.examples, lambda example: example.record // _AT_ONCE):
            examples, first = list(group), part * _AT_ONCE
            texts = [" ".join(each.texts) for each in records[first : first + _AT_ONCE]]
            lengths = np.bincount([e.record - first for e in examples], list(map(len, examples)), len(texts))
            input_ids = np.concatenate([example.input_ids for example in examples])
            unknown = unknown.joined(tokenizer.unknown_in(texts, input_ids, lengths.astype(np.int64)))
        return unknown

    def notes(self, total: int, longest: int, positions: int) -> list[str]:
        """Notes about those of `total` texts that are longer than `longest` tokens (the model has `positions`); if they
        are more than a tenth, with the way out."""
        way_out = ""
        if _MUCH * (self.truncated + self.split) > total:
            way_out = f"; finetune --max-length sets the length, up to {positions:,}"
            if longest == positions:
                way_out = "; the model takes no more: cut them, or pretrain one with a longer training.sequence_length"
        long = f"texts are longer than {longest} tokens"
        remarks = {
            f"{long}; their ends are not seen{way_out}": self.truncated,
            f"{long}; they are seen in several parts, {len(self.examples):,} in all{way_out}": self.split,
            f"answers are longer than a window of {longest} tokens has room for, or end in characters that the "
            "tokenizer leaves out; they are learned as no answer": self.lost,
        }
        return [f"{count:,} of {total:,} {remark}" for remark, count in remarks.items() if count]


def pack_examples(examples: Sequence[Example], *, pad_id: int, max_length: int, alone: bool = False) -> Rows:
    """Packs examples into few rows of at most `max_length`, with their targets in `classes`, by name, at their places.
    With `alone`, each example has its own row, as long as the longest one."""
    lengths = np.array([len(example) for example in examples], dtype=np.int64)
    longest = int(lengths.max())
    if alone:
        length = longest  # no more padding than needed, since convolutions let a little of it through
        packed = [[number] for number in range(len(examples))]
    else:
        length = min(max(ROW, -(-longest // _STEP) * _STEP), max_length)
        packed = pack_pieces(lengths, row_length=length, overhead=0).pieces()
    filled = text_rows(
        [example.input_ids for example in examples], packed, length, pad_id=pad_id, types=types_of(examples)
    )
    begins = np.zeros(len(examples), dtype=np.int64)
    begins[filled.numbers] = filled.begins
    targets = {
        name: np.full(len(packed) * length, np.nan if column.dtype == np.float32 else -1, dtype=column.dtype)
        for name, column in examples[0].targets.items()
    }
    for begin, example in zip(begins, examples, strict=True):
        for name, column in targets.items():
            right = example.targets[name]
            places = example.places if len(right) == len(example.places) else np.zeros(1, dtype=np.int64)
            column[begin + places] = right
    classes = {name: torch.from_numpy(column).view(filled.rows.shape) for name, column in targets.items()}
    return replace(filled.rows, classes=classes)


def types_of(examples: Sequence[Example]) -> list[NDArray[np.integer[Any]]] | None:
    return [example.type_ids for example in examples if example.type_ids is not None] or None
