"""The annotated reference's interface, and the errors that it had."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.masking.helpers import assert_share
from unmask import MLM
from unmask.core.errors import SettingsError


def text_of(seq_len: int, batch: int, low: int = 2, high: int = 67, seed: int = 0) -> Tensor:
    return torch.randint(low, high, (seq_len, batch), generator=torch.Generator().manual_seed(seed))


def test_the_interface() -> None:
    x = text_of(32, 64)
    before = x.clone()
    seen, labels = MLM()(x)
    assert torch.equal(x, before), "the input is unchanged"
    assert seen.shape == labels.shape == (32, 64)
    assert seen.dtype == labels.dtype == torch.int64
    assert seen.is_contiguous()
    assert len({tensor.data_ptr() for tensor in (x, seen, labels)}) == 3
    chosen = labels != 0
    assert torch.equal(labels[chosen], x[chosen])
    assert torch.equal(seen[~chosen], x[~chosen])


def test_by_hand() -> None:
    """Rates of 0 and 1 leave nothing to chance."""
    x = torch.tensor([[5, 0], [6, 1], [9, 7]])
    seen, labels = MLM(no_mask_tokens=[9], masking_prob=1.0, randomize_prob=0.0, no_change_prob=0.0)(x)
    assert seen.tolist() == [[1, 0], [1, 1], [9, 1]]
    assert labels.tolist() == [[5, 0], [6, 0], [0, 7]]
    seen, labels = MLM(masking_prob=1.0, randomize_prob=0.0, no_change_prob=1.0)(x)
    assert torch.equal(seen, x)
    assert labels.tolist() == [[5, 0], [6, 0], [9, 7]]
    seen, labels = MLM(masking_prob=0.0)(x)
    assert torch.equal(seen, x)
    assert labels.sum() == 0
    seen, _ = MLM(n_tokens=4, masking_prob=1.0, randomize_prob=1.0, no_change_prob=0.0)(torch.tensor([[2, 3]]))
    assert seen.tolist() == [[3, 2]], "of two ordinary tokens, the other one"


def test_one_draw_parts_the_chosen_tokens() -> None:
    """80 / 10 / 10, where draws apart from each other give 81.0 / 10.0 / 9.1."""
    x = text_of(100, 8000)
    seen, labels = MLM()(x)
    chosen = labels != 0
    assert chosen.sum() == 15 * 8000, "exactly the share, in every column"
    mask, same = seen[chosen] == 1, seen[chosen] == x[chosen]
    for hits, expected in ((mask, 0.8), (same, 0.1), (~mask & ~same, 0.1)):
        assert_share(hits, expected)


def test_specials_are_neither_chosen_nor_drawn() -> None:
    specials = [0, 1, 4, 66]
    x = text_of(50, 4000, low=0)
    mlm = MLM(no_mask_tokens=[4, 66], masking_prob=0.9, randomize_prob=1.0, no_change_prob=0.0)
    seen, labels = mlm(x)
    chosen = labels != 0
    special = torch.isin(x, torch.tensor(specials))
    assert not (chosen & special).any()
    assert_share(chosen[~special], 0.9)
    drawn = seen[chosen]
    assert not torch.isin(drawn, torch.tensor(specials)).any()
    assert (drawn != x[chosen]).all()
    counts = torch.bincount(drawn, minlength=67)[[n for n in range(67) if n not in specials]].double()
    expected = len(drawn) / len(counts)
    assert len(counts) == 63
    assert ((counts - expected).abs() < 5 * expected**0.5).all(), "uniform over all the others"


def test_ids_of_specials_may_lie_behind_the_others() -> None:
    x = text_of(30, 500, low=0, high=20)
    x[0], x[-1] = 20, 21
    mlm = MLM(padding_token=20, mask_token=21, n_tokens=20, randomize_prob=0.5, masking_prob=0.5)
    seen, labels = mlm(x)
    chosen = labels != 20
    assert (x[chosen] == 0).any(), "id 0 can be predicted"
    assert not chosen[[0, -1]].any()
    assert set(seen[chosen].tolist()) <= {*range(20), 21}


def test_randomness_is_seed_epoch_column_and_content() -> None:
    x = text_of(40, 30)
    mlm = MLM(seed=3)
    first, second = mlm(x), mlm(x)
    assert not torch.equal(first[1], second[1]), "each call draws anew"
    assert mlm.calls == 2
    assert torch.equal(mlm(x, epoch=0)[0], first[0])
    assert torch.equal(mlm(x, epoch=1)[0], second[0])
    assert mlm.calls == 2, "an epoch that is given does not count"
    assert torch.equal(MLM(seed=3)(x)[0], first[0])
    assert not torch.equal(MLM(seed=4)(x)[1], first[1])
    copy = pickle.loads(pickle.dumps(mlm))
    assert torch.equal(copy(x)[0], mlm(x)[0])
    state = torch.random.get_rng_state()
    mlm(x)
    assert torch.equal(state, torch.random.get_rng_state())
    equal = MLM()(torch.full((40, 1000), 7))[1]
    assert len({tuple(column) for column in equal.T.tolist()}) > 990, "equal columns have masks of their own"
    assert (equal != 0).double().mean() == pytest.approx(0.15)
    assert_share(equal[0] != 0, 0.15)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)])
def test_small_batches(shape: tuple[int, int]) -> None:
    seen, labels = MLM()(torch.full(shape, 5))
    assert seen.shape == labels.shape == shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"randomize_prob": -0.1}, "randomize_prob.* not -0.1"),
        ({"randomize_prob": 0.6, "no_change_prob": 0.6}, "not 1.2"),
        ({"mask_token": -1}, "-1"),
        ({"n_tokens": 3}, "at least two"),
    ],
)
def test_settings_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MLM(**options)


@pytest.mark.parametrize(
    "x", [torch.tensor([[2, 67]]), torch.tensor([[2, -1]]), torch.tensor([2, 3]), torch.zeros(2, 2)]
)
def test_tensors_that_are_wrong(x: Tensor) -> None:
    with pytest.raises(SettingsError, match="x "):
        MLM()(x)
