"""What an embedding model is trained and measured on: pairs of documents, and pairs of the user's own.

query, text                two texts that belong together
query, text, negative      and one that does not belong to the query
query, text, label         1: they belong together; 0: they do not, and the text is a wrong answer where the query
                           has a right one in another row; or a score from 0 to 1, of which 0.5 and more are 1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.commands.embedder_settings import EmbedderSettings, PairColumns
from unmask.commands.embedder_stream import (
    KINDS,
    NO_SPANS,
    DrawnPairs,
    GivenPairs,
    PairDrawer,
    PairParts,
    Spans,
    Tokens,
)
from unmask.commands.embedder_texts import TextKeys, TokenTexts, content_hashes
from unmask.core.errors import CorpusError, shown
from unmask.core.hashing import mix, mix_ints, permutation
from unmask.data.groups import Clusters
from unmask.data.reading import BadInput, Row, broken_character
from unmask.data.sources import find_sources
from unmask.data.tables import USUAL, Role, find_column, first_rows, rows_of
from unmask.tasks.files import Gathered
from unmask.tokenizer.tokenizer import Tokenizer

_ROLES: Mapping[str, Role] = {"query": "query", "text": "answer", "negative": "negative", "label": "match"}
RIGHT = 0.5  # from this score on
MOST_HELD = 512  # pairs of a kind
_HELD, _GIVEN = 19, 20  # set these draws apart


@dataclass(frozen=True)
class TextPairs:
    """Pairs as texts.

    Attributes:
        queries, texts: As many of each.
        negatives: For each a wrong answer, or None.
        columns: Their columns, by role.
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
    named = {role: column for role, column in vars(columns).items() if column is not None}
    known = list(named.values())
    bad = BadInput(skip=False, way_out=None)
    column_of = _find_columns(path, first_rows(sources[0], bad, None, known), named)
    gathered = Gathered(path)
    right: list[tuple[str, str, str | None]] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for number, row in rows_of(sources[0], bad, None, known=known, only=list(column_of.values())):
        texts = {role: _text(path, number, row, column) for role, column in column_of.items() if role != "label"}
        query, text, negative = texts["query"], texts["text"], texts.get("negative")
        if query is None or text is None:
            left_out["rows without one of the texts"] += 1
            continue
        gathered.add(len(query) + len(text) + len(negative or ""))
        if "label" in column_of and not _belongs(path, number, row.get(column_of["label"]), column_of["label"]):
            wrong[query].append(text)
        else:
            right.append((query, text, negative))
    used = {query for query, _, _ in right}
    if lost := sum(len(texts) for query, texts in wrong.items() if query not in used):
        left_out["wrong pairs whose query has no right one"] = lost
    if not right:
        raise CorpusError(f"{path}: no row is a pair that belongs together; there must be two at the least")
    queries, texts_of, negatives = (list(each) for each in zip(*right, strict=True))
    for place, query in enumerate(queries):
        if negatives[place] is None and wrong[query]:
            negatives[place] = wrong[query][place % len(wrong[query])]
    return TextPairs(queries, texts_of, negatives, column_of, dict(left_out))


