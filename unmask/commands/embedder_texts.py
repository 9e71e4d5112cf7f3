"""Training text of an embedding model: documents as one array of tokens, and the user's own pairs of texts.

    ids         t t b b b b b b b t b b b b b ...      t: title, b: body
    paragraph   0   1     2       3 4   5
    document    0                 1

A document of more than 4,096 tokens becomes several, since distant parts of a book have little in common. Text is
tokenized once; the arrays stay in the run's folder. The user's own pairs come from a table:

    query, text                two texts that belong together
    query, text, negative      and one that does not belong to the query; or several: negative_1, negative_2, ...
    query, pos, neg            lists of right and of wrong answers: texts, or objects with a text
    set; or arrays             texts of {"set": [a, b, c]} belong together; of [a, b, c] only a and b, the rest is wrong
    query, text, label         1: they belong together; 0: they do not, and the text is a wrong answer if the query has
                               a right one in another row; or a score from 0 to 1, which counts as 1 from 0.5 on
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from unmask.core.errors import CorpusError, RunError, shown
from unmask.core.files import whole_file, writing
from unmask.core.hashing import GOLDEN, mix
from unmask.core.results import Notify, Progress
from unmask.data.columns import NO_LABEL, USUAL, Role, columns_in, find_column, value_at
from unmask.data.corpus import Corpus
from unmask.data.delimited import find_layout
from unmask.data.documents import in_groups
from unmask.data.groups import Clusters, group_key
from unmask.data.reading import BadInput, Row, broken_character
from unmask.data.settings import AS_FOUND, CorpusSettings, Reading
from unmask.data.tables import first_rows, rows_of
from unmask.search.known_items import rule_for
from unmask.search.passages import BROKEN_CHARS, split_title
from unmask.tasks.files import ExampleFiles, check_size, list_in
from unmask.tokenizer.spans import QUOTE_ENDS, SENTENCE_ENDS
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer

Ints = NDArray[np.int64]
DOCUMENT_TOKENS = 4096
RIGHT = 0.5  # lowest score of a pair that belongs together
PairPart = Literal["query", "text", "negative", "label"]
_ROLES: Mapping[PairPart, Role] = {"query": "query", "text": "answer", "negative": "negative", "label": "match"}
_MOSTLY = 0.5  # of the documents with several parts: if more have title-like first lines, those are titles
_TITLE, _BODY = 1, 2  # how a document begins
_BATCH_CHARS = 1 << 20
_BETWEEN = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = (*SENTENCE_ENDS, *QUOTE_ENDS, *":;：；)]")

# ----------------------------------------
# Documents: their titles and paragraphs, as tokens.


def paragraphs_of(text: str) -> list[str]:
    """Paragraphs are separated by empty lines; without any, each line is one, after wrapped lines are joined."""
    paragraphs = [part for part in (" ".join(part.split()) for part in _BETWEEN.split(text)) if part]
    return paragraphs if len(paragraphs) > 1 else _lines(text)


def _lines(text: str) -> list[str]:
    """Lines; those wrapped within a sentence are joined, except in Thai and Lao, which have no full stops."""
    lines: list[str] = []
    goes_on = False
    for raw in text.split("\n"):
        line = " ".join(raw.split())
        if line and goes_on:
            lines[-1] += " " + line
        elif line:
            lines.append(line)
        goes_on = len(line) >= BROKEN_CHARS and not (line.endswith(_ENDS) or "\u0e00" <= line[-1] <= "\u0eff")
    return lines


@dataclass(frozen=True)
class TokenTexts:
    """Documents as arrays, as drawn above: T tokens, U paragraphs (including titles), D documents."""

    ids: NDArray[np.int32]  # [T]: without special tokens
    word_starts: NDArray[np.uint8]  # [T]: 1 where a word begins
    paragraph: Ints  # [U + 1]: where each begins
    document: Ints  # [D + 1]: the first paragraph of each
    titled: NDArray[np.uint8]  # [D]: 1 where the first paragraph is a title
    cluster: Ints  # [D]: the same for near-duplicates
    held: NDArray[np.uint8]  # [D]: 1 where a document is held out
    text: Ints  # [D]: the same for texts that are equal but for case and white space

    def __len__(self) -> int:
        return len(self.titled)

    @property
    def begins(self) -> Ints:
        """[D]: where each document's body begins, behind its title."""
        return self.paragraph[self.document[:-1] + self.titled]

    @property
    def ends(self) -> Ints:
        return self.paragraph[self.document[1:]]

    def save(self, file: Path) -> None:
        with writing(file, SafetensorError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as partial:
                save_file({each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self)}, partial)

    @classmethod
    def load(cls, file: Path) -> TokenTexts:
        try:
            return cls(**load_file(file))
        except (OSError, SafetensorError, TypeError) as error:
            raise RunError(f"{file}: damaged ({error}); start over", options=("overwrite",)) from error


