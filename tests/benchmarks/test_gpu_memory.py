"""Estimates of memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from gpu_memory import model_of, table

from unmask.commands.recipe import load_recipe
from unmask.train.hardware import USED, first_micro_tokens, fitting_positions, positions_on_cpu, step_memory
from unmask.train.settings import TrainingSettings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pretraining.md"


def test_the_page_says_what_is_calculated() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = text.split("<!-- gpu-memory -->\n")[1].split("\n<!-- end gpu-memory -->")[0]
    assert rows == "\n".join(table()), "benchmarks/gpu_memory.py --table docs/how-to/pretraining.md makes it anew"


def test_a_step_by_hand() -> None:
    """The base recipe: 22 gated layers of 768 with 1,152 inner values, rotary, 4,096 positions at once."""
    recipe = load_recipe("base")
    model = model_of(recipe)
    matrices = sum(p.numel() for p in model.encoder.blocks.parameters() if p.ndim == 2)
    lasting = 10 * model.num_parameters + 4 * (2 * model.num_parameters - matrices)  # weights, and moments of Muon
    blocks, attention = 22 * 4096 * 2 * (10 * 768 + 3 * 1152), 4 * 768 * (4096 + 4096)
    head = 0.3 * 4096 * (4 * model.config.vocab_size + 12 * 768)
    nothing, usual = (step_memory(model, recipe.training, positions=4096, rate=rate) for rate in (0.0, 0.3))
    assert nothing == lasting + blocks + attention
    assert usual == pytest.approx(lasting + blocks + head, abs=1), "the head's tensors are freed before attention's"
    more = step_memory(model, recipe.training, positions=262_144, rate=0.0) - lasting
    assert 100e9 < more - 4 * 768 * 2 * 262_144 < 130e9


def test_a_step_on_a_cpu_keeps_two_gigabytes() -> None:
    """BERT base: 12 layers of 768 with 3,072 inner values."""
    config = model_of(load_recipe("bert-base")).config
    each = 12 * 4 * (10 * 768 + 3 * 3072)
    assert positions_on_cpu(config) == (2 << 30) // each
    assert positions_on_cpu(config, more_bytes=each) == (1 << 30) // each


def test_parts_fit_and_are_no_smaller_than_they_must_be() -> None:
    recipe = load_recipe("base")
    model, settings = model_of(recipe), recipe.training
    for memory in (24 << 30, 80 << 30):
        fits = fitting_positions(model, settings, memory=memory, rate=0.3)
        assert settings.batch_tokens % fits == 0
        taken, twice = (step_memory(model, settings, positions=n, rate=0.3) for n in (fits, 2 * fits))
        assert taken <= USED * memory < twice
    assert fitting_positions(model, settings, memory=1 << 30, rate=0.3) is None
    assert fitting_positions(model, settings, memory=1 << 50, rate=0.3) == settings.batch_tokens


def test_what_a_training_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    memory = 1 << 40
    properties = dataclasses.make_dataclass("Properties", ["total_memory"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties(memory))
    model = model_of(load_recipe("tiny"))
    settings = TrainingSettings.model_validate({"steps": 1, "batch_tokens": 65_536, "sequence_length": 128})
    assert first_micro_tokens(model, settings, gpu, rate=0.2) is None, "all of it fits"
    cpu = torch.device("cpu")
    assert first_micro_tokens(model, settings, cpu, rate=0.2) == positions_on_cpu(model.config) > 32_768
    memory = 2 * step_memory(model, settings, positions=8192, rate=0.2)
    fits = first_micro_tokens(model, settings, gpu, rate=0.2)
    assert fits in (8192, 16_384)
    memory = 1
    assert first_micro_tokens(model, settings, gpu, rate=0.2) == 128, "a row at once, before memory turns out too small"
    fixed = settings.model_copy(update={"micro_batch_tokens": 512})
    assert first_micro_tokens(model, fixed, gpu, rate=0.2) == 512
