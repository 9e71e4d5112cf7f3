"""Folders of anybody's making: one clear line in bounded time and memory, whoever runs the model."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import unmask
from tests.commands.finetune_helpers import save_encoder
from tests.commands.transformers_models import save_transformers
from tests.hostile_models import (
    CONFIG,
    CONFIGS,
    DEEP,
    FILES,
    OURS,
    TASKS,
    WEIGHTS,
    Break,
    change_json,
    remove_weight,
    settings,
    write_text,
)
from tests.tasks.test_fine_tuned import tuned
from unmask.core.errors import TokenizerError, UnmaskError
from unmask.model.encoder import MaskedLM
from unmask.tasks.classify import Classify
from unmask.tasks.predict import load_fine_tuned
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("transformers")
MakeModel = Callable[..., MaskedLM]
MORE = 2 << 30  # bytes of addresses beyond those that the process has, for what is loaded


@contextmanager
def bounded() -> Iterator[None]:
    """Whoever asks for gigabytes gets none, and so says something else than what is wrong."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def said_of(folder: Path) -> str:
    """What is said where the model is loaded."""
    with bounded(), pytest.raises(UnmaskError) as caught:
        unmask.load(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.fixture(params=["modernbert", "bert"])
def folder(request: pytest.FixtureRequest, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A sound model of ours."""
    return save_encoder(make_model, tokenizer, tmp_path / "sound", layout=request.param)


def broken(folder: Path, how: Break) -> Path:
    copy = folder.with_name("broken")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    how(copy)
    return copy


def test_every_configuration_and_file(folder: Path) -> None:
    unmask.load(folder)
    for name, how in (CONFIGS | FILES).items():
        assert said_of(broken(folder, how)), name


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            CONFIGS["a width of a billion"],
            r"embeddings.weight has the shape \(200, 32\), but config.json says \(200, 10",
        ),
        (CONFIGS["layers in quotes"], "config.json: num_layers = '2': input should be a valid integer"),
        (CONFIGS["nested deep"], r"config.json: not JSON \(it is nested too deep to be read\)"),
        (CONFIGS["a number of thousands of digits"], r"config.json: not JSON \(it holds a whole number of too"),
        (FILES["all NaN"], r"weight hold .* values that are not finite \(NaN or infinity\), .* give another copy"),
        (FILES["integers"], "numbers of type I64, but weights are of F64, .*give the one that it was made from"),
        (FILES["cut off"], r"model.safetensors: damaged \("),
        (FILES["overlapping"], r"model.safetensors: damaged \("),
        (FILES["an id of 2**31"], "tokenizer.json: the vocabulary has the id 2,147,483,648, but ids up to 16,777,215"),
        (FILES["ids outside around a text"], "puts 2147483648 around texts, which is none of its 200 ids; mend its po"),
        (FILES["a panic of the library"], "tokenizer.json: not a tokenizer of the `tokenizers` library: range end"),
    ],
)
def test_what_is_said_of_ours(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, how: Break, message: str
) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound", layout="bert")
    with pytest.raises(UnmaskError, match=message):
        unmask.load(broken(folder, how))


def test_what_only_ours_is_asked(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound")
    for name, how in OURS.items():
        assert said_of(broken(folder, how)).startswith("config.json: "), name
    assert "norm_eps = nan: input should be a finite number" in said_of(broken(folder, OURS["eps NaN"]))
    assert "pad_id 1000000 is none of the 200 entries" in said_of(broken(folder, OURS["padding outside"]))
    layers = settings(num_hidden_layers=10**9, layer_types=None)
    assert "the weights lack model.layers.999999999.mlp.Wo.weight" in said_of(broken(folder, layers))
    types = settings(layer_types=["full_attention"])
    assert "layer_types = ['full_attention'] does not name a kind for each of 2 layers" in said_of(
        broken(folder, types)
    )
    rotary = settings(rope_parameters={"full_attention": [1]})
    assert "rope_parameters = {'full_attention': [1]} is no table" in said_of(broken(folder, rotary))


def test_files_of_those_that_transformers_runs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_transformers("DistilBert", tokenizer, tmp_path / "sound")
    messages = {name: said_of(broken(folder, how)) for name, how in FILES.items()}
    assert "holds values that are not finite (NaN or infinity)" in messages["all NaN"]
    assert "holds numbers of type I64" in messages["integers"]
    assert "no masked language model that transformers reads" in said_of(broken(folder, CONFIGS["no heads"]))


def test_fine_tuned_folders(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tuned(make_model, tokenizer, tmp_path / "sound", Classify(("sea", "garden")))
    said = {}
    for name, how in TASKS.items():
        with bounded(), pytest.raises(UnmaskError) as caught:
            load_fine_tuned(broken(folder, how)).predict(["The cat."])
        said[name] = str(caught.value)
        assert "\n" not in said[name]
    assert said["labels as a list"].endswith("config.json: id2label is no table of numbers to names")
    assert "config.json: unmask_task: max_length = 0: input should be greater" in said["a length of 0"]
    assert said["a length of 0"].endswith("finetune writes no such thing: give another copy of the model")
    assert "fine-tuned for [], which this version of unmask does not know" in said["a kind as a list"]
    assert "this model is not fine-tuned for a task" in said["architectures of numbers"]


def test_a_sharded_model_whose_index_is_damaged(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound")
    (folder / WEIGHTS).unlink()
    for text in (DEEP, '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "%s"}}' % ("a" * 500), "[]"):
        write_text(folder, "model.safetensors.index.json", text)
        assert "model.safetensors.index.json" in said_of(folder)


def test_a_vocabulary_of_transformers_with_a_far_id(tmp_path: Path) -> None:
    change_json(tmp_path, "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    change_json(tmp_path, "vocab.json", a=2**31)
    write_text(tmp_path, "merges.txt", "#version: 0.2\n")
    with pytest.raises(
        TokenizerError, match="vocab.json: the vocabulary has the id 2147483648, but ids up to 16,777,21"
    ):
        load_tokenizer(tmp_path)
    write_text(tmp_path, "vocab.json", DEEP)
    with pytest.raises(
        TokenizerError, match=r"vocab.json: no table of entries and their ids \(it is nested too deep to be read\)"
    ):
        load_tokenizer(tmp_path)


def test_a_decoder_that_is_not_tied_is_told(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound")
    unmask.load(folder)
    weights = load_file(folder / WEIGHTS)
    weights["decoder.weight"] = weights["model.embeddings.tok_embeddings.weight"].clone()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    unmask.load(folder)
    assert not caplog.messages
    weights["decoder.weight"][3] += 1.0
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    unmask.load(folder)
    assert "decoder.weight is not the embedding, although config.json ties them" in caplog.text
    remove_weight(folder, "layers.1.mlp.Wo.weight")
    assert "the weights lack model.layers.1.mlp.Wo.weight, which the layout in config.json has" in said_of(folder)
    assert (folder / CONFIG).is_file()
