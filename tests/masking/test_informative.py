from __future__ import annotations

import pytest
import torch

from tests.masking.helpers import make_rows
from unmask.core.errors import SettingsError
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.tokenizer.tokenizer import Tokenizer


def masker_by(tokenizer: Tokenizer, informativeness: torch.Tensor | None, **weights: float) -> Masker:
    settings = MaskingSettings.model_validate(
        {"units": {"kind": "words"}, "weights": {"kind": "informative", **weights}, "rate": 0.2}
    )
    return Masker(settings, tokenizer, tables=Tables(tokenizer.vocab_size, informativeness_V=informativeness))


def test_tokens_are_drawn_in_proportion(tokenizer: Tokenizer) -> None:
    """At a low rate a token's chance goes with its informativeness; the share of the whole stays exact."""
    rows = make_rows(tokenizer, 4000, [40], mean_word=1.0)
    values = torch.where(torch.arange(tokenizer.vocab_size) % 2 == 0, 0.3, 0.1)
    even = (rows.input_ids % 2 == 0)[rows.maskable]
    for exponent, ratio in ((1.0, 3.0), (2.0, 9.0), (0.0, 1.0)):
        masker = masker_by(tokenizer, values, exponent=exponent)
        settings = masker.settings.model_copy(update={"rate": 0.025})
        masker = Masker(settings, tokenizer, tables=masker.tables)
        chosen = (masker(rows).labels >= 0)[rows.maskable].double()
        share = float(chosen[even].mean() / chosen[~even].mean())
        assert share == pytest.approx(ratio, rel=0.12)
        assert float(chosen.mean()) == pytest.approx(0.025, abs=1e-3)


@pytest.mark.parametrize("table", [None, torch.ones(3)])
def test_without_a_lexicon(tokenizer: Tokenizer, table: torch.Tensor | None) -> None:
    with pytest.raises(SettingsError, match=r"weights of kind informative need how informative each of the \d+ ids"):
        masker_by(tokenizer, table)([[2, 10, 3]])


def test_below_the_floor_all_are_alike(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 50, [40])
    values = torch.linspace(0.0, 0.2, tokenizer.vocab_size)
    floored = masker_by(tokenizer, values, floor=0.5)(rows)
    assert torch.equal(floored.labels, masker_by(tokenizer, values, exponent=0.0)(rows).labels)
    assert not torch.equal(floored.labels, masker_by(tokenizer, values)(rows).labels)
