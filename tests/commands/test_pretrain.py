"""Runs from text to a model: figures, objectives, checkpoints, forecasts, tables for drawing masks, and errors."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

import unmask
from tests.commands.checkpoints import Stopping, frees_its_model
from tests.conftest import SMALL, make_text
from tests.data.corpora import tagged_jsonl
from tests.tokenizer.families import bare_characters
from unmask.commands import dry_run
from unmask.commands.dry_run import forecast_run
from unmask.commands.masking_tables import score_board
from unmask.commands.recipe import load_recipe
from unmask.commands.run_data import RunFolder, open_prepared
from unmask.core.errors import DataError, DivergedError, RunError, SettingsError, TokenizerError, UnmaskError
from unmask.core.interruption import Interrupted
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import load_lexicon
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.masking.settings import MaskingSettings
from unmask.measure.held_out import HeldOutSet
from unmask.model import fused, layers
from unmask.model.fused import Losses
from unmask.model.layers import MLMHead
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train import hardware
from unmask.train.callbacks import read_metrics
from unmask.train.checkpoints import list_checkpoints
from unmask.train.hardware import samples_softmax
from unmask.train.initialisation import STD
from unmask.train.trainer import Trainer, timed_steps


def test_metrics_tell_the_story(run: unmask.Run) -> None:
    assert {*run.summary, "start", "domains"} == {*unmask.Run.__annotations__, "model"}, "declared for type checkers"
    lines = read_metrics(run.folder / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "train"]
    tokens = sum(line["tokens"] for line in steps)
    assert 0.85 * 300 * 512 < tokens == run.summary["tokens_seen"] < 300 * 512, "without special tokens and padding"
    shares = [line["predicted_share"] for line in steps]
    assert (shares[0], shares[-1]) == (pytest.approx(0.5, abs=0.03), pytest.approx(0.2, abs=0.03)), "the recipe's"
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert (evaluations[0]["step"], evaluations[-1]["step"]) == (0, 300)
    assert evaluations[0]["validation_loss"] > evaluations[-1]["validation_loss"] == run.summary["validation_loss"]
    finals = [line["final"] for line in evaluations]
    assert finals == [False] * 11 + [True], "before, ten times, and on more tokens at the end"


def test_characters_without_special_tokens_go_the_whole_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The packaged text by character: 67 ids, its end held out, its lines shown as it trains."""
    caplog.set_level("INFO", logger="unmask")
    run = unmask.pretrain(
        out=tmp_path / "run", recipe="shakespeare-chars", steps=3,
        settings=(
            "model.num_layers=1", "evaluation.times=1", "evaluation.final_max_tokens=4000",
            "training.batch_tokens=2048", "training.length_schedule={places = [0.0, 0.5], lengths = [8, 32]}",
        ),
    )  # fmt: skip
    assert run.summary["vocab_size"] == run.model.network.config.vocab_size == 67
    assert run.summary["tokens_seen"] == 3 * 2048, "rows are text and nothing else"
    manifest = json.loads((run.folder / "data" / "manifest.json").read_text())
    assert (manifest["train"]["tokens"], manifest["validation"]["tokens"]) == (1_003_854, 111_539)
    (candidates,) = run.model.fill("Approach, my A[MASK]iel, come.", top_k=3).masks
    assert all(len(candidate.token) == 1 for candidate in candidates)
    with pytest.raises(TokenizerError, match="'é'"):
        run.model.fill("caf[MASK]é", top_k=3)
    assert any("riel" in message for message in caplog.messages), "the recipe's lines are shown"


def test_a_result_whose_folder_was_replaced_has_no_model(data_folder: Path, tmp_path: Path) -> None:
    first, second = (
        unmask.pretrain(data_folder, out=tmp_path / "run", steps=steps, settings=SMALL, overwrite=steps > 1)
        for steps in (1, 2)
    )
    with pytest.raises(RunError, match="another result"):
        print(first.model)
    assert second.model.network is not None
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert unmask.Run.reopened(moved, "").model.network is not None


