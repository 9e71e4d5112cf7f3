"""Tags of words, such as entities and parts of speech. A word's tag is predicted at its first piece.

Files have a word per line or row, or are tables: of lists of words and of tags, or of texts with spans of characters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, listed, shown
from unmask.data.columns import Role, in_order, value_at, without_gaps
from unmask.data.treebanks import places_of
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.classify import class_measure
from unmask.tasks.files import Form, Labelled, LabelledRow, list_in, nearest, parsed_list
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, first_pieces
from unmask.tasks.task import TARGET, FinetuneSettings, Judged, Measure, Metrics, Outputs, Task
from unmask.tokenizer.spans import TAG, UNSPACED, entities_of, holds_spans, is_mark, read_fields, values_of, word_spans

_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
_PLAIN = ("accuracy", "macro_f1")
_MOSTLY = 0.9  # if single letters are more than this share of the words, each letter is a word
_NO_TAG = {"_", "-", "-1", "-100"}


@dataclass(frozen=True)
class WordsRecord:
    """The words of a sentence, none of them empty, and their tags; None for a missing tag, or if no tags are known."""

    row: int  # row of its first word
    words: tuple[str, ...]
    tags: tuple[str | None, ...] | None = None
    text: str | None = None  # a raw text, which the task cuts into words
    spans: tuple[tuple[int, int], ...] = ()  # [begin, end) of its words, in characters

    @property
    def texts(self) -> tuple[str, ...]:
        return self.words if self.text is None else (self.text,)


@dataclass(frozen=True)
class Entity:
    """An entity of one or more words: characters [start, end) of the text, and the mean of the words' probabilities."""

    start: int
    end: int
    label: str
    score: float
    word: str


