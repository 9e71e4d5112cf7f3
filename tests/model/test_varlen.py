"""Packed rows as one line of sequences, attention over it against the loops of CPUs, and compiled blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.helpers import MakeModel
from tests.model.on_gpu import attend_in_line, tensor_operations
from unmask.model.config import PARTS
from unmask.model.encoder import MaskedLM, compile_model
from unmask.model.fused import MOST, Sequences, choose_attention, losses_of_decoder

SEGMENTS = torch.tensor([[0] * 40, [0] * 13 + [1] * 20 + [-1] * 7, [0] * 3 + [1] * 3 + [2] * 34], dtype=torch.int32)


def batch(seed: int = 0) -> dict[str, Tensor]:
    places = torch.arange(SEGMENTS.shape[1])
    first = torch.stack([(row[:, None] == row).int().argmax(1) for row in SEGMENTS])
    ids = torch.randint(5, 100, SEGMENTS.shape, generator=torch.Generator().manual_seed(seed))
    return {"input_ids_BS": ids, "segment_ids_BS": SEGMENTS, "position_ids_BS": places - first}


def values_and_gradients(model: MaskedLM, rows: dict[str, Tensor], **more: Any) -> dict[str, Tensor]:
    model.zero_grad()
    hidden_BSD = model.encoder(**rows, **more)
    real = rows["segment_ids_BS"] >= 0
    (hidden_BSD[real] * torch.linspace(0.5, 1.5, hidden_BSD.shape[-1])).square().sum().backward()
    return {
        "hidden": hidden_BSD.detach()[real],
        **{name: p.grad.clone() for name, p in model.encoder.named_parameters() if p.grad is not None},
    }


@pytest.mark.parametrize("layout", PARTS)
def test_segments_in_a_line_equal_the_loops(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Local and global layers, rows of one segment and of several, padding: the same values and gradients."""
    model = make_model(layout=layout)
    rows = batch()
    loops = values_and_gradients(model, rows)
    attend_in_line(monkeypatch)
    in_line = values_and_gradients(model, rows)
    made_before = values_and_gradients(model, rows, sequences=Sequences.of(SEGMENTS))
    assert loops.keys() == in_line.keys()
    assert len(loops) > 20
    for name, expected in loops.items():
        scale = float(expected.abs().max())
        torch.testing.assert_close(in_line[name] / scale, expected / scale, rtol=1e-4, atol=2e-5, msg=name)
        assert torch.equal(in_line[name], made_before[name]), name