def test_embeddings_begin_from_the_corpus(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = np.flatnonzero(load_manifest(data_folder).token_frequencies)

    def spread(out: str, **options: Any) -> float:
        settings = [*SMALL, "training.learning_rate=1e-12", *options.pop("settings", [])]
        run = unmask.pretrain(data_folder, out=tmp_path / out, steps=1, settings=settings, **options)
        return float(run.model.network.encoder.tokens.detach()[seen].square().mean().sqrt())

    assert spread("corpus") == pytest.approx(STD, rel=0.1)
    assert spread("drawn", settings=["model.initialisation=depth_scaled"]) == pytest.approx(0.02 * 0.88, rel=0.05)

    # A run that goes on has its weights already.
    (tmp_path / "corpus" / "summary.json").unlink()
    monkeypatch.setattr("unmask.commands.training_run.begin_from_corpus", pytest.fail)
    unmask.pretrain(out=tmp_path / "corpus", resume=True)


@pytest.mark.parametrize(("last", "model_step"), [(4.6, 20), (3.05, 40)])
def test_the_best_checkpoint_is_kept_and_taken_if_clearly_better(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float, model_step: int
) -> None:
    """A held-out loss that is lowest in the middle: its checkpoint stays beside the latest ones."""
    evaluate, out = HeldOutSet.evaluate, tmp_path / "run"
    losses = iter([5.0, 4.0, 3.0, 4.5, last, last, 3.1, last, 3.1])  # the last two are of a run that was resumed
    monkeypatch.setattr(
        HeldOutSet, "evaluate", lambda self, model, **_: replace(evaluate(self, model), loss=next(losses))
    )
    run = unmask.pretrain(
        [corpus_file], out=out, steps=40, vocab_size=200,
        settings=(*SMALL, "evaluation.times=4", "checkpoint.every_steps=5", "checkpoint.keep=1"),
    )  # fmt: skip
    assert (run.best_step, run.model_step) == (20, model_step)
    kept = list_checkpoints(out / "checkpoints")
    assert [path.name for path in kept] == ["step-00000020", "step-00000040"]
    weights = load_file(kept[model_step == 40] / "model.safetensors")
    assert torch.equal(run.model.network.encoder.tokens, weights["encoder.tokens"])
    assert ("of step 20" in (out / "model" / "README.md").read_text(encoding="utf-8")) == (model_step == 20)
    held = [line["validation_loss"] for line in read_metrics(out / "metrics.jsonl") if line["kind"] == "evaluation"]
    assert held[4:] == ([last] if model_step == 20 else [last, 3.1]), "curves end with the last weights"
    before = (out / "model" / "model.safetensors").read_bytes()
    (out / "summary.json").unlink()
    again = unmask.pretrain(out=out, resume=True)
    assert (again.best_step, again.model_step, again.validation_loss) == (20, model_step, 3.1)
    assert (out / "model" / "model.safetensors").read_bytes() == before


def test_curves_for_tensorboard(run: unmask.Run) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    lines = [line for line in read_metrics(run.folder / "metrics.jsonl") if line["kind"] == "train"]
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == pytest.approx({line["step"]: line["loss"] for line in lines}), "the same means"
    assert list(losses)[:3] == [10, 20, 30]
    assert events.Scalars("validation/loss")[-1].value == pytest.approx(run.summary["validation_loss"], rel=1e-6)


@pytest.mark.parametrize("kind", ["attention", "anchors", "centrality"])
def test_weights_without_a_name_train(data_folder: Path, tmp_path: Path, kind: str) -> None:
    settings = [*SMALL, "masking.units.kind=words", f"masking.weights.kind={kind}", "masking.refresh_steps=1"]
    if kind == "anchors":
        settings.append(f"masking.weights.background={data_folder}")
    made = unmask.pretrain([data_folder], out=tmp_path / "run", steps=3, settings=settings)
    assert (list_checkpoints(made.folder / "checkpoints")[-1] / "scores.safetensors").is_file()


@pytest.mark.parametrize("refresh_steps", [1, 2])
def test_masks_that_never_followed_the_model_are_told(data_folder: Path, tmp_path: Path, refresh_steps: int) -> None:
    settings = [*SMALL, "masking.strategy=adaptive", f"masking.refresh_steps={refresh_steps}"]
    run = unmask.pretrain([data_folder], out=tmp_path / "run", steps=2, settings=settings)
    card = (run.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert ("refresh_steps = 2 steps, and the run made 2" in card) == (refresh_steps == 2)


def test_a_run_is_tied_to_the_background_that_its_weights_read(data_folder: Path, tmp_path: Path) -> None:
    background = shutil.copytree(data_folder, tmp_path / "background")
    weights = ("masking.weights.kind=anchors", f"masking.weights.background={background}")
    options: dict[str, Any] = {"out": tmp_path / "run", "steps": 4, "settings": (*SMALL, *weights)}
    with pytest.raises(Interrupted):
        unmask.pretrain([data_folder], **options, callbacks=[Stopping(2)])
    replace(load_manifest(background), labels={"a": 1}).save(background)
    with pytest.raises(RunError, match="other data"):
        unmask.pretrain([data_folder], **options, resume=True)


def test_a_tokenizer_without_a_template_gets_one(corpus_file: Path, tmp_path: Path) -> None:
    """Texts have the form that the model was trained on, and the prepared data fits its own tokenizer's file."""
    plain = tokenizers.BertWordPieceTokenizer()
    plain.train([str(corpus_file)], vocab_size=200, show_progress=False)
    plain.save(str(tmp_path / "tokenizer.json"))
    options: dict[str, Any] = {"tokenizer": tmp_path / "tokenizer.json", "steps": 2, "settings": SMALL}
    run = unmask.pretrain(corpus_file, out=tmp_path / "run", **options)
    tokenizer = run.model.tokenizer
    assert tokenizer.encode_prompt("").tolist() == tokenizer.special.around == [2, 3]
    unmask.pretrain(run.folder / "data", out=tmp_path / "again", **options)


def test_anchors_are_frequent_here_and_rare_in_the_background(corpus_file: Path, tmp_path: Path) -> None:
    """Every line has one extra word; all other words are as frequent as in the background."""
    lines = [f"{line} zyzzyva" for line in corpus_file.read_text().splitlines() if line]
    (tmp_path / "here.txt").write_text("\n".join(lines))
    (tmp_path / "there.txt").write_text("\n".join(line.removesuffix(" zyzzyva") for line in lines))
    trained = TokenizerSettings(vocab_size=300)
    here, there = tmp_path / "here", tmp_path / "there"
    prepare([tmp_path / "here.txt"], here, corpus=CorpusSettings(), tokenizer=trained)
    like_here = TokenizerSettings(path=str(here / "tokenizer"))
    prepare([tmp_path / "there.txt"], there, corpus=CorpusSettings(), tokenizer=like_here)
    data, part = open_prepared(here), {"units": {"kind": "words"}, "weights": {"kind": "anchors", "num_anchors": 9}}
    parts = [{**part, "weights": {**part["weights"], "background": str(each)}} for each in (there, here)]
    board = score_board(validated(MaskingSettings, parts[0], where="masking"), data, torch.device("cpu"))
    anchors = [data.tokenizer.token(id_) for id_ in board.anchors_A.tolist()]
    assert anchors[0] == "zyzzyva"
    assert not {"the", "and", "."} & set(anchors), "the most frequent words of both"
    mixture = validated(MaskingSettings, {"units": {"kind": "mixture", "parts": parts}}, where="masking")
    with pytest.raises(SettingsError, match="background"):
        score_board(mixture, data, torch.device("cpu"))


@pytest.mark.parametrize("fails", [False, True])
def test_the_memory_of_a_training_is_freed(data_folder: Path, tmp_path: Path, fails: bool) -> None:
    def train(watching: unmask.Callback) -> None:
        unmask.pretrain([data_folder], out=tmp_path, steps=1, settings=SMALL, callbacks=[watching])

    assert frees_its_model(train, fails=fails)


def test_a_run_goes_on_with_its_own_sources(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    before = (run.folder / "summary.json").read_bytes()
    with pytest.raises(RunError, match=r"corpus\.txt"):
        unmask.pretrain([tmp_path / "x.txt"], out=run.folder, resume=True)
    assert (run.folder / "summary.json").read_bytes() == before
    with pytest.raises(RunError, match="mistyped") as caught:
        unmask.pretrain(out=tmp_path / "mistyped", resume=True)
    assert list(caught.value.options) == ["out"]
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_goes_on_where_its_prepared_data_was_moved(
    data_folder: Path, tmp_path: Path, has_checkpoint: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(data_folder, old / "data")
    with pytest.raises(Interrupted):
        unmask.pretrain([old / "data"], out=old / "run", steps=4, settings=SMALL, callbacks=[Stopping(2)])
    old.rename(new)
    if not has_checkpoint:  # as if it was killed before the first one
        shutil.rmtree(new / "run" / "checkpoints")
    with pytest.raises(RunError, match="old/data.*gone"):
        unmask.pretrain(out=new / "run", resume=True)
    assert unmask.pretrain([new / "data"], out=new / "run", resume=True).steps == 4
    assert str(new / "data") in (new / "run" / "sources.json").read_text()


def test_a_finished_run_that_was_moved_names_its_model(run: unmask.Run, tmp_path: Path) -> None:
    moved = shutil.copytree(run.folder, tmp_path / "moved")
    again = unmask.pretrain(out=moved, resume=True)
    assert again.summary == {**run.summary, "model": str(moved / "model")}


def test_divergence_names_the_step_the_checkpoint_and_the_way_out(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = MLMHead.losses, []

    def breaks(*args: Any, **options: Any) -> Losses:
        calls.append(1)
        losses = real(*args, **options)
        return replace(losses, total=losses.total * (float("inf") if len(calls) == 5 else 1.0))

    monkeypatch.setattr(MLMHead, "losses", breaks)
    with pytest.raises(DivergedError, match=r"step 5.*step-00000004.*recipe\.toml.*training\.learning_rate="):
        unmask.pretrain([data_folder], out=tmp_path, steps=9, settings=(*SMALL, "checkpoint.every_steps=2"))
    run = unmask.pretrain(out=tmp_path, resume=True)
    assert run.summary["steps"] == 9


def test_settings_that_the_shards_do_not_have(data_folder: Path, tmp_path: Path) -> None:
    for setting, section in (("corpus.holdout=0.3", "corpus"), ("tokenizer.vocab_size=999", "tokenizer")):
        with pytest.raises(DataError, match=rf"\[{section}\]") as raised:
            unmask.pretrain([data_folder], out=tmp_path / "a", steps=1, settings=(*SMALL, setting))
        assert (f"tokenizer.path={data_folder}/tokenizer" in str(raised.value)) == (section == "tokenizer")


def test_too_little_to_evaluate_is_said_before_training(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world\ngood morning\n")
    with pytest.raises(DataError, match="held-out"):
        unmask.pretrain([tmp_path / "a.txt"], out=tmp_path / "run", steps=1, vocab_size=64, settings=SMALL)
    assert not (tmp_path / "run" / "recipe.toml").exists(), "no run came of it"


def test_data_of_a_try_that_was_refused_is_used_only_by_name(tmp_path: Path) -> None:
    """It may have taken hours to annotate: labels that weights do not know are found before training."""
    tagged, out = tagged_jsonl(tmp_path / "tagged.jsonl"), tmp_path / "run"
    tagged.write_text(tagged.read_text().replace('"obj"', '"OA"').replace('"root"', '"SB"'))  # as in TIGER
    settings = (*SMALL, 'annotation.columns=["dependencies"]', "tokenizer.vocab_size=150")
    with pytest.raises(SettingsError, match="roles"):
        unmask.pretrain([tagged], out=out, steps=1, strategy="syntax", settings=settings)
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == ["data"]
    fingerprint = load_manifest(out / "data").fingerprint
    with pytest.raises(RunError, match=str(out / "data")):
        unmask.pretrain([tagged], out=out, steps=1, settings=settings)
    whole = Path(shutil.copytree(out, tmp_path / "copy"))
    assert unmask.pretrain(out / "data", out=out, steps=1, settings=SMALL).data_fingerprint == fingerprint
    anew = {"steps": 1, "settings": (*SMALL, "tokenizer.vocab_size=160"), "overwrite": True}
    assert unmask.pretrain([tagged], out=whole, **anew).data_fingerprint != fingerprint  # type: ignore[arg-type]


def test_a_lexicon_of_a_user_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "lexicon.safetensors").touch()
    with pytest.raises(RunError, match=r"\(lexicon\.safetensors\)"):
        RunFolder(tmp_path).claimed.check()


def test_a_sampled_softmax_teaches_as_much(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations use the whole vocabulary."""
    monkeypatch.setattr(fused, "NUM_SAMPLED", 32)
    monkeypatch.setattr(layers, "NUM_FREQUENT", 32)
    monkeypatch.setattr(hardware, "_LARGE_VOCABULARY", 0)
    losses = []
    for choice in ("no", "auto"):
        settings = [*SMALL, "evaluation.times=1", f"training.sampled_softmax={choice}"]
        run = unmask.pretrain(data_folder, out=tmp_path / choice, steps=100, settings=settings)
        losses.append(run.validation_loss)
    full, sampled = losses
    assert full != sampled == pytest.approx(full, rel=0.03)
    assert sampled < run.unigram_entropy - 0.1


def test_parts_of_a_step_may_become_smaller(data_folder: Path, tmp_path: Path) -> None:
    """As after a run that ran out of memory."""
    with pytest.raises(Interrupted):
        unmask.pretrain(data_folder, out=tmp_path / "run", steps=6, settings=SMALL, callbacks=[Stopping(3)])
    settings = [*SMALL, "training.micro_batch_tokens=64"]
    run = unmask.pretrain(data_folder, out=tmp_path / "run", steps=6, settings=settings, resume=True)
    assert run.summary["steps"] == 6
    assert "micro_batch_tokens = 64" in (run.folder / "recipe.toml").read_text()


def test_masks_that_follow_hits_are_of_the_whole_vocabulary() -> None:
    device, recipe = torch.device("cpu"), load_recipe("tiny", options={"masking.weights.kind": "accuracy"})
    assert samples_softmax(recipe.training, load_recipe("tiny").masking, device, 8192)
    assert not samples_softmax(recipe.training, recipe.masking, device, 8192)


def test_it_tells_what_the_run_then_does(corpus_file: Path, run: unmask.Run) -> None:
    """The run of the fixture: 300 steps, a vocabulary of 200."""
    recipe = load_recipe(options={"training.steps": 300, "tokenizer.vocab_size": 200}, overrides=tuple(SMALL))
    forecast = forecast_run([corpus_file], recipe)
    manifest = json.loads((run.folder / "data" / "manifest.json").read_text())
    assert (forecast["documents"], forecast["bytes"]) == (manifest["documents"], manifest["bytes"])
    assert forecast["tokens"] == pytest.approx(manifest["tokens"], rel=0.05)
    assert forecast["num_parameters"] == run.summary["num_parameters"]
    assert forecast["steps"] == 300
    assert forecast["tokens_seen"] == pytest.approx(run.summary["tokens_seen"], rel=0.05)
    assert forecast["epochs"] == pytest.approx(run.summary["epochs"], rel=0.15)
    disk = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert 0.3 * disk < forecast["disk_bytes"] < 5 * disk + 2**20
    assert forecast["memory_bytes"] > 2**26


@pytest.mark.parametrize("setting", ["corpus.holdout=0.5", "corpus.validation"])
def test_held_out_text_is_not_forecast_to_be_trained_on(corpus_file: Path, tmp_path: Path, setting: str) -> None:
    """By share or by file; the data may be prepared already."""
    if setting == "corpus.validation":
        (held := tmp_path / "held.txt").write_text(make_text(400, seed=1))
        setting += f'=["{held}"]'
    forecast = dry_run.forecast_preparation([corpus_file], settings=[setting], vocab_size=200)
    assert forecast.train_tokens == pytest.approx(0.5 * forecast.tokens, rel=0.2)
    unmask.prepare([corpus_file], out=tmp_path / "data", settings=[setting], vocab_size=200)
    of_run = forecast_run([tmp_path / "data"], load_recipe(options={"training.steps": 9}, overrides=tuple(SMALL)))
    train_tokens = load_manifest(tmp_path / "data").train.tokens
    assert of_run.epochs == pytest.approx(of_run.tokens_seen / train_tokens)
    assert forecast.train_tokens == pytest.approx(train_tokens, rel=0.1)


def test_a_step_of_many_parts_is_forecast_from_a_few(
    corpus_file: Path, run: unmask.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole step of a large recipe takes minutes to hours on a CPU."""
    trained: list[int] = []

    def steps(trainer: Trainer, num_steps: int) -> Iterator[tuple[float, int]]:
        for _, num_tokens in timed_steps(trainer, num_steps):
            trained.append(num_tokens)
            yield 10.0, num_tokens

    monkeypatch.setattr(dry_run, "timed_steps", steps)
    settings = (*SMALL, "training.micro_batch_tokens=64")
    recipe = load_recipe(options={"training.steps": 300, "tokenizer.vocab_size": 200}, overrides=settings)
    forecast = forecast_run([corpus_file], recipe)
    assert 0 < max(trained) <= 64
    assert forecast["tokens_seen"] == pytest.approx(run.tokens_seen, rel=0.1)
    assert forecast["step_seconds"] == pytest.approx(8 * 10.0, rel=0.05)


@pytest.mark.parametrize("duplicates", ["keep", "drop_near"])
def test_a_large_corpus_is_read_for_some_seconds_only(
    corpus_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, duplicates: str
) -> None:
    monkeypatch.setattr(dry_run, "READ_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "SAMPLE_BYTES", 20_000)
    monkeypatch.setattr(Corpus, "decided", Mock(side_effect=AssertionError("this may read all of it")))
    (tmp_path / "large.txt").write_text(corpus_file.read_text() * 3)
    settings = [f"corpus.cleaning.duplicates={duplicates}"]
    forecast = dry_run.forecast_preparation([tmp_path / "large.txt", corpus_file], settings=settings)
    assert not forecast.complete
    assert str(forecast).count("at least ") == 3, "text, time and space"
    assert forecast.bytes < 3 * corpus_file.stat().st_size


def test_standard_input_would_be_used_up() -> None:
    with pytest.raises(RunError, match="standard input"):
        forecast_run(["-"], load_recipe())


def test_figures_reach_a_service(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with W&B's interface gets the steps, all evaluations, the summary's figures and a call of `finish`."""
    (tmp_path / "wandb.py").write_text(
        "calls = []\n"
        "def init(**options): calls.append(options)\n"
        "def log(figures, step): calls.append((step, figures))\n"
        "def finish(): calls.append('finished')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = [*SMALL, 'evaluation.trackers=["wandb"]', "evaluation.times=1"]
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", steps=20, vocab_size=200, settings=settings)
    wandb: Any = importlib.import_module("wandb")

    options, *figures, end = wandb.calls
    assert (options["project"], options["name"], end) == ("unmask", "run", "finished")
    assert options["config"]["training"]["steps"] == 20
    assert [step for step, table in figures if "train/loss" in table] == [10, 20]
    assert [step for step, table in figures if "validation/loss" in table] == [0, 20]
    assert figures[-1][1]["final/loss"] == run.summary["validation_loss"]

    (run.folder / "summary.json").unlink()  # as if it had been stopped
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", Mock(side_effect=RuntimeError("api_key not configured\nlog in first")))
        with pytest.raises(SettingsError, match=r"evaluation\.trackers: wandb .*api_key"):
            unmask.pretrain(out=run.folder, resume=True)
    wandb.calls.clear()
    unmask.pretrain(out=run.folder, resume=True)
    assert (options.get("resume"), wandb.calls[0]["resume"]) == (None, "allow")
    assert options["id"] == wandb.calls[0]["id"]

    # A service that stays away does not block the run.
    (run.folder / "summary.json").unlink()
    monkeypatch.setattr(wandb, "init", Mock(side_effect=RuntimeError("no network")))
    options = {"steps": 20, "vocab_size": 200, "settings": [*SMALL, "evaluation.times=1"]}
    again = unmask.pretrain([corpus_file], out=run.folder, resume=True, **options)
    assert again.validation_loss == run.validation_loss


def test_a_run_that_a_refused_one_would_overwrite_is_still_there(run: unmask.Run, tmp_path: Path) -> None:
    out, text = Path(shutil.copytree(run.folder, tmp_path / "run")), tmp_path / "short.txt"
    text.write_text("One line.\n")
    with pytest.raises(UnmaskError):
        unmask.pretrain([text], out=out, steps=1, overwrite=True)
    assert unmask.pretrain(out=out, resume=True).validation_loss == run.validation_loss
    assert {path.name for path in out.iterdir()} == {path.name for path in run.folder.iterdir()}


def test_pretrain_makes_its_own_lexicon_once(data_folder: Path, tmp_path: Path) -> None:
    options = {"out": tmp_path / "run", "settings": (*SMALL, "checkpoint.every_steps=1")}
    run = unmask.pretrain([data_folder], strategy="pmi", steps=2, **options)  # type: ignore[arg-type]
    lexicon = tmp_path / "run" / "lexicon.safetensors"
    assert len(load_lexicon(lexicon)) > 10
    written = lexicon.stat().st_mtime_ns
    run.folder.joinpath("summary.json").unlink()  # as if it had been stopped
    unmask.pretrain(out=tmp_path / "run", resume=True)
    assert lexicon.stat().st_mtime_ns == written
    unmask.pretrain([data_folder], strategy="random", steps=1, overwrite=True, **options)  # type: ignore[arg-type]
    assert not lexicon.exists(), "the lexicon goes with its run"


# ----------------------------------------
# Other objectives beside masked tokens.

PAIRS = ("model.layout=bert", "objectives.pairs.kind=next_sentence")
RETROMAE = ("objectives.retromae.weight=0.5", "masking.rate=0.3")
SPANS = ("masking.strategy=span", "objectives.span_boundary.weight=0.5")


def small_run(corpus: Path, out: Path, *settings: str, steps: int = 2, **options: object) -> unmask.Run:
    return unmask.pretrain(
        [corpus], out=out, steps=steps, vocab_size=200, settings=(*SMALL, "evaluation.times=1", *settings), **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "names"),
    [(RETROMAE, ["retromae"]), ((*PAIRS, *SPANS), ["next_sentence", "span_boundary"])],
)
def test_a_run_tells_of_its_objectives(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...], names: list[str]
) -> None:
    run = small_run(corpus_file, tmp_path / "run", *settings)
    assert list(run.summary["objectives"]) == names
    lines = read_metrics(run.folder / "metrics.jsonl")
    (trained,) = [line for line in lines if line["kind"] == "train"]
    assert list(trained["objectives"]) == names
    assert lines[-1]["objectives"] == run.summary["objectives"]
    for name, figures in run.summary["objectives"].items():
        assert 0.0 <= figures["accuracy"] <= 1.0
        assert figures["count"] > 20
        chance = 0.69 if "sentence" in name else 5.2
        assert trained["objectives"][name] == pytest.approx(chance, abs=0.35)
        assert figures["loss"] == pytest.approx(chance, abs=0.6)
    types = '"token_type_ids"' in (run.folder / "model" / "tokenizer_config.json").read_text()
    assert types == ("next_sentence" in names)


@pytest.mark.parametrize("settings", [PAIRS, SPANS])
def test_a_tokenizer_without_special_tokens_is_refused_before_the_text_is_prepared(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    (tmp_path / "characters").mkdir()
    bare_characters().save(tmp_path / "characters", max_length=64)
    options: dict[str, Any] = {"tokenizer": tmp_path / "characters", "steps": 1, "settings": (*SMALL, *settings)}
    with pytest.raises((DataError, SettingsError), match=r"objectives\.(pairs|span_boundary)"):
        unmask.pretrain([corpus_file], out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_all_of_its_heads(corpus_file: Path, tmp_path: Path) -> None:
    """A run stopped in the middle and resumed ends with the same weights and figures."""
    lengths = "training.length_schedule={places=[0.0,0.5],lengths=[32,64]}"
    settings = (*PAIRS, *SPANS, *RETROMAE, "checkpoint.every_steps=2", lengths)
    whole = small_run(corpus_file, tmp_path / "whole", *settings, steps=6)
    with pytest.raises(Interrupted):
        small_run(corpus_file, tmp_path / "again", *settings, steps=6, callbacks=[Stopping(4)])
    again = unmask.pretrain(out=tmp_path / "again", resume=True)
    assert again.summary["objectives"] == whole.summary["objectives"]
    first, second = (
        load_file(list_checkpoints(run.folder / "checkpoints")[-1] / "model.safetensors") for run in (whole, again)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = read_metrics(again.folder / "metrics.jsonl")
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)


LEARN = "objectives.label.weight=1"
WORDS = {"glad": ["cheerful", "sunny", "laughing", "merry"], "sad": ["gloomy", "rainy", "weeping", "bitter"]}


def write_table(path: Path) -> Path:
    """400 reviews whose adjectives tell the mood."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "mood"])
        for i in range(400):
            mood = ("glad", "sad")[i % 2]
            words = WORDS[mood]
            rows.writerow([f'the {words[i % 4]} day, and the {words[i // 4 % 4]} night, said number "{i % 17}"', mood])
    return path


def test_from_a_table_to_a_classifier(tmp_path: Path) -> None:
    """Figures in metrics and summary; and a folder that classifies in transformers."""
    settings = (*SMALL, LEARN, "corpus.label=mood", "evaluation.times=1")
    table = write_table(tmp_path / "reviews.csv")
    run = unmask.pretrain([table], out=tmp_path / "run", steps=160, vocab_size=200, settings=settings)
    figures = run.summary["objectives"]["label"]
    manifest = load_manifest(run.folder / "data")
    assert manifest.labels == {"glad": 200, "sad": 200}
    assert figures["count"] == manifest.validation.documents >= 8
    assert figures["accuracy"] == 1.0
    lines = read_metrics(run.folder / "metrics.jsonl")
    assert lines[-1]["objectives"] == run.summary["objectives"]
    trained = [line["objectives"]["label"] for line in lines if line["kind"] == "train"]
    assert trained[-1] < 0.1 < trained[0]
    assert "token_type_ids" not in (run.folder / "model" / "tokenizer_config.json").read_text()

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    texts = ["the merry day, and the sunny night", "the bitter day, and the rainy night"]
    with torch.no_grad():
        classes = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.argmax(-1).tolist()
    assert [model.config.id2label[number] for number in classes] == ["glad", "sad"]


def test_data_without_classes(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="corpus.label"):
        unmask.pretrain([data_folder], out=tmp_path / "run", steps=2, settings=(*SMALL, LEARN))
    with pytest.raises(DataError, match="corpus.label"):
        forecast_run([data_folder], load_recipe(options={"training.steps": 2}, overrides=(*SMALL, LEARN)))
