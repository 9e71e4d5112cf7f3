from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import make_text
from tests.model.helpers import MakeModel
from unmask.commands.evaluate import evaluate, score
from unmask.core.errors import ModelError, SettingsError
from unmask.data.data_folder import load_manifest
from unmask.tasks.loaded_model import Model
from unmask.tokenizer.tokenizer import Tokenizer


def test_figures_at_several_rates(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(60, seed=5))
    result = evaluate(run.model, [tmp_path / "a.txt"], rates=np.array([0.15, 0.4]), masks=3)
    low, high = result["by_rate"]["0.15"], result["by_rate"]["0.4"]
    assert {name: result[name] for name in low} == low
    assert low["loss"] < high["loss"], "more is hidden, so less is known"
    assert high["predicted_tokens"] == pytest.approx(low["predicted_tokens"] * 0.4 / 0.15, rel=0.02)
    assert 0 < low["loss_stderr"] < 0.2 * low["loss"]
    assert low["accuracy"] < low["accuracy_top5"] < 1
    assert low["bits_per_byte"] < high["bits_per_byte"]
    assert 1 < result["pseudo_perplexity"] < low["perplexity"], "nothing else is hidden, so more is known"
    assert result["warning"] is None, "there are many documents"
    assert set(result["breakdown"]) == {"word_frequency", "word_pieces", "piece"}
    for kinds in result["breakdown"].values():
        assert len(kinds) > 1
        assert sum(figures["predicted_tokens"] for figures in kinds.values()) == result["predicted_tokens"]
        for name in ("loss", "accuracy"):
            total = sum(figures[name] * figures["predicted_tokens"] for figures in kinds.values())
            assert total == pytest.approx(result[name] * result["predicted_tokens"])
    frequency = result["breakdown"]["word_frequency"]
    assert frequency["100-999"]["loss"] < frequency["1"]["loss"], "words of the grammar against made-up names"


def test_a_prepared_folder_gives_the_loss_of_the_run(run: unmask.Run) -> None:
    """With other masks, so figures are equal within the standard errors."""
    result = evaluate(run.model, [run.folder / "data"])
    assert result["words"] == "tokenizer"
    margin = 4 * math.hypot(result["loss_stderr"], run.summary["validation_loss_stderr"])
    assert result["loss"] == pytest.approx(run.summary["validation_loss"], abs=margin)
    assert result["loss"] + margin < run.summary["unigram_entropy"], "a model of frequencies alone would be told apart"


def test_documents_are_what_is_drawn(run: unmask.Run, tmp_path: Path) -> None:
    """Passages of a long document are one draw; intervals are by Student's t; with few documents there is a warning."""
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(make_text(12, seed=number).replace("\n\n", "\n").replace("\n", " "))
    result = evaluate(run.model, [folder], max_tokens=10**6)
    assert result["documents"] == result["predicted_documents"] == 4
    assert "only 4 documents" in result["warning"]
    low, high = result["loss_interval"]
    assert (low + high) / 2 == pytest.approx(result["loss"])
    assert (high - low) / 2 > 3 * result["loss_stderr"], "few degrees of freedom"
    assert result["perplexity_interval"] == pytest.approx((math.exp(low), math.exp(high)))
    assert 0 <= result["accuracy_interval"][0] < result["accuracy"] < result["accuracy_interval"][1] <= 1


def test_documents_are_those_of_the_run_or_as_named(
    run: unmask.Run, model_copy: Path, data_folder: Path, tmp_path: Path
) -> None:
    """Lines of a book without empty lines; where the model's run says so, the book."""
    book = tmp_path / "book.txt"
    lines = [line for line in make_text(40, seed=5).split("\n") if line]
    book.write_text("\n".join(lines))
    by_line, whole = (evaluate(run.model, [book], documents=each, pseudo_tokens=0) for each in (None, "file"))
    assert by_line["documents"] == len(lines) > 40
    assert by_line["document"] == "a line (no empty lines between lines of text)"
    assert by_line["document"] in str(list(by_line.shown()))
    assert (whole["documents"], whole["document"], whole["loss_interval"]) == (1, "a file (as set)", None)
    assert whole["length"] > by_line["length"], "more context"
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    shutil.move(model_copy, other / "model")
    manifest = load_manifest(data_folder)
    corpus = {**manifest.settings["corpus"], "documents": "file"}
    replace(manifest, settings={**manifest.settings, "corpus": corpus}).save(other / "data")
    (other / "recipe.toml").write_text("")
    result = evaluate(other / "model", [book], pseudo_tokens=0)
    assert (result["documents"], result["document"]) == (1, f"a file (as in {other})")
    assert evaluate(other / "model", [book], documents="auto", pseudo_tokens=0)["documents"] == len(lines)
    for path, unit in ((data_folder, "line"), (book, "page")):
        with pytest.raises(SettingsError, match="documents"):
            evaluate(run.model, [path], documents=unit)


