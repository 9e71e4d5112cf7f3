"""Tags of words: entities, parts of speech. The tag of a word stands at its first piece.

Files are CoNLL, CoNLL-U, and tables with a list of words and a list of tags.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = tags, C = their kinds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import CorpusError, shown, whole_number
from unmask.data.reading import BadInput
from unmask.data.sources import Source
from unmask.data.tables import in_order
from unmask.data.treebanks import TaggedLine, read_sentences, word_number
from unmask.model.folder import TaskNetwork, label_numbers
from unmask.model.fused import Losses, losses_of
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks import classify as class_metrics
from unmask.tasks.classify import TARGET, class_targets, with_columns
from unmask.tasks.files import Gathered, class_of
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, first_pieces, ids_of, words_of
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.tasks.task import NAME, Labelled, Metrics, Record, Task, UsualColumns, few
from unmask.train.objectives import Objective
from unmask.train.objectives import Targets as BatchTargets

_CONLLU = {"upos": 3, "xpos": 4}
_ENTITY = re.compile(r"(B|I|E|L|S|U)-.+")
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
_PLAIN = ("accuracy", "macro_f1")
_WORD_CHARS = 50  # what a word takes beside its letters


@dataclass(frozen=True)
class WordsRecord:
    """The words of a sentence, with their tags.

    Attributes:
        row: Row of the file, counted from 1: that of the first word, where each has a row.
        words: None is empty.
        tags: As many; None where they are not known.
    """

    row: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it gives to be read."""
        return self.words


@dataclass(frozen=True)
class TagsPrediction:
    """Of the tags of a sentence.

    Attributes:
        words: As they were given.
        tags: The likeliest tag of each; None for words without any token.
        probabilities: Of these tags.
    """

    words: tuple[str, ...]
    tags: tuple[str | None, ...]
    probabilities: tuple[float | None, ...]


