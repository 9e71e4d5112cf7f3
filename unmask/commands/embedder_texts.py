"""Documents as tokens in one line, with where their paragraphs and titles are.

    ids         t t b b b b b b b t b b b b b ...      t: of a title, b: of the body
    paragraph   0   1     2       3 4   5
    document    0                 1

A document of more than 4,096 tokens is several here, since what stands far apart in a book has little in common. Text
is tokenized once; what comes of it is kept in the folder of the run.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from unmask.commands.run_data import is_prepared, open_prepared
from unmask.core.errors import CorpusError, DataError, RunError
from unmask.core.files import writing
from unmask.core.hashing import GOLDEN, mix
from unmask.core.results import Notify, Progress
from unmask.data.corpus import Corpus
from unmask.data.documents import PIECE_CHARS, TextPiece
from unmask.data.groups import Clusters
from unmask.data.near_duplicates import to_words
from unmask.data.reading import BadInput
from unmask.data.settings import CorpusSettings
from unmask.data.sources import Source, TextColumn
from unmask.data.store import TokenStore
from unmask.data.survey import read_cleaned, text_hash
from unmask.data.tables import LOOK_ROWS, columns_of, rows_of
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# What a document is made of, as far as its text says it: a title, and paragraphs.
#
# Vectors and arrays                        a first line that is short and no sentence: the title
# An array has a fixed number of ...        paragraphs: between empty lines, where there are any, else lines;
# A vector grows as elements ...            lines that were broken to fit a page are joined again

TITLE_WORDS = 16
BROKEN_CHARS = 50  # a line that is as long and ends within a sentence was broken to fit a page
TITLE_NAMES = ("title", "headline", "heading", "subject")
_BETWEEN = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = tuple(".!?:;…。！？\"”’')]")
_NO_TITLE = tuple(".!?,;:…。！？")
_MARK = re.compile(r"#{1,6}\s+")


@dataclass(frozen=True)
class DocumentParts:
    """The parts of a document, or of a piece of a long one.

    Attributes:
        title: None where there is none.
        paragraphs: None of them is empty.
        marked: Whether the title is marked as such: by its column, or as a heading.
    """

    title: str | None
    paragraphs: list[str] = field(default_factory=list)
    marked: bool = False


def parts_of_text(text: str, *, begins: bool = True, titled: bool = False) -> DocumentParts:
    """Tells the parts of a document apart.

    Args:
        text: The document, or a piece of it.
        begins: Whether the document begins here, so that there may be a title.
        titled: Whether its first paragraph is known to be the title.
    """
    found = [part for part in (_joined(part) for part in _BETWEEN.split(text)) if part]
    if len(found) == 1:
        found = _lines(text)
    if begins and not titled and len(found) > 1 and "\n" in text and not _is_title(found[0]):
        first, _, rest = text.strip().partition("\n")  # a title with nothing between it and its first paragraph
        if _is_title(first.strip()) and len(_lines(text)) > 1:
            found = [first.strip(), *parts_of_text(rest, begins=False).paragraphs]
    if begins and len(found) > 1 and (titled or _is_title(found[0])):
        marked = titled or _MARK.match(found[0]) is not None
        return DocumentParts(_MARK.sub("", found[0]), found[1:], marked)
    return DocumentParts(None, found)


def _joined(block: str) -> str:
    return " ".join(block.split())


def _lines(text: str) -> list[str]:
    """Lines, those that were broken within a sentence joined."""
    found: list[str] = []
    goes_on = False
    for raw in text.split("\n"):
        line = _joined(raw)
        if not line:
            goes_on = False
            continue
        if goes_on:
            found[-1] += " " + line
        else:
            found.append(line)
        goes_on = len(line) >= BROKEN_CHARS and not line.endswith(_ENDS)
    return found


def _is_title(line: str) -> bool:
    bare = _MARK.sub("", line)
    return bool(bare) and len(bare.split()) <= TITLE_WORDS and len(bare) < 200 and not bare.endswith(_NO_TITLE)


def with_title_column(source: Source, names: list[str]) -> Source:
    """A table with the column of titles before that of the text, where it has one and no other column was asked for.

    Args:
        source: With the column of its text.
        names: Of its columns.
    """
    column: TextColumn | None = source.column
    if column is None or len(columns_of(column)) > 1:
        return source
    title = next((name for name in names if name.strip().lower() in TITLE_NAMES and name != column), None)
    if title is None:
        return source
    return Source(source.path, source.kind, (title, *columns_of(column)), source.label, source.group)


DOCUMENT_TOKENS = 4096
MOSTLY = 0.5  # of the documents with several parts: if more begin with what looks like a title, it is one
_TITLE, _BODY, _MARKED = 1, 2, 3  # what a document begins with: a line that looks like a title, none, a marked title
_LEAST_WORDS = 5  # of a given text whose near-duplicates are looked for
_BATCH_CHARS = 1 << 20
_START_ANEW = "start anew with --overwrite"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenTexts:
    """See the module's docstring. T tokens, U paragraphs (titles are such, too), D documents.

    Attributes:
        ids: [T], int32: without special tokens.
        word_starts: [T], uint8: 1 where a word begins.
        paragraph: [U + 1], int64: where each begins.
        document: [D + 1], int64: the first paragraph of each.
        titled: [D], uint8: 1 where the first paragraph is a title.
        cluster: [D], int64: the same for near-duplicates.
        held: [D], uint8: 1 where a document is held out.
        given: [G], int64: of other texts, which a user gave in pairs, the same numbers (`TextKeys`).
    """

    ids: NDArray[np.int32]
    word_starts: NDArray[np.uint8]
    paragraph: Ints
    document: Ints
    titled: NDArray[np.uint8]
    cluster: Ints
    held: NDArray[np.uint8]
    given: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.titled)

    @property
    def fingerprint(self) -> str:
        """A hash of all of it."""
        digest = hashlib.sha256()
        for entry in fields(self):
            digest.update(np.ascontiguousarray(getattr(self, entry.name)).tobytes())
        return digest.hexdigest()

    @property
    def begins(self) -> Ints:
        """[D]: where each document's body begins, behind its title."""
        return self.paragraph[self.document[:-1] + self.titled]

    @property
    def ends(self) -> Ints:
        """[D]: where it ends."""
        return self.paragraph[self.document[1:]]

    def save(self, file: Path) -> None:
        """Writes all of it.

        Raises:
            WriteError: It cannot be written.
        """
        partial = file.with_name(file.name + ".partial")
        with writing(file, SafetensorError):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({e.name: np.ascontiguousarray(getattr(self, e.name)) for e in fields(self)}, partial)
            partial.replace(file)

    @classmethod
    def load(cls, file: Path) -> TokenTexts:
        """Reads what `save` wrote.

        Raises:
            RunError: It is damaged.
        """
        try:
            return cls(**load_file(file))
        except (OSError, SafetensorError, TypeError) as error:
            raise RunError(f"{file}: damaged ({error}); {_START_ANEW}") from error


