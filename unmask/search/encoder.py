"""A model as search uses it: how queries and passages become vectors, and how near these are.

What sentence-transformers writes beside a model decides, as far as nobody asks for something else:

    modules.json, 1_Pooling/config.json    pooling, as for `unmask embed`; or SPLADE (1_SpladePooling)
    config_sentence_transformers.json      `prompts`, what stands before queries and documents; `similarity_fn_name`
    sentence_bert_config.json              `max_seq_length`, which passages are fitted into

Whoever asks for passages longer than the model has them seen in windows that follow each other, of which the first has
the prompt and a title. The vector is the mean of theirs, weighted by their tokens, or the maximum
where vectors are sparse.

Of documents' prompts the first that is not empty is taken, of `document`, `passage` and `corpus`. sentence-transformers
takes the first that is there, and fills in an empty `document` itself, so that a model whose file names `passage` alone
would be used without its prompt.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, ModelError, SettingsError, load_json, shown
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.documents import EMPTY, PIECE_CHARS, TextPiece, cut_pieces, in_groups, naming_column, read_documents
from unmask.data.reading import BadInput, Row, broken_character
from unmask.data.settings import CorpusSettings, DocumentUnit
from unmask.data.sources import Source
from unmask.data.tables import LOOK_ROWS, AskedColumn, columns_of, has_column, names_in, rows_of, text_of, value_or_none
from unmask.model.sentence_files import SPLADE, pooling_file, sparse_file
from unmask.model.stored_weights import weights_fingerprint
from unmask.search.exact import Vectors
from unmask.tasks.embed import EmbedSettings, embed_texts, sparse_texts
from unmask.tasks.loaded_model import Model, Precision, load
from unmask.tokenizer.alignment import TokenPlaces
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.hardware import choose_device

Similarity = Literal["cosine", "dot"]
_SETTINGS, _LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
_LEAST_TEXT = 8  # tokens of a passage, without special ones and the prompt
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_MOST_TOKENS = 512  # of a passage, where nobody asks for more
_LONGEST_PASSAGE = 1 << 16


@dataclass(frozen=True)
class EncodingSettings:
    """How texts become vectors for search.

    Attributes:
        pooling: As for `EmbedSettings`; or `splade`, for sparse vectors.
        similarity: `cosine`, for which vectors are divided by their length, or `dot`.
        query_prompt, document_prompt: What stands before each query, and before each passage.
        passage_tokens: Tokens of a passage at most, with special ones and the prompt.
        overlap_tokens: How many of them it shares with the passage before it.
    """

    pooling: str
    similarity: Similarity
    query_prompt: str
    document_prompt: str
    passage_tokens: int
    overlap_tokens: int


@dataclass(frozen=True, kw_only=True)
class AskedEncoding:
    """What a user asks for; None takes what the model's folder says. Attributes as for `EncodingSettings`."""

    pooling: str | None = None
    similarity: Similarity | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    passage_tokens: int | None = None
    overlap_tokens: int | None = None


class SearchEncoder:
    """A model with how it is used for search.

    Args:
        model: Any encoder.
        settings: How.
    """

    def __init__(self, model: Model, settings: EncodingSettings) -> None:
        self.model, self.settings = model, settings
        self.model.to(choose_device())

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        if self.is_sparse:
            return int(self.model.predictor.config.vocab_size)
        return int(self.model.embedder.config.hidden_size)

    @property
    def is_sparse(self) -> bool:
        """Whether vectors have a number for each token of the vocabulary, most of which are 0."""
        return self.settings.pooling == SPLADE

    def fingerprint(self) -> str:
        """A hash of weights, configuration and tokenizer: with another one, vectors are of another space."""
        parts = weights_fingerprint(self.model.folder), self.model.tokenizer.fingerprint
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def embed_queries(self, texts: Sequence[str], names: Sequence[str] = ()) -> Vectors:
        """Vectors [texts, width]; of a text longer than the model it is the mean (sparse: the maximum) of its parts.

        Raises:
            SettingsError: A text is empty, or holds what is no character.
        """
        for number, text in enumerate(texts):
            if not text.strip():
                raise SettingsError(f"query {number + 1} is empty; say what is looked for")
        return self._embed(self.settings.query_prompt, texts, names or [f"query {n + 1}" for n in range(len(texts))])

    def embed_documents(self, texts: Sequence[str], names: Sequence[str] = ()) -> Vectors:
        """Vectors [texts, width] of passages, which `PassageCutter` makes short enough.

        Raises:
            SettingsError: A text holds what is no character.
        """
        return self._embed(self.settings.document_prompt, texts, names)

    def _embed(self, prompt: str, texts: Sequence[str], names: Sequence[str]) -> Vectors:
        with_prompt = [prompt + text for text in texts] if prompt else texts
        tokenizer, unit = self.model.tokenizer, self.settings.similarity == "cosine"
        if self.settings.pooling == SPLADE:
            sparse = sparse_texts(self.model.predictor, tokenizer, with_prompt, "split", unit=unit, names=names).vectors
            self._check_finite(sparse.values)
            return sparse
        how = EmbedSettings(self.settings.pooling, unit, "split")
        found = embed_texts(self.model.embedder, tokenizer, with_prompt, how, names=names).vectors
        self._check_finite(found)
        return found

    def _check_finite(self, numbers: NDArray[np.float32]) -> None:
        if not np.isfinite(numbers).all():
            raise ModelError(f"{self.model.folder}: a vector is no finite number; the model is damaged or diverged")


