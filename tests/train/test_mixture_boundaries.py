"""Span boundaries in mixtures: the texts that spans masked have targets, the others have none."""

from __future__ import annotations

import pytest
import torch

from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import extra_objectives
from unmask.train.settings import ObjectivesSettings

BOUNDARIES = ObjectivesSettings.model_validate({"span_boundary": {"max_length": 6}})


def mixture(spans: float = 0.5, words: float = 0.5, **more: object) -> MaskingSettings:
    parts = [{"strategy": "whole_word", "share": words}, {"strategy": "span", "share": spans}]
    return MaskingSettings.model_validate({"units": {"kind": "mixture", "parts": parts, **more}, "rate": 0.3})


def masked_by(settings: MaskingSettings, tokenizer: Tokenizer, rows: Rows, progress: float = 0.0) -> MaskedRows:
    return Masker(settings, tokenizer, seed=3, with_boundaries=True)(rows, progress=progress)


@pytest.fixture
def rows(store: TokenStore, tokenizer: Tokenizer) -> Rows:
    return RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 100).rows


def test_each_text_is_that_of_spans_or_has_no_boundaries(rows: Rows, tokenizer: Tokenizer) -> None:
    """Where a text has boundaries, they and its mask are those of spans alone; else its mask is that of words alone."""
    mixed = masked_by(mixture(), tokenizer, rows)
    alone = {
        name: masked_by(MaskingSettings.model_validate({"strategy": name, "rate": 0.3}), tokenizer, rows)
        for name in ("span", "whole_word")
    }
    assert mixed.boundaries is not None
    assert alone["span"].boundaries is not None
    seen = {"span": 0, "whole_word": 0}
    for r in range(len(rows.segment_ids)):
        for number in range(int(rows.segment_ids[r].max()) + 1):
            inside = rows.maskable[r] & (rows.segment_ids[r] == number)
            known = mixed.boundaries.before[r][inside] >= 0
            assert known.all() or not known.any()
            assert torch.equal(known, mixed.boundaries.behind[r][inside] >= 0)
            name = "span" if known.any() else "whole_word"
            seen[name] += 1
            assert torch.equal(mixed.labels[r][inside], alone[name].labels[r][inside])
            if name == "span":
                for column in ("before", "behind"):
                    actual, expected = (getattr(m.boundaries, column)[r][inside] for m in (mixed, alone["span"]))
                    assert torch.equal(actual, expected)
    assert min(seen.values()) > 50


def test_targets_are_those_in_spans(rows: Rows, tokenizer: Tokenizer) -> None:
    masked = masked_by(mixture(), tokenizer, rows)
    assert masked.boundaries is not None
    targets = extra_objectives(BOUNDARIES)[0].targets(rows, masked)
    expected = [
        (r * 64 + s, int(masked.labels[r, s]), r * 64 + int(masked.boundaries.before[r, s]))
        for r, s in torch.nonzero(masked.labels >= 0).tolist()
        if masked.boundaries.before[r, s] >= 0
    ]
    assert targets.boundaries_N is not None
    actual = zip(
        targets.positions_N.tolist(), targets.classes_N.tolist(), targets.boundaries_N[0].tolist(), strict=True
    )
    assert list(actual) == expected
    assert 0.3 < len(expected) / int((masked.labels >= 0).sum()) < 0.7
