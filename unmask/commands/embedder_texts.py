"""Documents as one array of tokens, with where their paragraphs and titles are.

    ids         t t b b b b b b b t b b b b b ...      t: of a title, b: of the body
    paragraph   0   1     2       3 4   5
    document    0                 1

A document of more than 4,096 tokens is several here, since what stands far apart in a book has little in common. Text
is tokenized once; the arrays are kept in the run's folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from unmask.commands.run_data import PreparedData, is_prepared, open_prepared
from unmask.core.errors import CorpusError, DataError, RunError
from unmask.core.files import writing
from unmask.core.hashing import GOLDEN, mix
from unmask.core.results import Notify, Progress
from unmask.data.corpus import Corpus
from unmask.data.groups import Clusters
from unmask.data.near_duplicates import hash_texts
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.tokenizer import Tokenizer

DOCUMENT_TOKENS = 4096
TITLE_WORDS = 16
_BROKEN_CHARS = 50  # a line that is as long and ends within a sentence was broken to fit a page
_MOSTLY = 0.5  # of the documents with several parts: if more begin with what looks like a title, it is one
_TITLE, _BODY, _MARKED = 1, 2, 3  # what a document begins with: a line that looks like a title, none, a marked title
_LEAST_WORDS = 5  # of an answer whose near-duplicates are looked for
_BATCH_CHARS = 1 << 20
_BETWEEN = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = tuple(".!?:;…。！？\"”’')]")
_NO_TITLE = tuple(".!?,;:…。！？")
_MARK = re.compile(r"#{1,6}\s+")
Ints = NDArray[np.int64]


class Paragraphs(NamedTuple):
    """A document, or a piece of a long one: its title, if it has one, its paragraphs, none of them empty, and whether
    the title is marked as such, by its column or as a heading."""

    title: str | None
    paragraphs: list[str]
    is_marked: bool = False


def parts_of_text(text: str, *, begins: bool = True, titled: bool = False) -> Paragraphs:
    """Finds the title and the paragraphs of a document.

    A title is a short first line that is no sentence, where the document `begins` here, or its first paragraph where it
    is `titled`. Paragraphs are what stands between empty lines, where there are any, else lines, those that were broken
    to fit a page joined again.
    """
    parts = [part for part in (" ".join(part.split()) for part in _BETWEEN.split(text)) if part]
    if len(parts) == 1:
        parts = _lines(text)
    if begins and not titled and len(parts) > 1 and "\n" in text and not _is_title(parts[0]):
        first, _, rest = text.strip().partition("\n")  # a title with nothing between it and its first paragraph
        if _is_title(first.strip()) and len(_lines(text)) > 1:
            parts = [first.strip(), *parts_of_text(rest, begins=False).paragraphs]
    if begins and len(parts) > 1 and (titled or _is_title(parts[0])):
        return Paragraphs(_MARK.sub("", parts[0]), parts[1:], titled or _MARK.match(parts[0]) is not None)
    return Paragraphs(None, parts)


def _lines(text: str) -> list[str]:
    """Lines, those that were broken within a sentence joined."""
    lines: list[str] = []
    goes_on = False
    for raw in text.split("\n"):
        line = " ".join(raw.split())
        if line and goes_on:
            lines[-1] += " " + line
        elif line:
            lines.append(line)
        goes_on = len(line) >= _BROKEN_CHARS and not line.endswith(_ENDS)
    return lines


def _is_title(line: str) -> bool:
    bare = _MARK.sub("", line)
    return bool(bare) and len(bare.split()) <= TITLE_WORDS and len(bare) < 200 and not bare.endswith(_NO_TITLE)


@dataclass(frozen=True)
class TokenTexts:
    """Documents as arrays, as drawn above: T tokens, U paragraphs (titles are such, too), D documents."""

    ids: NDArray[np.int32]  # [T]: without special tokens
    word_starts: NDArray[np.uint8]  # [T]: 1 where a word begins
    paragraph: Ints  # [U + 1]: where each begins
    document: Ints  # [D + 1]: the first paragraph of each
    titled: NDArray[np.uint8]  # [D]: 1 where the first paragraph is a title
    cluster: Ints  # [D]: the same for near-duplicates
    held: NDArray[np.uint8]  # [D]: 1 where a document is held out
    answers: Ints  # [G]: the clusters of the answers in the user's pairs

    def __len__(self) -> int:
        return len(self.titled)

    @property
    def begins(self) -> Ints:
        """[D]: where each document's body begins, behind its title."""
        return self.paragraph[self.document[:-1] + self.titled]

    @property
    def ends(self) -> Ints:
        """[D]: where it ends."""
        return self.paragraph[self.document[1:]]

    def save(self, file: Path) -> None:
        """Writes all of it, for `load`."""
        partial = file.with_name(file.name + ".partial")
        with writing(file, SafetensorError):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self)}, partial)
            partial.replace(file)

    @classmethod
    def load(cls, file: Path) -> TokenTexts:
        """Reads what `save` wrote. Raises a RunError where it is damaged."""
        try:
            return cls(**load_file(file))
        except (OSError, SafetensorError, TypeError) as error:
            raise RunError(f"{file}: damaged ({error}); start anew", options=("overwrite",)) from error