class TextsBuilder:
    """Gathers documents.

    Args:
        tokenizer: Of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[NDArray[np.int32]] = []
        self._starts: list[NDArray[np.uint8]] = []
        self._lengths: list[Ints] = []  # of paragraphs
        self._heads: list[NDArray[np.uint8]] = []  # of paragraphs: of a document's first one what it is
        self._waiting: list[str] = []
        self._waiting_heads: list[int] = []
        self._num_chars = 0
        self._clusters = Clusters()
        self._num_clustered = 0
        self._texts: list[str] = []
        self._held: list[bool] = []
        self.num_marked = self.num_titled = self.num_several = self.num_near = 0

    def add(self, parts: DocumentParts, *, begins: bool, held: bool = False) -> None:
        """Takes a document, which may be held out, or what follows of one."""
        if begins and (parts.title is not None or parts.paragraphs):
            self._texts.append("\n".join(([] if parts.title is None else [parts.title]) + parts.paragraphs))
            self._held.append(held)
            self.num_several += len(parts.paragraphs) + (parts.title is not None) > 1
            self.num_titled += parts.title is not None
            self.num_marked += parts.marked
        title = [] if parts.title is None else [parts.title]
        head = 0 if not begins else _BODY if not title else _MARKED if parts.marked else _TITLE
        for text in title + parts.paragraphs:
            self._waiting.append(text)
            self._waiting_heads.append(head)
            self._num_chars += len(text)
            head = 0
        if self._num_chars >= _BATCH_CHARS:
            self._tokenize()

    def _tokenize(self) -> None:
        if not self._waiting:
            return
        encoded, lengths = self._tokenizer.encode_joined(self._waiting)
        self._ids.append(encoded.input_ids)
        self._starts.append(encoded.word_starts.view(np.uint8))
        self._lengths.append(lengths)
        self._heads.append(np.array(self._waiting_heads, dtype=np.uint8))
        if self._texts:
            places = range(self._num_clustered, self._num_clustered + len(self._texts))
            self._clusters.add(self._texts, places, [len(text) for text in self._texts])
            self._num_clustered += len(self._texts)
        self._waiting, self._waiting_heads, self._texts, self._num_chars = [], [], [], 0

    def finish(self, given: Sequence[str] = ()) -> TokenTexts:
        """All documents. Near-duplicates of what is held out are held out with it.

        Titles are those that are marked as such, and first lines that look like titles where most documents have one.

        Args:
            given: Other texts, of which is to be known what they are near-duplicates of.

        Raises:
            CorpusError: There is no text, or all of it is held out.
        """
        self._tokenize()
        if not self._ids:
            raise CorpusError("there is no text in the corpus")
        heads = np.concatenate(self._heads)
        keys = TextKeys.of(given, self._clusters)
        cluster = keys.cluster
        by_rule = np.array(self._held, dtype=np.bool_)
        held = np.isin(cluster, cluster[by_rule])
        if held.all():
            raise CorpusError(
                "all documents are held out or near-duplicates of such, so there is nothing to train on; give more"
            )
        self.num_near = int((held & ~by_rule).sum())
        ids, starts = np.concatenate(self._ids), np.concatenate(self._starts)
        if self.num_titled <= MOSTLY * max(self.num_several, 1):
            heads[heads == _TITLE] = _BODY
        texts = _cut(ids, starts, np.concatenate(self._lengths), heads, cluster, held)
        return replace(texts, given=keys.given)


class TextKeys(NamedTuple):
    """Numbers of texts, the same for near-duplicates.

    Attributes:
        cluster: [D], int64: of the documents that were gathered.
        given: [G], int64: of other texts, as documents have them in `TokenTexts.cluster`.
    """

    cluster: Ints
    given: Ints

    @classmethod
    def of(cls, given: Sequence[str], documents: Clusters) -> TextKeys:
        """The numbers of the documents that were gathered, and of other texts beside them.

        What a user gave as an answer may be a word, a date or a sum, and its normal form nothing at all, as each number
        is one digit there: such short texts are the same where they are equal, but for case and white space.
        """
        words = to_words(given) if given else None
        is_long = np.zeros(0, dtype=np.bool_) if words is None else words.ends - words.begins >= _LEAST_WORDS
        num_documents = len(documents.texts())
        if is_long.any():
            texts = [text for text, long in zip(given, is_long, strict=True) if long]
            documents.add(texts, range(num_documents, num_documents + len(texts)), [len(text) for text in texts])
        clusters = np.asarray(mix(documents.of_texts()))
        found = np.fromiter((_folded(text) for text in given), dtype=np.int64, count=len(given))
        found[is_long] = clusters[num_documents:]
        return cls(clusters[:num_documents], np.asarray(mix(found)))


def _folded(text: str) -> int:
    digest = hashlib.blake2b(" ".join(text.casefold().split()).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _cut(
    ids: NDArray[np.int32],
    starts: NDArray[np.uint8],
    lengths: Ints,
    heads: NDArray[np.uint8],
    cluster: Ints,
    held: NDArray[np.bool_],
) -> TokenTexts:
    """Puts documents together, long ones as several.

    Args:
        ids, starts: [T]: all tokens.
        lengths: [U]: tokens of each paragraph.
        heads: [U]: what begins a document, as `_TITLE` and the others say; else 0.
        cluster, held: Of each document as it was read. Of near-duplicates the n-th stretches have the same key.
    """
    lengths, heads, of_document = _short_enough(lengths, heads)
    paragraph = np.concatenate([[0], np.cumsum(lengths)])
    begins_document = heads > 0
    first = np.flatnonzero(begins_document)
    done = paragraph[:-1] - np.repeat(paragraph[first], np.diff([*first, len(heads)]))
    number = done // DOCUMENT_TOKENS  # which stretch of its document
    begins = begins_document | np.concatenate([[False], number[1:] != number[:-1]])
    document = np.flatnonzero(begins)
    return TokenTexts(
        ids,
        starts,
        paragraph,
        np.concatenate([document, [len(heads)]]),
        np.isin(heads[document], (_TITLE, _MARKED)).astype(np.uint8),
        np.asarray(mix(cluster[of_document[document]] + number[document] * np.int64(GOLDEN))),
        held[of_document[document]].astype(np.uint8),
    )


def _short_enough(lengths: Ints, heads: NDArray[np.uint8]) -> tuple[Ints, NDArray[np.uint8], Ints]:
    """Paragraphs, those that are longer than a document may be in several; and which document each is of."""
    parts = np.maximum(1, -(-lengths // DOCUMENT_TOKENS))
    owner = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    new = np.minimum(DOCUMENT_TOKENS, lengths[owner] - number * DOCUMENT_TOKENS)
    new_heads = np.where(number == 0, heads[owner], 0).astype(np.uint8)
    return new, new_heads, np.cumsum(new_heads > 0) - 1


def texts_of_stores(
    train: TokenStore, held: TokenStore, given: Sequence[str] = (), *, tokenizer: Tokenizer
) -> TokenTexts:
    """Documents of prepared data, which knows no paragraphs; those that are held out stand last.

    Equal documents are one cluster; near-duplicates are not looked for, since their words are not there.

    Args:
        train, held: The data.
        given: As for `TextsBuilder.finish`: which are equal to documents, and which are near-duplicates of each other.
        tokenizer: Of the data.
    """
    found = [_of_store(train), _of_store(held)]
    ids, starts, lengths, heads, cluster = (np.concatenate(columns) for columns in zip(*found, strict=True))
    is_held = np.arange(len(cluster)) >= len(found[0][4])
    texts = _cut(ids, starts, lengths, heads, cluster, is_held)
    if not given:
        return texts
    encoded, sizes = tokenizer.encode_joined(list(given))
    equal = np.asarray(mix(content_hashes(encoded.input_ids, np.cumsum(sizes) - sizes, sizes)))
    alone = TextKeys.of(given, Clusters()).given
    return replace(texts, given=np.where(np.isin(equal, texts.cluster), equal, alone))


def _of_store(store: TokenStore) -> tuple[NDArray[np.int32], NDArray[np.uint8], Ints, NDArray[np.uint8], Ints]:
    chunks = list(store.chunks(1 << 22))
    ids = np.concatenate([chunk.input_ids for chunk in chunks]).astype(np.int32)
    starts = np.concatenate([chunk.word_starts for chunk in chunks])
    begins = np.concatenate([[True], store.document[1:] != store.document[:-1]])
    ends = np.cumsum(store.lengths)
    first = np.flatnonzero(begins)
    token_begins = (ends - store.lengths)[first]
    return (
        ids,
        starts,
        store.lengths,
        np.where(begins, _BODY, 0).astype(np.uint8),
        content_hashes(ids, token_begins, np.diff([*token_begins, len(ids)])),
    )


def content_hashes(ids: NDArray[np.int32], begins: Ints, lengths: Ints) -> Ints:
    """A hash of the tokens of some stretches: equal ones have the same.

    Args:
        ids: [T]: all tokens.
        begins, lengths: [E]: the stretches.
    """
    places, within = stretches(begins, lengths)
    of_token = mix(mix(ids[places].astype(np.int64) + 1) + within * np.int64(0x9E3779B1))
    sums = np.concatenate([[0], np.cumsum(of_token)])
    ends = np.cumsum(lengths)
    return np.asarray(mix(sums[ends] - sums[ends - lengths] + lengths))


def stretches(begins: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The places of all tokens of some stretches, one behind another, and the place of each within its own."""
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(begins, lengths) + within, within


