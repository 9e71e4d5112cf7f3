"""What a mask depends on."""

from __future__ import annotations

import pytest
import torch

from tests.masking.helpers import make_rows, masker_of
from unmask.core.errors import SettingsError
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)


@pytest.mark.parametrize("strategy", ALL)
def test_a_mask_depends_on_seed_epoch_and_content_alone(tokenizer: Tokenizer, strategy: str) -> None:
    """The same segment has the same mask in any batch, row, order and company."""
    rows = make_rows(tokenizer, 40, [20, 9])
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3, seed=3)
    whole = masker(rows, epoch=2)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = masker(rows.map(lambda tensor: tensor[order]), epoch=2)
    assert torch.equal(shuffled.input_ids, whole.input_ids[order])
    alone = masker(rows.part(7, 8), epoch=2)
    assert torch.equal(alone.labels, whole.labels[7:8])
    # the second segment of each row, moved to the front of a row of its own
    second = rows.map(lambda tensor: tensor[:, 22:33])
    assert torch.equal(masker(second, epoch=2).input_ids, whole.input_ids[:, 22:33])
    for other in (masker(rows, epoch=3), masker_of(tokenizer, strategy=strategy, rate=0.3, seed=4)(rows)):
        assert not torch.equal(other.labels, whole.labels)


def test_plain_rows_are_keyed_by_their_content_whatever_the_padding(tokenizer: Tokenizer) -> None:
    row = [2, *range(10, 40), 3]
    masker = Masker.from_tokenizer(tokenizer, rate=0.4)
    alone = masker([row]).input_ids[0]
    padded = masker([row + [0] * 9, list(range(10, 51))]).input_ids[0]
    tensor = masker(torch.tensor([row])).input_ids[0]
    assert torch.equal(alone, padded[:32])
    assert torch.equal(alone, tensor)
    other = masker([[2, *range(11, 41), 3]])
    assert not torch.equal(other.labels[0] == -100, masker([row]).labels[0] == -100)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[2, 100_000, 3]], "id 100000"),
        ([[2, -1, 3]], "id -1"),
        ([["a"]], "feature 0"),
        ([2, 50, 3], "feature 0"),
        ([[2, 3], [[2], [50, 3]]], "feature 1"),
        (torch.zeros(2, 3), "torch.float32"),
    ],
)
def test_rows_that_cannot_be_masked(tokenizer: Tokenizer, rows: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Masker.from_tokenizer(tokenizer)(rows)  # type: ignore[arg-type]
