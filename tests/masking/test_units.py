"""Where units begin and end, on rows written by hand: words, spans, entities, phrases and subtrees; and tiling by
collocations, against a greedy walk in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_lexicon import letter_ids
from tests.masking.helpers import collocation_set, copies_of, make_rows, masker_of, parse, rows_of
from unmask.core.hashing import mix
from unmask.data.rows import Rows
from unmask.masking.draw import flatten, partition
from unmask.masking.draw_loops import hash_set
from unmask.masking.tables import Tables
from unmask.masking.units import (
    CollocationUnits,
    EntityUnits,
    PhraseUnits,
    PlainUnits,
    SpanUnits,
    SubtreeUnits,
    TokenUnits,
    WordUnits,
)
from unmask.tokenizer.tokenizer import Tokenizer


def test_a_longest_span_of_one_word_is_whole_word_masking(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 20, [30, 7])
    flat = flatten(rows, 0)
    one = SpanUnits(max_words=1).starts(flat, Tables(0))
    assert torch.equal(one[flat.maskable_T], WordUnits().starts(flat, Tables(0))[flat.maskable_T])
    assert TokenUnits().starts(flat, Tables(0)).all()


def test_spans_of_tokens_begin_within_words(tokenizer: Tokenizer) -> None:
    """All spans are of two tokens; words here are longer."""
    rows = make_rows(tokenizer, 3, [40], mean_word=1e9)
    masker = masker_of(tokenizer, units={"kind": "span", "of": "tokens", "lengths": [0, 1]}, rate=0.5)
    target = masker(rows).labels[:, 1:41] >= 0
    assert torch.equal(target[:, ::2], target[:, 1::2])
    assert 0 < target.double().mean() < 1


def units_of(rows: Rows, units: PlainUnits) -> str:
    """A letter for each unit, a dot at tokens that cannot be masked."""
    flat = flatten(rows, 0)
    actual = partition(flat, units.starts(flat, Tables(0)))
    begins = sorted(set(actual.begin_T[flat.maskable_T].tolist()))
    letters = {begin: "abcdefghijklmnop"[number] for number, begin in enumerate(begins)}
    pairs = zip(actual.begin_T.tolist(), flat.maskable_T.tolist(), strict=True)
    return "".join(letters[begin] if maskable else "." for begin, maskable in pairs)


@pytest.mark.parametrize(
    ("starts", "entities", "expected"),
    [
        # a word, an entity of two words, a word of two tokens
        ("#wwww-#", [0, 0, 3, 2, 0, 0, 0], ".abbcc."),
        # two entities side by side, of one label and of two
        ("#wwwww#", [0, 3, 2, 3, 2, 0, 0], ".aabbc."),
        ("#wwww#", [0, 3, 5, 4, 0, 0], ".abbc."),
        # an entity that begins and ends within words
        ("#w-w-#", [0, 0, 3, 2, 0, 0], ".abbc."),
        # a segment that begins within an entity, behind one that ends with one
        ("#ww##www#", [0, 0, 3, 0, 0, 2, 2, 0, 0], ".ab..ccd."),
        # an unknown token cuts an entity
        ("#ww?w#", [0, 3, 2, 2, 2, 0], ".aa.b."),
        # the whole segment
        ("#w-w#", [0, 3, 2, 2, 0], ".aaa."),
    ],
)
def test_entities_and_words(starts: str, entities: list[int], expected: str) -> None:
    assert units_of(rows_of(starts, entities=entities), EntityUnits()) == expected
    assert units_of(rows_of(starts, chunks=entities), PhraseUnits()) == expected


def test_the_row_after_an_entity_at_the_end_of_the_batch() -> None:
    """The first token looks back at the last of the batch, which must not matter."""
    rows = rows_of("w-w", entities=[0, 0, 3])
    assert units_of(rows, EntityUnits()) == "aab"


# `The old king of Spain slept`: king is the head of the first five, slept of all; king has two tokens.
KING = [parse(1, 0, 0), parse(1, 0, 0), parse(2, 2, 3, 1), parse(2, 3, 2, 1), parse(3, 0, 1, 1), parse(4, 1, 0)]
SENTENCE = [0, *KING, parse(5, 6, 0, 1), 0]


@pytest.mark.parametrize(
    ("max_words", "expected"),
    [(1, ".abccdef."), (2, ".abccdde."), (4, ".abccdde."), (5, ".aaaaaab."), (6, ".aaaaaaa.")],
)
def test_subtrees(max_words: int, expected: str) -> None:
    assert units_of(rows_of("#www-www#", dependencies=SENTENCE), SubtreeUnits(max_words=max_words)) == expected


def test_a_subtree_across_the_segments_edge_counts_as_far_as_it_can_be_seen() -> None:
    """`king of Spain slept` alone: three words of the subtree are left."""
    cut = [0, *SENTENCE[3:]]
    assert units_of(rows_of("#w-www#", dependencies=cut), SubtreeUnits(max_words=3)) == ".aaaab."
    assert units_of(rows_of("#w-www#", dependencies=cut), SubtreeUnits(max_words=2)) == ".aabbc."
    # and its end: `The old king` of five words, in front of another segment
    cut = [*SENTENCE[:5], 0, 0, parse(1, 0, 0), 0]
    assert units_of(rows_of("#www-##w#", dependencies=cut), SubtreeUnits(max_words=3)) == ".aaaa..b."


def test_a_subtree_too_long_to_be_written_down_is_no_unit() -> None:
    far = [0, parse(1, 0, 4095, 1), parse(2, 0, 0), 0]
    assert units_of(rows_of("#ww#", dependencies=far), SubtreeUnits(max_words=100)) == ".ab."


FIRST = {"kind": "first", "share": 1.0}


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_entities_take_their_share_of_the_budget(tokenizer: Tokenizer, share: float, rate: float) -> None:
    """Half of the tokens are entities of two tokens; at any rate they take `share` of what is masked."""
    length = 200
    rows = rows_of("#" + "w" * length + "#", entities=[0, *[3, 2, 0, 0] * (length // 4), 0])
    masker = masker_of(tokenizer, units={"kind": "entity"}, weights={"kind": "first", "share": share}, rate=rate)
    masked = masker(copies_of(rows, 400)).labels >= 0
    of_entities = masked[:, rows.annotations["entities"][0] > 0].sum(1).double()
    expected = share * rate * length
    deviation = (2 * expected) ** 0.5  # of entities of two tokens, drawn independently: the true one is smaller
    assert abs(of_entities.mean() - expected) < 4 * deviation / 400**0.5
    assert of_entities.std() < deviation
    assert abs(masked.sum(1).double().mean() - rate * length) < 4 * deviation / 400**0.5


def test_entities_take_the_whole_budget_and_words_what_is_left(tokenizer: Tokenizer) -> None:
    rows = rows_of("#" + "w" * 40 + "#", entities=[0, *[3, 0, 0, 0] * 10, 0])
    entity = rows.annotations["entities"][0] > 0
    for rate, count in ((0.2, 8), (0.5, 20)):
        masker = masker_of(tokenizer, units={"kind": "entity"}, weights=FIRST, rate=rate)
        masked = torch.cat([masker(rows, epoch=epoch).labels >= 0 for epoch in range(50)])
        assert masked.sum(1).tolist() == [count] * 50
        if count < 10:
            assert not masked[:, ~entity].any()
            assert masked[:, entity].double().mean(0).min() > 0.5, "each of them at times"
        else:
            assert masked[:, entity].all()


def test_first_weights_look_into_units_of_other_kinds(tokenizer: Tokenizer) -> None:
    """A word counts as an entity if any of its tokens is in one."""
    rows = rows_of("#w-w-w-w-#", entities=[0, 0, 3, 0, 0, 0, 0, 0, 3, 0])
    labels = masker_of(tokenizer, units={"kind": "words"}, weights=FIRST, rate=0.5)(rows).labels
    assert (labels[0] >= 0).int().tolist() == [0, 1, 1, 0, 0, 0, 0, 1, 1, 0]


Collocation = tuple[tuple[int, ...], ...]


def starts_of(rows: Rows, lexicon: set[Collocation], vocab_size: int) -> torch.Tensor:
    """[B, S]: where units begin, of the tokens that can be masked."""
    flat = flatten(rows, 0)
    units = partition(
        flat, CollocationUnits().starts(flat, Tables(vocab_size, collocations_P=collocation_set(lexicon)))
    )
    return (units.size_T > 0).view(rows.shape)


def naive_starts(rows: Rows, lexicon: set[Collocation]) -> list[list[int]]:
    """Walks each row from left to right: at each word the longest entry within the run of words."""
    actual = []
    for ids, segments, starts, maskable in zip(
        rows.input_ids.tolist(), rows.segment_ids.tolist(), rows.word_starts.tolist(), rows.maskable.tolist(),
        strict=True,
    ):  # fmt: skip
        runs: list[list[tuple[int, list[int]]]] = []
        for place, id_ in enumerate(ids):
            if not maskable[place]:
                continue
            if place == 0 or not maskable[place - 1] or segments[place] != segments[place - 1]:
                runs.append([])
            if starts[place] or not runs[-1]:
                runs[-1].append((place, []))
            runs[-1][-1][1].append(id_)
        places = []
        for run in runs:
            word = 0
            while word < len(run):
                places.append(run[word][0])
                longest = 1
                for n in range(2, 6):
                    if word + n <= len(run) and tuple(tuple(ids_) for _, ids_ in run[word : word + n]) in lexicon:
                        longest = n
                word += longest
        actual.append(places)
    return actual


@settings(max_examples=150)
@given(data=st.data())
def test_any_rows_and_any_lexicon(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Several segments a row, words of several tokens, unknown tokens, overlapping entries, empty rows."""
    a, b = letter_ids(tokenizer, 2)
    lengths = data.draw(st.lists(st.integers(0, 24), min_size=1, max_size=3))
    seed = data.draw(st.integers(0, 1000))
    rows = make_rows(tokenizer, data.draw(st.integers(1, 4)), lengths, mean_word=data.draw(st.sampled_from([1.0, 1.5])))
    rng = np.random.default_rng(seed)
    drawn = torch.from_numpy(rng.choice([a, b, tokenizer.special.unk], rows.shape, p=[0.5, 0.45, 0.05]))
    ids = torch.where(rows.maskable, drawn, rows.input_ids)
    rows = Rows(**{**vars(rows), "input_ids": ids, "maskable": rows.maskable & (ids != tokenizer.special.unk)})
    words = st.sampled_from([(a,), (b,), (a, b), (b, a), (a, a)])
    entries = st.lists(words, min_size=2, max_size=5).map(tuple)
    lexicon = set(data.draw(st.lists(entries, max_size=12)))
    actual = starts_of(rows, lexicon, tokenizer.vocab_size)
    assert [row.nonzero()[:, 0].tolist() for row in actual] == naive_starts(rows, lexicon)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([[0, 0, 0, 0]], [[1, 0, 1, 0]]),
        ([[0, 1, 1, 1]], [[1, 1, 1, 0]]),
        ([[0, 0, 0, 1]], [[1, 0, 1, 1]]),
        ([[0], [0], [0], [0]], [[1]] * 4),
    ],
)
def test_collocations_stay_within_their_segment_and_row(
    tokenizer: Tokenizer, segments: list[list[int]], expected: list[list[int]]
) -> None:
    """Also without special tokens between segments, where only the segment's number tells them apart."""
    a, b = letter_ids(tokenizer, 2)
    ids = torch.tensor([a, b, a, b]).view(len(segments), -1)
    true, zero = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    rows = Rows(ids, torch.tensor(segments, dtype=torch.int32), zero, true, true, zero)
    assert starts_of(rows, {((a,), (b,))}, tokenizer.vocab_size).int().tolist() == expected


def test_an_empty_lexicon_is_whole_word_masking(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 20, [30, 9], mean_word=2.0)
    tables = Tables(tokenizer.vocab_size, collocations_P=torch.from_numpy(hash_set(np.zeros(0, dtype=np.int64))))
    empty = masker_of(tokenizer, strategy="pmi", tables=tables, rate=0.3)(rows).labels
    words = masker_of(tokenizer, strategy="whole_word", rate=0.3)(rows).labels
    assert torch.equal(empty, words)
    assert not torch.equal(masker_of(tokenizer, strategy="pmi", rate=0.3)(rows).labels, words)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 100_000])
def test_a_set_holds_what_it_was_made_of(size: int) -> None:
    hashes = mix(torch.arange(1, size + 1)).numpy()
    set_P = hash_set(np.random.default_rng(0).permutation(np.concatenate([hashes, hashes[:2]])))
    assert len(set_P) <= max(8, 8 * (size + 2))
    assert set(set_P.tolist()) - {0} == set(hashes.tolist())