@dataclass(frozen=True)
class TagsPrediction:
    """The words of a sentence with their likeliest tags, and its entities. All other tuples have an item per word."""

    words: tuple[str, ...]
    tags: tuple[str | None, ...]  # None for words without any token
    probabilities: tuple[float | None, ...]
    text: str = ""  # the text; for a list of words, the words joined by spaces
    entities: tuple[Entity, ...] = ()
    starts: tuple[int, ...] = ()  # the characters [start, end) of each word in the text
    ends: tuple[int, ...] = ()


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
    stored: ClassVar[tuple[str, ...]] = ("columns", "delimiter", "word_signs")

    word_signs: Sequence[str] = ()  # how raw texts are cut into words like those of the training file; see `signs_of`

    @classmethod
    def of_row(cls, row: LabelledRow) -> WordsRecord:
        """Reads a list of words and a list of tags; or spans of characters with a text, or with words that have their
        own spans. Without tags, also a text, which `ready` cuts into words."""
        cell, place = row.cell("text")
        words = "" if without_gaps(cell) is None else _words_of(cell)
        column, text, spans = row.columns.label, words, None
        tags = None if column is None else parsed_list(value_at(row.cells, column))
        if isinstance(words, str) and column is None:
            return WordsRecord(row.number, (), text=words)
        if isinstance(words, list) and words and all(isinstance(w, dict) and holds_spans([w]) for w in words):
            text = row.cells.get("text")  # Prodigy's tokens have their own text, those of spaCy's `Doc.to_json` do not
            spans = [(begin, end) for begin, end in (values_of(word, ("start", "end")) for word in words)]
            parts = [text[begin:end] if isinstance(text, str) else None for begin, end in spans]
            words = [word.get("text", part) for word, part in zip(words, parts, strict=True)]
            is_word = [not isinstance(word, str) or bool(word.strip()) for word in words]  # Prodigy also has blanks
            words, spans = list(compress(words, is_word)), list(compress(spans, is_word))
        elif isinstance(words, str) and (not tags or holds_spans(tags)):
            spans = words_in(words)
            words = [words[begin:end] for begin, end in spans]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise CorpusError(f"{place} has {shown(cell)}, not a list of words")
        if column is not None and spans is not None:
            is_annotated = row.cells.get("answer") == "accept" or tags not in (None, "")  # by Prodigy, or with spans
            bio_tags = _tags_at(spans, tags or [], row, column, text) if words and is_annotated else None
            return WordsRecord(row.number, tuple(words), bio_tags)
        if column is None:
            record, is_placed = WordsRecord(row.number, tuple(words)), spans is not None and isinstance(text, str)
            return replace(record, text=text, spans=tuple(spans or ())) if is_placed else record
        place = row.cell("label")[1]
        if not isinstance(tags, list):
            raise CorpusError(f"{place} has {type(tags).__name__}, not a list")
        if len(tags) != len(words):
            raise CorpusError(f"{place} has {len(tags)} tags for {len(words)} words")
        return WordsRecord(row.number, tuple(words), tuple(row.class_name(tag, place) for tag in tags))

    @classmethod
    def settled(cls, read: Labelled, like: Labelled | None, separator: str | None) -> Labelled:
        """Words without a tag are not learned or measured, or are `O` if tags mark entities and there is no `O`. Leaves
        out sentences without any tag. Notes the scheme of the tags."""
        names = {tag for each in read.records for tag in cls.classes_of(each)} - _NO_TAG
        outside = "O" if scheme_of(names) is None and scheme_of({*names, "O"}) else None
        pairs = (pair for each in read.records for pair in zip(each.words, each.tags or (), strict=False))
        only_signs = not any(tag == "-" and any(map(str.isalnum, word)) for word, tag in pairs)
        missing = {None, *_NO_TAG} - {*["-"] * only_signs}  # `-` is a tag if only punctuation has it
        records, num_missing, num_words = list[WordsRecord](), 0, 0
        for record in read.records:
            tags = tuple(outside if tag in missing else tag for tag in record.tags or ())
            if any(tag is not None for tag in tags):
                records.append(replace(record, tags=tags))
                num_missing += sum(tag in missing for tag in record.tags or ())
                num_words += len(tags)
        if not records:
            raise CorpusError(f"{read.path}: none of the {len(read.records):,} sentences has a tag")
        left_out, what = len(read.records) - len(records), "sentences have no tags: left out"
        notes = [f"{read.path}: {left_out:,} of {len(read.records):,} {what}"] * (left_out > 0)
        meaning = "which counts as O" if outside else "so they are neither learned nor measured"
        notes += [f"{read.path}: {num_missing:,} of {num_words:,} words have no tag, {meaning}"] * (num_missing > 0)
        names |= {"O"} if outside and num_missing else set()
        if like is None and (scheme := scheme_of(names)) is not None:
            kinds = "with labels" if any("-" in tag for tag in names) else "of one kind of entity"
            notes.append(f"{read.path}: tags are {scheme} {kinds}, so entity F1 is measured")
        return replace(read, records=records, notes=[*read.notes, *notes])

    def of_input(self, number: int, value: Any) -> WordsRecord | None:
        if isinstance(value, str):
            return WordsRecord(number, (), text=value)
        is_list = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        return WordsRecord(number, tuple(value)) if is_list else None

    def ready(self, record: WordsRecord) -> WordsRecord:
        if record.text is None or record.words:
            return record
        spans = words_in(record.text, self.word_signs)
        return replace(record, words=tuple(record.text[begin:end] for begin, end in spans), spans=tuple(spans))

    @classmethod
    def learned_from(cls, train: Labelled, settings: FinetuneSettings, pooling: ClassifierPooling) -> Self:
        names = {tag for record in train.records for tag in cls.classes_of(record)}
        if len(names) < 2:
            raise CorpusError(f"{train.path}: every word has the tag {next(iter(names))!r}; at least two are needed")
        signs = signs_of([record.words for record in train.records])
        return cls(in_order(names), max_length=settings.max_length, columns=train.columns, word_signs=signs)

    def check(self, file: Labelled, train: Path) -> str | None:
        if file.path == train and all(name.removeprefix("-").isdecimal() for name in self.names):
            return (
                f"{train}: the tags are numbers without names ({listed(self.names, 8)}), so entity F1 is not "
                "measured; write entities as O, B-NAME and I-NAME, or save the table with datasets' ClassLabel"
            )
        return super().check(file, train)

    @classmethod
    def classes_of(cls, record: WordsRecord) -> Sequence[str]:
        return tuple(filter(None, record.tags or ()))

    def items(self, records: Sequence[WordsRecord], metric: str) -> int | None:
        of_entities = metric.startswith("entity_")
        return sum(tag != "O" or not of_entities for record in records for tag in self.classes_of(record))

    def encode(self, records: Sequence[WordsRecord], encoder: InputEncoder, *, with_targets: bool) -> EncodedInput:
        numbers = self.number_of
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
                right = [] if tags is None else [numbers.get(tags[first + word] or "", -1) for word in words.tolist()]
                targets = {} if tags is None else {TARGET: np.array(right, dtype=np.int64)}
                examples.append(encoder.example(number, encoding, places, words + first, targets))
        return EncodedInput(examples, split=split)

    def decode(
        self, records: Sequence[WordsRecord], examples: Sequence[Example], outputs: Outputs
    ) -> list[TagsPrediction]:
        tags: list[list[str | None]] = [[None] * len(record.words) for record in records]
        shares: list[list[float | None]] = [[None] * len(record.words) for record in records]
        for example, output in zip(examples, outputs, strict=True):
            if not len(example.places):  # the tokenizer drops all characters of these words
                continue
            best = torch.softmax(torch.from_numpy(output).double(), 1).max(1)
            for word, tag, share in zip(example.items, best.indices.tolist(), best.values.tolist(), strict=True):
                tags[example.record][word] = self.names[tag]
                shares[example.record][word] = share
        predictions = []
        for record, likeliest, probabilities in zip(records, tags, shares, strict=True):
            text = " ".join(record.words) if record.text is None else record.text
            spans, entities = record.spans or places_of(record.words), []
            for label, first, last in entities_of(tuple(likeliest), in_scheme=self.has_entities):
                begin, end = spans[first][0], spans[last - 1][1]
                score = fmean(share for share in probabilities[first:last] if share is not None)
                entities.append(Entity(begin, end, label, score, text[begin:end]))
            starts, ends = zip(*spans, strict=True) if spans else ((), ())
            lists = (tuple(likeliest), tuple(probabilities), text, tuple(entities), starts, ends)
            predictions.append(TagsPrediction(record.words, *lists))
        return predictions

    @cached_property
    def has_entities(self) -> bool:
        return scheme_of(self.names) is not None

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*_ENTITIES, *_PLAIN) if self.has_entities else _PLAIN

    def measured(self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]) -> Measure:
        """As seqeval: an entity is right if its label, begin and end are. Words with unknown tags are left out."""
        known = list(map(_known, records, predictions))
        of_words = class_measure(*self.right_and_predicted(records, predictions))
        ends = np.cumsum([len(tags) for tags, _ in known])
        words_of = np.split(np.arange(ends[-1]), ends[:-1])  # numbers of the words of each sentence
        entities = [[set(entities_of(tags)) for tags in each] for each in known] if self.has_entities else []
        counts_S3 = np.array([[len(a & b), len(a), len(b)] for a, b in entities])  # hits, right and predicted ones

        def measure(drawn: NDArray[np.int64]) -> Metrics:
            metrics = of_words(np.concatenate([words_of[number] for number in drawn]))
            plain = {name: metrics[name] for name in _PLAIN}
            if not self.has_entities:
                return plain
            hits, num_right, num_predicted = counts_S3[drawn].sum(0).tolist()
            counts = (num_right + num_predicted) / 2, num_predicted, num_right
            return {name: hits / count if count else 0.0 for name, count in zip(_ENTITIES, counts, strict=True)} | plain

        return measure

    def right_and_predicted(
        self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]
    ) -> tuple[list[str], list[str]]:
        """A word without a prediction counts as the tag that `predict` writes for it."""
        known = list(map(_known, records, predictions))
        missing = no_prediction(self.names)
        right = [tag or "" for tags, _ in known for tag in tags]
        return right, [tag or missing for _, tags in known for tag in tags]

    def judged(self, records: Sequence[WordsRecord], predictions: Sequence[TagsPrediction]) -> list[Judged]:
        return [
            Judged((each.text,), right, tag, probability, place)
            for record, each in zip(records, predictions, strict=True)
            for right, tag, probability, place in zip(
                record.tags or (), each.tags, each.probabilities, zip(each.starts, each.ends, strict=True), strict=False
            )
            if right is not None and tag is not None and probability is not None
        ]


