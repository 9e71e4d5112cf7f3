"""Tags of words: entities, parts of speech. The tag of a word stands at its first piece.

Files are CoNLL, CoNLL-U, and tables with a list of words and a list of tags.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, listed, shown
from unmask.data.columns import Role, in_order
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.classify import class_metrics
from unmask.tasks.files import Form, Labelled, LabelledRow, list_in
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, first_pieces
from unmask.tasks.task import TARGET, FinetuneSettings, Metrics, Task
from unmask.tokenizer.spans import word_spans

_ENTITY = re.compile(r"(B|I|E|L|S|U)-.+")
_PREFIX = re.compile(r"([BIMELSU])(?:-(.+))?")
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
_PLAIN = ("accuracy", "macro_f1")


@dataclass(frozen=True)
class WordsRecord:
    """The words of a sentence, none of them empty; and as many tags, None where they are not known. Where each word
    has a row of the file, `row` is that of the first."""

    row: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.words


@dataclass(frozen=True)
class TagsPrediction:
    """The words of a sentence, the likeliest tag of each (None for words without any token), and its probability."""

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
    takes_form: ClassVar[str] = "a text or a list of words"
    text_role: ClassVar[Role] = "words"
    label_role: ClassVar[Role] = "tags"
    forms: ClassVar[tuple[Form, ...]] = ("table", "lines", "treebank")

    @classmethod
    def of_row(cls, row: LabelledRow) -> WordsRecord:
        """A list of words, and one of tags as long. Where no tags are needed, also a text, which is split."""
        words, place = row.cell("text")
        words = (list_in(words) or words) if isinstance(words, str) else words
        has_tags = row.columns.label is not None
        if isinstance(words, str) and not has_tags:
            words = _words_of(words)
        elif not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise CorpusError(f"{place} has {shown(words)}, not a list of words")
        elif not words:
            raise CorpusError(f"{place} has no words")
        if not has_tags:
            return WordsRecord(row.number, tuple(words))
        tags, place = row.cell("label")
        tags = list_in(tags) if isinstance(tags, str) else tags
        if not isinstance(tags, list):
            raise CorpusError(f"{place} has {type(tags).__name__}, not a list")
        if len(tags) != len(words):
            raise CorpusError(f"{place} has {len(tags)} tags for {len(words)} words")
        names = [row.class_name(tag, place) for tag in tags]
        if None in names:
            raise CorpusError(f"{place} has no tag for the word {shown(words[names.index(None)])}")
        return WordsRecord(row.number, tuple(words), tuple(filter(None, names)))

    def of_input(self, number: int, value: Any) -> WordsRecord | None:
        words = _words_of(value) if isinstance(value, str) else value
        is_list = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        return WordsRecord(number, tuple(words)) if is_list else None

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        """There are two tags at least."""
        names = {tag for record in train.records for tag in record.tags or ()}
        if len(names) < 2:
            raise CorpusError(
                f"{train.path}: every word has the tag {next(iter(names))!r}; two are needed to distinguish"
            )
        return cls(in_order(names), max_length=settings.max_length, columns=train.columns)

    def check(self, file: Labelled, train: Path) -> str | None:
        """Tags that training did not have count as wrong; bare numbers are not recognised as entities."""
        if file.path == train and all(name.removeprefix("-").isdecimal() for name in self.names):
            return (
                f"{train}: the tags are numbers without names ({listed(self.names, 8)}), so F1 of entities is not "
                "measured; if they are entities, write them as O, B-NAME and I-NAME, or save the table with datasets' "
                "ClassLabel"
            )
        unseen = Counter(tag for record in file.records for tag in record.tags or () if tag not in self.names)
        if not unseen:
            return None
        return (
            f"{file.path}: {unseen.total():,} words have tags that {train} does not have "
            f"({listed(sorted(unseen), 8)}); they count as wrong"
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
                targets = {} if tags is None else {TARGET: np.array(right, dtype=np.int64)}
                examples.append(encoder.example(number, encoding, places, words + first, targets))
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
            TagsPrediction(record.words, tuple(likeliest), tuple(probabilities))
            for record, likeliest, probabilities in zip(records, tags, shares, strict=True)
        ]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """F1 of entities, where tags are those of entities: `O` and `B-`, `I-` with a label (also of BIOES, BILOU)."""
        are_entities = "O" in self.names and all(name == "O" or _ENTITY.fullmatch(name) for name in self.names)
        return (*_ENTITIES, *_PLAIN) if are_entities else _PLAIN

    def measure(self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]) -> Metrics:
        """Of entities as seqeval counts them: one is right where its label, begin and end are."""
        of_words = class_metrics(*self.right_and_predicted(records, predictions))
        plain: Metrics = {name: of_words[name] for name in _PLAIN}
        if self.metric_names == _PLAIN:
            return plain
        right, predicted = (
            [set(entities_of(tags)) for tags in each]
            for each in ([record.tags or () for record in records], [each.tags for each in predictions])
        )
        hits = sum(len(a & b) for a, b in zip(right, predicted, strict=True))
        num_right, num_predicted = sum(map(len, right)), sum(map(len, predicted))
        counts = (num_right + num_predicted) / 2, num_predicted, num_right
        return {name: hits / count if count else 0.0 for name, count in zip(_ENTITIES, counts, strict=True)} | plain

    def right_and_predicted(
        self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]
    ) -> tuple[list[str], list[str]]:
        """Of all words. A word without prediction has an empty one."""
        right = [tag for record in records for tag in record.tags or ()]
        return right, [tag or "" for each in predictions for tag in each.tags]


@lru_cache(maxsize=1 << 17)  # of each sentence, however often an interval draws it
def entities_of(tags: tuple[str | None, ...], *, in_scheme: bool = True) -> tuple[tuple[str, int, int], ...]:
    """The entities of a sentence, [begin, end) in words: (label, begin, end).

    All schemes are read at once: an entity begins at `B-`, `S-`, `U-`, where the label changes, and behind `O`, `E-`,
    `L-`, `S-` and `U-`; bare `B`, `I` ... are those of the label `entity`. Tags without a prefix, and all tags that are
    not `in_scheme` (parts of speech), are labels, whose neighbours are one entity, as in transformers' pipeline. Words
    without a tag interrupt nothing.

    Source: seqeval's default mode, which is that of conlleval (Tjong Kim Sang and De Meulder 2003).
    """
    entities: list[tuple[str, int, int]] = []
    is_open = False
    for place, tag in enumerate(tags):
        if tag is None:
            continue
        match = _PREFIX.fullmatch(tag) if in_scheme else None
        prefix, label = (match[1], match[2] or "entity") if match else ("I", tag)
        if is_open and prefix not in "BSU" and entities[-1][0] == label:
            entities[-1] = (label, entities[-1][1], place + 1)
        elif tag != "O":
            entities.append((label, place, place + 1))
        is_open = tag != "O" and prefix not in "ELSU"
    return tuple(entities)


def _words_of(text: str) -> tuple[str, ...]:
    """The words of a raw text: runs of letters and digits with the marks on them, and signs one by one."""
    return tuple(text[begin:end] for begin, end in word_spans(text))