# ----------------------------------------
# A corpus, raw or prepared, as the documents that an embedding model is trained on.
#
# What is held out is what `Corpus` holds out by the same settings, so that it is known from these wherever the text
# lies.
# Where parts of documents are held out since there are few, each part is a document of its own.

_TOLD = 1 << 20
_KEY_CHARS = 1 << 14  # of the beginning of a text, which stands in its first piece with a title before it, too
_MOST_BODIES = 8
_BY_HASH = {"holdout_from": "hash", "holdout_groups": None, "validation": ()}


def read_texts(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    *,
    given: Sequence[str] = (),
    note: Callable[[str], None],
    notify: Notify,
) -> TokenTexts:
    """Reads and tokenizes a corpus.

    Args:
        paths: Files, folders or patterns, or one prepared folder.
        tokenizer: Of the model.
        settings: How files become documents, and what is held out; prepared data says so itself.
        given: Texts of the user's pairs, of which is to be known what they are near-duplicates of.
        note: Told what was found.
        notify: Called with the progress.

    Raises:
        CorpusError: A file cannot be read, or there is no text.
        DataError: Data was prepared with another tokenizer.
    """
    if is_prepared(paths):
        return _read_prepared(Path(paths[0]), tokenizer, given, note)
    corpus = _corpus(paths, settings, note)
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    builder = TextsBuilder(tokenizer)
    skipped: Counter[str] = Counter()
    done = told = 0
    for piece, is_held, titled in _pieces(corpus, skipped):
        done += len(piece.text)
        parts = parts_of_text(piece.text, begins=piece.offset == 0, titled=titled and "\n\n" in piece.text)
        builder.add(parts, begins=in_parts or piece.offset == 0, held=is_held)
        if done >= told + _TOLD:
            notify(Progress("reading", told := done, corpus.num_bytes, "bytes"))
    texts = builder.finish(given)
    note(corpus.describe(corpus.decided()))
    if builder.num_near:
        note(f"held out as near-duplicates of held-out documents: {builder.num_near:,}")
    for reason, number in skipped.items():
        note(f"left out: {number:,} {reason}")
    return texts


