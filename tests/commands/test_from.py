"""Training from a checkpoint: the settings it fixes, initial weights, figures before and after, and resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.commands.checkpoints import SHORT, further, released
from tests.conftest import make_text
from tests.model.helpers import MakeModel
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import Recipe, load_recipe, requested_recipe
from unmask.commands.run_data import RunFolder, start_model
from unmask.core.errors import CorpusError, DataError, ModelError, RunError, SettingsError
from unmask.core.results import Progress, Reporter
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.model.folder import load_model
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings


@pytest.fixture
def checkpoint(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """4 layers of 32, 64 positions, BERT's layout with dropout."""
    return released(make_model(layout="bert", dropout=0.1), tokenizer, tmp_path / "model")


def load(checkpoint: Path, *settings: str) -> Recipe:
    return requested_recipe(from_=checkpoint, settings=settings)


def test_what_is_open_is_filled_in(checkpoint: Path) -> None:
    recipe = load(checkpoint)
    model, training = recipe.model, recipe.training
    assert (model.layout, model.num_layers, model.hidden_size, model.num_heads) == ("bert", 4, 32, 2)
    assert (model.intermediate_size, model.max_position_embeddings, model.dropout) == (48, 64, 0.1)
    assert (training.sequence_length, training.learning_rate) == (64, pytest.approx(1e-4 * 768 / 32))
    assert training.batch_tokens == 4096
    assert load(checkpoint.parent) == recipe, "the folder of a run"
    muon = "training.optimizer.kind=muon"
    with pytest.raises(SettingsError, match=r"training\.learning_rate"):
        load(checkpoint, muon)
    changed = load(checkpoint, muon, "training.learning_rate=0.001", "training.sequence_length=32", "model.dropout=0")
    assert changed.training.learning_rate == 0.001
    assert (changed.model.max_position_embeddings, changed.model.dropout) == (64, 0)
    longer = load(checkpoint, "start.extend_positions=true", "training.sequence_length=64")
    assert longer.model == recipe.model, "it is long enough"
    assert load(checkpoint, f"tokenizer.path={checkpoint}") == recipe, "its own"


def test_a_recipe_without_an_optimizer_gets_that_of_continuing(checkpoint: Path, tmp_path: Path) -> None:
    """The defaults of a new model, Muon at a high rate, would ruin a trained one."""
    (tmp_path / "own.toml").write_text("[training]\nminutes = 60\nbatch_tokens = 8192\n")
    own, usual = (requested_recipe(name, from_=checkpoint).training for name in (tmp_path / "own.toml", None))
    assert usual.optimizer.kind == "adamw"
    assert own == usual.model_copy(update={"minutes": 60, "batch_tokens": 8192})


