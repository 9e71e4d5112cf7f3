"""`unmask audit`: what it counts, and that a broken promise is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.command_line import Main
from tests.masking.helpers import frequencies_of, make_rows, masker_of, tables_of
from unmask.core.settings import validated
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.masking.tables import Tables
from unmask.measure.masking import audit
from unmask.tokenizer.tokenizer import Tokenizer


def audited(tokenizer: Tokenizer, rows: Rows, masked: MaskedRows, masker: Masker | None = None):  # type: ignore[no-untyped-def]
    masker = masker or masker_of(tokenizer)
    return audit([(rows, masked, masker.weighed(rows))], masker, frequencies_of(tokenizer))


def test_counts_by_hand(tokenizer: Tokenizer) -> None:
    """Words a b, c, d e f: the targets are b, c and d, so one stretch of three words."""
    rows = make_rows(tokenizer, 1, [6])
    rows.input_ids[0, 1:7] = torch.tensor([20, 21, 22, 23, 24, 25])
    rows.word_starts[0, 1:7] = torch.tensor([True, False, True, True, False, False])
    labels = torch.full_like(rows.input_ids, -100)
    labels[0, 2:5] = rows.input_ids[0, 2:5]
    seen = rows.input_ids.clone()
    seen[0, 2], seen[0, 3] = tokenizer.special.mask, 40
    found = audited(tokenizer, rows, MaskedRows(seen, labels, torch.ones_like(seen)))
    assert (found.tokens, found.rows, found.rate) == (6, 1, 0.5)
    assert found.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found.by_pieces[:3].tolist() == [[1, 1], [2, 1], [3, 1]]
    assert found.span_lengths.tolist() == [0, 0, 1] + [0] * 9
    assert found.by_frequency.sum(0).tolist() == [6, 3]
    sizes = tokenizer.token_bytes[[20, 21, 22, 23, 24, 25]]
    words = np.array([sizes[:2].sum(), sizes[2], sizes[3:].sum()])
    assert {int(n) for n in np.flatnonzero(found.by_bytes[:, 0]) + 1} == set(np.minimum(words, 16).tolist())
    assert found.special_targets == found.special_replacements == found.changed_outside == 0


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("special target", "special tokens are predicted"),
        ("special replacement", "special tokens stand for a target"),
        ("change outside", "tokens are changed without being chosen"),
        ("wrong label", "or have a wrong label"),
        ("rate", "of the tokens are predicted, not 15.00%"),
        ("shares", "of the targets are masks, not 80.00%"),
    ],
)
def test_a_broken_promise_is_found(tokenizer: Tokenizer, harm: str, message: str) -> None:
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
        masked = masker_of(tokenizer, replacement=(0.7, 0.2, 0.1))(rows)
    assert any(message in text for text in audited(tokenizer, rows, masked, masker).broken)


def test_units_that_should_hardly_ever_be_masked_are_judged_too(tokenizer: Tokenizer) -> None:
    """Asked for with next to nothing, 30 of 200 are too many, however small their variance is."""
    rows = make_rows(tokenizer, 200, [40], mean_word=1.0)
    rare = int(rows.input_ids[0, 1])
    rows.input_ids[:, 1] = rare
    frequencies = np.where(np.arange(tokenizer.vocab_size) == rare, 10**9, 1)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(frequencies))
    settings = {"units": {"kind": "words"}, "weights": {"kind": "frequency", "floor": 1}}
    masker = Masker(validated(MaskingSettings, settings, where="masking"), tokenizer, tables=tables)
    broken = audited(tokenizer, rows, masker_of(tokenizer, strategy="whole_word")(rows), masker).broken
    assert not audited(tokenizer, rows, masker(rows), masker).broken
    assert any("units by asked-for probability, up to 2.5%" in text for text in broken)


def test_tokens_that_are_hidden_and_not_predicted_are_counted(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 400, [60], mean_word=2.0)
    settings = {"strategy": "whole_word", "rate": 0.3, "prediction_rate": 0.1}
    masker = Masker(validated(MaskingSettings, settings, where="masking"), tokenizer)
    other = Masker(masker.settings.model_copy(update={"rate": 0.6}), tokenizer)
    assert not audited(tokenizer, rows, masker(rows), masker).broken
    broken = audited(tokenizer, rows, other(rows), masker).broken
    assert any("of the tokens are changed, not 27.00%" in text for text in broken)


def test_a_floor_of_one_target_has_probabilities_of_its_own(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 1000, [3, 40, 1, 6], mean_word=2.0)
    for strategy in ("whole_word", "frequency"):
        settings = {"strategy": strategy, "rate": 0.1, "least_one": True}
        masker = Masker(validated(MaskingSettings, settings, where="masking"), tokenizer, tables=tables_of(tokenizer))
        found = audited(tokenizer, rows, masker(rows), masker)
        assert not found.broken
        assert found.rows_without_target == 0
        assert found.rate > 0.105
        assert audited(tokenizer, rows, masker_of(tokenizer, strategy=strategy, rate=0.1)(rows), masker).broken


@pytest.mark.parametrize("kind", ["uniform", "beta"])
def test_pieces_that_draw_their_rate_are_judged_by_what_they_drew(tokenizer: Tokenizer, kind: str) -> None:
    """A single one is never at the mean of the distribution."""
    rows = make_rows(tokenizer, 1, [400])
    for seed in range(20):
        masker = masker_of(tokenizer, rate={"kind": kind}, seed=seed)
        assert not audited(tokenizer, rows, masker(rows), masker).broken


@pytest.mark.parametrize(
    ("setting", "audited"),
    [
        ("masking.units.kind=words", ["words x uniform"]),
        ("masking.rate=0.2", [*STRATEGIES]),
    ],
)
def test_a_setting_that_chooses_a_masking_is_what_is_audited(
    data_folder: Path, setting: str, audited: list[str], main: Main
) -> None:
    code, out, err = main("audit", data_folder, "--json", "--set", setting, "--max-tokens", 5_000)
    assert code == 0, err
    result = json.loads(out)
    assert sorted([*result["strategies"], *result["not_audited"]]) == sorted(audited)


def test_a_broken_promise_is_exit_code_1(data_folder: Path, monkeypatch: pytest.MonkeyPatch, main: Main) -> None:
    monkeypatch.setattr("unmask.measure.masking.SIGMAS", -1.0)
    code, out, _ = main("audit", data_folder, "--strategy", "random")
    assert (code, "broken" in out) == (1, True)
