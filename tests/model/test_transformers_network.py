"""Networks of transformers in place of ours: the same logits, alone or in a padded batch; shapes; errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands.transformers_models import FAMILIES, SIZES, save_transformers
from tests.model.test_task_parity import INFOS as TASKS
from tests.tasks.test_tasks import examples_of, naive_loss
from unmask.core.errors import ModelError
from unmask.masking.masker import unmasked
from unmask.model.transformers import (
    TransformersNetwork,
    TransformersPretrained,
    load_transformers,
    load_transformers_task,
    save_transformers_task,
    transformers_with_head,
)
from unmask.tasks.inputs import Example, InputEncoder, pack_examples
from unmask.tasks.kinds import task_of
from unmask.tasks.task import Task, outputs_of
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
INFOS = {info.kind: info for info in TASKS if info.kind != "multi_label"}


def load(folder: Path, tokenizer: Tokenizer, max_length: int | None = None) -> TransformersPretrained:
    return load_transformers(
        folder, vocab_size=tokenizer.vocab_size, pad_id=tokenizer.special.pad, max_length=max_length
    )


def network_of(name: str, info: Task, tokenizer: Tokenizer, folder: Path, **options: Any) -> TransformersNetwork:
    """With weights large enough for differences to show."""
    pretrained = load(save_transformers(name, tokenizer, folder, initializer_range=0.3), tokenizer)
    return transformers_with_head(pretrained, info.task_head, **{"seed": 1, "dropout": None, **options}).eval()  # type: ignore[return-value]


def load_task(folder: Path, vocab_size: int) -> tuple[TransformersNetwork, Task]:
    """What `open_fine_tuned` does, without a tokenizer."""
    task = task_of(json.loads((folder / "config.json").read_text()), folder, pools_itself=True)
    sizes = {"vocab_size": vocab_size, "pad_id": 0, "max_length": task.max_length}
    return load_transformers_task(folder, task.task_head, **sizes), task


@torch.no_grad()
def plain_logits(network: TransformersNetwork, example: Example) -> torch.Tensor:
    """Outputs of transformers' model for a single example: [C] for a text, [S, C] for tokens."""
    inputs = {"input_ids": torch.from_numpy(example.input_ids)[None].long()}
    if example.type_ids is not None:
        inputs["token_type_ids"] = torch.from_numpy(example.type_ids)[None].long()
    out = network.encoder.model(**inputs)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)[0]
    return out.logits[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "classify") for name in FAMILIES), *(("Albert", kind) for kind in INFOS if kind != "classify")],
)
def test_alone_equals_padded_equals_theirs(name: str, kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    info = INFOS[kind]
    network = network_of(name, info, tokenizer, tmp_path)
    examples = examples_of(info, InputEncoder(tokenizer, network.config))
    assert (examples[0].type_ids is not None) == (name in ("Electra", "Albert"))
    together = outputs_of(network, info, examples)
    assert np.concatenate([output.ravel() for output in together]).std() > 0.005
    total = 0.0
    for example, padded in zip(examples, together, strict=True):
        logits = plain_logits(network, example)
        total += naive_loss(info, example, logits)
        expected = logits[example.places] if kind in ("tag", "answer") else logits[None]
        np.testing.assert_allclose(padded, expected.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(padded, outputs_of(network, info, [example])[0], rtol=1e-4, atol=1e-5)
    rows = pack_examples(examples, pad_id=0, max_length=64, alone=True)
    logits = network.encoder(
        rows.input_ids, segment_ids_BS=rows.segment_ids, token_type_ids_BS=rows.token_type_ids
    ).flatten(0, 1)
    objective = info.objective()
    losses = objective.losses(network, logits, objective.targets(rows, unmasked(rows)), None)
    assert losses.total.item() == pytest.approx(total, rel=1e-4)
    losses.total.backward()
    assert max(float(p.grad.norm()) for p in network.parameters() if p.grad is not None) > 0.0


@pytest.mark.parametrize("kind", INFOS)
def test_what_is_saved_is_loaded(
    kind: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = INFOS[kind]
    transformers.logging.enable_progress_bar()
    network = network_of("Electra", info, tokenizer, tmp_path / "encoder")
    capsys.readouterr()
    save_transformers_task(network, info.task_head, tmp_path / "saved")
    assert capsys.readouterr().err == "", "no progress bar of transformers"
    tokenizer.save(tmp_path / "saved", max_length=64)
    again, same = load_task(tmp_path / "saved", tokenizer.vocab_size)
    assert same == info
    assert again.config == network.config
    for example in examples_of(info, InputEncoder(tokenizer, network.config)):
        assert torch.equal(plain_logits(again, example), plain_logits(network, example))
    content = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert str(tmp_path) not in json.dumps(content)
    del content["unmask_task"]
    (tmp_path / "saved" / "config.json").write_text(json.dumps(content))
    _, actual = load_task(tmp_path / "saved", tokenizer.vocab_size)
    assert (actual.kind, actual.names) == ("classify" if kind == "pairs" else kind, info.names)


def test_the_encoder_is_the_folders_and_the_head_the_seeds(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Also if the folder has a head of that size; the layer before the head is the folder's, if it has one."""
    folder = save_transformers("Albert", tokenizer, tmp_path, head="ForSequenceClassification", num_labels=3)
    before = load_file(folder / "model.safetensors")
    pretrained = load(folder, tokenizer)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    head = INFOS["classify"].task_head
    weights = [
        transformers_with_head(pretrained, head, seed=seed, dropout=None, trained=trained).encoder.model.state_dict()
        for seed, trained in ((1, True), (1, True), (2, True), (1, False))
    ]
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in before.items():
        same = [torch.equal(weights[0][name], each[name]) for each in weights]
        if name == "classifier.weight":
            assert same == [True, True, False, True]
            assert not torch.equal(weights[0][name], tensor)
        elif name.startswith("albert."):
            assert same[:3] == [True, True, True]
            assert torch.equal(weights[0][name], tensor)
            assert torch.equal(weights[3][name], tensor) == (tensor.std() == 0.0 or tensor.numel() == 1), name
    assert pretrained.theirs.num_labels == 3, "what is shared by runs stays as it is"
    del before["albert.pooler.weight"], before["albert.pooler.bias"]
    save_file(before, folder / "model.safetensors", metadata={"format": "pt"})
    without = load(folder, tokenizer)
    assert torch.equal(state, torch.get_rng_state())
    networks = [transformers_with_head(without, head, seed=seed, dropout=None) for seed in (1, 1, 2)]
    drawn = [network.encoder.model.albert.pooler.weight for network in networks]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_what_is_dropped_is_a_function_of_the_seed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    network = network_of("DistilBert", INFOS["tag"], tokenizer, tmp_path, dropout=0.3)
    config = network.encoder.model.config
    assert (config.dropout, config.attention_dropout, config.seq_classif_dropout, config.qa_dropout) == (0.3,) * 4
    ids = torch.arange(5, 25)[None]
    plain = network.encoder(ids)
    network.train()
    with pytest.raises(ModelError, match="needs a dropout_seed"):
        network.encoder(ids)
    state = torch.get_rng_state()
    a, b, other = (network.encoder(ids, dropout_seed=seed) for seed in (-(2**63), -(2**63), 2**63 - 1))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    assert not torch.equal(a, plain)
    without = network_of("DistilBert", INFOS["tag"], tokenizer, tmp_path, dropout=0.0)
    calm = without.encoder(ids)
    assert torch.equal(without.train().encoder(ids, dropout_seed=1), calm)


@pytest.mark.parametrize(
    ("name", "changes", "longest", "types"),
    [
        ("DistilBert", {}, 66, 1),
        ("Electra", {}, 66, 2),
        ("Electra", {"type_vocab_size": 1}, 66, 1),
        ("MPNet", {}, 64, 1),
        ("XLMRoberta", {}, 65, 1),
        ("Nystromformer", SIZES, 66, 2),
        ("IBert", {**SIZES, "type_vocab_size": 1}, 65, 1),
        ("DebertaV2", {}, 64, 1),
        ("DebertaV2", {"position_biased_input": True, "type_vocab_size": 2}, 66, 2),
    ],
)
def test_the_longest_input(
    name: str, changes: dict[str, Any], longest: int, types: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """And the model accepts an input of this length; with a table of positions, it accepts no longer one."""
    pretrained = load(save_transformers(name, tokenizer, tmp_path, **changes), tokenizer)
    assert pretrained.config.max_position_embeddings == longest
    assert pretrained.config.num_types == types
    assert (pretrained.config.hidden_size, pretrained.config.pad_id) == (32, 0)
    model = transformers_with_head(pretrained, INFOS["classify"].task_head, seed=0, dropout=None).eval().encoder
    assert model(torch.full((1, longest), 7)).shape == (1, longest, 3)
    if name == "DebertaV2" and not changes:
        assert load(tmp_path, tokenizer, 100).config.max_position_embeddings == 100
        (tmp_path / "tokenizer_config.json").unlink()
        assert load(tmp_path, tokenizer).config.max_position_embeddings == 512
    elif name != "IBert":
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, longest + 3), 7))


def test_a_text_read_at_its_end_is_read_at_its_last_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """XLNet's class is read from the last position, which must not be padding."""
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.XLNetModel(transformers.XLNetConfig(**sizes, initializer_range=0.3, pad_token_id=0))
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=64)
    info = INFOS["classify"]
    network = transformers_with_head(load(tmp_path, tokenizer), info.task_head, seed=1, dropout=None).eval()
    assert isinstance(network, TransformersNetwork)
    examples = examples_of(info, InputEncoder(tokenizer, network.config))
    assert len({len(example.input_ids) for example in examples}) == 3
    for example, padded in zip(examples, outputs_of(network, info, examples), strict=True):
        np.testing.assert_allclose(padded, plain_logits(network, example)[None].numpy(), rtol=1e-4, atol=1e-5)