def test_the_architecture_of_modernbert(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    recipe = load(released(make_model(max_position_embeddings=512), tokenizer, tmp_path))
    assert (recipe.model.layout, recipe.model.global_every, recipe.model.local_window) == ("modernbert", 3, 8)
    assert recipe.training.sequence_length == 128, "the usual one, where the model is longer"


def test_a_resolved_recipe_can_be_given_back_while_its_checkpoint_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    recipe, file = load(checkpoint, "training.sequence_length=2000", "start.extend_positions=true"), tmp_path / "a.toml"
    assert recipe.model.max_position_embeddings == 2000
    assert recipe.training.batch_tokens == 8000, "four rows"
    file.write_text(recipe.to_toml())
    assert load_recipe(str(file)) == recipe
    (checkpoint / "config_sentence_transformers.json").write_text("{}")
    assert load_recipe(str(file)) == recipe, "a file that training does not take, and other commands fetch"
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.2'))
    with pytest.raises(SettingsError, match="start.sha256"):
        load_recipe(str(file))
    named = requested_recipe(file, from_=checkpoint)
    assert named.start.sha256 != recipe.start.sha256, "that of the model that was named instead"  # type: ignore[union-attr]
    shutil.rmtree(checkpoint)
    assert load_recipe(str(file), complete=False) == recipe
    with pytest.raises(ModelError, match="no such folder"):
        load_recipe(str(file))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.num_layers=6", "model.num_layers"),
        ("tokenizer.kind=bpe", r"tokenizer.*start\.new_tokenizer=true"),
        ("training.sequence_length=65", "64 positions"),
    ],
)
def test_contradictions(checkpoint: Path, setting: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(checkpoint, setting)


def test_more_ids_than_rows(checkpoint: Path, tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer(tokenizer.backend)
    tokenizer.backend.add_tokens(["<a>", "<b>"])
    Tokenizer(tokenizer.backend).save(checkpoint, max_length=64)
    with pytest.raises(ModelError, match=r"202.*resize_token_embeddings"):
        load(checkpoint)


@pytest.fixture(scope="module")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small language with words of another domain."""
    text = make_text(200, seed=5)
    words = {"cat": "allocator", "king": "constructor", "winter": "specialization", "queen": "enumeration"}
    words |= {"sees": "instantiates", "loves": "overloads", "follows": "inherits", "at sea": "in the namespace"}
    for old, new in words.items():
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("new") / "new.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_it_says_what_it_began_with(
    run: unmask.Run, new_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []
    monkeypatch.setattr(Reporter, "notify", lambda _, progress: seen.append(progress))
    continued = further(new_file, tmp_path / "continued", run.folder, extend_vocab=6, steps=60)
    words = [progress for progress in seen if progress.what == "counting words"]
    assert words[-1].total == new_file.stat().st_size > words[-1].done > words[0].done > 0
    summary, start = continued.summary, continued.summary["start"]
    assert start["checkpoint"] == str(run.folder / "model")
    assert (start["new_head"], start["positions"], start["new_words"]) == (False, None, 6)
    assert {"allocator", "constructor"} <= set(start["examples"])
    assert start["tokens_after"] < start["tokens_before"]
    recipe = load_recipe(str(continued.folder / "recipe.toml"))
    assert recipe.start.sha256 == start["sha256"]
    assert (recipe.model.num_layers, recipe.model.hidden_size) == (2, 64), "the checkpoint's, not a recipe's"
    assert (recipe.training.sequence_length, recipe.training.optimizer.kind) == (64, "adamw")
    assert len(continued.model.fill("The allocator [MASK] the constructor.", top_k=2).masks[0]) == 2
    new, old = summary["domains"]["new"], summary["domains"]["old"]
    assert new["after"]["loss"] == summary["validation_loss"] < new["before"]["loss"], "it learns the new text"
    assert old["after"]["predicted_tokens"] == old["before"]["predicted_tokens"] == run.summary["predicted_tokens"]
    assert old["before"]["loss"] != old["after"]["loss"]
    assert f"held out; of the old text over {old['after']['documents']:,} documents\n" in repr(continued)


def test_a_new_tokenizer(run: unmask.Run, new_file: Path, tmp_path: Path) -> None:
    """Of another kind and size, trained on the text; then that of prepared data."""
    new = ("start.new_tokenizer=true",)
    options: dict[str, Any] = {"steps": 60, "old_data": run.folder / "data"}
    kind: dict[str, Any] = {"tokenizer_kind": "bpe", "vocab_size": 300}
    forecast = forecast_run([new_file], requested_recipe(from_=run.folder, settings=(*new, *SHORT), steps=60, **kind))
    result = further(new_file, tmp_path / "run", run.folder, settings=new, **options, **kind)
    tokenizer, start = load_tokenizer(result.folder / "model"), result.summary["start"]
    assert forecast["vocab_size"] == tokenizer.vocab_size == result.summary["vocab_size"] == 300
    assert start["kept_tokens"] > 20
    assert f"{start['kept_tokens']:,} are also" in "".join(forecast["start"])
    old_tokens, tokens = (
        load_model(folder, mask_id=load_tokenizer(folder).special.mask).encoder.tokens
        for folder in (run.folder / "model", result.folder / "start")
    )
    the, same = load_tokenizer(run.folder / "model").backend.token_to_id("the"), tokenizer.backend.token_to_id("Ġthe")
    assert torch.equal(tokens[same], old_tokens[the])
    figures = result.summary["domains"]
    assert figures["new"]["after"]["loss"] < figures["new"]["before"]["loss"]
    assert figures["old"]["before"]["predicted_tokens"] > 0
    assert "new tokenizer" in (result.folder / "report.html").read_text()
    again = further(result.folder / "data", tmp_path / "again", run.folder, settings=new, steps=1)
    assert again.summary["start"]["kept_tokens"] == start["kept_tokens"]
    with pytest.raises(SettingsError, match="new_tokenizer"):
        requested_recipe(from_=run.folder, settings=new, extend_vocab=5)


def test_going_on_is_never_having_stopped(run: unmask.Run, new_file: Path, tmp_path: Path) -> None:
    """Also if the checkpoint, the text and the old run were deleted meanwhile."""
    checkpoint, text = tmp_path / "old" / "model", tmp_path / "new.txt"
    shutil.copytree(run.folder / "model", checkpoint)
    shutil.copy(new_file, text)
    options: dict[str, Any] = {"extend_vocab": 4, "old_data": new_file, "steps": 6}
    whole = further(text, tmp_path / "whole", checkpoint, settings=("checkpoint.every_steps=3",), **options)
    shutil.copytree(whole.folder, tmp_path / "again")
    again = RunFolder(tmp_path / "again")
    again.summary.unlink()
    shutil.rmtree(again.model)
    shutil.rmtree(again.checkpoints / "step-00000006")
    shutil.rmtree(checkpoint.parent)
    text.unlink()
    shutil.rmtree(whole.folder / "data")
    resumed = unmask.pretrain(out=again.root, resume=True)
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (whole.folder, again.root))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert resumed.summary["domains"] == whole.summary["domains"]
    assert resumed.summary["start"] == whole.summary["start"]


def test_an_encoder_without_a_head_gets_a_new_one(
    make_model: MakeModel, tokenizer: Tokenizer, new_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A BERT as `BertModel` stores it: no prefix, a pooler, no head for masked tokens; and a sentence encoder."""
    caplog.set_level("INFO")
    model = make_model(layout="bert")
    folder = released(model, tokenizer, tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("bert."): weight for name, weight in weights.items() if name.startswith("bert.")}
    bare |= {"pooler.dense.weight": torch.eye(32), "pooler.dense.bias": torch.full((32,), 0.5)}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "modules.json").write_text("[]")
    result = further(new_file, tmp_path / "run", folder, steps=2, old_data=str(new_file))
    assert result.summary["start"]["new_head"]
    assert "unmask embedder RUN/model" in caplog.text
    before = result.summary["domains"]["new"]["before"]["loss"]
    assert before == pytest.approx(result.summary["unigram_entropy"], abs=0.5), "it begins with word frequencies"
    assert torch.equal(load_model(result.folder / "start", mask_id=4).encoder.tokens, model.encoder.tokens)
    written = load_file(result.folder / "model" / "model.safetensors")
    assert torch.equal(written["bert.pooler.dense.bias"], torch.full((32,), 0.5)), "kept, not trained"
    assert all((written[f"bert.{name}"] != bare[name]).any() for name in bare if name.endswith("query.weight"))
    assert result.summary["domains"]["old"]["before"]["predicted_tokens"] > 0


def test_a_longer_model_only_where_it_is_asked_for(
    make_model: MakeModel, tokenizer: Tokenizer, new_file: Path, tmp_path: Path
) -> None:
    folder = released(make_model(layout="roberta"), tokenizer, tmp_path / "roberta")
    settings = ("training.sequence_length=100", "start.extend_positions=true", "masking.strategy=span")
    result = further(new_file, tmp_path / "run", folder, steps=2, settings=settings)
    assert result.summary["start"]["positions"] == [64, 100]
    assert result.model.network.config.max_position_embeddings == 100
    assert json.loads((result.folder / "model" / "config.json").read_text())["max_position_embeddings"] == 101
    assert result.summary["domains"]["old"] is None, "its old text is not known"


def test_heads_of_other_objectives(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Pairs continue with the checkpoint's head if it has one; heads that no folder holds are new."""
    model = make_model(layout="bert")
    pooler, classifier = torch.randn(32, 32), torch.randn(2, 32)
    model.unused_weights = {
        "bert.pooler.dense.weight": pooler, "bert.pooler.dense.bias": torch.ones(32),
        "cls.seq_relationship.weight": classifier, "cls.seq_relationship.bias": torch.ones(2),
    }  # fmt: skip
    folder = released(model, tokenizer, tmp_path / "bert")
    settings = ("objectives.pairs.kind=next_sentence", "objectives.span_boundary.weight=1", "masking.strategy=span",
                "objectives.retromae.weight=1")  # fmt: skip
    recipe = requested_recipe(from_=folder, settings=settings)
    made = start_model(recipe, folder, tokenizer)
    assert torch.equal(made.pair_head.pooler.weight, pooler)
    assert torch.equal(made.pair_head.classifier.weight, classifier)
    assert torch.equal(made.head.dense.weight, model.head.dense.weight)
    model.unused_weights = {}
    made = start_model(recipe, released(model, tokenizer, tmp_path / "other"), tokenizer)
    assert not torch.equal(made.pair_head.pooler.weight, pooler)


def test_old_text_is_read_like_the_new_one_and_before_it(
    run: unmask.Run, new_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, out = tmp_path / "old.txt", tmp_path / "run"
    old.write_bytes("The king sees the queen in the café at sea.\n".encode("cp1252") * 50)
    seen: list[Progress] = []
    monkeypatch.setattr(Reporter, "notify", lambda _, progress: seen.append(progress))
    with pytest.raises(CorpusError, match=r"old\.txt: .*encoding"):
        further(new_file, out, run.folder, steps=1, old_data=old)
    assert not seen, "the new text is not prepared before"
    result = further(new_file, out, run.folder, steps=1, old_data=old, encoding="cp1252")
    assert result.summary["domains"]["old"]["before"]["predicted_tokens"] > 0
    assert seen


def test_a_prepared_folder_of_old_text_is_tokenized_again_with_new_words(
    run: unmask.Run, new_file: Path, tmp_path: Path
) -> None:
    result = further(new_file, tmp_path / "run", run.folder, steps=1, extend_vocab=4, old_data=run.folder / "data")
    old = result.summary["domains"]["old"]["before"]
    assert old["predicted_tokens"] == run.summary["predicted_tokens"], "of its validation split alone"


def test_mistakes_around_the_text(
    run: unmask.Run, new_file: Path, data_folder: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    words = load_tokenizer(run.folder / "model")
    words.backend.add_tokens(["<x>"])
    other = released(make_model(vocab_size=256), Tokenizer(words.backend), tmp_path / "other")
    out, gone = tmp_path / "run", tmp_path / "gone"
    shutil.copy(new_file, tmp_path / "gone.txt")
    unmask.prepare(tmp_path / "gone.txt", out=gone, vocab_size=150)
    (tmp_path / "gone.txt").unlink()
    for text, start, options, error, message in (
        (run.folder / "data", run.folder, {"extend_vocab": 4}, DataError, "already prepared"),
        (data_folder, other, {}, DataError, "another tokenizer"),
        (new_file, other, {"old_data": gone}, DataError, "another tokenizer"),
        (new_file, run.folder, {"old_data": tmp_path / "nowhere.txt"}, CorpusError, "nowhere"),
    ):
        with pytest.raises(error, match=message):
            further(text, out, start, steps=1, **options)  # type: ignore[arg-type]
        assert not out.exists() or not RunFolder(out).claimed.is_claimed
    with pytest.raises(RunError, match=str(run.folder)):
        further(new_file, run.folder, run.folder, steps=1, overwrite=True)
    inside = str(run.folder / "model")
    for setting, value in (
        ("tokenizer.path", inside),
        ("corpus.validation", [f"{inside}/README.md"]),
        ("masking", {"units.kind": "words", "weights": {"kind": "anchors", "background": str(run.folder / "data")}}),
    ):
        with pytest.raises(RunError, match=f"{run.folder}.* is an input"):
            unmask.pretrain([new_file], out=run.folder, steps=1, overwrite=True, settings={setting: value})
    anchors = {"units.kind": "words", "weights": {"kind": "anchors", "background": "nosuch"}}
    for missing in ({"corpus.validation": ["nosuch.txt"]}, {"masking": anchors}):
        with pytest.raises((CorpusError, DataError), match="nosuch"):
            unmask.pretrain([new_file], out=run.folder, steps=1, overwrite=True, settings=missing)
    assert run.folder.joinpath("summary.json").is_file()


def test_a_dry_run_says_what_would_be_done(run: unmask.Run, new_file: Path) -> None:
    options = ("training.batch_tokens=512", *SHORT)
    forecast = forecast_run([new_file], requested_recipe(from_=run.folder, extend_vocab=5, steps=7, settings=options))
    assert (forecast["steps"], forecast["vocab_size"]) == (7, run.summary["vocab_size"] + 5)
    assert forecast["num_parameters"] == run.summary["num_parameters"] + 5 * 65, "a row and a bias each"
    assert forecast["start"][1].startswith("added 5 words, such as ")


@pytest.mark.parametrize(("vocab_size", "extend_vocab"), [(150, None), (None, 2), (150, 2)])
def test_files_of_masking_made_with_another_tokenizer_are_named_before_the_text_is_prepared(
    checkpoint: Path, corpus_file: Path, tmp_path: Path, vocab_size: int | None, extend_vocab: int | None
) -> None:
    """Those made with the checkpoint's own do not fit text that gets new words."""
    made, out = tmp_path / "made", tmp_path / "run"
    tokenizer = TokenizerSettings(vocab_size=vocab_size, path=None if vocab_size else str(checkpoint))
    prepare([corpus_file], made, corpus=CorpusSettings(), tokenizer=tokenizer)
    settings = ("masking.weights.kind=anchors", f"masking.weights.background={made}")
    way_out = f"--tokenizer {checkpoint}" if extend_vocab is None else "RUN/start"
    with pytest.raises(DataError, match=f"{made} .*{way_out}"):
        further(corpus_file, out, checkpoint, steps=1, settings=settings, extend_vocab=extend_vocab)
    assert not out.exists()
