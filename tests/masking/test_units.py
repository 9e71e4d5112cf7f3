from __future__ import annotations

import pytest
import torch

from tests.masking.helpers import make_rows
from unmask.core.settings import validated
from unmask.masking.draw import flatten
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.masking.units import SpanUnits, TokenUnits, WordUnits
from unmask.tokenizer.tokenizer import Tokenizer


def test_spans_start_at_words_and_stay_within_their_segment(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 50, [30, 7, 1], mean_word=2.0)
    starts = SpanUnits().starts(flatten(rows, 1), Tables(0)).view(rows.shape)
    assert not (starts & ~rows.word_starts).any()
    first = rows.maskable & (rows.position_ids == 1)
    assert starts[first].all()


def test_a_longest_span_of_one_word_is_whole_word_masking(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 20, [30, 7])
    flat = flatten(rows, 0)
    one = SpanUnits(max_words=1).starts(flat, Tables(0))
    assert torch.equal(one[flat.maskable_T], WordUnits().starts(flat, Tables(0))[flat.maskable_T])
    assert TokenUnits().starts(flat, Tables(0)).all()


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [("uniform", [0.25] * 4), ((1.0, 0.0, 3.0), [0.25, 0.0, 0.75]), ("geometric", [0.5 / 0.9375, 0.25 / 0.9375])],
)
def test_lengths_of_spans_are_chosen(lengths: str | tuple[float, ...], expected: list[float]) -> None:
    units = SpanUnits(lengths=lengths, p=0.5, max_words=4)  # type: ignore[arg-type]
    shares = torch.diff(torch.tensor([0, *units.thresholds()]).double()) / 2**32
    assert shares[: len(expected)].tolist() == pytest.approx(expected, abs=1e-9)


def test_spans_of_tokens_begin_within_words(tokenizer: Tokenizer) -> None:
    """All spans are of two tokens; words here have five."""
    rows = make_rows(tokenizer, 3, [40], mean_word=1e9)
    settings = validated(
        MaskingSettings, {"units": {"kind": "span", "of": "tokens", "lengths": [0, 1]}, "rate": 0.5}, where="x"
    )
    target = Masker(settings, tokenizer)(rows).labels[:, 1:41] >= 0
    assert torch.equal(target[:, ::2], target[:, 1::2])
    assert 0 < target.double().mean() < 1


def test_lengths_that_say_nothing_are_an_error() -> None:
    for lengths in ((), (0.0, 0.0), (1.0,) * 101):
        with pytest.raises(ValueError, match="lengths are 'geometric', 'uniform', or up to 100 numbers"):
            SpanUnits(lengths=lengths)