def open_encoder(
    model: str | Path | Model, asked: AskedEncoding, *, precision: Precision = "float32", strict: bool = False
) -> SearchEncoder:
    """Loads a model for search.

    Args:
        model: A model, its folder, or its name on the hub.
        asked: What is asked for.
        precision, strict: As for `load`.

    Raises:
        UnmaskError: As `load` and `Model.embed_settings`; the folder asks for what is not offered; or an option is out
            of range.
    """
    loaded = model if isinstance(model, Model) else load(model, precision=precision, strict=strict)
    pooling = _pooling(loaded, asked)  # asks the hub for its files where they lack
    content, file = _read(loaded.folder / _SETTINGS), loaded.folder / _SETTINGS
    prompts = _prompts(content, file)
    if pooling != SPLADE and sparse_file(loaded.folder) is not None:
        content = {**content, "similarity_fn_name": None}  # which is said of sparse vectors
    found: dict[str, Any] = {
        "pooling": pooling,
        "similarity": _similarity(content, file, asked.similarity, usual="dot" if pooling == SPLADE else "cosine"),
        "query_prompt": prompts.get("query", ""),
        "document_prompt": next(filter(None, map(prompts.get, _DOCUMENT_PROMPTS)), ""),
    }
    found |= {name: value for name, value in asdict(asked).items() if value is not None and name in found}
    _check_prompts_are_pooled(loaded.folder, found)
    longest = _longest(loaded, asked.passage_tokens, is_sparse=pooling == SPLADE)
    overlap = longest // 8 if asked.overlap_tokens is None else asked.overlap_tokens
    prompt_tokens = len(loaded.tokenizer.encode_prompt(found["document_prompt"]))
    if longest - prompt_tokens < _LEAST_TEXT:
        raise SettingsError(
            f"the prompt before documents takes {prompt_tokens} of a passage's {longest} tokens, and {_LEAST_TEXT} are "
            "the least that text has; give a shorter --document-prompt, or more --passage-tokens"
        )
    if not 0 <= overlap <= (longest - prompt_tokens) // 2:
        raise SettingsError(
            f"--overlap-tokens {overlap}: a passage has {longest - prompt_tokens} tokens of text and shares at most "
            "half of them with the one before it"
        )
    return SearchEncoder(loaded, EncodingSettings(**found, passage_tokens=longest, overlap_tokens=overlap))


def _pooling(model: Model, asked: AskedEncoding) -> str:
    if asked.pooling in (None, SPLADE) and model.makes_sparse:
        model.check_head()
        return SPLADE
    if asked.pooling == SPLADE:
        raise ModelError(f"{model.folder}: makes no sparse vectors (its modules.json names no SpladePooling)")
    return model.embed_settings(pooling=asked.pooling).pooling


def _longest(model: Model, asked: int | None, *, is_sparse: bool) -> int:
    """Tokens of a passage, special ones included."""
    network = model.predictor if is_sparse else model.embedder
    takes = network.config.max_position_embeddings
    least = len(model.tokenizer.special.around) + _LEAST_TEXT
    if asked is not None:
        if not least <= asked <= _LONGEST_PASSAGE:
            raise SettingsError(f"--passage-tokens {asked}: a passage has {least} to {_LONGEST_PASSAGE:,} tokens")
        return asked
    said = _read(model.folder / _LIMITS).get("max_seq_length")
    if isinstance(said, int) and not isinstance(said, bool) and said >= least:
        takes = min(takes, said)
    return min(takes, _MOST_TOKENS)