def _find_columns(path: Path, rows: Sequence[Row], named: Mapping[str, str]) -> dict[str, str]:
    """Columns by what they are in `PairColumns`."""
    column_of = dict(named)
    for name, role in _ROLES.items():
        column = find_column(rows, role, named.get(name), where=path, taken=tuple(column_of.values()))
        if column is not None:
            column_of[name] = column
    names = list(dict.fromkeys(name for row in rows for name in row))
    if names[:2] == ["0", "1"] and not named:  # a table without a header
        column_of = dict(zip(("query", "text", "negative"), names, strict=False))
    if lacking := next((name for name in ("query", "text") if name not in column_of), None):
        usual = ", ".join(USUAL[_ROLES[lacking]][:4])
        raise CorpusError(
            f"{path}: no column is called like that of the {lacking} ({usual}, ...); columns are {', '.join(names)}; "
            f"name it with --set embedder.columns.{lacking}=NAME"
        )
    return column_of


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


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, and held-out ones.

    Attributes:
        tokens: Of all texts.
        parts: Of documents, each with a pair of some kind.
        given: Pairs of the user's own.
        held: Held-out pairs by their kind; empty where there are too few.
        facts: For the summary: documents, tokens, pairs by kind, what was left out.
    """

    tokens: Tokens
    parts: PairParts
    given: GivenPairs
    held: dict[str, DrawnPairs]
    facts: dict[str, int]


def pair_data(
    texts: TokenTexts | None,
    pairs: TextPairs | None,
    tokenizer: Tokenizer,
    settings: EmbedderSettings,
    *,
    note: Callable[[str], None],
) -> PairData:
    """Finds which pairs there are.

    Args:
        texts: The documents, if there are any.
        pairs: Of the user's own, if there are any.
        tokenizer: Of the model.
        settings: Kinds, lengths, how much is held out.
        note: Called with each finding, a line.

    Raises:
        CorpusError: There are not two documents to contrast with each other, or all are too short.
    """
    tokens = Tokens(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    parts = held_parts = PairParts()
    facts: dict[str, int] = {}
    if texts is not None:
        tokens = Tokens(texts.ids, texts.word_starts)
        parts, held_parts = (PairParts.of(texts, settings, held=held) for held in (False, True))
        parts, held_parts = (each.chosen(np.flatnonzero(each.can.any(1))) for each in (parts, held_parts))
        if len(np.unique(held_parts.key)) < 2:  # too few to measure on, but searches may ask for them
            held_parts = PairParts()
        facts = _facts(texts, parts)
        for line in _described(facts, settings):
            note(line)
        if pairs is None:
            _check(texts, parts, settings)
    given = held_given = GivenPairs()
    if pairs is not None:
        tokens, all_given = _tokenized(pairs, tokenizer, tokens, texts, longest=settings.longest, note=note)
        given, held_given, lost = _split(all_given, texts, settings)
        if lost:
            note(f"pairs: {lost:,} wrong answers are held-out documents, and are left out")
        facts["given_pairs"] = len(given)
        with_wrong = int((all_given.wrong.length > 0).sum())
        columns = ", ".join(f"{role} in {column!r}" for role, column in pairs.columns.items())
        note(f"pairs: {len(all_given):,}, {with_wrong:,} of them with a wrong answer; {columns}")
        for reason, number in pairs.left_out.items():
            note(f"pairs: left out: {number:,} {reason}")
        if not len(parts) and len(np.unique(given.key)) < 2:
            raise CorpusError("all pairs have the same text, so there is nothing to tell it from; give more pairs")
        if not len(parts) and len(np.unique(content_hashes(tokens.ids, *given.first))) < 2:
            raise CorpusError("all pairs have the same query, so all texts are right answers; give more pairs")
    held = dict(_held_pairs(tokens, held_parts, held_given, settings))
    if held:
        note(f"held out: {', '.join(f'{len(drawn.document):,} {kind}' for kind, drawn in held.items())}")
    else:
        note("too little is held out to measure on, so nothing is measured")
    return PairData(tokens, parts, given, held, facts)


def _facts(texts: TokenTexts, parts: PairParts) -> dict[str, int]:
    train = texts.held == 0
    return {
        "documents": int(train.sum()),
        "held_out_documents": int((~train).sum()),
        "tokens": int((texts.ends - texts.paragraph[texts.document[:-1]])[train].sum()),
        "too_short": int(train.sum()) - len(np.unique(np.searchsorted(texts.begins, parts.begin, side="right"))),
        "parts": len(parts),
        **{kind: int(parts.can[:, number].sum()) for number, kind in enumerate(KINDS)},
    }


def _described(facts: dict[str, int], settings: EmbedderSettings) -> Iterator[str]:
    yield f"{facts['documents']:,} documents to train on, {facts['held_out_documents']:,} held out"
    kinds = zip(KINDS, ("two crops", "a title and a crop", "neighbouring paragraphs"), strict=True)
    counts = ", ".join(f"{words} {facts[kind]:,}" for kind, words in kinds if facts[kind])
    yield f"{facts['parts']:,} parts of them have pairs: {counts or 'none'}"
    if facts["too_short"]:
        yield (
            f"{facts['too_short']:,} documents are too short for a pair and are left out: crops have "
            f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens at the least"
        )
    if facts["crops"] and settings.longest > settings.part_tokens:
        yield (
            f"crops of {settings.longest} tokens do not fit parts of about {settings.part_tokens}, and are cut to "
            f"them; for longer ones --set embedder.part_tokens={2 * settings.longest}"
        )


def _check(texts: TokenTexts, parts: PairParts, settings: EmbedderSettings) -> None:
    if not len(parts):
        longest = int((texts.ends - texts.begins).max(initial=0))
        raise CorpusError(
            f"no document has a pair of texts: the longest has {longest} tokens, but two crops of "
            f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens are the least; give longer "
            "documents (--set corpus.documents=block or file), shorter crops (--set 'embedder.first_lengths=[4,64]' "
            "and second_lengths), or pairs of your own",
            options=("pairs",),
        )
    if len(np.unique(parts.key)) < 2:
        raise CorpusError(
            "there is one document to train on, and nothing to tell it from (near-duplicates are one); give more "
            "documents, or have lines or blocks be documents (--set corpus.documents=line)"
        )


def _tokenized(
    pairs: TextPairs,
    tokenizer: Tokenizer,
    tokens: Tokens,
    texts: TokenTexts | None,
    *,
    longest: int,
    note: Callable[[str], None],
) -> tuple[Tokens, GivenPairs]:
    """Pairs as tokens behind those of documents; of texts longer than `longest` tokens the beginnings are used."""
    given = [*pairs.queries, *pairs.answers]
    encoded, lengths = tokenizer.encode_joined(given)
    begins = len(tokens.ids) + np.cumsum(lengths) - lengths
    if cut := int((lengths > longest).sum()):
        note(f"pairs: {cut:,} of {len(given):,} texts are longer than {longest} tokens; their ends are not seen")
    lengths = np.minimum(lengths, longest)
    first, second, wrong = map(Spans, np.split(begins, 3), np.split(lengths, 3))
    joined = Tokens(
        np.concatenate([tokens.ids, encoded.input_ids]),
        np.concatenate([tokens.word_starts, encoded.word_starts.view(np.uint8)]),
    )
    keys = TextKeys.of(pairs.answers, Clusters()).given if texts is None else texts.given
    key, wrong_key = np.split(keys, 2)
    tokenized = GivenPairs(first, second, wrong, key, wrong_key)
    return joined, tokenized.chosen((tokenized.first.length > 0) & (tokenized.second.length > 0))


def _split(
    given: GivenPairs, texts: TokenTexts | None, settings: EmbedderSettings
) -> tuple[GivenPairs, GivenPairs, int]:
    """Pairs to train on and held-out ones: by the document that the second text is a near-duplicate of, else by its
    hash; and how many wrong answers of the former are held-out documents, and are taken away.
    """
    held = (mix(given.key + _GIVEN).view(np.uint64) >> np.uint64(11)) < settings.holdout * 2.0**53
    if texts is None:
        if held.sum() < 2 or (~held).sum() < 2:
            return given, GivenPairs(), 0
        return given.chosen(~held), given.chosen(held), 0
    held_keys = texts.cluster[texts.held == 1]
    held = np.isin(given.key, held_keys) | (held & ~np.isin(given.key, texts.cluster))
    is_lost = ~held & np.isin(given.wrong_key, held_keys) & (given.wrong.length > 0)
    given = replace(given, wrong=Spans(given.wrong.begin, np.where(is_lost, 0, given.wrong.length)))
    return given.chosen(~held), given.chosen(held) if held.sum() > 1 else GivenPairs(), int(is_lost.sum())


def _held_pairs(
    tokens: Tokens, parts: PairParts, given: GivenPairs, settings: EmbedderSettings
) -> Iterator[tuple[str, DrawnPairs]]:
    """Held-out pairs by kind: a function of the data and the seed."""
    key = mix_ints(_HELD, settings.seed)
    drawer = PairDrawer(tokens, parts, settings)
    order = permutation(len(parts), key) if len(parts) else np.zeros(0, dtype=np.int64)
    for number, kind in enumerate(KINDS):
        chosen = order[parts.can[order, number]]
        if kind == "titles":  # one for each document
            _, firsts = np.unique(parts.key[chosen], return_index=True)
            chosen = chosen[np.sort(firsts)]
        if len(np.unique(parts.key[chosen := chosen[:MOST_HELD]])) > 1:
            yield kind, drawer.draw(chosen, key, kind=number)
    if len(given):
        none = DrawnPairs(NO_SPANS, NO_SPANS, np.zeros(0, dtype=np.int64))
        yield "given", given.chosen(np.arange(len(given))[:MOST_HELD]).behind(none)
