"""Comparisons of recipes and searches among settings: they go on, and are refused before the first run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file, save_file

from tests.commands.checkpoints import SHORT, Stopping, released
from tests.conftest import SMALL, make_text
from tests.data.corpora import tagged_jsonl
from tests.elsewhere import Elsewhere
from tests.model.helpers import MakeModel
from tests.processes import Forked, ended
from unmask.commands import compare as comparing
from unmask.commands import run_plan, sizing
from unmask.commands import tune as module
from unmask.commands.finetune import finetune, settings_of
from unmask.commands.masking_tables import lexicon as make_lexicon
from unmask.commands.recipe import load_recipe
from unmask.commands.tune import Dimension, read_dimension, usual_dimensions
from unmask.core.errors import (
    DataError,
    DivergedError,
    MemoryFullError,
    RunError,
    SettingsError,
    UnmaskError,
)
from unmask.core.interruption import GOES_ON, Interrupted
from unmask.core.results import Reporter
from unmask.data.data_folder import load_manifest
from unmask.data.prepare import prepare
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.callbacks import Callback

TINY = (*SMALL, "model.num_layers=1", "model.hidden_size=16")
PAIR = '{"sentence_good": "The cat sees.", "sentence_bad": "Cat the sees."}\n'
MOODS = "".join(f"{text}\t{mood}\n" for text, mood in [("The cat sees.", "up"), ("No dog.", "down")] * 8)


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: Any) -> None:
        self.notes.append(str(text))


def compare(data: Path | str, out: Path, **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"recipes": ("random", "span"), "steps": 3, "seeds": 2, "settings": TINY}
    changes |= changes.pop("task", {})
    return comparing.compare(**{**usual, "data": data, "out": out, **changes}).to_dict()


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    (tmp_path / "p.jsonl").write_text(PAIR)
    return str(tmp_path / "p.jsonl")


def task_on(file: Path) -> dict[str, str]:
    """A task whose file is written there."""
    file.write_text(MOODS)
    return {"task": "classify", "train": str(file), "validation": str(file)}


def test_a_comparison_goes_on_and_seeds_may_be_added(
    data_folder: Path, pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options = tmp_path / "out", {"pairs": pairs}
    real, trained = run_plan.pretrain, []

    def stops(*paths: Any, **options: Any) -> Any:
        trained.append((options["strategy"], options["seed"]))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return real(*paths, **options)

    monkeypatch.setattr(run_plan, "pretrain", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(data_folder, out, **options)
    result = compare(data_folder, out, **options)
    assert trained == [("random", 0), ("span", 0), ("span", 1), ("span", 1), ("random", 1)], "in turn, none twice"
    assert set(result["by_figure"]) == {"loss", "bits_per_byte", "pairs_error"}
    random, span = result["runs"]["random"], result["runs"]["span"]
    assert [run["seed"] for run in span] == [0, 1]
    assert result["recipes"]["span"]["values"] == [run["loss"] for run in span]
    assert len({run["predicted_tokens"] for run in (*random, *span)}) == 1, "the same masks"
    [difference] = result["differences"]
    assert difference["mean"] == pytest.approx(result["recipes"]["random"]["mean"] - result["recipes"]["span"]["mean"])
    assert json.loads((out / "result.json").read_text())["verdict"] == result["verdict"]
    reporter = Notes()
    respelled = {"pairs": f"{tmp_path}/./p.jsonl", "seeds": 3, "reporter": reporter}
    compare(f"{data_folder}/", out, **respelled)
    assert trained[5:] == [("random", 2), ("span", 2)]
    notes = "\n".join(reporter.notes)
    assert "run 5 of 6: random, seed 2\n" in notes
    assert "run 6 of 6: span, seed 2\n" in notes
    assert notes.count("tokens to train on") == 1, "the first run that is made says what all have in common"
    assert notes.count("share of wrong minimal pairs") == 6, "and each has a line of figures"


def test_the_budget_chooses_one_size_for_all_runs(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy moment of the machine does not change the model of a run; seeds added later have the same model, too."""
    layers = iter((3, 2, 1))
    choose = lambda *_, **__: (sizing.sizes(next(layers), 64, 512), ["chosen"])  # noqa: E731
    monkeypatch.setattr(sizing, "fit_to_budget", choose)
    out, notes = tmp_path / "out", Notes()
    options: dict[str, Any] = {"steps": None, "minutes": 0.002, "settings": ("training.sequence_length=32",)}
    compare(data_folder, out, **options, seeds=1, reporter=notes)
    compare(data_folder, out, **options, seeds=2, reporter=notes)
    runs = [
        load_recipe(str(out / "runs" / name / "recipe.toml")) for name in ("random-0", "span-0", "random-1", "span-1")
    ]
    assert [(run.model.num_layers, run.sizing, run.training.seed) for run in runs] == [
        (3, None, 0), (3, None, 0), (3, None, 1), (3, None, 1)
    ]  # fmt: skip
    assert [run.masking.strategy for run in runs] == ["random", "span"] * 2
    assert notes.notes.count("chosen") == 1
    with pytest.raises(SettingsError, match="auto"):
        module.tune("auto", data=data_folder, out=tmp_path / "search", minutes=1.0)