def test_rows_without_segments_are_a_sequence_each(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    ids = batch()["input_ids_BS"]
    loops = model.encoder(ids)
    attend_in_line(monkeypatch)
    torch.testing.assert_close(model.encoder(ids), loops, rtol=1e-4, atol=2e-5)


class Counter:
    """A backend of torch.compile that counts the graphs it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    torch._dynamo.reset()
    counter = Counter()
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **named: compiled(function, fullgraph=True, **(named | {"backend": counter}))
    )
    return counter


def _with_capacity(capacity: int) -> Sequences:
    sequences = Sequences.of(SEGMENTS)
    begins = sequences.cu_seqlens
    more = begins[-1:].expand(capacity + 1 - len(begins))
    return Sequences(torch.cat([begins, more]), sequences.max_length)


@pytest.mark.slow
@pytest.mark.parametrize("in_line", [False, True])
@pytest.mark.parametrize("changes", [{}, {"layout": "bert", "dropout": 0.2}])
def test_compiled_blocks_are_few_and_whole(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, counter: Counter, in_line: bool, changes: dict[str, Any]
) -> None:
    """No break in any graph; layers that are alike share one, and so do batches whose segments and seeds differ."""
    model = make_model(num_layers=8, **changes).train()
    if in_line:
        # Positions between and after the sequences matter to the kernel, not to the graph.
        attend_in_line(monkeypatch, lambda query, key, value, begins, *rest, **named: query + key * value + begins[0])
    else:
        tensor_operations(monkeypatch)
        monkeypatch.setattr("unmask.model.encoder.choose_attention", lambda *given, **named: "bias")
    monkeypatch.setattr(
        model.encoder, "_on_device", lambda seed: None if seed is None else torch.full((), seed, dtype=torch.int64)
    )
    # Each batch has its own capacity for sequences.
    more = [{"sequences": _with_capacity(20 + seed)} if in_line else {} for seed in range(3)]
    expected = [values_and_gradients(model, batch(seed), dropout_seed=seed, **more[seed]) for seed in range(3)]
    names = list(model.state_dict())
    compile_model(model)
    assert list(model.state_dict()) == names
    # The first layer has no norm, and a kernel gets its window as a number; with a bias, windows are in a tensor.
    kinds = 1 if changes else 3 if in_line else 2
    for seed in range(3):
        actual = values_and_gradients(model, batch(seed), dropout_seed=seed, **more[seed])
        for name, value in expected[seed].items():
            torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=1e-6, msg=name)
        assert counter.count == kinds
    model.eval()
    with torch.no_grad():
        model.encoder(batch()["input_ids_BS"][:2, :17])
    assert counter.count == kinds, "evaluation is not compiled"


@pytest.mark.slow
def test_the_compiled_loss_is_the_loss(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, counter: Counter
) -> None:
    model = make_model().train()
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(12, 32, generator=generator).requires_grad_()
    targets_N = torch.tensor([*range(9), -100, -100, -100])
    weights_N = torch.linspace(0.5, 2.0, 12)
    loops = losses_of_decoder(x_ND, model.encoder.tokens, model.head.bias, targets_N, weights_N)
    (of_loops,) = torch.autograd.grad(loops.total, x_ND)
    tensor_operations(monkeypatch)
    compile_model(model)
    for count in (12, 12, 11, 10):  # as targets become fewer while a mask rate falls
        actual = model.head.losses(x_ND[:count], model.encoder.tokens, targets_N[:count], weights_N[:count])
        (gradient,) = torch.autograd.grad(actual.total, x_ND)
        torch.testing.assert_close(actual.each_N, loops.each_N[:count], rtol=1e-5, atol=1e-5)
        assert torch.equal(actual.wrong_N, loops.wrong_N[:count])
        torch.testing.assert_close(gradient, of_loops, rtol=1e-4, atol=1e-5)
        assert gradient[9:].abs().max() == 0
    assert counter.count == 1


AMPERE, TURING = (8, 0), (7, 5)


@pytest.mark.parametrize(
    ("device", "capability", "windows", "dtype", "head_dim", "window", "kind"),
    [
        ("cpu", AMPERE, True, torch.bfloat16, 64, None, "loops"),
        ("cpu", AMPERE, True, torch.float32, 64, 64, "loops"),
        ("cuda", AMPERE, True, torch.bfloat16, 64, None, "varlen"),
        ("cuda", AMPERE, True, torch.float16, 64, 64, "varlen"),
        ("cuda", AMPERE, True, torch.bfloat16, 256, 64, "varlen"),
        ("cuda", AMPERE, True, torch.bfloat16, 264, None, "bias"),  # the kernel ends at 256
        ("cuda", AMPERE, True, torch.bfloat16, 36, None, "bias"),  # and takes multiples of 8
        ("cuda", AMPERE, True, torch.float32, 64, None, "bias"),  # in half precision
        ("cuda", AMPERE, False, torch.bfloat16, 64, None, "varlen"),  # a torch whose kernel knows no window
        ("cuda", AMPERE, False, torch.bfloat16, 64, 64, "bias"),
        ("cuda", TURING, True, torch.bfloat16, 64, None, "bias"),
    ],
)
def test_which_way_attention_is_computed(
    device: str, capability: Any, windows: bool, dtype: Any, head_dim: int, window: Any, kind: str,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    kernel = (lambda query, window_size: query) if windows else lambda query: query
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_attention.__wrapped__(torch.device(device), dtype, head_dim=head_dim, window=window) == kind


def test_the_capacity_is_rounded_up_and_what_is_over_is_empty() -> None:
    rows = torch.arange(1, 18).repeat_interleave(2)[None]
    assert Sequences.of(rows).cu_seqlens.tolist() == [*range(0, 34, 2), 34, 34, 34, 34]
    capacities = [len(Sequences.of(torch.arange(count)[None]).cu_seqlens) - 1 for count in (8, 9, 65, 4400, 8192)]
    assert capacities == [8, 10, 80, 5120, 8192]
    assert len(Sequences.of(torch.arange(57_345)[None]).cu_seqlens) - 1 == MOST, "no more than a kernel takes"


def test_the_longest_is_told_by_its_bucket_and_padding_is_cut() -> None:
    """The row of 700 has 60 + 130 tokens and 510 of padding, cut at multiples of 256."""
    marks = torch.tensor([0] * 60 + [1] * 130 + [-1] * 510)
    actual = Sequences.of(marks[None])
    assert actual.max_length == 256
    assert actual.cu_seqlens.diff().tolist()[:5] == [60, 130, 66, 256, 188]
    for longest, bucket in ((5, 128), (128, 128), (129, 256), (257, 512), (520, 700)):
        rows = torch.tensor([0] * longest + [-1] * (700 - longest))[None]
        assert Sequences.of(rows).max_length == bucket
        assert int(Sequences.of(rows).cu_seqlens.diff().max()) <= bucket
    assert Sequences.of(torch.full((2, 700), -1)).max_length == 128


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=9), st.integers(0, 4))
def test_lengths_come_back(rows: list[list[int]], padding: int) -> None:
    """An oracle that walks over the rows."""
    length = max(map(sum, rows)) + padding
    segments = torch.full((len(rows), length), -1)
    expected = []
    for number, lengths in enumerate(rows):
        marks = [segment for segment, size in enumerate(lengths) for _ in range(size)]
        segments[number, : len(marks)] = torch.tensor(marks)
        expected += [*lengths, length - len(marks)] if len(marks) < length else lengths
    lengths_found = Sequences.of(segments).cu_seqlens.diff()
    capacity = len(lengths_found)
    assert lengths_found.tolist() == expected + [0] * (capacity - len(expected))
    assert len(expected) <= capacity <= 1.25 * len(expected)
