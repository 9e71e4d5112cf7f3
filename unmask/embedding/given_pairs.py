"""Pairs of a user's own: a file of queries and texts, perhaps with a wrong answer for each, or with labels.

query, text                two texts that belong together
query, text, negative      and one that does not belong to the query
query, text, label         1: they belong together; 0: they do not, and the text is a wrong answer where the query
                           has a right one in another row; or a score from 0 to 1, of which 0.5 and more are 1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unmask.embedding.pair_stream import GivenPairs, Spans, Tokens
from unmask.embedding.settings import PairColumns
from unmask.embedding.token_texts import Ints, TextKeys
from unmask.errors import CorpusError
from unmask.tasks.labelled_files import Gathered
from unmask.text.groups import Clusters
from unmask.text.reading import BadInput, broken_character
from unmask.text.sources import find_sources
from unmask.text.table_rows import LOOK_ROWS, rows_of
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.values import shown

USUAL: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "question", "anchor", "first", "sentence1", "text1", "text_a", "premise", "title"),
    "text": ("text", "passage", "positive", "document", "answer", "second", "sentence2", "text2", "text_b",
             "hypothesis", "body"),
    "negative": ("negative", "hard_negative", "negative_1"),
    "label": ("label", "score", "similarity", "similarity_score"),
}  # fmt: skip
RIGHT = 0.5  # from this score on


@dataclass(frozen=True)
class TextPairs:
    """Pairs as texts.

    Attributes:
        queries, texts: As many of each.
        negatives: For each a wrong answer, or None.
        columns: Where they stood.
        left_out: Rows that were not used, by reason.
    """

    queries: list[str]
    texts: list[str]
    negatives: list[str | None]
    columns: dict[str, str]
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def answers(self) -> list[str]:
        """Right ones, and after them the wrong ones, empty where there is none."""
        return [*self.texts, *(text or "" for text in self.negatives)]


def read_pairs(path: Path, columns: PairColumns) -> TextPairs:
    """Reads a file of pairs.

    Args:
        path: CSV, TSV, JSON, JSONL or Parquet.
        columns: That were named; others are found by their names.

    Raises:
        CorpusError: It is no table, a column is not there, a label is none, or no row is a pair.
    """
    sources = find_sources([path], announce=False)
    if len(sources) != 1 or not sources[0].is_table:
        raise CorpusError(f"{path}: pairs are read from one table (CSV, TSV, JSONL or Parquet)")
    asked = {name: column for name, column in vars(columns).items() if column is not None}
    known = [name for names in USUAL.values() for name in names] + list(asked.values())
    bad = BadInput(skip=False, way_out=None)
    look = [row for _, row in islice(rows_of(sources[0], bad, None, known=known), LOOK_ROWS)]
    found = _find_columns(path, look, asked)
    gathered = Gathered(path)
    right: list[tuple[str, str, str | None]] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for number, row in rows_of(sources[0], bad, None, known=known, only=list(found.values())):
        values = {name: _text(path, number, row, column) for name, column in found.items() if name != "label"}
        query, text = values["query"], values["text"]
        if query is None or text is None:
            left_out["rows without one of the texts"] += 1
            continue
        gathered.add(len(query) + len(text) + len(values.get("negative") or ""))
        if "label" in found and not _belongs(path, number, row.get(found["label"]), found["label"]):
            wrong[query].append(text)
            continue
        right.append((query, text, values.get("negative")))
    used = {query for query, _, _ in right}
    if lost := sum(len(texts) for query, texts in wrong.items() if query not in used):
        left_out["wrong pairs whose query has no right one"] = lost
    if not right:
        raise CorpusError(f"{path}: no row is a pair that belongs together; there must be two at the least")
    queries, texts, negatives = (list(each) for each in zip(*right, strict=True))
    for place, query in enumerate(queries):
        if negatives[place] is None and wrong[query]:
            negatives[place] = wrong[query][place % len(wrong[query])]
    return TextPairs(queries, texts, negatives, found, dict(left_out))


def _find_columns(path: Path, rows: Sequence[Mapping[str, Any]], asked: Mapping[str, str]) -> dict[str, str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if missing := next((column for column in asked.values() if column not in names), None):
        raise CorpusError(f"{path}: there is no column {missing!r}; columns are {', '.join(names)}")
    by_letters = {name.strip().lower(): name for name in reversed(names)}
    found = dict(asked)
    for role, usual in USUAL.items():
        free = (by_letters[name] for name in usual if name in by_letters and by_letters[name] not in found.values())
        if role not in found and (name := next(free, None)) is not None:
            found[role] = name
    if names[:2] == ["0", "1"] and not asked:  # no names
        found = dict(zip(("query", "text", "negative"), names, strict=False))
    if lacking := next((role for role in ("query", "text") if role not in found), None):
        raise CorpusError(
            f"{path}: no column is called like that of the {lacking} ({', '.join(USUAL[lacking][:4])}, ...); columns "
            f"are {', '.join(names)}; name it with --set embedder.columns.{lacking}=NAME"
        )
    return found


def _text(path: Path, number: int, row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        raise CorpusError(f"{path}: row {number} has {shown(value)} in column {column!r}, which is no text")
    if broken := broken_character(value):
        raise CorpusError(f"{path}: row {number} has {broken} in column {column!r}, which is no character; take it out")
    return value


def _belongs(path: Path, number: int, value: Any, column: str) -> bool:
    """Whether a label says that two texts belong together."""
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= 1.0:
        raise CorpusError(
            f"{path}: row {number} has {shown(value)} in column {column!r}; a label is 1 for texts that belong "
            "together and 0 for others, or a score from 0 to 1. Change it, or learn classes and grades of pairs with "
            "unmask finetune --task pairs or regress"
        )
    return score >= RIGHT


def tokens_of_pairs(
    pairs: TextPairs,
    tokenizer: Tokenizer,
    tokens: Tokens,
    *,
    keys: Ints | None,
    longest: int,
    note: Callable[[str], None],
) -> tuple[Tokens, GivenPairs]:
    """Pairs as tokens, behind those that are there.

    Args:
        pairs: As they were read.
        tokenizer: Of the model.
        tokens: Of documents.
        keys: [2 G], int64: of all answers, as documents have them; None: there are no documents.
        longest: Tokens of a text at most; of longer ones the beginnings are used.
        note: Told what was cut.
    """
    texts = [*pairs.queries, *pairs.answers]
    encoded, lengths = tokenizer.encode_joined(texts)
    begins = len(tokens.ids) + np.cumsum(lengths) - lengths
    if cut := int((lengths > longest).sum()):
        note(f"pairs: {cut:,} of {len(texts):,} texts are longer than {longest} tokens; their ends are not seen")
    lengths = np.minimum(lengths, longest)
    first, second, wrong = (
        Spans(begin, length) for begin, length in zip(np.split(begins, 3), np.split(lengths, 3), strict=True)
    )
    joined = Tokens(
        np.concatenate([tokens.ids, encoded.input_ids]),
        np.concatenate([tokens.word_starts, encoded.word_starts.view(np.uint8)]),
    )
    key, wrong_key = np.split(TextKeys.of(pairs.answers, Clusters()).given if keys is None else keys, 2)
    given = GivenPairs(first, second, wrong, key, wrong_key)
    return joined, given.chosen((first.length > 0) & (second.length > 0))