def _prompts(content: dict[str, Any], file: Path) -> dict[str, str]:
    prompts = content.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ModelError(f"{file}: damaged (prompts is no table of texts); mend it, or remove it to go without prompts")
    return {str(name): text or "" for name, text in prompts.items()}


def _similarity(content: dict[str, Any], file: Path, asked: Similarity | None, *, usual: Similarity) -> Similarity:
    said = content.get("similarity_fn_name") or usual if asked is None else asked
    if said not in get_args(Similarity):
        where = "--similarity" if asked is not None else f"{file}: similarity_fn_name"
        raise SettingsError(f"{where} {json.dumps(said)[:100]} is not offered; ask for --similarity cosine or dot")
    return said


def _check_prompts_are_pooled(folder: Path, found: dict[str, Any]) -> None:
    """Some models leave the tokens of their prompts out of the mean, which is not offered."""
    file = pooling_file(folder)
    if file is None or not (found["query_prompt"] or found["document_prompt"]):
        return
    if _read(file).get("include_prompt") is False:
        raise ModelError(
            f"{file}: include_prompt is false, so that prompts would be left out of the mean, which is not offered; "
            "go without prompts (--query-prompt '' --document-prompt ''), or give another model"
        )


def _read(file: Path) -> dict[str, Any]:
    """A file beside the model; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        content = load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); mend it or take it away") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: damaged (no table); mend it or take it away")
    return content


# ----------------------------------------
# Documents to search in, from the files that every command reads, each with what it is called.
#
# A document is what it is for a corpus: a line, a block between empty lines or a file; a row of a table; a sequence. It
# is called by its file and its number there, counted from 1, or by what the table's column of ids says; and by its
# title,
# which is a column of the table, or the first line of a block or a file where that looks like one.

IDS, TITLES = ("id", "_id"), ("title", "Title", "headline")
LONGEST_TITLE = 120  # letters


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document, or a part of a long one; parts of a document follow each other and join to its text.

    Attributes:
        document: Its number among all, counted from 0.
        file: That it stands in, as it was given.
        id: What the file calls it: a number counted from 1, or what the column of ids says.
        title: Its title; None where it has none.
        begin: Character of the document at which the part begins.
        text: The characters, without the title where that is a column.
        has_title_column: Whether the title is none of the text.
    """

    document: int
    file: str
    id: str | int
    title: str | None
    begin: int
    text: str
    has_title_column: bool = False

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"{self.file}: document {self.id!r}"


