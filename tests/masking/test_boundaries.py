"""Where spans end, at the edges of segments too, against the rows themselves."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from tests.tokenizer.families import bare_characters
from unmask.core.errors import SettingsError
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.tokenizer.tokenizer import Tokenizer

SPANS = MaskingSettings.model_validate({"strategy": "span", "rate": 0.4})


@pytest.mark.parametrize("pairs", [None, "next_sentence"])
def test_boundaries_enclose_units_in_their_segment(store: TokenStore, tokenizer: Tokenizer, pairs: str | None) -> None:
    stream = RowStream(store, tokenizer, length=64, seed=0, pairs=pairs)  # type: ignore[arg-type]
    masker = Masker(SPANS, tokenizer, with_boundaries=True)
    spans = at_edges = 0
    for batch in islice(stream.batches(Cursor(), 8), 5):
        rows, masked = batch.rows, masker(batch.rows)
        for r, s in torch.nonzero(masked.labels >= 0).tolist():
            before, behind = int(masked.boundaries.before[r, s]), int(masked.boundaries.behind[r, s])
            inside = range(before + 1, behind)
            assert s in inside
            assert len(set(rows.segment_ids[r, before : behind + 1].tolist())) == 1
            assert rows.maskable[r, before + 1 : behind].all()
            assert (masked.labels[r, before + 1 : behind] >= 0).all(), "a span is masked as a whole"
            assert rows.word_starts[r, before + 1]
            assert rows.word_starts[r, behind] or not rows.maskable[r, behind]
            spans += s == before + 1
            at_edges += not rows.maskable[r, before] or not rows.maskable[r, behind]
    assert spans > 100
    assert at_edges > 20


def test_masks_are_the_same_with_boundaries(store: TokenStore, tokenizer: Tokenizer) -> None:
    rows = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 8).rows
    without, with_them = Masker(SPANS, tokenizer)(rows), Masker(SPANS, tokenizer, with_boundaries=True)(rows)
    assert without.boundaries is None
    assert without.part(1, 3).boundaries is None
    assert torch.equal(without.input_ids, with_them.input_ids)
    part = with_them.part(2, 5).to(torch.device("cpu"))
    assert torch.equal(part.boundaries.before, with_them.boundaries.before[2:5])


def test_a_tokenizer_that_puts_nothing_around_a_text() -> None:
    with pytest.raises(SettingsError, match=r"\[CLS\]"):
        Masker(SPANS, bare_characters(), with_boundaries=True)