def test_what_was_edited_meanwhile_is_named(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs are not reused for another recipe, text or task."""
    monkeypatch.setattr(comparing, "measured_run", lambda *_, **__: {"loss": 1.0, "bits_per_byte": None})
    recipe, text, pairs, moods = (tmp_path / name for name in ("mine.toml", "text.txt", "pairs.jsonl", "moods.tsv"))
    other = load_recipe("tiny", overrides=("training.learning_rate=0.009",)).to_toml()
    edits = {
        recipe: (load_recipe("tiny").to_toml(), other, "learning_rate"),
        text: (make_text(60), make_text(61), "text.txt"),
        pairs: (PAIR, PAIR.replace("cat", "dog"), "pairs.jsonl"),
        moods: (MOODS, MOODS + "Yes.\tup\n", "moods.tsv"),
    }
    for file, (content, _, _) in edits.items():
        file.write_text(content)
    options: dict[str, Any] = {"recipes": ("tiny", str(recipe)), "pairs": str(pairs), "task": task_on(moods)}
    compare(text, tmp_path / "out", **options)
    for file, (content, changed, message) in edits.items():
        file.write_text(changed)
        with pytest.raises(RunError, match=message):
            compare(text, tmp_path / "out", **options)
        file.write_text(content)
    compare(text, tmp_path / "out", **options)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(make_text(60))
    compare(tmp_path / "texts", tmp_path / "folder")
    (tmp_path / "texts" / "b.txt").write_text(make_text(9))
    with pytest.raises(RunError, match="b.txt"):
        compare(tmp_path / "texts", tmp_path / "folder")
    background = shutil.copytree(data_folder, tmp_path / "background")
    anchors = (*TINY, "masking.weights.kind=anchors", f"masking.weights.background={background}")
    compare(data_folder, tmp_path / "anchors", settings=anchors)
    replace(load_manifest(background), labels={"a": 1}).save(background)
    with pytest.raises(RunError, match=str(background)):
        compare(data_folder, tmp_path / "anchors", settings=anchors)


def test_a_run_that_fails_is_written_down_and_the_others_are_judged(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = run_plan.pretrain, []

    def fails(*paths: Any, **options: Any) -> Any:
        tried.append((options["strategy"], options["seed"]))
        if tried[-1] == ("span", 1):
            raise DivergedError("the loss of step 2 is nan")
        return real(*paths, **options)

    monkeypatch.setattr(run_plan, "pretrain", fails)
    out = tmp_path / "out"
    result = compare(data_folder, out)
    assert tried == [("random", 0), ("span", 0), ("span", 1), ("random", 1)]
    assert result["runs"]["span"][1] == {"name": "span", "seed": 1, "failed": "the loss of step 2 is nan"}
    assert len(result["recipes"]["random"]["values"]) == 2
    assert len(result["recipes"]["span"]["values"]) == len(result["differences"][0]["values"]) == 1
    assert "; 1 of 2 runs of span failed; few documents were measured (16)" in result["verdict"]
    assert compare(data_folder, out) == result
    assert len(tried) == 4, "what failed is not tried again"

    monkeypatch.setattr(run_plan, "pretrain", Mock(side_effect=MemoryFullError("it does not fit")))
    with pytest.raises(RunError, match="it does not fit"):
        compare(data_folder, tmp_path / "nothing")


def drawn(name: str, _: Any, *, seed: int, **__: Any) -> dict[str, Any]:
    """Figures of a run: span's loss and bits per byte are lower, and differ a little by seed."""
    lower = 0.0 if name == "random" else 1.0 + 0.01 * ((-1) ** seed) + 0.001 * seed
    return {"loss": 4.0 - lower, "bits_per_byte": 3.0 - lower, "pairs_error": 0.3}


Judged = Callable[..., dict[str, Any]]


@pytest.fixture
def judged(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """A comparison in `tmp_path / "out"` whose figures a function draws, and no run is made."""

    def compared(figures: Callable[..., dict[str, Any]] = drawn, **changes: Any) -> dict[str, Any]:
        monkeypatch.setattr(comparing, "measured_run", figures)
        return compare(data_folder, tmp_path / "out", **changes)

    return compared


def test_each_number_of_seeds_is_a_look(judged: Judged) -> None:
    def look(seeds: int) -> tuple[int, float, str]:
        result = judged(seeds=seeds)
        return result["look"], pytest.approx(result["confidence"]), result["verdict"].partition(" ")[0]

    assert look(1) == (1, 0.97, "no"), "nothing can be shown, and nothing is spent"
    assert look(3) == (1, 0.97, "span")
    assert look(5) == (2, 0.9925, "span")
    assert look(4) == (3, 0.9975, "span")
    assert look(3) == (1, 0.97, "span"), "again"


@pytest.mark.parametrize(
    ("stuck", "begin", "end", "better"),
    [
        ({"random", "span"}, "no verdict: none of the 6 runs is better than word frequencies", "train longer", None),
        ({"random"}, "span has a lower loss than random by", "3 of 6 runs are no better than word frequencies", "span"),
        (set(), "span has a lower loss than random by", "may be too narrow", "span"),
    ],
)
def test_runs_that_learned_nothing_are_not_judged(
    judged: Judged, tmp_path: Path, stuck: set[str], begin: str, end: str, better: str | None
) -> None:
    plateau = {"unigram_entropy": 3.5}
    result = judged(lambda name, *a, **k: drawn(name, *a, **k) | plateau | {"on_plateau": name in stuck}, seeds=3)
    assert result["verdict"].startswith(begin)
    assert result["verdict"].endswith(end)
    for figure in ("loss", "bits_per_byte"):
        [difference] = result["by_figure"][figure]["differences"]
        assert difference["better"] == better
        assert difference["interval"][0] > 0.0, "a difference that would be shown"
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert result["verdict"][1:] in page
    assert page.count("not judged") == 3 * (better is None), "pairs too"


def test_one_figure_decides_and_is_named_beforehand(judged: Judged, pairs: str) -> None:
    result = judged(seeds=5, pairs=pairs)
    assert (result["figure"], result["exploratory"]) == ("loss", False)
    bits = result["by_figure"]["bits_per_byte"]
    assert (bits["exploratory"], bits["confidence"]) == (True, pytest.approx(1 - 0.03 / 2)), "two are exploratory"
    assert bits["differences"][0]["better"] == "span", "since the loss tells them apart"
    with pytest.raises(RunError, match="primary"):
        judged(seeds=5, pairs=pairs, primary="pairs_error")


def test_the_epoch_is_told_by_one_file_and_the_figure_by_another(data_folder: Path, tmp_path: Path) -> None:
    """In the test file every label is swapped, so predictions right there are wrong in the validation file."""
    test = tmp_path / "test.tsv"
    test.write_text(MOODS.replace("up", "x").replace("down", "up").replace("x", "down") * 2)
    task = task_on(tmp_path / "moods.tsv") | {"test": str(test)}
    options: dict[str, Any] = {"seeds": 1, "task": task, "settings": (*TINY, "finetune.epochs=2")}
    result = compare(data_folder, tmp_path / "out", **options)
    for name, [run] in result["runs"].items():
        summary = json.loads((tmp_path / "out" / "runs" / f"{name}-0" / "finetuned" / "summary.json").read_text())
        assert run["task_error"] == pytest.approx(1.0 - summary["test_metrics"]["accuracy"])
        assert run["task_error"] == pytest.approx(summary["metrics"]["accuracy"]), "not that of the validation file"
        assert run["task_measured_on"] == "test"
        assert run.get("task_warning", "") == summary["warning"]
        assert "interval" not in summary, "which takes longer than the rest, and is not shown"


def test_a_fine_tuning_goes_on(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (*TINY, "finetune.epochs=4")
    options: dict[str, Any] = {"seeds": 1, "task": task_on(tmp_path / "moods.tsv"), "settings": settings}
    real, steps = run_plan.finetune, []

    class Counting(Callback):
        def on_step(self, trainer: Any, report: Any) -> None:
            steps.append(report.step)
            if len(steps) == 2:
                Stopping(2).on_step(trainer, report)

    monkeypatch.setattr(run_plan, "finetune", lambda *a, **k: real(*a, **k, callbacks=[Counting()]))
    with pytest.raises(Interrupted, match=GOES_ON):
        compare(data_folder, tmp_path / "out", **options)
    write, kept = run_plan.write_object, run_plan.EVALUATION
    with pytest.MonkeyPatch.context() as patch:  # as if killed before the figures of the first run are written
        patch.setattr(run_plan, "write_object", lambda file, what: 1 / 0 if file.name == kept else write(file, what))
        with pytest.raises(ZeroDivisionError):
            compare(data_folder, tmp_path / "out", **options)
    compare(data_folder, tmp_path / "out", **options)
    assert steps == [*range(1, 5)] * 2, "two runs, none begun again"


QUICK = ("training.batch_tokens=512", *SHORT)
EXTENDED = (*QUICK, "training.sequence_length=128", "start.extend_positions=true")


@pytest.fixture
def checkpoint(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return released(make_model(num_layers=1), tokenizer, tmp_path / "checkpoint")


def test_text_gets_the_tokenizer_of_the_checkpoint(checkpoint: Path, corpus_file: Path, tmp_path: Path) -> None:
    settings = (*QUICK, f"start.checkpoint='{checkpoint}'")
    result = compare(corpus_file, tmp_path / "out", steps=1, seeds=1, base="continue", settings=settings)
    assert not [run for runs in result["runs"].values() for run in runs if "failed" in run]
    assert load_manifest(tmp_path / "out" / "data").tokenizer_sha256 == load_tokenizer(checkpoint).fingerprint


def test_what_cannot_be_trained_measured_or_compared_is_found_before_anything_is_begun(
    make_model: MakeModel, checkpoint: Path, corpus_file: Path, data_folder: Path, tmp_path: Path
) -> None:
    words = load_tokenizer(data_folder / "tokenizer")
    words.backend.add_tokens(["<x>"])
    other = released(make_model(num_layers=1, vocab_size=256), Tokenizer(words.backend), tmp_path / "other")

    def begun(name: str, start: Path, more: str = "") -> dict[str, Any]:
        for file, content in (("own", f"checkpoint = '{checkpoint}'"), (name, f"checkpoint = '{start}'\n{more}")):
            (tmp_path / f"{file}.toml").write_text(f"[start]\n{content}\n\n[training]\nlearning_rate = 0.001\n")
        return {"recipes": (str(tmp_path / "own.toml"), str(tmp_path / f"{name}.toml")), "settings": QUICK}

    pairs, task = tmp_path / "long.jsonl", task_on(tmp_path / "moods.tsv")
    pairs.write_text(PAIR.replace("cat", "cat " * 80))
    tagged = tagged_jsonl(tmp_path / "tagged.jsonl")
    tagged.write_text(tagged.read_text().replace('"obj"', '"OA"').replace('"root"', '"SB"'))  # as in TIGER
    how = {"corpus": CorpusSettings(), "tokenizer": TokenizerSettings(vocab_size=150)}
    tiger, lexicon = tmp_path / "tiger", tmp_path / "lexicon.safetensors"
    prepare([tagged], tiger, **how, annotation=AnnotationSettings(columns=("dependencies",)))
    make_lexicon(tiger, out=lexicon)
    anchors = ("masking.weights.kind=anchors", f"masking.weights.background={tiger}")
    bare, paired = tmp_path / "bare", ("model.layout=bert", "objectives.pairs.kind=sentence_order")
    prepare([corpus_file], bare, corpus=CorpusSettings(), tokenizer=TokenizerSettings(kind="char", bare=True))
    cases: list[tuple[Path, dict[str, Any], type[UnmaskError], str]] = [
        (data_folder, {"recipes": ("random", "entity")}, UnmaskError, "entities"),
        (corpus_file, {"recipes": ("tiny", "shakespeare-chars")}, UnmaskError, "corpus"),
        (tiger, {"recipes": ("random", "syntax")}, SettingsError, "roles"),
        (data_folder, {"settings": (*TINY, *anchors)}, DataError, str(tiger / "tokenizer")),
        (
            data_folder,
            {"settings": (*TINY, "masking.units.kind=collocations", f"masking.units.lexicon={lexicon}")},
            DataError,
            "lexicon",
        ),
        (data_folder, {"pairs": str(pairs)}, UnmaskError, "long.jsonl: line 1"),
        (data_folder, {"task": {**task, "train": "none.tsv"}}, UnmaskError, "none.tsv"),
        (data_folder, {"task": task, "settings": (*TINY, "finetune.metric=bleu")}, UnmaskError, "accuracy"),
        (data_folder, {"task": task, "settings": (*TINY, "finetune.max_length=65")}, SettingsError, "64 positions"),
        (
            data_folder,
            {"task": task, "settings": (*TINY, "model.layout=bert", "finetune.pooling=mean")},
            SettingsError,
            "finetune.pooling",
        ),
        (bare, {"settings": (*TINY, *paired)}, DataError, "objectives.pairs"),
        (data_folder, {"settings": (*TINY, "training.tokens=9000")}, SettingsError, "training.tokens"),
        (corpus_file, begun("others", other), SettingsError, "tokenizer"),
        (data_folder, begun("longer", checkpoint, "extend_vocab = 4"), SettingsError, "start.extend_vocab"),
        (data_folder, begun("others", other), DataError, "other"),
    ]
    for data, changes, error, message in cases:
        with pytest.raises(error, match=message):
            compare(data, tmp_path / "out", **changes)
        assert not (tmp_path / "out").exists(), message


def test_data_that_a_user_prepared_is_not_replaced(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken hours."""
    monkeypatch.setattr(comparing, "measured_run", drawn)
    (tmp_path / "a.txt").write_text(make_text(60))
    made = Path(shutil.copytree(data_folder, tmp_path / "out" / "data"))
    for _ in range(2):
        with pytest.raises(RunError, match=str(made)):
            compare(tmp_path / "a.txt", tmp_path / "out")
    assert load_manifest(made) == load_manifest(data_folder)
    compare(made, tmp_path / "out")


def test_runs_share_no_seed_of_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def stops(*_: Any, settings: Any, **__: Any) -> None:
        chosen = settings_of(settings)
        seeds.extend(range(chosen.seed, chosen.seed + chosen.seeds))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_plan, "finetune", stops)
    settings = (("finetune.seeds", 3),)
    plan = run_plan.RunPlan(
        data=(), minutes=None, steps=1, rates=(), base=None, settings=settings, task="classify", from_="m"
    )
    for seed in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_plan.measured_run("as-is", plan, seed=seed, data=(), folder=tmp_path, reporter=Notes())
    assert seeds == list(range(9))


def test_text_at_an_address_is_fetched(server: Elsewhere) -> None:
    server.pipe({"/corpus.txt": b"One text.\n"})
    (path,) = run_plan.run_plan("elsewhere://corpus.txt", 0.15, (), minutes=1.0, steps=None, base=None).data
    assert Path(path).read_bytes() == b"One text.\n"


def test_a_start_gets_no_settings_of_another() -> None:
    of_checkpoint = (("training.learning_rate", 5e-5), ("start.extend_positions", True), ("model.dropout", 0.1))
    of_scratch, of_both = ("tokenizer.kind", "bpe"), ("training.batch_tokens", 8192)
    settings = (*of_checkpoint, of_scratch, of_both, ("finetune.epochs", 1))
    plan = run_plan.RunPlan(data=(), minutes=1.0, steps=None, rates=(), base=None, settings=settings, from_="m")
    assert plan.options("scratch", seed=0)["settings"] == (of_scratch, of_both)
    evaluation, *others = plan.options("continued", seed=0)["settings"]
    assert others == [*of_checkpoint, of_both]
    assert evaluation == ("evaluation.final_max_tokens", 32_768), "first, so that the user's comes last"


@pytest.fixture
def starts(corpus_file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A comparison of the starts of a model, with steps enough to change it, in `tmp_path / "out"`."""
    (tmp_path / "small.toml").write_text(load_recipe("tiny", overrides=TINY).to_toml())

    def made(checkpoint: Path, **changes: Any) -> dict[str, Any]:
        usual: dict[str, Any] = {
            "recipes": (), "base": tmp_path / "small.toml", "from_": str(checkpoint), "extend_vocab": 5,
            "settings": (*QUICK, "finetune.epochs=1"), "task": task_on(tmp_path / "moods.tsv"),
        }  # fmt: skip
        return compare(changes.pop("data", corpus_file), tmp_path / "out", **{**usual, **changes})

    return made


def test_starts_of_a_model_differ_in_what_they_begin_with(
    starts: Callable[..., dict[str, Any]], checkpoint: Path, tmp_path: Path
) -> None:
    result, runs = starts(checkpoint, seeds=1), tmp_path / "out" / "runs"
    assert list(result["runs"]) == list(result["recipes"]) == ["scratch", "continued", "new-words", "as-is"]
    assert (result["figure"], list(result["by_figure"])) == ("task_error", ["task_error"]), "no loss is judged"
    assert len(result["differences"]) == 6
    assert result["verdict"].endswith("; 3 of 3 runs are no better than word frequencies"), "one is not pretrained"
    own = load_tokenizer(checkpoint)
    tokenizers = {name: load_tokenizer(runs / f"{name}-0" / "model") for name in ("scratch", "continued", "new-words")}
    assert tokenizers["continued"].fingerprint == own.fingerprint != tokenizers["scratch"].fingerprint
    assert tokenizers["new-words"].vocab_size == own.vocab_size + 5
    assert [result["runs"][name][0].get("steps") for name in result["runs"]] == [3, 3, 3, None]
    assert not (runs / "as-is-0" / "model").exists()
    task = {"task": "classify", "train": tmp_path / "moods.tsv", "validation": tmp_path / "moods.tsv"}
    alone = finetune(checkpoint, **task, out=tmp_path / "alone", settings=("finetune.epochs=1", "finetune.seed=0"))
    assert result["runs"]["as-is"][0]["task_error"] == pytest.approx(1.0 - alone.summary["mean"]["accuracy"])

    costs = result["costs"]
    assert costs["new-words"]["num_parameters"] - costs["continued"]["num_parameters"] == 5 * 32, "a row a word"
    assert costs["as-is"]["num_parameters"] == costs["continued"]["num_parameters"] == alone.summary["num_parameters"]
    assert costs["as-is"]["pretraining_minutes"] is None
    summary = json.loads((runs / "continued-0" / "summary.json").read_text())
    assert costs["continued"]["pretraining_minutes"] == pytest.approx(summary["seconds"] / 60.0)
    assert costs["as-is"]["finetuning_minutes"] > 0.0
    assert "-" in repr(comparing.Comparison(result)).split(), "without losses, and a start without pretraining"


def test_starts_of_a_sentence_encoder_go_on(
    starts: Callable[..., dict[str, Any]], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no head, so each start that continues it gets one that begins with word frequencies, new words or not."""
    weights = load_file(checkpoint / "model.safetensors")
    bare = {name: weight for name, weight in weights.items() if name.startswith("model.")}
    assert 0 < len(bare) < len(weights)
    save_file(bare, checkpoint / "model.safetensors", metadata={"format": "pt"})
    real, tuned = run_plan.finetune, []

    def stops(model: str, **options: Any) -> Any:
        tuned.append(options["out"].parent.name)
        if len(tuned) == 4:
            raise KeyboardInterrupt
        return real(model, **options)

    monkeypatch.setattr(run_plan, "finetune", stops)
    with pytest.raises(KeyboardInterrupt):
        starts(checkpoint, seeds=1)
    result = starts(checkpoint, seeds=1)
    first = [f"{name}-0" for name in ("scratch", "continued", "new-words", "as-is")]
    assert tuned == [*first, "as-is-0"], "none twice"
    assert all(len(of["values"]) == 1 for of in result["recipes"].values())
    for name in ("continued-0", "new-words-0"):
        summary = json.loads((tmp_path / "out" / "runs" / name / "summary.json").read_text())
        assert summary["start"]["new_head"]
        before = summary["domains"]["new"]["before"]["loss"]
        assert before == pytest.approx(summary["unigram_entropy"], abs=0.5)
    with pytest.raises(RunError, match="extend_vocab"):
        starts(checkpoint, seeds=1, extend_vocab=6)
    bare["model.final_norm.weight"] += 1.0
    save_file(bare, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError, match="sha256"):
        starts(checkpoint, seeds=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recipes": ("tiny",)}, "base"),
        ({"task": {}}, "task"),
        ({"primary": "loss"}, "primary"),
        ({"data": "prepared"}, "prepared"),
        ({"from_": None, "recipes": ("random", "span"), "base": None}, "from_"),
        ({"extend_vocab": -1}, "extend_vocab"),
        ({"from_": "nowhere"}, "nowhere"),
        ({"settings": (*EXTENDED, "finetune.max_length=128")}, "as-is has only 64 positions"),
    ],
)
def test_starts_that_cannot_be(
    changes: dict[str, Any], named: str,
    starts: Callable[..., dict[str, Any]], checkpoint: Path, data_folder: Path, tmp_path: Path,
) -> None:  # fmt: skip
    if "data" in changes:
        changes = {"data": data_folder}
    with pytest.raises(UnmaskError) as caught:
        starts(checkpoint, **changes)
    assert named in f"{caught.value} {caught.value.options}"
    assert not (tmp_path / "out").exists()


RATES = "training.learning_rate=0.001..0.02"


def tune(data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    pytest.importorskip("optuna")
    usual: dict[str, Any] = {"recipe": "tiny", "search": (RATES, "model.num_layers=1,2"), "trials": 3}
    return module.tune(**{**usual, "data": data, "out": out, "steps": 2, "settings": TINY, **changes}).to_dict()


def loss_by_rate(name: str, plan: Any, *, overrides: Any, folder: Path, **_: Any) -> dict[str, Any]:
    """A run whose loss is the learning rate's distance from 0.004."""
    rate = dict(overrides)["training.learning_rate"]
    (folder / "model").mkdir(parents=True)
    return {"loss": abs(rate - 0.004)}


def test_a_search_on_real_runs(data_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = tune(data_folder, out)
    assert [trial["state"] for trial in result["trials"]] == ["COMPLETE"] * 3
    usual = load_recipe("tiny").training.learning_rate
    assert result["own"]["parameters"] == {"training.learning_rate": usual, "model.num_layers": 1}
    best = min(result["trials"], key=lambda trial: trial["loss"])
    assert (result["best"]["number"], result["best"]["loss"]) == (best["number"], best["loss"])
    assert json.loads((out / "result.json").read_text()) == result
    for trial in result["trials"]:
        folder = out / "trials" / str(trial["number"])
        recipe = load_recipe(str(folder / "recipe.toml"), complete=False)
        made = {"training.learning_rate": recipe.training.learning_rate, "model.num_layers": recipe.model.num_layers}
        assert made == trial["parameters"]
        assert json.loads((folder / "evaluation.json").read_text())["loss"] == trial["loss"]
        assert (folder / "model").is_dir() == (trial == best), "only the best keeps its model"
    assert load_recipe(result["best"]["recipe"]).model.hidden_size == 16


def test_a_search_goes_on_and_makes_again_what_was_interrupted(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(*arguments: Any, **options: Any) -> Any:
        seen.append(options["overrides"])
        if len(seen) == 2:
            raise Interrupted(2, "stopped")
        if len(seen) == 4:
            raise DivergedError("not finite")
        return loss_by_rate(*arguments, **options)

    monkeypatch.setattr(module, "measured_run", run)
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        tune(data_folder, out, trials=4)
    whole = (out / "study.db").read_bytes()
    (out / "study.db").write_bytes(whole[:5000] + b"?" * 4000 + whole[9000:])
    with pytest.raises(RunError, match=r"study\.db"):
        tune(data_folder, out, trials=4)
    (out / "study.db").write_bytes(whole)
    result = tune(data_folder, out, trials=4)
    assert seen[2] == seen[1], "the interrupted trial has its numbers again"
    states = [trial["state"] for trial in result["trials"]]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    assert len(tune(data_folder, out, trials=4)["trials"]) == 5, "nothing is left to do"
    assert len(seen) == 5
    more = tune(data_folder, out, trials=12)
    assert len([trial for trial in more["trials"] if trial["state"] != "FAIL"]) == 12
    losses = [trial["loss"] for trial in more["trials"] if trial["loss"] is not None]
    assert more["best"]["loss"] == min(losses)
    assert more["best"]["loss"] < losses[0], "better than the recipe's own"
    with pytest.raises(RunError, match="search"):
        tune(data_folder, out, search=(RATES,))
    (out / "study.db").unlink()
    assert len(tune(data_folder, out, trials=2)["trials"]) == 2, "nothing is taken from the trials of the old one"


def join(data: Path, out: Path) -> None:
    module.measured_run = loss_by_rate  # type: ignore[assignment]
    tune(data, out, trials=4)


def test_processes_share_a_search(data_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    processes = [Forked(join, data_folder, out) for _ in range(2)]
    assert [code for code, _ in ended(processes)] == [0, 0]
    trials = json.loads((out / "result.json").read_text())["trials"]
    assert 4 <= len(trials) <= 5
    assert sorted(trial["number"] for trial in trials) == list(range(len(trials)))


def test_dimensions() -> None:
    assert read_dimension("training.learning_rate=1e-3..0.02") == Dimension(
        "training.learning_rate", (0.001, 0.02), is_range=True
    )
    layers = read_dimension("model.num_layers = 2..6")
    assert read_dimension("masking.strategy=random,span") == Dimension("masking.strategy", ("random", "span"))
    assert layers.holds(3)
    assert not any(layers.holds(value) for value in (2.5, 7, True, "3", None))
    for text in ("learning_rate=1..2", "training.seed", "a.b=1", "a.b=1,1", "a.b=x..2", "a.b=true..2", "a.b=2..1"):
        with pytest.raises(SettingsError, match="search"):
            read_dimension(text)


def test_usual_dimensions() -> None:
    by_key = {dimension.key: dimension for dimension in usual_dimensions(load_recipe("tiny"))}
    assert set(by_key) == {"training.learning_rate", "training.batch_tokens", "model.num_layers", "masking.rate.start"}
    assert by_key["training.batch_tokens"] == Dimension("training.batch_tokens", (2048, 4096, 8192))
    constant = load_recipe("tiny", overrides=("masking.rate=0.2",))
    assert usual_dimensions(constant)[-1].key == "masking.rate"
    for rate, ends in ((0.2, [(0.2, 0.5)]), (0.5, [])):
        fewer = load_recipe("tiny", overrides=("masking.rate=0.6", f"masking.prediction_rate={rate}"))
        assert [each.values for each in usual_dimensions(fewer) if each.key == "masking.rate"] == ends
    further = load_recipe("tiny", options={"start.checkpoint": "runs/mine/model"}, complete=False)
    assert {dimension.key for dimension in usual_dimensions(further)} == set(by_key) - {"model.num_layers"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"search": (RATES, RATES)}, "training.learning_rate"),
        ({"search": ("masking.rate=0.1,0.2", "masking.rate.start=0.1..0.3")}, "masking.rate"),
        ({"search": ("tokenizer.vocab_size=100..200",)}, "tokenizer.vocab_size"),
        ({"search": ("masking.rate=0.1..1.5",)}, "masking.rate"),
        ({"search": ("masking.strategy=random,entity",)}, "entities"),
        ({"base": "tiny"}, "base"),
    ],
)
def test_plans_that_cannot_be(data_folder: Path, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises((SettingsError, DataError), match=named):
        tune(data_folder, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