def _read_prepared(root: Path, tokenizer: Tokenizer, given: Sequence[str], note: Callable[[str], None]) -> TokenTexts:
    data = open_prepared(root)
    if data.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{root}: the data was prepared with another tokenizer than the model has; give the text itself, or "
            "prepare it with --tokenizer and the model's folder"
        )
    note("the data is prepared, so nothing is known of titles and paragraphs: pairs are crops of documents")
    return texts_of_stores(data.train, data.validation, given, tokenizer=tokenizer)


def _corpus(paths: Sequence[str | Path], settings: CorpusSettings, note: Callable[[str], None]) -> Corpus:
    """The corpus; where it is too little to hold something out, without that."""
    try:
        return Corpus(paths, settings)
    except CorpusError as error:
        if settings != settings.model_copy(update=_BY_HASH):
            raise
        whole = Corpus(paths, settings, hold_out=False)
        note(f"nothing is held out: {error}")
        return whole


def _pieces(corpus: Corpus, skipped: Counter[str]) -> Iterator[tuple[TextPiece, bool, bool]]:
    """Every piece with whether it is held out, and whether it stands below a title of another column.

    A table with such a column is read twice: what the corpus holds out and leaves out goes by the text alone.
    """
    settings, plan = corpus.settings, corpus.plan
    sources = corpus.all_sources()
    as_is = settings.column is not None or settings.cleaning.changes_text or plan.holdout_unit == "end"
    titled = sources if as_is else [_with_titles(source) for source in sources]
    bodies: Counter[int] = Counter()
    held: set[int] = set()
    is_cut = False
    if titled != sources:
        for piece, is_held in corpus.pieces():
            is_cut |= not piece.last
            if piece.offset == 0:
                body = _key(piece.text)
                bodies[body] += 1
                if is_held:
                    held.add(body)
    if titled == sources or (is_cut and plan.holdout_unit == "part"):
        yield from ((piece, is_held, False) for piece, is_held in corpus.pieces())
        skipped.update(corpus.skipped)
        return
    bad = BadInput(skip=settings.bad_input == "skip")
    leaves_out = settings.cleaning.duplicates != "keep" or settings.leaks == "drop"
    for source, plain in zip(titled, sources, strict=True):
        key: int | None = None
        has_title = False
        for piece in read_cleaned([source], bad, settings.cleaning, skipped, unit=plan.unit, piece_chars=PIECE_CHARS):
            if piece.offset == 0:
                keys = [_key(text) for text in _bodies(piece.text)]
                key = next((key for key in keys if bodies[key] > 0), None)
                has_title = source != plain and key != keys[0]
                if leaves_out and key is None:
                    skipped["duplicates"] += 1
                elif leaves_out and key is not None:
                    bodies[key] -= 1
            if key is not None or not leaves_out:
                yield piece, key in held, has_title
    skipped.update(bad.counts)


def _bodies(text: str) -> Iterator[str]:
    """What may be the text of a row behind its title, which is told from it by an empty line, or is missing."""
    yield text
    for _ in range(_MOST_BODIES):
        _, between, text = text.partition("\n\n")
        if not between:
            return
        yield text


def _key(text: str) -> int:
    return text_hash(text.strip()[:_KEY_CHARS])


def _with_titles(source: Source) -> Source:
    if not source.is_table or source.column is None:
        return source
    rows = [row for _, row in islice(rows_of(source, BadInput(skip=True), source.column), LOOK_ROWS)]
    return replace(with_title_column(source, list(dict.fromkeys(name for row in rows for name in row))))