_NOTHING, _START = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
_NO_BYTES = np.zeros(0, dtype=np.uint8)
NO_TEXTS = TokenTexts(
    np.zeros(0, dtype=np.int32), _NO_BYTES, _START, _START, _NO_BYTES, _NOTHING, _NO_BYTES, _NOTHING
)  # fmt: skip


def tokenize_documents(
    pieces: Iterable[tuple[Paragraphs, bool, bool]], tokenizer: Tokenizer, answers: Sequence[str] = ()
) -> tuple[TokenTexts, int]:
    """Tokenizes documents, a batch at a time. Near-duplicates of what is held out are held out with it.

    Titles are those that are marked as such, and first lines that look like titles where most documents have one.

    `pieces` are documents or pieces of them, with whether a document begins there and whether it is held out; `answers`
    are those of the user's pairs, whose near-duplicates among the documents are looked for. Returns the documents, and
    how many are held out as near-duplicates.
    """
    ids: list[NDArray[np.int32]] = []
    starts: list[NDArray[np.uint8]] = []
    lengths: list[Ints] = []  # of paragraphs
    heads: list[int] = []  # of each paragraph: _TITLE, _BODY or _MARKED where a document begins, else 0
    by_rule: list[bool] = []
    waiting: list[str] = []  # paragraphs and documents of the next batch
    documents: list[str] = []
    clusters = Clusters()
    num_chars = num_titled = num_several = 0

    def tokenize() -> None:
        nonlocal num_chars
        if waiting:
            encoded, sizes = tokenizer.encode_joined(waiting)
            ids.append(encoded.input_ids)
            starts.append(encoded.word_starts.view(np.uint8))
            lengths.append(sizes)
        if documents:
            places = range(len(by_rule) - len(documents), len(by_rule))
            clusters.add(documents, places, [len(text) for text in documents])
        waiting.clear()
        documents.clear()
        num_chars = 0

    for (title, paragraphs, is_marked), begins, is_held in pieces:
        texts = [*([] if title is None else [title]), *paragraphs]
        if begins and texts:
            documents.append("\n".join(texts))
            by_rule.append(is_held)
            num_several += len(texts) > 1
            num_titled += title is not None
        head = 0 if not begins else _BODY if title is None else _MARKED if is_marked else _TITLE
        waiting += texts
        heads += [head, *[0] * len(texts)][: len(texts)]
        num_chars += sum(map(len, texts))
        if num_chars >= _BATCH_CHARS:
            tokenize()
    tokenize()
    if not ids:
        raise CorpusError("there is no text in the corpus")
    cluster, keys = _cluster_keys(answers, clusters)
    rule = np.array(by_rule, dtype=np.bool_)
    held = np.isin(cluster, cluster[rule])
    if held.all():
        raise CorpusError(
            "all documents are held out or near-duplicates of such, so there is nothing to train on; give more"
        )
    head_of = np.array(heads, dtype=np.uint8)
    if num_titled <= _MOSTLY * max(num_several, 1):
        head_of[head_of == _TITLE] = _BODY
    joined = np.concatenate(ids), np.concatenate(starts), np.concatenate(lengths)
    return _cut(*joined, head_of, cluster, held, keys), int((held & ~rule).sum())