class DocumentFiles:
    """Files of documents.

    Args:
        paths: Files, folders or patterns; all files in a folder are read, whatever their names say.
        column: Where the text of tables stands, as for `find_column`; None finds it.
        id_column, title_column: Of tables; None takes one called `id` or `_id`, and one called `title`, if it is there.
        documents: What a document is in text files.
        within: A folder; files in it are called by their place there.

    Attributes:
        skipped: What the last reading passed over: reason to number.
        num_bytes: Of all files together; None where one is compressed or a table.

    Raises:
        CorpusError: As `Corpus`; or a column is not there.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        column: AskedColumn = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        within: Path | None = None,
    ) -> None:
        self._within = within
        asked = {"column": column, "documents": documents, "splits": "ignore"}
        with naming_column():
            corpus = Corpus(paths, validated(CorpusSettings, asked, where="search"), hold_out=False)
        self.sources, self.unit, self.num_bytes = corpus.sources, corpus.plan.unit, corpus.num_bytes
        self.unit_in_words = corpus.plan.unit_in_words
        self.skipped: Counter[str] = Counter()
        self._columns = [_columns_of(source, id_column, title_column) for source in self.sources]
        if not any(source.is_table for source in self.sources):
            for name, what in ((column, "text"), (id_column, "ids"), (title_column, "titles")):
                if name is not None:
                    raise CorpusError(f"{paths[0]}: there are no columns in this file, so none of {what} can be named")

    def describe(self) -> str:
        """What is read, in a line."""
        columns = {columns for columns in self._columns if columns is not None}
        said = [self.unit_in_words]
        for what, names in zip(("id", "title"), zip(*columns, strict=True), strict=True) if columns else ():
            if found := sorted(set(filter(None, names))):
                said.append(f"its {what} in column {' or '.join(map(repr, found))}")
        return ", ".join(said)

    def read(self) -> Iterator[DocumentPart]:
        """Yields the documents in order.

        Raises:
            CorpusError: A file cannot be read, or there is no text at all.
        """
        self.skipped = Counter()
        number = 0
        for source, columns in zip(self.sources, self._columns, strict=True):
            parts = self._lines(source) if columns is None else self._rows(source, *columns)
            for is_new, id_, title, begin, text in parts:
                number += is_new
                yield DocumentPart(number - 1, self.name_of(source), id_, title, begin, text, columns is not None)
        if not number:
            raise CorpusError(f"{', '.join(str(source.path) for source in self.sources[:3])}: there is no text in it")

    def name_of(self, source: Source) -> str:
        """What a file is called."""
        path = source.path
        if self._within is not None and path.is_relative_to(self._within):
            path = path.relative_to(self._within)
        return os.fsencode(path).decode("utf-8", "backslashreplace")  # a name may hold bytes that are no characters

    def _lines(self, source: Source) -> Iterator[tuple[bool, str | int, str | None, int, str]]:
        title, begin = None, 0
        for piece in read_documents([source], BadInput(skip=False, way_out=None), unit=self.unit):
            if is_new := piece.offset == 0:
                title, begin = None if self.unit == "line" else first_line_title(piece.text), 0
            yield is_new, piece.document + 1, title, begin, piece.text
            begin += len(piece.text)

    def _rows(
        self, source: Source, id_column: str | None, title_column: str | None
    ) -> Iterator[tuple[bool, str | int, str | None, int, str]]:
        bad, column = BadInput(skip=False, way_out=None), source.column
        assert column is not None, "tables have one"
        known = [name for name in (id_column, title_column) if name is not None]
        rows = rows_of(source, bad, column, known=known, only=[*columns_of(column), *known])
        for count, (number, row) in enumerate(rows, 1):
            title = _title(row, title_column)
            with naming_column():
                text = text_of(source, number, row, column, bad) or title or ""
            if not text.strip():
                self.skipped[EMPTY] += 1
                continue
            id_ = count if id_column is None else _id(source, number, row, id_column)
            for value, name in ((id_, id_column), (title, title_column)):
                if isinstance(value, str) and (broken := broken_character(value)):
                    raise CorpusError(
                        f"{source.path}: row {number} has {broken} in column {name!r}, which is no character; take it "
                        "out"
                    )
            begin = 0
            for piece in cut_pieces([TextPiece(count, 0, text)], PIECE_CHARS):
                yield begin == 0, id_, title, begin, piece.text
                begin += len(piece.text)


def first_line_title(text: str) -> str | None:
    """The first line of a text, where it looks like a title: short, not ended like a sentence, and more text follows.

    Example: `On whales\\nThere are many.` has the title `On whales`; `There are many.\\nNo.` has none.
    """
    line, _, rest = text.lstrip().partition("\n")
    line = line.strip().lstrip("#").strip()
    if not 0 < len(line) <= LONGEST_TITLE or not any(map(str.isalpha, line)) or len(rest.strip()) < 2 * len(line):
        return None
    return None if line[-1] in ".,;:!?\"'”’)" else line


def _columns_of(
    source: Source, id_column: str | None, title_column: str | None
) -> tuple[str | None, str | None] | None:
    """Where ids and titles of a table stand; None of what is no table."""
    if not source.is_table:
        return None
    assert source.column is not None, "tables have one"
    known = [name for name in (id_column, title_column) if name is not None]
    rows = rows_of(source, BadInput(skip=False, way_out=None), source.column, known=known)
    first = [row for _, row in islice(rows, LOOK_ROWS)]
    for name in known:
        if not has_column(first, name):
            raise CorpusError(f"{source.path}: there is no column {name!r}; columns are {names_in(first)}")
    taken = set(columns_of(source.column))

    def usual(names: Sequence[str]) -> str | None:
        return next((name for name in names if name not in taken and any(name in row for row in first)), None)

    return id_column or usual(IDS), title_column or usual(TITLES)


def _title(row: Row, column: str | None) -> str | None:
    value = None if column is None else value_or_none(row, column)
    return " ".join(value.split()) if isinstance(value, str) and value.strip() else None


def _id(source: Source, number: int, row: dict[str, Any], column: str) -> str | int:
    value = value_or_none(row, column)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CorpusError(
            f"{source.path}: row {number} has {shown(value)} in column {column!r}; ids are texts or whole numbers"
        )
    return value


# ----------------------------------------
# Long documents in passages that a model takes at once.
#
#     tokens of a document    ................................................
#     passages                |..............|
#                                         |..............|                      `overlap_tokens` are in both
#                                                     |......................
# Passages begin and end at white space, else where words do, else anywhere. A title that is a column stands before each
# of them, so that a passage from the middle of a document still says what it is about.

Flags = NDArray[np.bool_]
_PARTS_AT_ONCE, _CHARS_AT_ONCE = 256, 1 << 20  # places of tokens take many times the memory of the text
_LONGEST_TITLE = 300  # letters that are put before passages


@dataclass(frozen=True, slots=True)
class TextPassage:
    """A passage of a document.

    Attributes:
        part: The document, or the part of it that the passage is in.
        begin, end: Characters of the part.
    """

    part: DocumentPart
    begin: int
    end: int

    @property
    def text(self) -> str:
        """Its characters."""
        return self.part.text[self.begin : self.end]

    @property
    def embedded(self) -> str:
        """What the model sees of it, but for the prompt."""
        title = _title_before(self.part)
        return f"{title}\n{self.text}" if title else self.text


class PassageCutter:
    """Cuts documents.

    Args:
        tokenizer: Of the model.
        settings: How long passages are.
    """

    def __init__(self, tokenizer: Tokenizer, settings: EncodingSettings) -> None:
        self.tokenizer, self.overlap = tokenizer, settings.overlap_tokens
        self.length = settings.passage_tokens - len(tokenizer.encode_prompt(settings.document_prompt))

    def cut(self, parts: Iterable[DocumentPart]) -> Iterator[TextPassage]:
        """The passages of documents, in order. What the tokenizer makes no token of has one passage all the same."""
        for some in in_groups(parts, most=_PARTS_AT_ONCE, most_chars=_CHARS_AT_ONCE):
            titles = [_title_before(part) for part in some]
            places = self.tokenizer.encode_placed([part.text for part in some])[1]
            title_tokens = self.tokenizer.encode_placed(titles)[1].lengths if any(titles) else np.zeros(len(some), int)
            after_space = _after_space("".join(part.text for part in some), places)
            ends, chars = np.cumsum(places.lengths), np.cumsum([0, *(len(part.text) for part in some)])
            for number, part in enumerate(some):
                tokens = slice(int(ends[number] - places.lengths[number]), int(ends[number]))
                length = max(self.length // 2, self.length - int(title_tokens[number]) - 1)
                for begin, end in self._windows(tokens, length, (after_space, places.word_starts)):
                    first = int(places.begin[begin] - chars[number]) if begin > tokens.start else 0
                    last = int(places.begin[end] - chars[number]) if end < tokens.stop else len(part.text)
                    yield TextPassage(part, first, last)

    def _windows(self, tokens: slice, length: int, breaks: Sequence[Flags]) -> Iterator[tuple[int, int]]:
        """Tokens of each passage."""
        begin = tokens.start
        while tokens.stop - begin > length:
            end = _last_break(breaks, begin + length // 2, begin + length)
            yield begin, end
            least = begin + max(1, length // 4)  # so far it goes on in any case
            begin = _last_break(breaks, least, max(least, end - self.overlap)) if self.overlap else end
        yield begin, tokens.stop


def _after_space(text: str, places: TokenPlaces) -> Flags:
    """Whether white space stands before each token, or at its beginning, where a tokenizer counts it among its own."""
    is_space = np.array([sign.isspace() for sign in text] or [False], dtype=np.bool_)
    begin = np.minimum(places.begin, len(is_space) - 1)
    found: Flags = is_space[begin] | is_space[np.maximum(begin - 1, 0)]
    return found


def _last_break(breaks: Sequence[Flags], least: int, place: int) -> int:
    """The last token up to a place where a passage may begin: behind white space, else where a word begins, else there.

    Example: of `a b-c`, cut to four tokens, `a b-` goes to `a ` and `b-c`.
    """
    for flags in breaks:
        if len(back := np.flatnonzero(flags[least : place + 1])):
            return least + int(back[-1])
    return place


def _title_before(part: DocumentPart) -> str:
    return part.title[:_LONGEST_TITLE] if part.has_title_column and part.title else ""
