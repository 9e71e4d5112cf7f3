"""Units and weights that come from annotations, on rows written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.masking.helpers import LABELS, make_rows, masker_of
from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.draw import POINT, flatten, partition
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings, needed_annotations
from unmask.masking.tables import Tables
from unmask.masking.units import EntityUnits, PhraseUnits, PlainUnits, SubtreeUnits, WordUnits
from unmask.masking.weights import FirstWeights, PosWeights, RoleWeights
from unmask.tokenizer.tokenizer import Tokenizer


def rows_of(starts: str, **columns: list[int]) -> Rows:
    """One row: `#` a special token, `w` a token that begins a word, `-` one that goes on, `?` an unknown one.

    A new segment begins at every second `#` (as [CLS] x x [SEP] [CLS] x [SEP] does); columns are those of annotation.
    """
    special = torch.tensor([[c == "#" for c in starts]])
    segments = (torch.cumsum(special.int(), 1) - special.int()) // 2
    first = torch.diff(segments, prepend=torch.tensor([[-1]]), dim=1) != 0
    places = torch.arange(len(starts))[None]
    begin = torch.cummax(torch.where(first, places, 0), 1).values
    return Rows(
        input_ids=torch.full((1, len(starts)), 10),
        segment_ids=segments.to(torch.int32),
        position_ids=places - begin,
        word_starts=torch.tensor([[c in "w?" for c in starts]]),
        maskable=torch.tensor([[c not in "#?" for c in starts]]),
        segment_keys=segments.to(torch.int64) + 5,
        annotations={name: torch.tensor([values]) for name, values in columns.items()},
    )


def units_of(rows: Rows, units: PlainUnits) -> str:
    """A letter for each unit, a point at tokens that cannot be masked."""
    flat = flatten(rows, 0)
    found = partition(flat, units.starts(flat, Tables(0)))
    begins = sorted(set(found.begin_T[flat.maskable_T].tolist()))
    letters = {begin: "abcdefghijklmnop"[number] for number, begin in enumerate(begins)}
    pairs = zip(found.begin_T.tolist(), flat.maskable_T.tolist(), strict=True)
    return "".join(letters[begin] if maskable else "." for begin, maskable in pairs)


@pytest.mark.parametrize(
    ("starts", "entities", "expected"),
    [
        # a word, an entity of two words, a word of two tokens
        ("#wwww-#", [0, 0, 3, 2, 0, 0, 0], ".abbcc."),
        # two entities side by side, of one label and of two
        ("#wwwww#", [0, 3, 2, 3, 2, 0, 0], ".aabbc."),
        ("#wwww#", [0, 3, 5, 4, 0, 0], ".abbc."),
        # an entity that begins and ends amid words
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


def test_the_row_after_an_entity_at_the_end_of_the_batch(tokenizer: Tokenizer) -> None:
    """The first token looks back at the last of the batch, which must not matter."""
    rows = rows_of("w-w", entities=[0, 0, 3])
    assert units_of(rows, EntityUnits()) == "aab"


def parse(role: int, before: int, behind: int, heads: int = 0) -> int:
    return role << 25 | heads << 24 | before << 12 | behind


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


def masks(settings: dict[str, object], rows: Rows, tokenizer: Tokenizer, epochs: int = 1) -> torch.Tensor:
    """[epochs, S]: what is masked of one row."""
    tables = Tables(tokenizer.vocab_size, labels=LABELS)
    masker = Masker(MaskingSettings.model_validate(settings), tokenizer, tables=tables)
    return torch.cat([masker(rows, epoch=epoch).labels >= 0 for epoch in range(epochs)])


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_entities_take_their_share_of_the_budget(tokenizer: Tokenizer, share: float, rate: float) -> None:
    """Half of the tokens are entities of two tokens; at any rate they take `share` of what is masked."""
    length = 200
    rows = rows_of("#" + "w" * length + "#", entities=[0, *[3, 2, 0, 0] * (length // 4), 0])
    settings = {"units": {"kind": "entity"}, "weights": {"kind": "first", "share": share}, "rate": rate}
    found = masks(settings, rows, tokenizer, epochs=400)
    taken = found[:, rows.annotations["entities"][0] > 0].sum(1).double()
    expected = share * rate * length
    deviation = (2 * expected) ** 0.5  # of entities of two tokens, drawn independently: the true one is smaller
    assert abs(taken.mean() - expected) < 4 * deviation / 400**0.5
    assert taken.std() < deviation
    assert abs(found.sum(1).double().mean() - rate * length) < 4 * deviation / 400**0.5


def test_entities_take_the_whole_budget_and_words_what_is_left(tokenizer: Tokenizer) -> None:
    rows = rows_of("#" + "w" * 40 + "#", entities=[0, *[3, 0, 0, 0] * 10, 0])
    entity = rows.annotations["entities"][0] > 0
    settings = {"units": {"kind": "entity"}, "weights": {"kind": "first", "share": 1.0}}
    some = masks(settings | {"rate": 0.2}, rows, tokenizer, epochs=50)
    assert some.sum(1).tolist() == [8] * 50
    assert not some[:, ~entity].any()
    hits = some[:, entity].double().mean(0)
    assert hits.min() > 0.5, "each of them at times"
    more = masks(settings | {"rate": 0.5}, rows, tokenizer, epochs=50)
    assert more[:, entity].all()
    assert more.sum(1).tolist() == [20] * 50


def test_first_weights_look_into_units_of_other_kinds(tokenizer: Tokenizer) -> None:
    """A word with an entity in any of its tokens is a first one."""
    rows = rows_of("#w-w-w-w-#", entities=[0, 0, 3, 0, 0, 0, 0, 0, 3, 0])
    settings = {"units": {"kind": "words"}, "weights": {"kind": "first", "share": 1.0}, "rate": 0.5}
    assert masks(settings, rows, tokenizer)[0].int().tolist() == [0, 1, 1, 0, 0, 0, 0, 1, 1, 0]


def first_of(settings: dict[str, object], rows: Rows, tokenizer: Tokenizer, place: int) -> float:
    """How often the token at a place is the one that is masked."""
    found = masks(settings, rows, tokenizer, epochs=3000)
    assert found.sum(1).tolist() == [1] * 3000
    return float(found[:, place].double().mean())


def test_parts_of_speech_are_drawn_by_their_weights(tokenizer: Tokenizer) -> None:
    """Two words of one token, one budget of one: the noun comes first with probability 3 / (3 + 1)."""
    rows = rows_of("#ww#", pos=[0, 2, 1, 0])
    weights = {"kind": "pos", "weights": {"NOUN": 3.0}}
    share = first_of({"units": {"kind": "words"}, "weights": weights, "rate": 0.5}, rows, tokenizer, 1)
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 3000) ** 0.5


def test_tokens_without_a_tag_count_only_where_a_unit_has_no_other(tokenizer: Tokenizer) -> None:
    """A space within a word of weight 1/8 does not lift it to the default; a word without any tag has the default."""
    rows = rows_of("#w-w-#", pos=[0, 0, 1, 0, 0, 0])
    settings = {
        "units": {"kind": "words"}, "weights": {"kind": "pos", "weights": {"DET": 0.125}}, "rate": 0.5,
    }  # fmt: skip
    found = masks(settings, rows, tokenizer, epochs=3000)
    share = float(found[:, 3].double().mean())
    assert abs(share - 8 / 9) < 4 * (8 / 81 / 3000) ** 0.5


def test_roles_are_drawn_by_their_weights(tokenizer: Tokenizer) -> None:
    """An article (function word) and an object (argument): 1/2 against 2."""
    rows = rows_of("#ww#", dependencies=[0, parse(1, 0, 0), parse(2, 1, 0, 1), 0])
    share = first_of({"units": {"kind": "words"}, "weights": {"kind": "role"}, "rate": 0.5}, rows, tokenizer, 2)
    assert abs(share - 0.8) < 4 * (0.8 * 0.2 / 3000) ** 0.5


def test_the_classes_of_roles(tokenizer: Tokenizer) -> None:
    """A word of each role with nothing hanging on it, and one with something."""
    labels = ("nsubj:pass", "det", "root", "amod", "punct")
    roles = [parse(number, 0, 0, heads) for number in range(1, 6) for heads in (0, 1)]
    rows = rows_of("#" + "w" * 10 + "#", dependencies=[0, *roles, 0])
    flat = flatten(rows, 0)
    tables = Tables(0, labels={"dependencies": labels})
    units = partition(flat, WordUnits().starts(flat, tables))
    log2 = RoleWeights(arguments=8.0, function=2.0, heads=4.0, others=1.0).log2(flat, units, tables)[1:-1] / 2**POINT
    assert log2.view(5, 2).exp2().tolist() == [[8.0] * 2, [2.0] * 2, [1.0, 4.0], [1.0, 4.0], [2.0] * 2]


@pytest.mark.parametrize("strategy", ["entity", "phrase", "syntax"])
def test_a_missing_annotation_is_named_with_the_way_to_get_it(tokenizer: Tokenizer, strategy: str) -> None:
    masker = masker_of(tokenizer, strategy=strategy)
    (column,) = needed_annotations(masker.settings)
    with pytest.raises(DataError, match=rf"needs the annotation '{column}'.*unmask prepare \.\.\. --annotate {column}"):
        masker([[2, 10, 11, 3]])
    rows = replace(make_rows(tokenizer, 1, [5]), annotations={})
    with pytest.raises(DataError, match=rf"annotation\.columns=\[\"{column}\"\]"):
        masker(rows)


def test_what_strategies_need() -> None:
    needs = {name: needed_annotations(list(pair.values())) for name, pair in STRATEGIES.items()}
    assert {name: need for name, need in needs.items() if need} == {
        "entity": ("entities",), "phrase": ("chunks",), "syntax": ("dependencies",),
    }  # fmt: skip
    both = MaskingSettings(units=SubtreeUnits(), weights=PosWeights())
    assert needed_annotations({"parts": (both, FirstWeights(of="chunks"))}) == ("dependencies", "pos", "chunks")


def test_labels_of_which_the_weights_know_none(tokenizer: Tokenizer) -> None:
    """Penn's tags and TIGER's roles; one label that is known is enough."""

    def mask(weights: PosWeights | RoleWeights, column: str, labels: list[str]) -> None:
        rows = rows_of("#ww#", **{column: [0, 1, 1, 0]})
        tables = Tables(tokenizer.vocab_size, labels={column: labels})
        Masker(MaskingSettings(units=WordUnits(), weights=weights), tokenizer, tables=tables)(rows)

    penn = ["NN", "VBD", *(f"T{number}" for number in range(20))]
    with pytest.raises(
        SettingsError, match=r"has no part of speech of the data.* has NN, VBD, .* and 2 more, the weig"
    ):
        mask(PosWeights(), "pos", penn)
    with pytest.raises(SettingsError, match="the data has none of them: it has sb, oa, nk; annotate it with a pipe"):
        mask(RoleWeights(), "dependencies", ["sb", "oa", "nk"])
    mask(PosWeights(), "pos", [*penn, "NOUN"])
    mask(PosWeights(weights={"NN": 2.0}), "pos", penn)
    mask(RoleWeights(), "dependencies", ["sb", "nk", "CSUBJ:pass"])


def test_labels_that_are_missing_or_wrong(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 2, [9])
    settings = MaskingSettings(units=WordUnits(), weights=PosWeights())
    with pytest.raises(SettingsError, match="weights of kind pos needs the labels of the annotation 'pos'"):
        Masker(settings, tokenizer)(rows)
    wrong = MaskingSettings(units=WordUnits(), weights=PosWeights(weights={"NOUNS": 2.0}))
    with pytest.raises(SettingsError, match="the part of speech 'NOUNS', which the data does not have; it has DET"):
        Masker(wrong, tokenizer, tables=Tables(tokenizer.vocab_size, labels=LABELS))(rows)