def answer_keys(answers: Sequence[str]) -> Ints:
    """[G], int64: the same number for answers that are near-duplicates, where there are no documents."""
    return _cluster_keys(answers, Clusters())[1]


def _cluster_keys(answers: Sequence[str], documents: Clusters) -> tuple[Ints, Ints]:
    """Numbers of the documents [D] and of the user's answers [G], the same for near-duplicates.

    An answer may be a word, a date or a sum, and its normal form nothing at all, as each number is one digit there:
    such short texts are the same where they are equal, but for case and white space.
    """
    keys = np.zeros(len(answers), dtype=np.int64)
    for number, text in enumerate(answers):
        folded = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(folded, digest_size=8).digest()
        keys[number] = int.from_bytes(digest, "little", signed=True)
    num_documents = len(documents.texts())
    is_long = hash_texts(answers).num_words >= _LEAST_WORDS if answers else np.zeros(0, dtype=np.bool_)
    if is_long.any():
        texts = [text for text, long in zip(answers, is_long, strict=True) if long]
        documents.add(texts, range(num_documents, num_documents + len(texts)), [len(text) for text in texts])
    clusters = np.asarray(mix(documents.of_texts()))
    keys[is_long] = clusters[num_documents:]
    return clusters[:num_documents], np.asarray(mix(keys))