def _known(record: WordsRecord, prediction: TagsPrediction) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """The right and the predicted tags of those words whose right tag is known."""
    right, predicted = record.tags or (), prediction.tags
    known = [number for number, tag in enumerate(right) if tag is not None]
    return tuple(right[number] for number in known), tuple(predicted[number] for number in known)


def no_prediction(names: Collection[str]) -> str:
    """What is written as the tag of a word that the tokenizer drops: `O` if the model has it, else `_`."""
    return "O" if "O" in names else "_"


def scheme_of(names: Iterable[str]) -> str | None:
    """The scheme by which tags mark entities: BIO (also IOB1 and IO), BIOES, BILOU or BMES, with labels or without;
    None for other tags, such as parts of speech.

    Example: `B`, `I`, `O` are BIO; `B-x`, `M-x`, `E-x`, `S-x` and `O` are BMES; so are `B`, `M`, `E`, `S` (of words).
    """
    tags = {name for name in names if name != "O"}
    marks = {name[0] for name in tags}
    has_all = all(TAG.fullmatch(name) for name in tags) and (marks & {"B", "I"} or any("-" in name for name in tags))
    if not has_all or ("O" not in names and not marks >= {"B", "E", "S"}):
        return None
    return "BILOU" if marks & {"L", "U"} else "BMES" if "M" in marks else "BIOES" if marks & {"E", "S"} else "BIO"