_NOTHING, _START, _NO_BYTES = np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.uint8)
NO_TEXTS = TokenTexts(
    np.zeros(0, np.int32), _NO_BYTES, _START, _START, _NO_BYTES, _NOTHING, _NO_BYTES, _NOTHING
)  # fmt: skip


def read_texts(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    *,
    column_of: Path | None = None,
    note: Callable[[str], None],
    notify: Notify,
) -> TokenTexts:
    """Reads and tokenizes a corpus. Near-duplicates of held-out documents are held out too, unless they are most of the
    text, as in logs.

    `Corpus` decides what is held out, by the same settings, so it does not depend on where the text is stored. If parts
    of documents are held out because documents are few, each part counts as a document. Titles are those of a column
    and, if most documents have one of their own, first lines.
    """
    if column_of is not None:
        settings = rule_for(paths, settings, column_of)
    # If the text column is named, no other column is taken for titles.
    corpus = Corpus(paths, settings, titles=settings.column is None)
    texts, near = _tokenize(corpus, tokenizer, notify)
    note(corpus.describe(corpus.decided()))
    if near:
        note(near)
    for reason, number in corpus.skipped.items():
        note(f"left out: {number:,} {reason}")
    return texts


def _tokenize(corpus: Corpus, tokenizer: Tokenizer, notify: Notify) -> tuple[TokenTexts, str]:
    """Tokenizes the documents in batches; also returns a note on near-duplicates of held-out ones, if any."""
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    encoded: list[tuple[NDArray[np.int32], NDArray[np.uint8], Ints]] = []  # tokens, word starts, sizes of paragraphs
    heads: list[int] = []  # of each paragraph: _TITLE or _BODY if a document begins there, else 0
    first_lines: list[tuple[int, int, str]] = []  # that look like titles: number of paragraph and of document, text
    by_rule, keys = list[bool](), list[int]()
    waiting, documents = list[str](), list[str]()  # paragraphs and documents of the next batch
    clusters = Clusters()
    num_chars = num_several = done = 0

    def tokenize() -> None:
        if waiting:
            batch, sizes = tokenizer.encode_joined(waiting)
            tokenizer.watch(batch.unknown)
            encoded.append((batch.input_ids, batch.word_starts.view(np.uint8), sizes))
        if documents:
            places = range(len(by_rule) - len(documents), len(by_rule))
            clusters.add(documents, places)
        waiting.clear()
        documents.clear()

    for piece, is_held in corpus.pieces():
        begins, column_title = in_parts or piece.offset == 0, piece.title if piece.offset == 0 else None
        title, body = (column_title, piece.text) if piece.offset or column_title else split_title(piece.text)
        if title is not None and column_title is None:
            first_lines.append((len(heads), len(by_rule), title.lower()))
        texts = [*([] if title is None else [title]), *paragraphs_of(body)]
        if begins and texts:
            documents.append("\n".join(texts))
            keys.append(text_key(documents[-1]))
            by_rule.append(is_held)
            num_several += len(texts) > 1
        head = 0 if not begins else _BODY if column_title is None else _TITLE
        waiting += texts
        heads += [head, *[0] * len(texts)][: len(texts)]
        num_chars, done = num_chars + sum(map(len, texts)), done + len(piece.text.encode())
        if num_chars >= _BATCH_CHARS:
            tokenize()
            num_chars = 0
            notify(Progress("reading", done, corpus.num_bytes, "bytes"))
    tokenize()
    if not encoded:
        raise CorpusError("there is no text in the corpus")

    # What is held out, and what counts as a title.
    cluster = np.asarray(mix(clusters.of_texts()))
    rule = np.array(by_rule, dtype=np.bool_)
    held, near = _with_near_duplicates(rule, cluster)
    head_U = np.array(heads, dtype=np.uint8)
    shared = Counter(line for line, _ in {(line, int(cluster[number])) for _, number, line in first_lines})
    own = [place for place, _, line in first_lines if shared[line] == 1]  # which a licence is not
    if (head_U == _TITLE).sum() + len(own) > _MOSTLY * max(num_several, 1):
        head_U[own] = _TITLE
    ids, starts, lengths = map(np.concatenate, zip(*encoded, strict=True))
    return _cut(ids, starts, lengths, head_U, cluster, np.array(keys), held), near


