"""Runs with other objectives beside masked tokens: figures, files, resuming, and what cannot be."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.conftest import SMALL, make_text
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.core.errors import DataError, SettingsError
from unmask.model.folder import load_model
from unmask.train.trackers import read_metrics

PAIRS = ("model.layout=bert", "objectives.pairs.kind=next_sentence")
RETROMAE = ("objectives.retromae.weight=0.5", "masking.rate=0.3")
SPANS = ("masking.strategy=span", "objectives.span_boundary.weight=0.5")


def small_run(corpus: Path, out: Path, *settings: str, steps: int = 2, **options: object) -> unmask.Run:
    return unmask.pretrain(
        [corpus], out=out, steps=steps, vocab_size=200, settings=(*SMALL, "evaluation.times=1", *settings), **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (PAIRS, ["next_sentence"]),
        (("model.layout=bert", "objectives.pairs.kind=sentence_order"), ["sentence_order"]),
        (SPANS, ["span_boundary"]),
        (RETROMAE, ["retromae"]),
        ((*PAIRS, *SPANS), ["next_sentence", "span_boundary"]),
    ],
)
def test_a_run_tells_of_its_objectives(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...], names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="unmask")
    run = small_run(corpus_file, tmp_path / "run", *settings)
    assert list(run.summary["objectives"]) == names
    lines = read_metrics(run.folder / "metrics.jsonl")
    (trained,) = [line for line in lines if line["kind"] == "train"]
    assert list(trained["objectives"]) == names
    last = lines[-1]
    assert last["objectives"] == run.summary["objectives"]
    page = (run.folder / "report.html").read_text()
    for name, figures in run.summary["objectives"].items():
        assert 0.0 <= figures["accuracy"] <= 1.0
        assert figures["count"] > 20
        assert f"{name.replace('_', ' ')}: right of {figures['count']}" in page
        assert f"{name} loss" in caplog.text
        chance = 0.69 if "sentence" in name else 5.2
        assert trained["objectives"][name] == pytest.approx(chance, abs=0.35)
        assert figures["loss"] == pytest.approx(chance, abs=0.6)
    assert len(run.model.fill("The [MASK] in the garden.", top_k=2).masks[0]) == 2
    stored = set(load_file(run.folder / "model" / "model.safetensors"))
    assert ("cls.seq_relationship.weight" in stored) == ("objectives.pairs" in "".join(settings))
    assert not any("boundary" in name or "retromae" in name for name in stored)
    is_bert = "model.layout=bert" in settings
    assert ('"token_type_ids"' in (run.folder / "model" / "tokenizer_config.json").read_text()) == is_bert
    kept = load_file(sorted((run.folder / "checkpoints").glob("step-*"))[-1] / "model.safetensors")
    saved = dict(load_model(run.folder / "model", mask_id=run.model.tokenizer.special.mask).named_parameters())
    assert all(torch.equal(kept[name], weight) for name, weight in saved.items())
    assert ("retromae_head.places" in kept) == ("retromae" in names)
    assert ("boundary_head.places" in kept) == ("span_boundary" in names)
    assert ("pair_head.pooler.weight" in kept) == ("sentence" in names[0])


def test_a_run_without_them_says_nothing_of_them(run: unmask.Run) -> None:
    assert run.summary["objectives"] == {}
    assert not any("objectives" in line for line in read_metrics(run.folder / "metrics.jsonl"))


def test_metrics_weigh_steps_by_their_targets(corpus_file: Path, tmp_path: Path) -> None:
    """Ten steps become a line; it gives the loss per target, not the mean of means."""
    from unmask.train.callbacks import StepReport
    from unmask.train.step import Figures, MeanLoss, Measured
    from unmask.train.trackers import MetricsFile

    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    for step, (loss, count) in enumerate(((1.0, 30), (2.0, 10)), 1):
        figures = Figures.known(Measured(3.0, 1.0, {"next_sentence": MeanLoss(loss, count)}))
        metrics.step(StepReport(step, 0.5, 0, figures, 10, 100, 1e-3, 64, 1, 1.0))
    metrics.flush()
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["objectives"] == {"next_sentence": 1.25}


def test_a_run_goes_on_with_all_of_its_heads(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle, it ends at the same weights and figures."""
    settings = (
        *PAIRS,
        *SPANS,
        *RETROMAE,
        "checkpoint.every_steps=2",
        "training.length_schedule={places=[0.0,0.5],lengths=[32,64]}",
    )
    whole = small_run(corpus_file, tmp_path / "whole", *settings, steps=6)

    from unmask.commands import training_run as sitting

    train = sitting.train

    def stops(*args: object, **options: object) -> object:
        for report in train(*args, **options):  # type: ignore[arg-type]
            yield report
            if report.step == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(sitting, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        small_run(corpus_file, tmp_path / "again", *settings, steps=6)
    monkeypatch.undo()
    again = unmask.pretrain(out=tmp_path / "again", resume=True)
    assert again.summary["objectives"] == whole.summary["objectives"]
    folders = [sorted((run.folder / "checkpoints").glob("step-*"))[-1] for run in (whole, again)]
    for (name, a), (other, b) in zip(
        *(sorted(load_file(f / "model.safetensors").items()) for f in folders), strict=True
    ):
        assert name == other
        assert torch.equal(a, b), name
    steps = [[line["step"] for line in read_metrics(run.folder / "metrics.jsonl")] for run in (whole, again)]
    assert all(a <= b for a, b in pairwise(steps[1]))


def test_a_dry_run_trains_all_of_the_heads(corpus_file: Path) -> None:
    heads = (*PAIRS, *SPANS, *RETROMAE)
    recipe = load_recipe(options={"training.steps": 9}, overrides=(*SMALL, *heads, "tokenizer.vocab_size=200"))
    plain = load_recipe(
        options={"training.steps": 9}, overrides=(*SMALL, "model.layout=bert", "tokenizer.vocab_size=200")
    )
    with_heads, without = (forecast_run([corpus_file], each)["num_parameters"] for each in (recipe, plain))
    hidden = 64
    pair_head = hidden * hidden + hidden + 2 * hidden + 2
    boundary_head = 32 * hidden + 3 * hidden * hidden + hidden + hidden * hidden + hidden + 4 * hidden
    inner = 4 * hidden
    decoder = 64 * hidden + 4 * 2 * hidden + 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden
    assert with_heads - without == pair_head + boundary_head + decoder


def test_held_out_text_of_one_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to take a wrong half from, so pairs are not measured there, and the log says so."""
    (tmp_path / "train.txt").write_text(make_text(60))
    (tmp_path / "held.txt").write_text(make_text(1, seed=4).strip().replace("\n", " ") + "\n")
    caplog.set_level("INFO", logger="unmask")
    run = small_run(tmp_path / "train.txt", tmp_path / "run", *PAIRS, f'corpus.validation=["{tmp_path / "held.txt"}"]')
    assert run.summary["objectives"] == {}
    assert "the other objectives are not evaluated on the held-out text: next_sentence takes the second" in caplog.text


def test_training_text_of_one_document(tmp_path: Path) -> None:
    lines = make_text(40).replace("\n\n", "\n")
    (tmp_path / "one.txt").write_text(lines)
    with pytest.raises(DataError, match="but the text is one document; take sentence_order"):
        small_run(tmp_path / "one.txt", tmp_path / "run", *PAIRS, "corpus.documents=file")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_tokenizers_without_ends(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(make_text(60))
    bare = ("tokenizer.kind=char", "tokenizer.bare=true", "tokenizer.vocab_size=none")
    for settings, kind, message in (
        (PAIRS, DataError, r"the tokenizer has no \[CLS\] or no \[SEP\]"),
        (SPANS, SettingsError, r"predicts a span from the tokens on either side"),
    ):
        with pytest.raises(kind, match=message):
            small_run(tmp_path / "text.txt", tmp_path / "run", *settings, *bare)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("objectives.pairs.kind=next_sentence",), "objectives.pairs: the layout 'modernbert' has no place for a head "
         "that tells pairs apart; set model.layout to 'bert', or remove objectives.pairs"),
        (("objectives.pairs.kind=sentence_order", "model.layout=roberta"), "the layout 'roberta' has no place"),
        ((*PAIRS, "model.type_vocab_size=1"), "the halves of a pair have two token types; model.type_vocab_size is 1"),
        (("objectives.pairs.kind=next",), "objectives.pairs.kind = 'next': input should be 'next_sentence' or "),
        (("objectives.pairs.weight=2",), "objectives.pairs.kind"),
        ((*PAIRS, "objectives.pairs.weight=0"), "objectives.pairs.weight = 0: input should be greater than 0"),
        (("objectives.span_boundary.weight=1",), "objectives.span_boundary: masking by tokens has no spans; set "
         "masking.strategy to 'span', or remove objectives.span_boundary"),
        ((*SPANS, "objectives.span_boundary.max_length=0"), "max_length = 0: input should be greater than"),
        (("objectives.retromae.rate=1.5",), "objectives.retromae.rate = 1.5: input should be less than or equal to 1"),
        (("objectives.pair.kind=x",), "unknown key 'objectives.pair'; did you mean 'pairs'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_recipe(overrides=overrides)
    assert message in str(error.value)


def test_objectives_of_a_recipe_can_be_taken_out() -> None:
    plain = load_recipe("bert-base", overrides=("objectives.pairs=none", "model.layout=roberta"))
    assert plain.objectives.pairs is None
    plain = load_recipe("spanbert-base", overrides=("objectives.span_boundary=none", "masking.strategy=whole_word"))
    assert plain.objectives.span_boundary is None


def test_summary_is_json(corpus_file: Path, tmp_path: Path) -> None:
    run = small_run(corpus_file, tmp_path / "run", *PAIRS)
    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
