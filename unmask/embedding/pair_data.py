"""What an embedding model is trained and measured on, and what is said of it before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from unmask.embedding.given_pairs import TextPairs, tokens_of_pairs
from unmask.embedding.pair_stream import (
    KINDS,
    DrawnPairs,
    GivenPairs,
    PairDrawer,
    PairParts,
    Spans,
    Tokens,
    with_given,
)
from unmask.embedding.settings import EmbedderSettings
from unmask.embedding.token_texts import Ints, TokenTexts, content_hashes
from unmask.errors import CorpusError
from unmask.hashing import mix, mix_ints, permutation
from unmask.tokenizer.tokenizer import Tokenizer

MOST_HELD = 512  # pairs of a kind
_HELD, _GIVEN = 19, 20  # set these draws apart
_NOTHING = np.zeros(0, dtype=np.int64)
_NO_SPANS = Spans(_NOTHING, _NOTHING)
NO_PAIRS = GivenPairs(_NO_SPANS, _NO_SPANS, _NO_SPANS, _NOTHING, _NOTHING)


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, and held-out ones.

    Attributes:
        tokens: Of all texts.
        parts: Of documents, each with a pair of some kind.
        given: Pairs that the user gave.
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
    """Finds out which pairs there are, and says so.

    Args:
        texts: The documents; None: none were given.
        pairs: Of the user's own; None likewise.
        tokenizer: Of the model.
        settings: Kinds, lengths, how much is held out.
        note: Told what was found, in lines.

    Raises:
        CorpusError: There are not two documents to tell from each other, or all are too short.
    """
    tokens = Tokens(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    parts: PairParts | None = None
    held_parts: PairParts | None = None
    facts: dict[str, int] = {}
    if texts is not None:
        tokens = Tokens(texts.ids, texts.word_starts)
        held_parts = _usable(texts, settings, held=True)
        if len(np.unique(held_parts.key)) < 2:  # too few to measure on, but searches may ask for them
            held_parts = None
        parts = _usable(texts, settings, held=False)
        facts = _facts(texts, parts)
        for line in _describe(facts, settings):
            note(line)
        if pairs is None:
            _check(texts, parts, settings)
    given = held_given = NO_PAIRS
    if pairs is not None:
        keys = None if texts is None else texts.given
        tokens, all_given = tokens_of_pairs(pairs, tokenizer, tokens, keys=keys, longest=settings.longest, note=note)
        given, held_given, lost = _split(all_given, texts, settings)
        if lost:
            note(f"pairs: {lost:,} wrong answers are held-out documents, and are left out")
        facts["given_pairs"] = len(given)
        with_wrong = int((all_given.wrong.length > 0).sum())
        columns = ", ".join(f"{role} in {column!r}" for role, column in pairs.columns.items())
        note(f"pairs: {len(all_given):,}, {with_wrong:,} of them with a wrong answer; {columns}")
        for reason, number in pairs.left_out.items():
            note(f"pairs: left out: {number:,} {reason}")
        if len(np.unique(given.key)) < 2 and (parts is None or not len(parts)):
            raise CorpusError("all pairs have the same text, so there is nothing to tell it from; give more pairs")
        if (parts is None or not len(parts)) and len(np.unique(_hashes(tokens, given.first))) < 2:
            raise CorpusError("all pairs have the same query, so all texts are right answers; give more pairs")
    parts = _no_parts() if parts is None else parts
    held = dict(_held_pairs(tokens, held_parts, held_given, settings))
    if held:
        counts = ", ".join(f"{len(drawn.document):,} {kind}" for kind, drawn in held.items())
        note(f"held out: {counts}")
    else:
        note("too little is held out to measure on, so nothing is measured")
    return PairData(tokens, parts, given, held, facts)


def _usable(texts: TokenTexts, settings: EmbedderSettings, *, held: bool) -> PairParts:
    parts = PairParts.of(texts, settings, held=held)
    return parts.chosen(np.flatnonzero(parts.can.any(1)))


def _no_parts() -> PairParts:
    can = np.zeros((0, len(KINDS)), dtype=bool)
    return PairParts(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, can, _NOTHING, _NOTHING, _NOTHING)


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


def _describe(facts: dict[str, int], settings: EmbedderSettings) -> Iterator[str]:
    yield f"{facts['documents']:,} documents to train on, {facts['held_out_documents']:,} held out"
    kinds = {
        "crops": "two crops",
        "titles": "a title and a crop",
        "neighbours": "neighbouring paragraphs",
    }
    found = ", ".join(f"{words} {facts[kind]:,}" for kind, words in kinds.items() if facts[kind])
    yield f"{facts['parts']:,} parts of them have pairs: {found or 'none'}"
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
            "and second_lengths), or pairs of your own (--pairs)"
        )
    if len(np.unique(parts.key)) < 2:
        raise CorpusError(
            "there is one document to train on, and nothing to tell it from (near-duplicates are one); give more "
            "documents, or have lines or blocks be documents (--set corpus.documents=line)"
        )


def _hashes(tokens: Tokens, spans: Spans) -> Ints:
    return content_hashes(tokens.ids, spans.begin, spans.length)


def _split(
    given: GivenPairs, texts: TokenTexts | None, settings: EmbedderSettings
) -> tuple[GivenPairs, GivenPairs, int]:
    """Pairs to train on and held-out ones: by the document that the second text is a near-duplicate of, else by its
    hash. Of those to train on, wrong answers that are held-out documents are taken away; so many.
    """
    held = (mix(given.key + _GIVEN).view(np.uint64) >> np.uint64(11)) < settings.holdout * 2.0**53
    if texts is None:
        if held.sum() < 2 or (~held).sum() < 2:
            return given, NO_PAIRS, 0
        return given.chosen(~held), given.chosen(held), 0
    held_keys = texts.cluster[texts.held == 1]
    held = np.isin(given.key, held_keys) | (held & ~np.isin(given.key, texts.cluster))
    is_lost = ~held & np.isin(given.wrong_key, held_keys) & (given.wrong.length > 0)
    given = replace(given, wrong=Spans(given.wrong.begin, np.where(is_lost, 0, given.wrong.length)))
    return given.chosen(~held), given.chosen(held) if held.sum() > 1 else NO_PAIRS, int(is_lost.sum())


def _held_pairs(
    tokens: Tokens, parts: PairParts | None, given: GivenPairs, settings: EmbedderSettings
) -> Iterator[tuple[str, DrawnPairs]]:
    """The same pairs whenever they are asked for."""
    key = mix_ints(_HELD, settings.seed)
    if parts is not None and len(parts):
        drawer = PairDrawer(tokens, parts, settings)
        order = permutation(len(parts), key)
        for number, kind in enumerate(KINDS):
            chosen = order[parts.can[order, number]]
            if kind == "titles":  # one for each document
                _, firsts = np.unique(parts.key[chosen], return_index=True)
                chosen = chosen[np.sort(firsts)]
            if len(np.unique(parts.key[chosen := chosen[:MOST_HELD]])) > 1:
                yield kind, drawer.draw(chosen, key, kind=number)
    if len(given):
        none = PairDrawer(tokens, _no_parts(), settings).draw(_NOTHING, key)
        yield "given", with_given(none, given.chosen(np.arange(len(given))[:MOST_HELD]))
