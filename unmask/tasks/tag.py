"""Tags of words: entities, parts of speech. The tag of a word stands at its first piece.

Files are CoNLL, CoNLL-U, and tables with a list of words and a list of tags.

Shape suffixes: T = positions of a batch in a line, D = hidden size, N = tags, C = their kinds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import CorpusError
from unmask.data.rows import Rows
from unmask.data.values import in_order
from unmask.masking.masker import MaskedRows
from unmask.model.fused import Losses, losses_of
from unmask.model.layout_names import ClassifierPooling
from unmask.model.transformers import TaskNetwork
from unmask.tasks.classify import TARGET, class_metrics, class_targets
from unmask.tasks.columns import LabelledRow, UsualColumns, words_of
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, first_pieces, ids_of
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import NAME, Form, Labelled, Metrics, Task, few
from unmask.train.objectives import Objective
from unmask.train.objectives import Targets as BatchTargets

_ENTITY = re.compile(r"(B|I|E|L|S|U)-.+")
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
_PLAIN = ("accuracy", "macro_f1")


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
        """All its texts."""
        return self.words


@dataclass(frozen=True)
class TagsPrediction:
    """The tags of a sentence.

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
    """A tag for each word, predicted at its first piece. Source: Devlin et al. 2018, section 5.3."""

    kind: ClassVar[str] = "tag"
    title: ClassVar[str] = "tags of words"
    head: ClassVar[str] = "tag_head"
    architecture: ClassVar[str] = "TokenClassification"
    pipeline: ClassVar[str] = "token-classification"
    usual: ClassVar[UsualColumns] = UsualColumns("tags", "words", guessed=False)
    forms: ClassVar[tuple[Form, ...]] = ("table", "lines", "treebank")

    @classmethod
    def of_row(cls, row: LabelledRow) -> WordsRecord:
        """A list of words, and one of tags as long."""
        words = row.words()
        return WordsRecord(row.number, words, None if row.columns.label is None else row.tags(len(words)))

    def of_input(self, number: int, given: Any) -> WordsRecord | None:
        """A text, or its words."""
        if isinstance(given, str):
            return WordsRecord(number, words_of(given))
        is_list = isinstance(given, list | tuple) and all(isinstance(word, str) for word in given)
        return WordsRecord(number, tuple(given)) if is_list else None

    @property
    def takes(self) -> str:
        return "a text or a list of words"

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """There are two tags at least."""
        names = {tag for record in train.records for tag in record.tags or ()}
        if len(names) < 2:
            raise CorpusError(
                f"{train.path}: every word has the tag {next(iter(names))!r}; two are needed to distinguish"
            )
        return cls(in_order(names), max_length=settings.max_length, columns=train.column_names)

    def remark(self, train: Labelled) -> str | None:
        """Tags that are bare numbers; entities are recognised by names."""
        if not all(name.removeprefix("-").isdecimal() for name in self.names):
            return None
        return (
            f"{train.path}: the tags are numbers without names ({few(self.names)}), so F1 of entities is not measured; "
            "if they are entities, write them as O, B-NAME and I-NAME, or save the table with datasets' ClassLabel"
        )

    def check(self, held_out: Labelled, train: Path) -> str | None:
        """Tags that training did not have count as wrong."""
        unseen = Counter(tag for record in held_out.records for tag in record.tags or ())
        for name in self.names:
            unseen.pop(name, None)
        if not unseen:
            return None
        return (
            f"{held_out.path}: {unseen.total():,} words have tags that {train} does not have ({few(sorted(unseen))}); "
            "they count as wrong"
        )

    @classmethod
    def classes_of(cls, record: WordsRecord) -> Sequence[str]:
        return record.tags or ()

    def items(self, records: Sequence[WordsRecord], metric: str) -> int | None:
        """Words; of entities the words that are in one."""
        of_entities = metric.startswith("entity_")
        return sum(tag != "O" or not of_entities for record in records for tag in record.tags or ())

    def encode(self, records: Sequence[WordsRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        """Tags that the model does not know are no targets."""
        numbers = {name: number for number, name in enumerate(self.names)}
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
        """The cross-entropy at first pieces."""
        weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)

        def find(rows: Rows, masked: MaskedRows) -> BatchTargets:
            return class_targets(rows, weights_C)

        def losses(model: TaskNetwork, hidden_TD: Tensor, targets: BatchTargets, dropout_seed: int | None) -> Losses:
            hidden_ND = hidden_TD.index_select(0, targets.positions_N)
            logits_NC = model.outputs(self.head, hidden_ND, dropout_seed=dropout_seed)
            return losses_of(logits_NC, targets.classes_N, targets.weights_N)

        return Objective(NAME, 1.0, find, losses)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """F1 of entities, where tags are those of entities."""
        return (*_ENTITIES, *_PLAIN) if are_entities(self.names) else _PLAIN

    def measure(self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]) -> Metrics:
        """Of entities by seqeval."""
        of_words = class_metrics(*self.right_and_predicted(records, predictions))
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
        """Of all words. A word without prediction has an empty one."""
        right = [tag for record in records for tag in record.tags or ()]
        return right, [tag or "" for each in predictions for tag in each.tags]


def are_entities(names: Sequence[str]) -> bool:
    """Whether tags are those of entities: `O` and `B-`, `I-` with a label (also of BIOES and BILOU)."""
    return "O" in names and all(name == "O" or _ENTITY.fullmatch(name) for name in names)


def _bioes(tags: Sequence[str | None]) -> list[str]:
    """Tags as seqeval knows them, without BILOU's `L` and `U`; a word without a tag is outside."""
    return [{"L-": "E-", "U-": "S-"}.get(tag[:2], tag[:2]) + tag[2:] if tag else "O" for tag in tags]