def _with_near_duplicates(rule: NDArray[np.bool_], cluster: Ints) -> tuple[NDArray[np.bool_], str]:
    """Held-out documents, [D], and a note: near-duplicates of those held out by the rule are held out too, unless they
    are most of the others."""
    if rule.all():
        raise CorpusError("all documents are held out, so there is nothing to train on; give more")
    held = np.isin(cluster, cluster[rule])
    num_near, num_others = int((held & ~rule).sum()), int((~rule).sum())
    if not num_near:
        return held, ""
    if num_near <= _MOSTLY * num_others:
        return held, f"{num_near:,} documents are near-duplicates of held-out ones, and held out with them"
    return rule, (
        f"{num_near:,} of {num_others:,} training documents are near-duplicates of held-out ones, too many to hold "
        "out: figures hold for such texts, not for new ones"
    )


def tokenized(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[EncodedText, Ints]:
    """The tokens of one or more texts, concatenated, and the number in each. Warns about unknown letters."""
    parts: list[tuple[NDArray[np.int32], NDArray[np.bool_], Ints]] = []
    # Tokenizing needs at least 16 bytes a character.
    for batch in in_groups(texts, most=_BATCH_CHARS, most_chars=_BATCH_CHARS, text_of=str):
        encoded, lengths = tokenizer.encode_joined(batch)
        tokenizer.watch(encoded.unknown)
        parts.append((encoded.input_ids, encoded.word_starts, lengths))
    ids, starts, all_lengths = map(np.concatenate, zip(*parts, strict=True))
    return EncodedText(ids, starts), all_lengths


def text_key(text: str) -> int:
    """A key of a document's or an answer's text, the same for texts that are equal but for case and white space."""
    return group_key(" ".join(text.casefold().split()))


def _cut(
    ids: NDArray[np.int32],
    starts: NDArray[np.uint8],
    lengths: Ints,
    heads: NDArray[np.uint8],
    cluster: Ints,
    keys: Ints,
    held: NDArray[np.bool_],
) -> TokenTexts:
    """Assembles the documents; long ones become several.

    By paragraph [U]: `lengths`, and `heads`: `_TITLE` or `_BODY` if a document begins there, else 0.
    `cluster`, `keys` and `held` are of each document as it was read; the n-th parts of near-duplicates have the same.
    """
    # Paragraphs longer than `DOCUMENT_TOKENS` are split.
    num_parts = np.maximum(1, -(-lengths // DOCUMENT_TOKENS))
    owner = np.repeat(np.arange(len(lengths)), num_parts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    lengths = np.minimum(DOCUMENT_TOKENS, lengths[owner] - part * DOCUMENT_TOKENS)
    heads = np.where(part == 0, heads[owner], 0).astype(np.uint8)
    of_document = np.cumsum(heads > 0) - 1
    # A document begins where one was read, and after every `DOCUMENT_TOKENS` tokens of it.
    paragraph = np.concatenate([[0], np.cumsum(lengths)])
    first = np.flatnonzero(heads > 0)
    done = paragraph[:-1] - np.repeat(paragraph[first], np.diff([*first, len(heads)]))
    number = done // DOCUMENT_TOKENS
    document = np.flatnonzero((heads > 0) | np.concatenate([[False], number[1:] != number[:-1]]))
    of_part, shift = of_document[document], number[document] * np.int64(GOLDEN)
    return TokenTexts(
        ids,
        starts,
        paragraph,
        np.concatenate([document, [len(heads)]]),
        (heads[document] == _TITLE).astype(np.uint8),
        np.asarray(mix(cluster[of_part] + shift)),
        held[of_part].astype(np.uint8),
        keys[of_part] + shift,
    )


def content_hashes(ids: NDArray[np.int32], begins: Ints, lengths: Ints) -> Ints:
    """[E]: a hash of each span's tokens; equal spans have equal hashes."""
    ends = np.cumsum(lengths)
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    tokens = ids[np.repeat(begins, lengths) + within].astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(mix(mix(tokens + 1) + within * np.int64(0x9E3779B1)))])
    return np.asarray(mix(sums[ends] - sums[ends - lengths] + lengths))


# ----------------------------------------
# Pairs of the user's own, as texts.

# Columns of right and of wrong answers; there may be several of each, with a text or a list of texts.
_ANSWERS = re.compile(
    r"(?:(?P<right>pos(?:itive)?)|(?:hard_?)?neg(?:ative)?)s?(?:_(?:passage|ctx|text|doc|document)s?)?(?:_?\d+)?", re.I
)
_TEXT_FIELDS = ("text", "passage", "content", "contents", "document")  # keys of an object that hold its text
_IDS = ("id", "ids", "idx", "index")  # endings of the names of id columns
_PARTS: tuple[PairPart, ...] = ("query", "text", "negative")


def texts_of(value: Any) -> list[str] | None:
    """The texts in a value: itself, those of a list (also of one spelled in a cell), or that of an object, after its
    title; None for anything else."""
    if isinstance(value, str) and value[:2] in ("[]", '["', "['"):
        value = list_in(value) or ("" if value == "[]" else value)
    if value is None or isinstance(value, str):
        return [value] if value and value.strip() else []
    if isinstance(value, dict):
        text = next((value[name] for name in _TEXT_FIELDS if isinstance(value.get(name), str)), None)
        return None if text is None else texts_of(f"{value.get('title') or ''} {text}".strip())
    parts = [texts_of(each) for each in value] if isinstance(value, list) else [None]
    return None if None in parts else [text for part in parts for text in part or ()]


def _texts_at(row: Row, columns: Sequence[str], where: str) -> list[str]:
    texts: list[str] = []
    for column in columns:
        value = value_at(row, column)
        if (column_texts := texts_of(value)) is None:
            raise CorpusError(f"{where} {shown(value)} in column {column!r}, which is not a text")
        if broken := next(filter(None, map(broken_character, column_texts)), None):
            raise CorpusError(f"{where} {broken} in column {column!r}, which is not a character; remove it")
        texts += column_texts
    return texts


def read_pairs(
    files: ExampleFiles, columns: Mapping[str, str], note: Callable[[str], None], reading: Reading = AS_FOUND
) -> tuple[list[str], list[str]]:
    """Reads a table of pairs. Columns that are not named are detected: of texts by usual names, then by content; of
    labels by usual names or, without a header, by content.

    A query with several right answers makes a pair with each of them; a pair with several wrong answers makes an entry
    with each of those, one after another.

    Returns:
        The queries; and the right answers, one for each, followed by the wrong ones, empty if there is none.
    """
    path, bad = files.path, BadInput(skip=False, way_out=None, reading=reading)
    if not files.sources[0].is_table:
        raise CorpusError(f"{path}: pairs are read from a table (CSV, TSV, JSONL or Parquet)")

    named = [*filter(None, columns.values())]
    sources = [replace(source, layout=find_layout(source, bad, named)) for source in files.sources]
    columns_of = _find_columns(path, first_rows(sources[0], bad), columns, note)
    used = [name for names in columns_of.values() for name in names]
    form = ", ".join(f"{part} in {' and '.join(map(repr, names))}" for part, names in columns_of.items())
    is_list, is_array = columns_of["query"] == columns_of["text"], columns_of["text"] == ["text"]
    if is_list:
        form = (
            "arrays of query, text and wrong texts" if is_array else f"texts of a list in {used[0]!r} belong together"
        )
    note(f"pairs: {form} (override with embedder.columns)")
    right: list[tuple[str, str, list[str]]] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    num_pairs = num_chars = num_partial = 0
    label = next(iter(columns_of.get("label", ())), None)
    rows_at = ((source.path, *row) for source in sources for row in rows_of(source, bad, only=used))
    for file, number, row in rows_at:
        where = f"{file}: row {number} has"
        queries, answers, negatives = (_texts_at(row, columns_of.get(part, ()), where) for part in _PARTS)
        if is_list:
            end = 2 if is_array else len(answers)
            queries, answers, negatives = queries[:1], answers[1:end], answers[end:]
        match = None if label is None else value_at(row, label)
        if not queries or not answers or (label is not None and str(match).strip().lower() in {*NO_LABEL, "none"}):
            num_partial += 1
            continue
        num_pairs += len(queries) * len(answers) * max(1, len(negatives))
        num_chars += sum(map(len, (*queries, *answers, *negatives)))
        check_size(path, num_pairs, num_chars)
        belong = label is None or _belongs(match, label, where)
        for query in queries:
            wrong[query] += [] if belong else answers
            right += [(query, answer, negatives) for answer in answers if belong]
    if not right:
        raise CorpusError(f"{path}: no row is a pair of texts that belong together")
    if num_partial:
        note(
            f"pairs: left out: {num_partial:,} rows without {'one of the texts' if label is None else 'text or label'}"
        )
    with_right = {query for query, _, _ in right}
    if lost := sum(len(texts) for query, texts in wrong.items() if query not in with_right):
        note(f"pairs: left out: {lost:,} wrong pairs whose query has no right one")

    # A row without wrong answers takes those of its query from other rows, in turn.
    rows = [
        (query, answer, negative)
        for place, (query, answer, negatives) in enumerate(right)
        for negative in negatives or [wrong[query][place % len(wrong[query])] if wrong[query] else ""]
    ]
    queries, answers, negatives = map(list, zip(*rows, strict=True))
    return queries, answers + negatives


def _find_columns(
    path: Path, rows: Sequence[Row], named: Mapping[str, str], note: Callable[[str], None]
) -> dict[PairPart, list[str]]:
    """The columns of each part of a pair: the named one, else those with usual names, else by content."""
    names = columns_in(rows)
    values = {name: [row[name] for row in rows if row.get(name) not in (None, "", [])] for name in names}
    has_header = names[:1] != ["0"]
    column_of: dict[PairPart, list[str]] = {}
    taken: set[str] = set()
    for part in sorted(_ROLES, key=lambda part: part not in named):
        column = named.get(part)
        no_label = part == "label" and column == ""
        name = None if no_label else find_column(rows, _ROLES[part], column, where=path, taken=taken)
        if name is not None:
            column_of[part] = [name]
            taken.add(name)
    # Columns of 0 and 1 may be labels. Without a header, the first one is, if two columns are left for texts.
    others = [name for name in names if name not in taken and not name.lower().endswith(_IDS)]
    flags = [name for name in others if {*map(_score, values[name])} in ({0.0, 1.0}, {1.0})]
    is_labelled = "label" in {*column_of, *named}
    if not has_header and not is_labelled and flags and len(names) - len(flags) >= 2:
        column_of["label"] = flags[:1]
        taken.add(flags[0])

    # The other columns that hold texts; among them columns of answers, by name, possibly several.
    textual = []
    for name in names:
        texts = [texts_of(value) for value in values[name]]
        with_letters = sum(each is not None and any(map(str.isalpha, "".join(each))) for each in texts)
        if name not in taken and None not in texts and 2 * with_letters > len(texts):
            textual.append(name)
    for name, match in [(name, match) for name in textual if (match := _ANSWERS.fullmatch(name))]:
        answer: PairPart = "text" if match["right"] else "negative"
        if answer not in named and all(map(_ANSWERS.fullmatch, column_of.get(answer, ()))):
            column_of.setdefault(answer, []).append(name)
        textual.remove(name)

    # One column of lists, or as many columns as parts are missing; without a header the first ones.
    textual = [name for name in textual if not name.lower().endswith(_IDS)]
    textual = [name for name in names if name not in taken] if not has_header and len(textual) < 2 else textual
    lists = [name for name in (*column_of.get("text", ()), *textual) if all(isinstance(v, list) for v in values[name])]
    if "query" not in column_of and len(lists) == 1 and (textual or lists) == lists:
        column_of["query"] = column_of["text"] = lists
    lacking = [part for part in _PARTS[:2] if part not in column_of]
    if lacking and (len(textual) == len(lacking) or not has_header):
        parts = lacking if has_header else [*lacking, "negative"]
        column_of |= {part: [name] for part, name in zip(parts, textual, strict=False)}
    for part in lacking:
        if part not in column_of:
            usual = ", ".join(USUAL[_ROLES[part]][:4])
            raise CorpusError(
                f"{path}: no column has a usual name for the {part} ({usual}, ...); columns are {', '.join(names)}; "
                f"name it with embedder.columns.{part}=NAME",
                options=("set",),
            )
    flags = [name for name in flags if [name] not in column_of.values()]
    if flags and has_header and not is_labelled:
        way = f"if column {flags[0]!r} says which do, set embedder.columns.label={flags[0]}"
        note(f"pairs: all rows are taken as texts that belong together; {way}")
    return {part: column_of[part] for part in _ROLES if part in column_of}


def _belongs(value: Any, column: str, where: str) -> bool:
    score = _score(value)
    if not 0.0 <= score <= 1.0:
        raise CorpusError(
            f"{where} {shown(value)} in column {column!r}; a label is 1 for texts that belong together, 0 for others, "
            "or a score from 0 to 1: divide other scores by the largest possible one, or ignore the column with "
            "embedder.columns.label=; classes and grades of pairs are for the tasks pairs and regress of `unmask "
            "finetune`",
            options=("set",),
        )
    return score >= RIGHT


def _score(value: Any) -> float:
    """The value as a number; -1 if it is none."""
    text = str(value).strip().lower()
    try:
        return float({"true": "1", "false": "0"}.get(text, text))
    except ValueError:
        return -1.0