@dataclass(frozen=True)
class Tag(Task):
    """A tag for each word, told from its first piece. Source: Devlin et al. 2018, section 5.3.

    Attributes:
        columns: Where the training file had what.
    """

    kind: ClassVar[str] = "tag"
    head: ClassVar[str] = "tag_head"
    architecture: ClassVar[str] = "TokenClassification"
    pipeline: ClassVar[str] = "token-classification"
    title: ClassVar[str] = "tags of words"
    nested: ClassVar[bool] = True
    usual: ClassVar[UsualColumns | None] = UsualColumns("tags", "words", guessed=False)

    names: tuple[str, ...] = ()
    max_length: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    paired: ClassVar[bool] = False  # type: ignore[misc]  # of every sentence

    @classmethod
    def of_treebank(cls, source: Source, bad: BadInput, label: str | None, *, with_labels: bool) -> Sequence[Record]:
        """The sentences of a CoNLL or CoNLL-U file. Words of a multiword token are taken one by one.

        Args:
            source: The file.
            bad: What is done about lines that cannot be read.
            label: The tags' column: its number, counted from 0; in CoNLL-U also `upos` or `xpos`. None: the last one,
                or `upos`.
            with_labels: Whether tags are read.

        Raises:
            CorpusError: A line has no such column, or no tag; with file and line.
        """
        is_conllu = source.kind == "conllu"
        number = None if label is None else whole_number(label)
        if label is not None and number is None and not (is_conllu and label in _CONLLU):
            ways = "upos, xpos or the column's number" if is_conllu else "its number"
            raise CorpusError(
                f"{source.path}: there is no column {shown(label)}; a column is named by {ways}, counted from 0"
            )
        index = -1 if label is None else _CONLLU[label] if number is None else number
        if is_conllu and label is None:
            index = _CONLLU["upos"]
        records = []
        gathered = Gathered(source.path)
        for lines in read_sentences(source, bad):
            try:
                kept = [line for line in lines or () if not is_conllu or word_number(line) is not None]
            except ValueError as error:
                raise CorpusError(f"{source.path}: line {error}") from error
            if not kept:
                continue
            gathered.add(sum(_WORD_CHARS + len(line.cells[0]) for line in kept))
            words = tuple(_cell(source.path, line, 1 if is_conllu else 0) for line in kept)
            tags = tuple(_tag(source.path, line, index) for line in kept) if with_labels else None
            records.append(WordsRecord(kept[0].number, words, tags))
        return records

    @classmethod
    def of_line(cls, number: int, text: str) -> Record:
        """See `Task`: words and signs by themselves."""
        return WordsRecord(number, words_of(text))

    @classmethod
    def of_rows(
        cls,
        path: Path,
        rows: Iterable[tuple[int, dict[str, Any]]],
        columns: Columns,
        names: Sequence[str] | None,
        *,
        with_labels: bool,
    ) -> Sequence[Record]:
        """See `Task`: lists of words, and lists of tags as long."""
        records = []
        for number, row in rows:
            where = f"{path}: row {number}"
            words = _list(row, columns.text, where)
            if not all(isinstance(word, str) for word in words):
                raise CorpusError(f"{where} has {shown(words)} in column {columns.text!r}, not a list of words")
            if not words:
                raise CorpusError(f"{where} has no words in column {columns.text!r}")
            tags = None
            if columns.label is not None:
                tags = tuple(class_of(tag, where, columns.label, names) for tag in _list(row, columns.label, where))
                if len(tags) != len(words):
                    raise CorpusError(f"{where} has {len(words)} words but {len(tags)} tags")
            records.append(WordsRecord(number, tuple(words), tags))
        return records

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """See `Task`. There are two tags at least."""
        names = {tag for record in train.records for tag in record.tags or ()}
        if len(names) < 2:
            raise CorpusError(
                f"{train.path}: every word has the tag {next(iter(names))!r}; two are needed to distinguish"
            )
        return cls(in_order(names), settings.max_length, with_columns(train))

    def remark(self, train: Labelled) -> str | None:
        """See `Task`: tags that are bare numbers; entities are recognised by names."""
        if not all(name.removeprefix("-").isdecimal() for name in self.names):
            return None
        return (
            f"{train.path}: the tags are numbers without names ({few(self.names)}), so F1 of entities is not measured; "
            "if they are entities, write them as O, B-NAME and I-NAME, or save the table with datasets' ClassLabel"
        )

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """See `Task`. Tags that training did not have count as wrong."""
        unseen = Counter(tag for record in held_out.records for tag in record.tags or ())
        for name in self.names:
            unseen.pop(name, None)
        if not unseen:
            return None
        return (
            f"{held_out.path}: {unseen.total():,} words have tags that {train} does not have ({few(sorted(unseen))}); "
            "they count as wrong"
        )

    def classes_of(self, record: WordsRecord) -> Sequence[str]:
        """See `Task`."""
        return record.tags or ()

    def items(self, records: Sequence[WordsRecord], metric: str) -> int | None:
        """See `Task`: words; of entities the words that are in one."""
        of_entities = metric.startswith("entity_")
        return sum(tag != "O" or not of_entities for record in records for tag in record.tags or ())

    @classmethod
    def of_content(
        cls, own: Mapping[str, Any], names: tuple[str, ...], pooling: ClassifierPooling, max_length: int | None
    ) -> Self:
        """See `Task`."""
        return cls(names, max_length, dict(own.get("columns") or {}))

    def content(self) -> dict[str, Any]:
        """See `Task`."""
        return {"columns": dict(self.columns)}

    def record(self, number: int, given: Any) -> Record | None:
        """See `Task`: a text, or its words."""
        if isinstance(given, str):
            return WordsRecord(number, words_of(given))
        if isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
            return WordsRecord(number, tuple(given))
        return None

    @property
    def takes(self) -> str:
        """See `Task`."""
        return "a text or a list of words"

    def encode(self, records: Sequence[WordsRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """See `Task`. Tags that the model does not know are no targets."""
        numbers = label_numbers(self.names)
        examples: list[Example] = []
        split = 0
        for number, (record, parts) in enumerate(
            zip(records, encoder.sentences([record.words for record in records]), strict=True)
        ):
            split += len(parts) > 1
            ends = [*(first for first, _ in parts[1:]), len(record.words)]
            for (first, encoding), end in zip(parts, ends, strict=True):
                places, words = first_pieces(record.words[first:end], encoding)
                tags = record.tags if with_targets else None
                right = [] if tags is None else [numbers.get(tags[first + word], -1) for word in words.tolist()]
                examples.append(
                    Example(
                        record=number,
                        input_ids=ids_of(encoding),
                        type_ids=encoder.type_ids(encoding),
                        places=places,
                        items=words + first,
                        targets={} if tags is None else {TARGET: np.array(right, dtype=np.int64)},
                    )
                )
        return EncodedInput(examples, split=split)

    def decode(
        self, records: Sequence[WordsRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[TagsPrediction]:
        """See `Task`."""
        tags: list[list[str | None]] = [[None] * len(record.words) for record in records]
        shares: list[list[float | None]] = [[None] * len(record.words) for record in records]
        for example, output in zip(examples, outputs, strict=True):
            if not len(example.places):  # of characters alone that the tokenizer omits
                continue
            best = torch.softmax(torch.from_numpy(output).double(), 1).max(1)
            for word, tag, share in zip(example.items, best.indices.tolist(), best.values.tolist(), strict=True):
                tags[example.record][word] = self.names[tag]
                shares[example.record][word] = share
        return [
            TagsPrediction(record.words, tuple(found), tuple(probabilities))
            for record, found, probabilities in zip(records, tags, shares, strict=True)
        ]

    def objective(self, weights: Sequence[float] | None = None) -> Objective:
        """See `Task`: the cross-entropy at first pieces."""

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            hidden_ND = hidden_TD.index_select(0, targets.positions_N)
            logits_NC = model.outputs(self.head, hidden_ND, dropout_seed=dropout_seed)
            return losses_of(logits_NC, targets.classes_N, targets.weights_N)

        return Objective(NAME, 1.0, class_targets(weights, lambda rows, positions_N: positions_N), losses)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """See `Task`: F1 of entities, where tags are those of entities."""
        return (*_ENTITIES, *_PLAIN) if are_entities(self.names) else _PLAIN

    def measure(self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]) -> Metrics:
        """See `Task`; of entities by seqeval."""
        of_words = class_metrics.of_classes(*self.right_and_predicted(records, predictions))
        plain: Metrics = {name: of_words[name] for name in _PLAIN}
        if not are_entities(self.names):
            return plain
        from seqeval.metrics import f1_score, precision_score, recall_score

        right = [_bioes(record.tags or ()) for record in records]
        found = [_bioes(each.tags) for each in predictions]
        of: dict[str, Any] = dict(zip(_ENTITIES, (f1_score, precision_score, recall_score), strict=True))
        return {name: float(function(right, found, zero_division=0)) for name, function in of.items()} | plain

    def right_and_predicted(
        self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]
    ) -> tuple[list[str], list[str]]:
        """See `Task`: of all words. A word without prediction has an empty one."""
        right = [tag for record in records for tag in record.tags or ()]
        return right, [tag or "" for each in predictions for tag in each.tags]


def are_entities(names: Sequence[str]) -> bool:
    """Whether tags are those of entities: `O` and `B-`, `I-` with a label (also of BIOES and BILOU)."""
    return "O" in names and all(name == "O" or _ENTITY.fullmatch(name) for name in names)


def _bioes(tags: Sequence[str | None]) -> list[str]:
    """Tags as seqeval knows them, without BILOU's `L` and `U`; a word without a tag is outside."""
    return [{"L-": "E-", "U-": "S-"}.get(tag[:2], tag[:2]) + tag[2:] if tag else "O" for tag in tags]


def _cell(path: Path, line: TaggedLine, index: int) -> str:
    if index >= len(line.cells):
        raise CorpusError(f"{path}: line {line.number} has no column {index}, only {len(line.cells)} columns")
    return line.cells[index].strip()


def _tag(path: Path, line: TaggedLine, index: int) -> str:
    if index == -1 and len(line.cells) < 2:
        raise CorpusError(f"{path}: line {line.number} has a word without a tag")
    tag = _cell(path, line, index)
    if not tag or tag == "_":
        raise CorpusError(f"{path}: line {line.number} has no tag in column {index}")
    return tag


def _list(row: dict[str, Any], column: str | None, where: str) -> list[Any]:
    value = row.get(column or "")
    if not isinstance(value, list):
        raise CorpusError(f"{where} has {type(value).__name__} in column {column!r}, not a list")
    return value
