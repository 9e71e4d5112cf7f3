"""Documents as tokens in one line, with where their paragraphs and titles are.

    ids         t t b b b b b b b t b b b b b ...      t: of a title, b: of the body
    paragraph   0   1     2       3 4   5
    document    0                 1

A document of more than 4,096 tokens is several here, since what stands far apart in a book has little in common. Text
is tokenized once; what comes of it is kept in the folder of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from unmask.embedding.text_structure import DocumentParts
from unmask.errors import CorpusError, RunError
from unmask.files import writing
from unmask.hashing import GOLDEN, mix
from unmask.shards.store import TokenStore
from unmask.text.groups import Clusters
from unmask.text.near_duplicates import to_words
from unmask.tokenizer.tokenizer import Tokenizer

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
