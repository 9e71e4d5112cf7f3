"""`unmask audit`: what it counts, and that a broken promise is counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.command_line import Main
from tests.contract.samples import write_samples
from tests.data.corpora import TAGS, tagged_jsonl
from tests.masking.helpers import frequencies_of, make_rows, masker_of
from unmask.commands.masks import ShownMasks
from unmask.core.errors import RunError
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES
from unmask.masking.tables import Tables
from unmask.measure.masking import audit, ratio_of_sums
from unmask.tokenizer.tokenizer import Tokenizer


def audited(tokenizer: Tokenizer, rows: Rows, masked: MaskedRows, masker: Masker | None = None):  # type: ignore[no-untyped-def]
    masker = masker or masker_of(tokenizer)
    return audit([(rows, masked, masker.weighed(rows))], masker, frequencies_of(tokenizer))


def test_counts_by_hand(tokenizer: Tokenizer) -> None:
    """Words a b, c, d e f: the targets are b, c and d, so one run that spans three words."""
    rows = make_rows(tokenizer, 1, [6])
    rows.input_ids[0, 1:7] = torch.tensor([20, 21, 22, 23, 24, 25])
    rows.word_starts[0, 1:7] = torch.tensor([True, False, True, True, False, False])
    labels = torch.full_like(rows.input_ids, -100)
    labels[0, 2:5] = rows.input_ids[0, 2:5]
    seen = rows.input_ids.clone()
    seen[0, 2], seen[0, 3] = tokenizer.special.mask, 40
    counts = audited(tokenizer, rows, MaskedRows(seen, labels, torch.ones_like(seen)))
    assert (counts.tokens, counts.rows, counts.rate) == (6, 1, 0.5)
    assert counts.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert counts.by_pieces[:3] == [[1, 1], [2, 1], [3, 1]]
    assert counts.span_lengths == [0, 0, 1] + [0] * 9
    assert np.sum(counts.by_frequency, 0).tolist() == [6, 3]
    sizes = tokenizer.token_bytes[[20, 21, 22, 23, 24, 25]]
    words = np.array([sizes[:2].sum(), sizes[2], sizes[3:].sum()])
    assert {int(n) for n in np.flatnonzero(np.array(counts.by_bytes)[:, 0]) + 1} == set(np.minimum(words, 16).tolist())
    assert counts.special_targets == counts.special_replacements == counts.changed_outside == 0


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("special target", "special tokens are predicted"),
        ("special replacement", "special tokens in place of a target"),
        ("change outside", "tokens are changed without being chosen"),
        ("wrong label", "or have a wrong label"),
        ("rate", "of the tokens are predicted, not 15.00%"),
        ("shares", "of the targets are masks, not 80.00%"),
    ],
)
def test_a_broken_promise_is_counts(tokenizer: Tokenizer, harm: str, message: str) -> None:
    rows = make_rows(tokenizer, 400, [60])
    masker = masker_of(tokenizer)
    masked = masker(rows)
    assert not audited(tokenizer, rows, masked).broken
    target = masked.labels >= 0
    if harm == "special target":
        masked.labels[0, 0] = rows.input_ids[0, 0]
    elif harm == "special replacement":
        masked.input_ids[target & (masked.input_ids != tokenizer.special.mask)] = tokenizer.special.pad
    elif harm == "change outside":
        masked.input_ids[rows.maskable & ~target] = 20
    elif harm == "wrong label":
        masked.labels[target] += 1
    elif harm == "rate":
        masked = masker_of(tokenizer, rate=0.2)(rows)
    else:
        masked = masker_of(tokenizer, replacement={"shares": (0.7, 0.2, 0.1)})(rows)
    assert any(message in text for text in audited(tokenizer, rows, masked, masker).broken)


def test_units_that_should_hardly_ever_be_masked_are_judged_too(tokenizer: Tokenizer) -> None:
    """If the expected probability is almost 0, 30 of 200 are too many, however small the variance is."""
    rows = make_rows(tokenizer, 200, [40], mean_word=1.0)
    rare = int(rows.input_ids[0, 1])
    rows.input_ids[:, 1] = rare
    frequencies = np.where(np.arange(tokenizer.vocab_size) == rare, 10**9, 1)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(frequencies))
    masker = masker_of(tokenizer, tables=tables, units={"kind": "words"}, weights={"kind": "frequency", "floor": 1})
    broken = audited(tokenizer, rows, masker_of(tokenizer, strategy="whole_word")(rows), masker).broken
    assert not audited(tokenizer, rows, masker(rows), masker).broken
    assert any("units by expected probability, up to 2.5%" in text for text in broken)


def test_tokens_that_are_hidden_and_not_predicted_are_counted(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 400, [60], mean_word=2.0)
    masker = masker_of(tokenizer, strategy="whole_word", rate=0.3, prediction_rate=0.1)
    other = Masker(masker.settings.model_copy(update={"rate": 0.6}), tokenizer)
    assert not audited(tokenizer, rows, masker(rows), masker).broken
    broken = audited(tokenizer, rows, other(rows), masker).broken
    assert any("of the tokens are changed, not 27.00%" in text for text in broken)


def test_a_floor_of_one_target_has_probabilities_of_its_own(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 1000, [3, 40, 1, 6], mean_word=2.0)
    for strategy in ("whole_word", "frequency"):
        masker = masker_of(tokenizer, strategy=strategy, rate=0.1, least_one=True)
        counts = audited(tokenizer, rows, masker(rows), masker)
        assert not counts.broken
        assert (counts.rows_without_target, counts.rate > 0.105) == (0, True)
        assert abs(counts.rate - counts.expected_rate) < 5 * counts.rate_stderr, "not 0.1"
        assert counts.raised_from == 0.1
        assert audited(tokenizer, rows, masker_of(tokenizer, strategy=strategy, rate=0.1)(rows), masker).broken


def test_pieces_that_draw_their_rate_are_judged_by_what_they_drew(tokenizer: Tokenizer) -> None:
    """The rate of a single piece is never the mean of the distribution."""
    rows = make_rows(tokenizer, 1, [400])
    for seed in range(20):
        masker = masker_of(tokenizer, rate={"kind": "uniform"}, seed=seed)
        assert not audited(tokenizer, rows, masker(rows), masker).broken


@pytest.mark.parametrize(
    ("setting", "names"), [("masking.units.kind=words", ["words x uniform"]), ("masking.rate=0.2", [*STRATEGIES])]
)
def test_a_setting_that_chooses_a_masking_is_what_is_audited(data_folder: Path, setting: str, names: list[str]) -> None:
    result = unmask.audit(data_folder, settings=[setting], max_tokens=5_000).to_dict()
    assert sorted([*result["strategies"], *result["not_audited"]]) == sorted(names)


def test_a_broken_promise_is_exit_code_1(data_folder: Path, monkeypatch: pytest.MonkeyPatch, main: Main) -> None:
    monkeypatch.setattr("unmask.measure.masking.SIGMAS", -1.0)
    code, out, _ = main("audit", data_folder, "--strategy", "random")
    assert (code, "broken" in out) == (1, True)


def test_parts_of_speech_by_hand(tokenizer: Tokenizer) -> None:
    """DET NOUN NOUN - VERB -: targets are the first noun and the last untagged token."""
    rows = make_rows(tokenizer, 1, [6])
    rows.annotations["pos"][0] = torch.tensor([0, 1, 2, 2, 0, 3, 0, *[0] * (rows.shape[1] - 7)])
    labels = torch.full_like(rows.input_ids, -100)
    labels[0, [2, 6]] = rows.input_ids[0, [2, 6]]
    masked = MaskedRows(rows.input_ids.clone(), labels, torch.ones_like(labels))
    by_pos = audited(tokenizer, rows, masked).by_pos
    assert by_pos == {"DET": (1, 0), "NOUN": (2, 1), "VERB": (1, 0), "(none)": (2, 1)}
    rows.annotations["pos"][0, 5] = 1
    assert set(audited(tokenizer, rows, masked).by_pos) == {"DET", "NOUN", "(none)"}, "what does not stand in the text"


def test_every_strategy_of_raw_text_with_annotations(tmp_path: Path) -> None:
    """The recipe's annotation reaches the preparation: what needs it is audited, and rates by tag are shown."""
    settings = ['annotation.columns=["pos", "dependencies"]', "tokenizer.vocab_size=150"]
    page = tmp_path / "reports" / "audit.html"
    report = unmask.audit(tagged_jsonl(tmp_path / "a.jsonl"), settings=settings, out=page)
    result = json.loads(json.dumps(report.to_dict()))
    assert result["passed"]
    assert "syntax" in result["strategies"]
    assert set(result["not_audited"]) == {"entity", "phrase"}
    entries = result["strategies"].values()
    for entry in entries:
        assert set(entry["by_pos"]) == {*TAGS.values(), "(none)"} - {None}
        tokens, targets = (sum(column) for column in zip(*entry["by_pos"].values(), strict=True))
        assert (tokens, targets) == (entry["tokens"], round(entry["rate"] * tokens))
    assert page.read_text().count("data-intervals=") == 5 * len(entries)
    with pytest.raises(RunError, match=r"audit\.html"):
        unmask.audit("nosuch.txt", out=page)


