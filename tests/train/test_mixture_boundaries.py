"""Span boundaries in mixtures: the texts that spans masked have targets, the others have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unmask
from tests.conftest import SMALL
from tests.masking.helpers import make_rows
from tests.train.helpers import MakeModel
from tests.train.test_objectives import gradients, model_of, step_of
from unmask.commands.recipe import load_recipe
from unmask.core.errors import SettingsError
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings, span_units
from unmask.masking.units import SpanUnits
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import extra_objectives
from unmask.train.settings import ObjectivesSettings
from unmask.train.trackers import read_metrics

BOUNDARIES = ObjectivesSettings.model_validate({"span_boundary": {"max_length": 6}})


def mixture(spans: float = 0.5, words: float = 0.5, **more: object) -> MaskingSettings:
    parts = [{"strategy": "whole_word", "share": words}, {"strategy": "span", "share": spans}]
    return MaskingSettings.model_validate({"units": {"kind": "mixture", "parts": parts, **more}, "rate": 0.3})


def masked_by(settings: MaskingSettings, tokenizer: Tokenizer, rows: Rows, progress: float = 0.0) -> MaskedRows:
    return Masker(settings, tokenizer, seed=3, with_boundaries=True)(rows, progress=progress)


@pytest.fixture
def rows(store: TokenStore, tokenizer: Tokenizer) -> Rows:
    return RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 100).rows


def test_each_text_is_that_of_spans_or_has_no_boundaries(rows: Rows, tokenizer: Tokenizer) -> None:
    """Where a text has boundaries, they and its mask are those of spans alone; else its mask is that of words alone."""
    mixed = masked_by(mixture(), tokenizer, rows)
    alone = {
        name: masked_by(MaskingSettings.model_validate({"strategy": name, "rate": 0.3}), tokenizer, rows)
        for name in ("span", "whole_word")
    }
    assert mixed.boundaries is not None
    assert alone["span"].boundaries is not None
    seen = {"span": 0, "whole_word": 0}
    for r in range(len(rows.segment_ids)):
        for number in range(int(rows.segment_ids[r].max()) + 1):
            inside = rows.maskable[r] & (rows.segment_ids[r] == number)
            known = mixed.boundaries.before[r][inside] >= 0
            assert known.all() or not known.any()
            assert torch.equal(known, mixed.boundaries.behind[r][inside] >= 0)
            name = "span" if known.any() else "whole_word"
            seen[name] += 1
            assert torch.equal(mixed.labels[r][inside], alone[name].labels[r][inside])
            if name == "span":
                for column in ("before", "behind"):
                    found, wanted = (getattr(m.boundaries, column)[r][inside] for m in (mixed, alone["span"]))
                    assert torch.equal(found, wanted)
    assert min(seen.values()) > 50


def test_targets_are_those_in_spans(rows: Rows, tokenizer: Tokenizer) -> None:
    masked = masked_by(mixture(), tokenizer, rows)
    assert masked.boundaries is not None
    targets = extra_objectives(BOUNDARIES)[0].targets(rows, masked)
    wanted = [
        (r * 64 + s, int(masked.labels[r, s]), r * 64 + int(masked.boundaries.before[r, s]))
        for r, s in torch.nonzero(masked.labels >= 0).tolist()
        if masked.boundaries.before[r, s] >= 0
    ]
    assert targets.boundaries_N is not None
    found = zip(targets.positions_N.tolist(), targets.classes_N.tolist(), targets.boundaries_N[0].tolist(), strict=True)
    assert list(found) == wanted
    assert 0.3 < len(wanted) / int((masked.labels >= 0).sum()) < 0.7


def test_the_step_divides_by_the_targets_in_spans(make_model: MakeModel, rows: Rows, tokenizer: Tokenizer) -> None:
    """The loss of the mixture is that of the same batch with only the targets in spans."""
    some, model = rows.part(0, 8), model_of(make_model, BOUNDARIES)
    masked = masked_by(mixture(), tokenizer, some)
    assert masked.boundaries is not None
    in_spans = torch.where(masked.boundaries.before >= 0, masked.labels, -100)
    only = MaskedRows(masked.input_ids, in_spans, masked.attention_mask, boundaries=masked.boundaries)
    found = step_of(model, some, masked, extra_objectives(BOUNDARIES))
    wanted = step_of(model, some, only, extra_objectives(BOUNDARIES)).objectives["span_boundary"]
    assert found.objectives["span_boundary"].loss == pytest.approx(wanted.loss, rel=1e-5)
    assert found.objectives["span_boundary"].count == wanted.count == int((in_spans >= 0).sum()) > 20
    assert found.predicted_tokens == int((masked.labels >= 0).sum()) > wanted.count


def test_a_step_of_another_strategy_has_no_such_targets(
    make_model: MakeModel, rows: Rows, tokenizer: Tokenizer
) -> None:
    """By steps, all texts are masked alike: either all targets have boundaries, or none has."""
    some, model, shares = rows.part(0, 4), model_of(make_model, BOUNDARIES), set()
    for progress in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        masked = masked_by(mixture(per="step"), tokenizer, some, progress)
        result, found = gradients(model, some, masked, extra_objectives(BOUNDARIES))
        count = result.objectives["span_boundary"].count
        shares.add(count / result.predicted_tokens)
        heads = [float(found[n].abs().max()) for n, _ in model.named_parameters() if n.startswith("boundary_head")]
        assert all(value > 0 for value in heads) if count else not any(heads)
    assert shares == {0.0, 1.0}


def test_the_mixture_of_spans_alone_is_spans(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 20, [30, 20])
    alone = masked_by(MaskingSettings.model_validate({"strategy": "span", "rate": 0.3}), tokenizer, rows)
    mixed = masked_by(mixture(spans=1.0, words=0.0), tokenizer, rows)
    targets = alone.labels >= 0
    assert torch.equal(mixed.labels, alone.labels)
    assert mixed.boundaries is not None
    assert alone.boundaries is not None
    assert torch.equal(mixed.boundaries.before[targets], alone.boundaries.before[targets])
    assert torch.equal(mixed.boundaries.behind[targets], alone.boundaries.behind[targets])


def test_which_spans() -> None:
    assert span_units(MaskingSettings.model_validate({"strategy": "mixture"})) == SpanUnits()
    assert span_units(MaskingSettings.model_validate({"units": {"kind": "span", "p": 0.4}})) == SpanUnits(p=0.4)
    assert span_units(MaskingSettings.model_validate({"strategy": "whole_word"})) is None


def test_a_mixture_without_spans_is_refused() -> None:
    parts = 'masking.units.parts=[{strategy="random"}, {strategy="whole_word"}]'
    with pytest.raises(SettingsError, match=r"masking by mixture has no spans; set masking\.strategy to 'span', or"):
        load_recipe(overrides=("masking.units.kind=mixture", parts, "objectives.span_boundary.weight=1"))


def test_a_run_by_a_mixture_has_figures(corpus_file: Path, tmp_path: Path) -> None:
    settings = (*SMALL, "evaluation.times=1", "objectives.span_boundary.weight=0.5")
    run = unmask.pretrain(
        [corpus_file], out=tmp_path / "run", steps=2, vocab_size=200, strategy="mixture", settings=settings
    )
    assert run.summary["objectives"]["span_boundary"]["count"] > 20
    (trained,) = [line for line in read_metrics(run.folder / "metrics.jsonl") if line["kind"] == "train"]
    assert trained["objectives"]["span_boundary"] == pytest.approx(5.2, abs=0.35)


def test_steps_without_targets_have_no_figure(corpus_file: Path, tmp_path: Path) -> None:
    """A mean over nothing is not a loss of 0."""
    parts = 'masking.units.parts=[{strategy="random"}, {strategy="span", share={kind="linear", start=0.0, end=0.001}}]'
    settings = (*SMALL, "evaluation.times=1", "objectives.span_boundary.weight=0.5", "masking.units.kind=mixture")
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", steps=1, vocab_size=200, settings=(*settings, parts))
    (trained,) = [line for line in read_metrics(run.folder / "metrics.jsonl") if line["kind"] == "train"]
    assert "objectives" not in trained
    assert run.summary["objectives"]["span_boundary"]["count"] > 20
