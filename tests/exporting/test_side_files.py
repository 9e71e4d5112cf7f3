"""`verify` and the small files beside a model: damaged ones, and those that say something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hostile_models import change_json, write_text
from unmask.exporting.checks import side_files_agree
from unmask.exporting.graphs import open_checked_model

POOLING = "1_Pooling/config.json"


def said_of(folder: Path) -> str:
    found = side_files_agree(open_checked_model(folder))
    assert not isinstance(found, str)
    return "" if found.passed else found.detail


def test_sound_files_pass(copy: Path) -> None:
    assert said_of(copy) == ""
    as_sentences(copy)
    assert said_of(copy) == ""
    found = side_files_agree(open_checked_model(copy))
    assert not isinstance(found, str)
    assert found.detail == ("tokenizer_config.json, special_tokens_map.json, modules.json, sentence_bert_config.json")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "modules.json", "sentence_bert_config.json"):
        (copy / name).unlink()
    assert side_files_agree(open_checked_model(copy)) == (
        "there are no files beside the weights, config.json and tokenizer.json"
    )


def as_sentences(folder: Path) -> None:
    """As sentence-transformers saves it."""
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in MODULES]
    write_text(folder, "modules.json", json.dumps(modules))
    write_text(folder, "sentence_bert_config.json", '{"max_seq_length": 64}')
    (folder / "1_Pooling").mkdir()
    change_json(folder, POOLING, word_embedding_dimension=64, pooling_mode_mean_tokens=True)


MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("special_tokens_map.json", {"mask_token": "[CLS]"}, "says mask_token = '[CLS]', tokenizer.json has '[MASK]'"),
        ("special_tokens_map.json", {"pad_token": {"content": []}}, "says pad_token = [], tokenizer.json has '[PAD]'"),
        ("tokenizer_config.json", {"model_max_length": 512}, "model_max_length = 512 is more than the model's 64 posi"),
        ("tokenizer_config.json", {"model_max_length": "64"}, "model_max_length = '64' is no number of tokens"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 999},
            "max_seq_length = 999 is more than the model's 64 posit",
        ),
        (POOLING, {"word_embedding_dimension": 32}, f"{POOLING} says word_embedding_dimension = 32, config.json hidd"),
        (POOLING, {"pooling_mode": "a" * 500}, "pooling by aaaa"),
        (POOLING, {"pooling_mode": 3}, "pooling by 3 is not offered"),
    ],
)
def test_files_that_say_something_else(copy: Path, name: str, change: dict[str, object], message: str) -> None:
    as_sentences(copy)
    change_json(copy, name, **change)
    said = said_of(copy)
    assert message in said
    assert len(said) < 800
    assert bool(message) == bool(said)


def test_modules_outside_of_the_folder(copy: Path) -> None:
    write_text(copy, "modules.json", json.dumps([{"type": "x.Pooling", "path": "../other"}]))
    assert "modules.json: damaged (path '../other' is no name of a folder); mend it or take it away" in said_of(copy)