def _words_of(cell: Any) -> Any:
    """The words, or spans of words, in a cell, also those written as text; any other text, such as `[2019]`, stays."""
    words = list_in(cell) if isinstance(cell, str) else None
    return words if words and (holds_spans(words) or all(isinstance(word, str) for word in words)) else cell


def _tags_at(
    places: Sequence[tuple[int, int]], entries: Any, row: LabelledRow, column: str, text: Any
) -> tuple[str, ...]:
    """BIO tags of words (`places`: [begin, end) of each, in characters) from the entities of their `text`, if known. Of
    overlapping entities the first one counts, and of those with the same begin the longest."""
    try:
        if isinstance(text, str) and isinstance(entries, list):
            entries = [_at_its_text(entry, text, row.counts) for entry in entries]
        text = text if isinstance(text, str) else " " * max((end for _, end in places), default=0)
        entities = read_fields({column: entries}, text, {"entities": column})["entities"]
    except ValueError as error:
        raise CorpusError(f"{row.where} {error}") from error
    tags, (begins, ends) = ["O"] * len(places), zip(*places, strict=True) if places else ((), ())
    row.counts["of the entities overlap others: left out"] += len(entries) - len(entities)
    for entity in entities:
        first, last = bisect_right(ends, entity.begin), bisect_left(begins, entity.end)
        if first >= last or tags[first] != "O":
            row.counts["of the entities have no word of their own: left out"] += 1
            continue
        is_cut = begins[first] > entity.begin or ends[last - 1] < entity.end
        row.counts["of the entities begin or end in blanks: cut to words"] += is_cut
        is_wider = begins[first] < entity.begin or ends[last - 1] > entity.end
        row.counts["of the entities begin or end within a word: widened to whole words"] += is_wider
        tags[first:last] = [f"B-{entity.label}", *[f"I-{entity.label}"] * (last - first - 1)]
    return tuple(tags)


def _at_its_text(entry: Any, text: str, counts: Counter[str]) -> Any:
    """A span; if it brings its own text, which is elsewhere, it is moved to the nearest occurrence: some programs count
    an emoji as two characters."""
    part = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(part, str) or not (part := part.strip()):
        return entry
    begin, end = values_of(entry, ("start", "end"))
    if not isinstance(begin, int) or not isinstance(end, int) or text[begin:end].strip() == part:
        return entry
    if (place := nearest(text, part, begin)) is None:
        return entry
    counts["entities whose text is elsewhere: moved to its nearest occurrence"] += 1
    return entry | {"start": place, "end": place + len(part)}


