"""What an installed package adds by entry points: readers, callbacks, poolings and tasks. (Strategies: tests/docs.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from tests.commands.finetune_helpers import FAST, MakeModel, save_encoder, write_classes
from tests.conftest import SMALL, Install, make_text
from unmask.core.errors import SettingsError
from unmask.model.pooling import Pooling
from unmask.tokenizer.tokenizer import Tokenizer

MODULE = """
import json
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt

import unmask
from unmask.data.reading import LinePart, open_bytes
from unmask.model.pooling import Pooling
from unmask.tasks.classify import Classify


def read_loud(source, bad, fields):
    with open_bytes(source.path) as file:
        for line in file:
            yield LinePart(line.decode().strip().upper(), starts=True, ends=True)


class Noting(unmask.Callback):
    def __init__(self, run, settings):
        self.file, self.notes, self.saved = run / "noted.json", [settings["training"]["steps"]], []

    def on_step(self, trainer, report):
        if report.step == 1:
            trainer.evaluated({"figure_of_its_own": 0.5})
            trainer.request_save()

    def on_evaluation(self, trainer, figures):
        self.notes.append(trainer.state.step)

    def on_checkpoint(self, trainer, folder):
        self.saved.append(folder.name)

    def close(self):
        self.file.write_text(json.dumps([self.notes, self.saved]))


last = Pooling(
    lambda hidden, mask: hidden[torch.arange(len(hidden)), -1 - (1 - mask).sum(1)], "lasttoken", "its last token"
)


@dataclass(frozen=True)
class Mood(Classify):
    kind = "mood"
    stored = (*Classify.stored, "cut")
    cut: float = 0.5

    @classmethod
    def learned_from(cls, *arguments):
        return replace(super().learned_from(*arguments), cut=0.25)


class Some(unmask.Settings):
    replaced_per: ClassVar = "token"
    kind: Literal["some"] = "some"
    words: PositiveInt = 2

    def starts(self, rows, tables):
        return rows.word_starts_T
"""
POINTS = """
[unmask.readers]
loud = others:read_loud
[unmask.callbacks]
noting = others:Noting
lost = others:NotThere
[unmask.poolings]
last = others:last
[unmask.tasks]
mood = others:Mood
lost = others:NotThere
[unmask.strategies]
some = others:Some
lost = others:NotThere
"""


@pytest.fixture(autouse=True)
def package(install: Install) -> None:
    install("others", MODULE, POINTS)


def test_a_reader_and_a_callback(tmp_path: Path) -> None:
    """Several workers use the reader, also for a folder; the callback sees the last evaluation, too, adds figures of
    its own, and requests a checkpoint."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for seed, name in enumerate(("a.loud", "b.loud")):
        (folder / name).write_text(make_text(60, seed=seed).replace("\n\n", "\n"))
    prepared = unmask.prepare(folder, out=tmp_path / "data", workers=2, vocab_size=120)
    assert prepared.documents > 100
    options = ["training.batch_tokens=512", "evaluation.times=1", "evaluation.trackers=['noting']", *SMALL]
    run = unmask.pretrain(tmp_path / "data", out=tmp_path / "run", steps=2, settings=options)
    saved = ["step-00000001", "step-00000002"]
    assert json.loads((run.folder / "noted.json").read_text()) == [[2, 0, 1, 2, 2], saved]


def test_what_cannot_be_imported_is_named_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'lost' \(package others, others:NotThere"):
        unmask.pretrain(out=tmp_path / "run", settings={"evaluation.trackers": ["lost"]})
    with pytest.raises(SettingsError, match=r"evaluation\.trackers\.0 = 'notin'.*'noting'"):
        unmask.pretrain(out=tmp_path / "run", settings={"evaluation.trackers": ["notin"]})
    assert not (tmp_path / "run").exists()


class Word(unmask.Settings):
    kind: Literal["word"] = "word"

    def starts(self, rows: Any, tables: Any) -> Any:
        return rows.word_starts_T


class SameKind(Word):
    kind: Literal["words"] = "words"  # type: ignore[assignment]


class Unstorable(Word):
    most: int | None = 4
    file: Path | None = None


class Open(Word):
    number: int


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (3, "strategy"),
        (Word, "strategy"),
        (SameKind(), "'words'"),
        (Unstorable(most=None), "most"),
        (Unstorable(file=Path("a.txt")), "file"),
        (Open(number=1), "number"),
    ],
)
def test_a_strategy_that_no_recipe_can_hold(strategy: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=says):
        unmask.pretrain(out=tmp_path / "run", strategy=strategy)
    assert not (tmp_path / "run").exists()


def test_a_pooling_and_a_task(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = save_encoder(make_model, tokenizer, tmp_path / "encoder")
    (tmp_path / "texts.txt").write_text("The king.\nA queen at sea!\n")
    code, _, err = main("embed", "encoder", "texts.txt", "--pooling", "last", "--out", "vectors.npy")
    assert code == 0, err
    vectors = unmask.load(encoder).embed(["The king.", "A queen at sea!"], pooling="last")
    np.testing.assert_allclose(np.load("vectors.npy"), vectors, atol=1e-5)
    code, _, err = main("search", "index", "encoder", "texts.txt", "--out", "index", "--pooling", "lst")
    assert code == 2
    assert "'last'" in err

    files = {
        "train": write_classes(tmp_path / "train.jsonl", 40, 0),
        "validation": write_classes(tmp_path / "dev.jsonl", 20, 1),
    }
    settings = (*FAST, "finetune.epochs=1")
    tuned = unmask.finetune(encoder, task="mood", **files, out=tmp_path / "tuned", settings=settings)
    task: Any = unmask.load(tuned.folder / "model").task
    assert (type(task).__name__, task.cut) == ("Mood", 0.25)
    masked = unmask.masks("The king.", tokenizer=encoder)
    assert "others:NotThere" in masked.left_out["lost"], "a plug-in that cannot be imported stops nothing else"
    assert "some" in {each["name"] for each in masked.strategies}


def test_a_pooling_has_a_name_in_sentence_transformers() -> None:
    """Otherwise the files beside a model would state none, which is read as the mean."""
    with pytest.raises(SettingsError, match="'trimmed_mean'.*weightedmean"):
        Pooling(lambda hidden, mask: hidden[:, 0], "trimmed_mean", "")
