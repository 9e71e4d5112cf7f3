from __future__ import annotations

import math
from pathlib import Path

import pytest

import unmask
from tests.conftest import make_text
from unmask.errors import CorpusError, DataError, SettingsError
from unmask.inference.evaluate import evaluate


def test_figures_at_several_rates(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(60, seed=5))
    result = evaluate(run.model, [tmp_path / "a.txt"], rates=(0.15, 0.4))
    low, high = result["by_rate"]["0.15"], result["by_rate"]["0.4"]
    assert {name: result[name] for name in low} == low
    assert low["loss"] < high["loss"], "more is hidden, so less is known"
    assert high["predicted_tokens"] == pytest.approx(low["predicted_tokens"] * 0.4 / 0.15, rel=0.02)
    assert low["perplexity"] == pytest.approx(math.exp(low["loss"]))
    assert 0 < low["loss_stderr"] < 0.2 * low["loss"]
    assert result == evaluate(run.model, [tmp_path / "a.txt"], rates=(0.15, 0.4)), "the masks are fixed"


def test_a_prepared_folder_gives_the_figures_of_the_run(run: unmask.Run) -> None:
    result = evaluate(run.model, [run.folder / "data"])
    assert result["predicted_tokens"] == run.summary["predicted_tokens"]
    # The run evaluates in the type that it trains in, here bf16 where the machine is fast at it.
    assert result["loss"] == pytest.approx(run.summary["validation_loss"], rel=0.01)


def test_a_single_document_is_enough_but_has_no_error(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The king sees the queen in the garden. The dog follows the cat at sea.")
    assert evaluate(run.model, [tmp_path / "a.txt"], rates=(0.5,))["loss_stderr"] is None


def test_what_cannot_be_evaluated(run: unmask.Run, data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a rate lies between 0 and 1, not 1.5"):
        evaluate(run.model, [tmp_path], rates=(1.5,))
    with pytest.raises(CorpusError, match="no such file"):
        evaluate(run.model, [tmp_path / "none.txt"])
    (tmp_path / "a.txt").write_text("the")
    with pytest.raises(DataError, match="too few to hide any"):
        evaluate(run.model, [tmp_path / "a.txt"])


def test_shards_of_another_tokenizer(run: unmask.Run, corpus_file: Path, tmp_path: Path) -> None:
    other = unmask.pretrain(
        [corpus_file], out=tmp_path / "run", steps=1, vocab_size=150, settings=("model.num_layers=1",)
    )
    with pytest.raises(SettingsError, match="was prepared with another tokenizer than"):
        evaluate(run.model, [other.folder / "data"])