# ----------------------------------------
# Words of raw texts, cut like those of the training file.
#
# A sign (punctuation or symbol) is a word by itself, unless it is mostly a part of a word in the training file. Such a
# rule is written as the sign with its two neighbours (`a`: a letter, `0`: a digit, or a sign), and a space for a cut:
#
#     a'a     don't           a 'a    Anna 's         a' a    l' homme
#     0.0     3.14            @a      @name           0%      5%
#     a a     single letters are words, as in proteins
#
# In a text most of whose letters are of scripts without spaces, such as Chinese, single letters are always words.

_MOST_SIGNS = 200


def signs_of(sentences: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The rules for signs that are parts of words: with each pair of neighbours, the most frequent cut; see above."""
    counts, num_letters, num_words = Counter[str](), 0, 0
    for words in sentences:
        pieces = [(word[begin:end], begin == 0) for word in words for begin, end in word_spans(word)]
        num_words += sum(word.isalpha() for word in words)
        num_letters += sum(len(word) == 1 and word.isalpha() and not UNSPACED.match(word) for word in words)
        for (before, _), (sign, begins), (after, ends) in zip(
            (("", True), *pieces), pieces, (*pieces[1:], ("", True)), strict=False
        ):
            if not _is_sign(sign):
                continue
            left = before and _kind(before[-1]) + " " * begins
            right = after and " " * ends + _kind(after[0])
            # If there is a cut, a raw text may have white space there, so also count the sign with one neighbour.
            counts.update({left + sign + right, *[sign + right] * begins, *[left + sign] * ends})
    usual: dict[str, str] = {}
    for pattern, count in counts.most_common():
        if count > 1:
            usual.setdefault(pattern.replace(" ", ""), pattern)
    joined = [pattern for bare, pattern in usual.items() if len(pattern) < 2 * len(bare) - 1]
    return (*["a a"] * (num_letters > _MOSTLY * num_words), *joined[:_MOST_SIGNS])


def words_in(text: str, signs: Collection[str] = ()) -> list[tuple[int, int]]:
    """The words of a raw text, [begin, end) in characters: runs of letters and digits, and other signs."""
    spans = word_spans(text)
    by_letter = "a a" in signs or 2 * len(UNSPACED.findall(text)) > sum(map(str.isalpha, text))
    if by_letter:
        letters: list[tuple[int, int]] = []
        for place in (place for span in spans for place in range(*span)):
            is_more = bool(letters) and letters[-1][1] == place and is_mark(text[place])
            letters.append((letters.pop()[0] if is_more else place, place + 1))
        spans = letters
    usual = {pattern.replace(" ", ""): pattern for pattern in signs}
    joins = [True] * (len(spans) + 1)  # whether each span is joined with the previous one: both must allow it
    for number, (begin, end) in enumerate(spans):
        sign = text[begin:end]
        if not _is_sign(sign):
            joins[number] &= number > 0 and spans[number - 1][1] == begin and not by_letter
            continue
        left = _kind(text[begin - 1]) if number and spans[number - 1][1] == begin else ""
        right = _kind(text[end]) if spans[number + 1 : number + 2] and spans[number + 1][0] == end else ""
        sides = (left + sign + right, sign + right * (left not in "a0"), left * (right not in "a0") + sign)
        pattern = next((usual[bare] for bare in sides if bare in usual), "")
        joins[number] &= bool(left) and pattern.startswith(left + sign)
        joins[number + 1] &= bool(right) and pattern.endswith(sign + right)
    words: list[tuple[int, int]] = []
    for (begin, end), is_joined in zip(spans, joins, strict=False):
        words.append((words.pop()[0] if is_joined else begin, end))
    return words


def _is_sign(piece: str) -> bool:
    return not (piece[0].isalnum() or piece[0] == "_")


def _kind(character: str) -> str:
    return "0" if character.isdigit() else "a" if character.isalnum() or is_mark(character) else character
