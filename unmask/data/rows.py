"""The value type between data, masking and model: a batch of packed rows.

input_ids     [CLS] a b c [SEP] [CLS] d e [SEP] [PAD]
segment_ids     0   0 0 0   0     1   1 1   1    -1
position_ids    0   1 2 3   4     0   1 2   3     0
word_starts     0   1 0 1   0     0   1 1   0     0
maskable        0   1 1 1   0     0   1 1   0     0

If sentence pairs are classified, a segment holds a pair, whose halves have different keys:

input_ids       [CLS] a b [SEP] c d e [SEP] [PAD]
segment_ids       0   0 0   0   0 0 0   0    -1
position_ids      0   1 2   3   4 5 6   7     0
token_type_ids    0   0 0   0   1 1 1   1     0
segment_keys      A   A A   B   B B B   B     0
classes           0  -1 -1 -1  -1 -1 -1 -1   -1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import DataError
from unmask.core.hashing import mix, mix_ints, permutation
from unmask.data.packing import EpochOrder, Ints, PackedColumns, PackedRows, RowColumns, fill, fill_column, pack_pieces
from unmask.data.pairs import PAIR_OVERHEAD, PAIRS, PairKind, check_pairs, make_pairs
from unmask.data.store import GatheredPieces, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

Value = TypeVar("Value")


def map_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Applies a function to each tensor in a value, through dataclasses, tuples and mappings."""
    changed: Any = value
    if isinstance(value, Tensor):
        changed = change(value)
    elif isinstance(value, Mapping):
        changed = {name: map_tensors(each, change) for name, each in value.items()}
    elif isinstance(value, tuple):
        changed = tuple(map_tensors(each, change) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changed = replace(value, **{f.name: map_tensors(getattr(value, f.name), change) for f in fields(value)})
    return cast(Value, changed)


def moved(value: Value, device: torch.device) -> Value:
    return map_tensors(value, lambda tensor: tensor.to(device))


@dataclass(frozen=True)
class Rows:
    """A batch of rows. B rows, S positions.

    Attributes:
        input_ids: [B, S], int64: token ids with special tokens.
        segment_ids: [B, S], int32: which segment of the row a token belongs to, counted from 0; -1 for padding. A
            segment is a piece of one document with its own special tokens; attention stays within it.
        position_ids: [B, S], int64: position within the segment.
        word_starts: [B, S], bool: whether a word begins at the token; false at special tokens.
        maskable: [B, S], bool: tokens of the text; false at special, unknown and padding tokens.
        segment_keys: [B, S], int64: a hash that identifies the segment's text, in any row. Masks are drawn by it. In
            training it depends on the document's number and the place in it; for held-out rows, and rows from
            elsewhere, on the tokens. The halves of a pair have two keys; the second includes the [SEP] before its text.
        annotations: By name, [B, S], int64: the annotation of each token; 0 at special tokens, padding and other
            tokens.
        classes: By objective, [B, S], int64: a segment's class, at its first position; -1 elsewhere, or if unknown.
        token_type_ids: [B, S], int64: 1 in the second half of a pair and at the [SEP] after it, 0 elsewhere; None: no
            pairs.
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    word_starts: Tensor
    maskable: Tensor
    segment_keys: Tensor
    annotations: Mapping[str, Tensor] = field(default_factory=dict)
    classes: Mapping[str, Tensor] = field(default_factory=dict)
    token_type_ids: Tensor | None = None

    def to(self, device: torch.device) -> Rows:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def part(self, begin: int, end: int) -> Rows:
        return self.map(lambda tensor: tensor[begin:end])

    def map(self, change: Callable[[Tensor], Tensor]) -> Rows:
        return map_tensors(self, change)

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, length = self.input_ids.shape
        return num_rows, length


def fill_rows(
    packed: PackedRows,
    length: int,
    tokenizer: Tokenizer,
    *,
    source: Ints,
    key: Ints,
    text: tuple[NDArray[Any], NDArray[np.uint8]],
    with_types: bool = False,
    keeps_first: bool = False,
) -> tuple[Rows, Ints, Ints]:
    """Puts packed fragments of a text into rows, with the tokenizer's special tokens around them; see `Rows`.

    Args:
        source: [F]: where the tokens of each fragment begin in the text.
        key: [F]: the hash by which each fragment is masked.
        text: Token ids without special tokens, and word starts: [num_tokens] each.
        with_types: Whether segments are pairs, so that rows have token types.
        keeps_first: Whether the first token of a segment without `[CLS]` must not be masked.

    Returns:
        Rows [B, S]; and positions in the flattened rows, of each fragment's first token [F] and its segment's [F].
    """
    special, size = tokenizer.special, len(packed) * length
    cls, sep = (-1 if id_ is None else id_ for id_ in (special.cls, special.sep))
    into = RowColumns(
        input_ids=np.full(size, special.pad, dtype=np.int64),
        segment_ids=np.full(size, -1, dtype=np.int32),
        position_ids=np.zeros(size, dtype=np.int64),
        word_starts=np.zeros(size, dtype=bool),
        maskable=np.zeros(size, dtype=bool),
        segment_keys=np.zeros(size, dtype=np.int64),
        token_type_ids=np.zeros(size if with_types else 0, dtype=np.int64),
    )
    columns = PackedColumns(packed.begins, source, packed.length, packed.half, key, length)
    at, first = fill(columns, *text, tokenizer.ordinary, cls, sep, keeps_first, into)
    tensors: dict[str, Any] = {
        name: torch.from_numpy(column).view(-1, length) for name, column in into._asdict().items()
    }
    if not with_types:
        del tensors["token_type_ids"]
    return Rows(**tensors), at, first


@dataclass(frozen=True)
class TextRows:
    """Whole texts in rows, which are not masked. E texts, row by row."""

    rows: Rows  # [B, S]
    numbers: Ints  # [E]: number of each text
    begins: Ints  # [E]: position of each text in the flattened rows
    lengths: Ints  # [E]: tokens of each text, including special tokens

    def places(self, within: Sequence[NDArray[np.integer[Any]]]) -> Tensor:
        """Positions in the flattened rows, text by text, for positions `within` each of the texts."""
        each = (begin + within[number] for number, begin in zip(self.numbers, self.begins, strict=True))
        return torch.from_numpy(np.concatenate(list(each)))


def text_rows(
    texts: Sequence[NDArray[Any]],
    layout: Sequence[Sequence[int]],
    length: int,
    *,
    pad_id: int,
    types: Sequence[NDArray[Any]] | None = None,
) -> TextRows:
    """Puts whole texts (token ids, with special tokens, and token types, if any) into rows of a length, without a
    compiled loop, whose compilation takes a second. `layout` has the numbers of the texts in each row
    (`PackedRows.pieces`)."""
    shape = len(layout), length
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    segment_ids, position_ids = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=np.int64)
    token_types = None if types is None else np.zeros(shape, dtype=np.int64)
    numbers = [number for row in layout for number in row]
    begins, lengths, counting = list[int](), [len(texts[number]) for number in numbers], np.arange(length)
    for r, row in enumerate(layout):
        begin = 0
        for segment, number in enumerate(row):
            end = begin + len(texts[number])
            begins.append(r * length + begin)
            input_ids[r, begin:end] = texts[number]
            segment_ids[r, begin:end] = segment
            position_ids[r, begin:end] = counting[: end - begin]
            if token_types is not None and types is not None:
                token_types[r, begin:end] = types[number]
            begin = end
    nothing = torch.zeros(shape, dtype=torch.bool)
    rows = Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(segment_ids),
        position_ids=torch.from_numpy(position_ids),
        word_starts=nothing,
        maskable=nothing,
        segment_keys=torch.zeros(shape, dtype=torch.int64),
        token_type_ids=None if token_types is None else torch.from_numpy(token_types),
    )
    return TextRows(rows, *(np.array(column, dtype=np.int64) for column in (numbers, begins, lengths)))


# ----------------------------------------
# An endless stream of packed rows, with a small cursor as its position.
#
# Pieces are shuffled by (seed, epoch) and taken in windows of about a million tokens (see `unmask.data.packing`). Each
# window is packed, and its rows are shuffled. A window is remade from its number, so resuming skips nothing.
#
#     pieces of a window ──▶ their tokens, gathered ──▶ packed rows, as columns ──▶ batches, filled from the tokens
#
# Compiled loops process the fragments and release the GIL: a GPU takes millions of tokens a second, so a thread makes
# the next window beside the one that feeds the GPU.

LABEL = "label"  # name of the documents' classes in `Rows.classes`
_SHUFFLE = 2  # sets these hashes apart from others of the same seed


@dataclass(frozen=True)
class Cursor:
    epoch: int = 0  # completed passes over the corpus
    window: int = 0  # number of the window in the epoch
    row: int = 0  # number of the next row in the window
    # Lengths of this window's rows, as (first row, length); several if the length changed within the window
    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> Cursor:
        """Restores a cursor from `dataclasses.asdict` and JSON; raises a TypeError or ValueError for anything else."""
        lengths = tuple((int(row), int(length)) for row, length in content["lengths"])
        places = {name: int(number) for name, number in content.items() if name != "lengths"}
        return cls(**places, lengths=lengths)


class Share(NamedTuple):
    """The rows of a batch that one of several processes takes: the `rank`-th of `world_size` equal parts."""

    rank: int = 0
    world_size: int = 1

    def part(self, size: int) -> slice:
        """The slice of `size` rows; it may be empty if there are fewer rows than processes."""
        return slice(size * self.rank // self.world_size, size * (self.rank + 1) // self.world_size)


WHOLE = Share()


class RowBatch(NamedTuple):
    rows: Rows  # all rows, or a share of them
    epoch: int  # epoch of all rows
    num_tokens: int  # tokens of text in all rows, without special tokens and padding
    cursor: Cursor  # the position after them
    # [num_segments], row by row: number of each segment's document (in a pair, of its first half), or of its group if
    # groups were held out; None for rows from no store
    documents: NDArray[np.int64] | None = None


class Window(NamedTuple):
    place: Cursor  # cursor of its first row
    rows: PackedRows
    texts: GatheredPieces  # the tokens of its pieces


def special_positions(tokenizer: Tokenizer, *, length: int, pairs: PairKind | None) -> int:
    """The positions of a row that special tokens take. Raises a DataError if these leave no room for text, or the
    tokenizer lacks those of pairs: what can be known before the text is prepared."""
    special = tokenizer.special
    if pairs is not None and (special.cls is None or special.sep is None):
        raise DataError(
            f"pairs for {pairs} have the form [CLS] A [SEP] B [SEP], but the tokenizer lacks [CLS] or [SEP]; "
            "use another tokenizer, or remove objectives.pairs"
        )
    overhead = len(special.around) if pairs is None else PAIR_OVERHEAD
    if length <= overhead:
        raise DataError(f"rows of {length} positions leave no room for text beside {overhead} special tokens")
    return overhead


class RowStream:
    """Packs the pieces of a store into rows, epoch after epoch.

    Args:
        length: Positions of a row, unless a batch sets another.
        pairs: The kind of pairs to make of segments; None makes none.
        with_labels: Whether rows carry the classes of documents (`Rows.classes["label"]`). Every segment has the class
            of its document, even in parts of a cut document; a pair whose halves differ in class has none. If the
            tokenizer has no `[CLS]`, a segment's first token is never masked, since the class is predicted there.
        ahead: Whether a thread makes the next window while batches are taken from this one.

    Raises:
        DataError: Rows of this length have no room for text, no pairs can be made of this text, or it was prepared
            without classes.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        length: int,
        seed: int,
        pairs: PairKind | None = None,
        with_labels: bool = False,
        ahead: bool = False,
    ) -> None:
        self._overhead = special_positions(tokenizer, length=length, pairs=pairs)
        if pairs is not None:
            check_pairs(pairs, store)
        if with_labels and not store.is_labelled:
            raise DataError("the text was prepared without classes; prepare it again with corpus.label=COLUMN")
        self.store, self.tokenizer, self.length, self.seed = store, tokenizer, length, seed
        self.pairs, self.with_labels = pairs, with_labels
        self._order = EpochOrder(store, seed=seed)
        self._window: Window | None = None
        self._thread = ThreadPoolExecutor(1, "unmask-window") if ahead else None
        self._next: tuple[Cursor, Future[Window]] | None = None

    def batches(self, cursor: Cursor, num_rows: int) -> Iterator[RowBatch]:
        """Yields batches endlessly, from a cursor on. A batch never mixes epochs, so its masks are all from one
        epoch."""
        while True:
            batch = self.batch(cursor, num_rows)
            cursor = batch.cursor
            yield batch

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a cursor.

        Args:
            num_rows: Rows of the batch. If they do not divide the epoch's last window, its batches have fewer rows, but
                about equally many: a step on a few rows would move the weights as far as one on many.
            length: Positions of its rows. If it changes within a window, the rest of the window is packed again;
                nothing is lost or repeated.
            share: Which of its rows are filled, if others are for other processes. For any share, the batch, its token
                count and the cursor after it are the same.
        """
        length = length or self.length
        lengths = tuple(entry for entry in cursor.lengths if entry[0] < cursor.row)
        if not lengths or lengths[-1][1] != length:
            lengths += ((cursor.row, length),)
        cursor = replace(cursor, lengths=lengths)
        epoch, missing = cursor.epoch, num_rows
        selected: list[tuple[PackedRows, GatheredPieces]] = []
        if cursor.window + 1 == self._order.num_windows(epoch):  # the end of the epoch
            left = len(self.window(cursor).rows) - cursor.row
            missing = math.ceil(left / math.ceil(left / num_rows))
        while missing and cursor.epoch == epoch:
            window = self.window(cursor)
            rows = window.rows.part(cursor.row, min(cursor.row + missing, len(window.rows)))
            selected.append((rows, window.texts))
            missing -= len(rows)
            is_end = cursor.row + len(rows) == len(window.rows)
            cursor = self._following(cursor) if is_end else replace(cursor, row=cursor.row + len(rows))
        own, before = share.part(sum(len(rows) for rows, _ in selected)), 0
        filled: list[Rows] = []
        draws: list[Ints] = []
        for rows, texts in selected:
            begin, end = (min(max(place - before, 0), len(rows)) for place in (own.start, own.stop))
            before += len(rows)
            if begin < end or not filled:
                part = rows.part(begin, end)
                filled.append(self._filled(part, texts, length))
                draws.append(texts.draw[texts.number(part.piece[part.half == 0])])
        num_tokens = sum(int(rows.length.sum()) for rows, _ in selected)
        joined = filled[0]
        if len(filled) > 1:  # rows of several windows
            columns: dict[str, Any] = {}
            for name in (entry.name for entry in fields(Rows)):
                parts = [getattr(rows, name) for rows in filled]
                if isinstance(parts[0], Mapping):
                    columns[name] = {column: torch.cat([part[column] for part in parts]) for column in parts[0]}
                elif parts[0] is not None:
                    columns[name] = torch.cat(parts)
            joined = Rows(**columns)
        return RowBatch(joined, epoch, num_tokens, cursor, np.concatenate(draws))

    def _following(self, cursor: Cursor) -> Cursor:
        lengths = ((0, cursor.lengths[-1][1]),)
        if cursor.window + 1 < self._order.num_windows(cursor.epoch):
            return Cursor(cursor.epoch, cursor.window + 1, 0, lengths)
        return Cursor(cursor.epoch + 1, 0, 0, lengths)

    def window(self, cursor: Cursor) -> Window:
        place = replace(cursor, row=0)
        last = self._window
        if last is None or last.place != place:
            if self._next is not None and self._next[0] == place:
                self._window = self._next[1].result()
            else:
                self._window = self._make_window(place, last)
            self._next = None
        if self._thread is not None and self._next is None:
            following = self._following(place)
            self._next = following, self._thread.submit(self._make_window, following, None)
        assert self._window is not None
        return self._window

    def _make_window(self, place: Cursor, last: Window | None) -> Window:
        """A window's rows, packed several times if their length changed within the window."""
        pieces = self._order.pieces(place.epoch, place.window)
        if last is not None and (last.place.epoch, last.place.window) == (place.epoch, place.window):
            texts = last.texts
        else:
            texts = self.store.gather(pieces)
        piece, start, size = pieces, np.zeros_like(pieces), texts.lengths[texts.number(pieces)]
        rows: PackedRows | None = None
        for begin, length in place.lengths:
            if rows is not None:
                piece, start, size = rows.part(begin, len(rows)).joined()
            packed = pack_pieces(size, row_length=length, overhead=self._overhead)
            packed = replace(packed, piece=piece[packed.piece], start=start[packed.piece] + packed.start)
            key = (_SHUFFLE, self.seed, place.epoch, place.window, begin)
            packed = packed.in_order(permutation(len(packed), *key))
            if self.pairs is not None:
                packed = make_pairs(self.pairs, packed, texts, key=mix_ints(PAIRS, self.seed, place.epoch))
            rows = packed if rows is None else rows.part(0, begin).followed_by(packed)
        assert rows is not None, "a place has a length"
        return Window(place, rows, texts)

    def _filled(self, packed: PackedRows, texts: GatheredPieces, length: int) -> Rows:
        number, begins_segment = texts.number(packed.piece), packed.half == 0
        source = texts.begin[number] + packed.start
        rows, at, first = fill_rows(
            packed,
            length,
            self.tokenizer,
            source=source,
            key=mix(texts.key[number] ^ packed.start),
            text=(texts.input_ids, texts.word_starts),
            with_types=self.pairs is not None,
            keeps_first=self.with_labels,
        )
        annotations = {name: torch.zeros_like(rows.input_ids) for name in texts.annotations}
        for name, column in annotations.items():
            fill_column(at, source, packed.length, texts.annotations[name], column.view(-1).numpy())
        of_fragments: dict[str, Ints] = {} if self.pairs is None else {self.pairs: packed.label}
        if self.with_labels:
            assert texts.label is not None
            label = texts.label[number]  # no label, if the halves of a pair differ
            differs = np.concatenate([(packed.half[1:] == 1) & (label[1:] != label[:-1]), [False]])
            of_fragments[LABEL] = np.where(differs, -1, label)
        classes = {name: torch.full_like(rows.input_ids, -1) for name in of_fragments}
        for name, values in of_fragments.items():
            classes[name].view(-1).numpy()[first[begins_segment]] = values[begins_segment]
        return replace(rows, annotations=annotations, classes=classes)
