"""Characters to tokens, for every family of tokenizers."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.families import FAMILIES, SENTENCE, trained
from unmask.core.errors import DataError
from unmask.tokenizer.spans import Span, align, column_types
from unmask.tokenizer.tokenizer import Tokenizer


def aligned(tokenizer: Tokenizer, texts: list[str], column: str, spans: list[list[Span]], labels: list[str]):  # type: ignore[no-untyped-def]
    encoded, places = tokenizer.encode_placed(texts)
    columns = align(texts, places, [{column: tuple(each)} for each in spans], {column: labels})
    return encoded, places, columns[column]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(st.lists(st.text(alphabet=SENTENCE + " \n中é", max_size=30), min_size=1, max_size=4), st.integers(0, 10**6))
def test_against_the_definition(family: str, texts: list[str], seed: int) -> None:
    """One token at a time: it belongs to the first span with which it shares a character that is no white space."""
    rng = random.Random(seed)
    spans = []
    for text in texts:
        cuts = sorted(rng.choices(range(len(text) + 1), k=6))
        pairs = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b]
        spans.append([Span(a, b, rng.choice("XYZ")) for a, b in pairs])
    tokenizer = trained(family)
    _, places, column = aligned(tokenizer, texts, "entities", spans, ["X", "Y", "Z"])
    text_begin = np.cumsum([0, *map(len, texts)])
    text_of = np.repeat(np.arange(len(texts)), places.lengths)
    owners: list[tuple[int, int] | None] = []
    for begin, end, text in zip(places.begin, places.end, text_of, strict=True):
        inked = [c - text_begin[text] for c in range(begin, end) if not "".join(texts)[c].isspace()]
        owning = [(int(text), n) for c in inked for n, span in enumerate(spans[text]) if span.begin <= c < span.end]
        owners.append(min(owning) if owning else None)
    for owner, value in zip(owners, column.values.tolist(), strict=True):
        if owner is not None:
            text, number = owner
            assert value >> 1 == 1 + "XYZ".index(spans[text][number].label)
    inside = [n for n, value in enumerate(column.values.tolist()) if value]
    for place in inside:  # what is inside without sharing ink lies within a span, or is the mark of its first word
        if owners[place] is None:
            after = next((owner for owner in owners[place:] if owner is not None), None)
            before = next((owner for owner in owners[place::-1] if owner is not None), None)
            assert after is not None
            assert before == after or places.word_starts[place]
    met = {owner for owner in owners if owner is not None}
    assert int((column.values & 1).sum()) == len(met) == column.spans - column.lost


def test_subtrees_that_are_not_contiguous_or_cut() -> None:
    """The head of `the` is `queen`, two words on, past `king`; a word whose head was cut away becomes a root."""
    tokenizer = trained("wordpiece")
    words = [Span(0, 3, "a", 2), Span(4, 8, "a", 5), Span(9, 14, "a", 0)]
    _, _, column = aligned(tokenizer, ["the king queen"], "dependencies", [words], ["a"])
    fields = [(v >> 25, v >> 24 & 1, v >> 12 & 4095, v & 4095) for v in column.values.tolist()]
    assert fields == [(1, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)]


def test_subtrees_of_random_trees_against_walking_them() -> None:
    """By following each word's heads."""
    tokenizer, rng = trained("wordpiece"), random.Random(3)
    texts, spans = [], []
    for _ in range(30):
        forms = [rng.choice(["king", "mountaineer", "sees", "philosopher"]) for _ in range(rng.randint(1, 9))]
        ends = list(itertools.accumulate(len(form) + 1 for form in forms))
        order = rng.sample(range(len(forms)), len(forms))  # the head of each word comes before it in this order
        heads = {order[0]: order[0]} | {w: rng.choice(order[:n]) for n, w in enumerate(order) if n}
        texts.append(" ".join(forms))
        pairs = enumerate(zip(forms, ends, strict=True))
        spans.append([Span(end - len(form) - 1, end - 1, "a", heads[n] - n) for n, (form, end) in pairs])
    _, places, column = aligned(tokenizer, texts, "dependencies", spans, ["a"])
    token = begin = checked = 0
    for text, words, length in zip(texts, spans, places.lengths, strict=True):
        first = places.begin[token : token + length] - begin
        word_of = [next(n for n, word in enumerate(words) if word.begin <= c < word.end) for c in first]
        begin += len(text)
        for number in range(len(words)):
            under = set()
            for other in range(len(words)):
                above = other
                while above != number and words[above].head:
                    above += words[above].head
                if above == number:
                    under.add(other)
            own = [n for n, w in enumerate(word_of) if w == number]
            contiguous = under == set(range(min(under), max(under) + 1))
            tokens = [n for n, w in enumerate(word_of) if w in (under if contiguous else {number})]
            for n in own:
                value = column.values[token + n]
                assert (value >> 12 & 4095, value & 4095) == (n - min(tokens), max(tokens) - n)
                assert (value >> 24 & 1) == (len(under) > 1)
                checked += 1
        token += int(length)
    assert checked > 100


def test_the_smallest_type_is_chosen() -> None:
    sizes = {"entities": (127, 128), "pos": (255, 256), "dependencies": (1, 127)}
    small, large = (column_types({column: ["x"] * each[n] for column, each in sizes.items()}) for n in (0, 1))
    assert small == {"entities": np.uint8, "pos": np.uint8, "dependencies": np.uint32}
    assert large == {"entities": np.uint16, "pos": np.uint16, "dependencies": np.uint32}
    for column, number in (("dependencies", 128), ("entities", 40_000)):
        with pytest.raises(DataError, match=column):
            column_types({column: ["x"] * number})
    with pytest.raises(DataError, match="'B' of entities"):
        aligned(trained("char"), ["the king"], "entities", [[Span(0, 3, "B")]], ["A"])