def test_the_text_of_a_table(run: unmask.Run, data_folder: Path, tmp_path: Path) -> None:
    said, heard = make_text(20, seed=5).split("\n"), make_text(20, seed=6).split("\n")
    rows = [{"said": one or "so", "heard": other or "so"} for one, other in zip(said, heard, strict=False)]
    table = tmp_path / "a.json"
    table.write_text(json.dumps([{"turn": row} for row in rows]))
    one = evaluate(run.model, [table], column="turn.heard", pseudo_tokens=0)
    assert one["columns"] == {str(table): "turn.heard"}
    both = evaluate(run.model, [table], column=["turn.said", "turn.heard"], pseudo_tokens=0).to_dict()
    assert both["documents"] == one["documents"]
    assert both["loss"] != one["loss"]
    assert json.loads(json.dumps(both["columns"])) == {str(table): ["turn.said", "turn.heard"]}
    with pytest.raises(SettingsError, match="column"):
        evaluate(run.model, [data_folder], column="text")


def test_masks_do_not_depend_on_how_much_a_model_takes(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(30, seed=5))
    whole, cut = (evaluate(run.model, [tmp_path / "a.txt"], length=n, pseudo_tokens=0) for n in (64, 9))
    for name in ("predicted_tokens", "predicted_bytes", "tokens"):
        assert whole[name] == cut[name]
    assert whole["loss"] < cut["loss"], "less context"
    assert "pseudo_perplexity" not in whole
    (tmp_path / "short.jsonl").write_text('{"text": "The king sees the queen."}\n' * 20)
    short = evaluate(run.model, [tmp_path / "short.jsonl"], rates=0.5, length=64, pseudo_tokens=0)
    assert (cut["length"], 6 < short["length"] < 20) == (9, True), "as much as was seen at once"


def test_parts_of_speech_of_a_treebank(run: unmask.Run, tmp_path: Path) -> None:
    words = [("The", "DET"), ("king", "NOUN"), ("sees", "VERB"), ("the", "DET"), ("queen", "NOUN")]
    lines = [f"{n}\t{w}\t_\t{pos}\t_\t_\t0\troot\t_\t_" for n, (w, pos) in enumerate(words, 1)]
    (tmp_path / "a.conllu").write_text(("\n".join(lines) + "\n\n") * 40)
    result = evaluate(run.model, [tmp_path / "a.conllu"], rates=(0.5,), pseudo_tokens=0)
    assert set(result["breakdown"]["part_of_speech"]) == {"DET", "NOUN", "VERB"}
    (tmp_path / "b.txt").write_text("The king sees.")
    mixed = evaluate(run.model, [tmp_path / "a.conllu", tmp_path / "b.txt"], rates=(0.5,), pseudo_tokens=0)
    assert "part_of_speech" not in mixed["breakdown"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_answers_no_number(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, value: float
) -> None:
    """It gives no figure, neither here nor for minimal pairs and sentences, and fills no mask."""
    network = make_model()
    with torch.no_grad():
        network.head.bias[7] = value
    model = Model(tmp_path, network, tokenizer)
    pair = {"sentence_good": "The cat sees.", "sentence_bad": "The cat see."}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    (tmp_path / "text.txt").write_text(make_text(9))
    uses: tuple[Callable[[], object], ...] = (
        lambda: evaluate(model, [tmp_path / "text.txt"]),
        lambda: score(model, tmp_path / "pairs.jsonl"),
        lambda: model.score(["The cat sees."]),
    )
    for use in uses:
        with pytest.raises(ModelError, match=r"(nan|inf) at position \d+ of a text"):
            use()
    with pytest.raises(ModelError, match="not a number"):
        model.fill("The [MASK].")