@pytest.mark.parametrize(  # tests/contract audits with WordPiece
    "kind", ["char", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bpe", "unigram"))]
)
def test_every_strategy_keeps_its_promises_with_every_kind_of_tokenizer(kind: str, tmp_path: Path) -> None:
    write_samples(tmp_path)
    unmask.prepare(
        tmp_path / "annotated.jsonl",
        out=tmp_path / "data",
        tokenizer_kind=kind,
        vocab_size=None if kind == "char" else 400,
        annotate=["entities", "pos", "dependencies", "chunks"],
        workers=1,
    )
    result = unmask.audit(tmp_path / "data", settings=["masking.rate=0.15"], max_tokens=40_000).to_dict()
    assert result["not_audited"] == {}
    assert set(result["strategies"]) >= set(STRATEGIES)
    for name, entry in result["strategies"].items():
        assert not entry["broken"], name
        assert entry["rate"] == pytest.approx(0.15, abs=0.01), name
        assert entry["special_targets"] == entry["special_replacements"] == 0, name
    assert result["passed"]


def test_halves_of_pairs_are_pieces_of_their_own(store: TokenStore, tokenizer: Tokenizer) -> None:
    rows = RowStream(store, tokenizer, length=64, seed=0, pairs="next_sentence").batch(Cursor(), 300).rows
    masker = masker_of(tokenizer, rate=0.15)
    counts = audited(tokenizer, rows, masker(rows), masker)
    halves = {
        (r, int(rows.segment_ids[r, s]), int(rows.token_type_ids[r, s])) for r, s in rows.maskable.nonzero().tolist()
    }
    assert counts.rows == len(halves) > 600
    assert not counts.broken


def test_a_recipe_with_pairs_is_audited_with_pairs(data_folder: Path) -> None:
    settings = ("model.layout=bert", "objectives.pairs.kind=sentence_order")
    report = unmask.audit(data_folder, settings=settings, strategy="span").to_dict()
    plain = unmask.audit(data_folder, settings=["model.layout=bert"], strategy="span").to_dict()
    assert report["strategies"]["span"]["rows"] > plain["strategies"]["span"]["rows"]
    assert report["passed"]


@pytest.mark.parametrize("rows", [1, 5, 30, 400])
def test_rows_that_come_out_alike_are_not_broken(rows: int) -> None:
    """At 15 % of 126 tokens, each row hides 18 or 19; with few rows, all may hide 19 by chance."""
    generator = np.random.default_rng(rows)
    for _ in range(300):
        targets = 18 + (generator.random(rows) < 0.9)
        assert not ratio_of_sums(targets, np.full(rows, 126)).differs_from(0.15)
    assert ratio_of_sums(np.full(4000, 19), np.full(4000, 126)).differs_from(0.15)
    assert ratio_of_sums(np.full(1, 40), np.full(1, 126)).differs_from(0.15)


def test_the_error_by_hand() -> None:
    ratio = ratio_of_sums(np.array([10, 30]), np.array([100, 100]))
    assert ratio.rate == pytest.approx(0.2)
    assert ratio.stderr == pytest.approx((10**2 + 10**2) ** 0.5 / 200)
    assert ratio_of_sums(np.array([19, 0]), np.array([126, 0])).stderr == pytest.approx(0.5 / 126)


def test_masks_are_told_apart_without_colours() -> None:
    shown = {"name": "random", "tokens": list("abcd"), "targets": [1, 2, 3], "input_tokens": ["a", "[MASK]", "x", "d"]}
    masks = ShownMasks({"strategies": [shown], "left_out": {}, "mask_token": "[MASK]"})
    line, *_, legend = repr(masks).splitlines()
    assert line.split() == ["random", "a", "[MASK]", "~x", "=d"]
    assert legend.split() == ["[MASK]", "~random", "=unchanged"]
    page = masks._repr_html_()
    for seen, unlike in (("[MASK]", "222, 72, 48"), ("~x", "232, 170, 0"), ("=d", "40, 160, 80")):
        assert f"<b><span style='background: rgba({unlike}, .3)'>{seen}</span></b>" in page