def _cut(
    ids: NDArray[np.int32],
    starts: NDArray[np.uint8],
    lengths: Ints,
    heads: NDArray[np.uint8],
    cluster: Ints,
    held: NDArray[np.bool_],
    answers: Ints,
) -> TokenTexts:
    """Puts documents together, long ones as several.

    By paragraph [U]: `lengths`, and in `heads` what begins a document, as `_TITLE` and the others say, else 0.
    `cluster` and `held` are of each document as it was read; of near-duplicates the n-th stretches have the same key.
    """
    # Paragraphs that are longer than a document may be become several.
    num_parts = np.maximum(1, -(-lengths // DOCUMENT_TOKENS))
    owner = np.repeat(np.arange(len(lengths)), num_parts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    lengths = np.minimum(DOCUMENT_TOKENS, lengths[owner] - part * DOCUMENT_TOKENS)
    heads = np.where(part == 0, heads[owner], 0).astype(np.uint8)
    of_document = np.cumsum(heads > 0) - 1
    # A document begins where one is read, and where it has gone on for so many tokens.
    paragraph = np.concatenate([[0], np.cumsum(lengths)])
    first = np.flatnonzero(heads > 0)
    done = paragraph[:-1] - np.repeat(paragraph[first], np.diff([*first, len(heads)]))
    number = done // DOCUMENT_TOKENS
    document = np.flatnonzero((heads > 0) | np.concatenate([[False], number[1:] != number[:-1]]))
    return TokenTexts(
        ids,
        starts,
        paragraph,
        np.concatenate([document, [len(heads)]]),
        np.isin(heads[document], (_TITLE, _MARKED)).astype(np.uint8),
        np.asarray(mix(cluster[of_document[document]] + number[document] * np.int64(GOLDEN))),
        held[of_document[document]].astype(np.uint8),
        answers,
    )


def content_hashes(ids: NDArray[np.int32], begins: Ints, lengths: Ints) -> Ints:
    """[E]: a hash of the tokens of each span, equal for equal ones."""
    ends = np.cumsum(lengths)
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    tokens = ids[np.repeat(begins, lengths) + within].astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(mix(mix(tokens + 1) + within * np.int64(0x9E3779B1)))])
    return np.asarray(mix(sums[ends] - sums[ends - lengths] + lengths))


def _from_prepared(data: PreparedData, answers: Sequence[str], tokenizer: Tokenizer) -> TokenTexts:
    """Documents of prepared data, which knows no paragraphs; those that are held out stand last.

    Equal documents are one cluster; near-duplicates are not looked for, since their words are not there.
    """
    columns: list[tuple[NDArray[np.int32], NDArray[np.uint8], Ints, NDArray[np.uint8], Ints]] = []
    for store in (data.train, data.validation):
        chunks = list(store.chunks(1 << 22))
        ids = np.concatenate([chunk.input_ids for chunk in chunks]).astype(np.int32)
        starts = np.concatenate([chunk.word_starts for chunk in chunks])
        lengths, document = store.column("lengths"), store.column("document")
        is_first = np.concatenate([[True], document[1:] != document[:-1]])
        begins = (np.cumsum(lengths) - lengths)[is_first]
        hashes = content_hashes(ids, begins, np.diff([*begins, len(ids)]))
        columns.append((ids, starts, lengths, np.where(is_first, _BODY, 0).astype(np.uint8), hashes))
    ids, starts, lengths, heads, cluster = (np.concatenate(column) for column in zip(*columns, strict=True))
    texts = _cut(ids, starts, lengths, heads, cluster, np.arange(len(cluster)) >= len(columns[0][4]), _NOTHING)
    if not answers:
        return texts
    encoded, sizes = tokenizer.encode_joined(list(answers))
    equal = np.asarray(mix(content_hashes(encoded.input_ids, np.cumsum(sizes) - sizes, sizes)))
    return replace(texts, answers=np.where(np.isin(equal, texts.cluster), equal, answer_keys(answers)))


def read_texts(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    *,
    answers: Sequence[str] = (),
    note: Callable[[str], None],
    notify: Notify,
) -> TokenTexts:
    """Reads and tokenizes a corpus, raw or prepared.

    What is held out is what `Corpus` holds out by the same settings, so that it is the same wherever the text lies.
    Where parts of documents are held out since there are few, each is a document.
    """
    if is_prepared(paths):
        data = open_prepared(Path(paths[0]))
        if data.tokenizer.fingerprint != tokenizer.fingerprint:
            raise DataError(
                f"{paths[0]}: the data was prepared with another tokenizer than the model has; give the text itself, "
                "or prepare it with the model's folder as tokenizer"
            )
        note("the data is prepared, so nothing is known of titles and paragraphs: pairs are crops of documents")
        return _from_prepared(data, answers, tokenizer)
    titles = settings.column is None  # a user who names the column of the text means no other
    try:
        corpus = Corpus(paths, settings, titles=titles)
    except CorpusError as error:  # too little to hold something out
        if settings != settings.model_copy(update={"holdout_from": "hash", "holdout_groups": None, "validation": ()}):
            raise
        corpus = Corpus(paths, settings, hold_out=False, titles=titles)
        note(f"nothing is held out: {error}")
    in_parts = corpus.plan.holdout_unit in ("part", "end")

    def pieces() -> Iterator[tuple[Paragraphs, bool, bool]]:
        done = notified = 0
        for piece, is_held in corpus.pieces():
            done += len(piece.text)
            begins = piece.offset == 0
            titled = begins and piece.title is not None
            text = f"{piece.title}\n\n{piece.text}" if titled else piece.text
            yield parts_of_text(text, begins=begins, titled=titled), in_parts or begins, is_held
            if done >= notified + _BATCH_CHARS:
                notified = done
                notify(Progress("reading", done, corpus.num_bytes, "bytes"))

    texts, num_near = tokenize_documents(pieces(), tokenizer, answers)
    note(corpus.describe(corpus.decided()))
    if num_near:
        note(f"held out as near-duplicates of held-out documents: {num_near:,}")
    for reason, number in corpus.skipped.items():
        note(f"left out: {number:,} {reason}")
    return texts
