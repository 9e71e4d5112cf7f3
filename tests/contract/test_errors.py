"""Bad input ends in an error of its class that names what is wrong; on the command line in one line and exit code 2.

The wording may change, but the error must name the field, the file or the value that has to be changed.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.contract.conftest import SMALL, Command, process

ROW = [[2, 5, 6, 7, 3]]


@dataclass(frozen=True)
class Places:
    """Files from which the errors are made."""

    samples: Path
    data: Path
    run: Path
    tuned: Path
    broken: Path
    out: Path

    @property
    def tokenizer(self) -> Path:
        return self.data / "tokenizer"

    @property
    def model(self) -> Path:
        return self.run / "model"

    @property
    def labelled(self) -> Path:
        return self.samples / "classify.jsonl"


@pytest.fixture(scope="module")
def broken(data: Path, run: unmask.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and folders of which each has one thing wrong."""
    folder = tmp_path_factory.mktemp("broken")
    for name, text in {
        "empty.txt": "",
        "blank.txt": "\n\n \n",
        "short.txt": "Anna sees .\n",
        "cut.jsonl": '{"text": "Anna sees"}\n{"text": \n',
        "garbage.safetensors": "garbage " * 10,
        "cut.toml": "[masking\n",
        "section.toml": "[nosuchsection]\na = 1\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"Anna \xe9\xe8 sees\n" * 30)

    def damaged(name: str, source: Path, file: str, change: Callable[[bytes], bytes | None]) -> None:
        shutil.copytree(source, folder / name)
        path = folder / name / file
        content = change(path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    model = run.folder / "model"
    shard = sorted((data / "train").glob("*.arrow"))[0].relative_to(data).as_posix()
    damaged("cut_weights", model, "model.safetensors", lambda content: content[:2000])
    damaged("flipped", model, "model.safetensors", flipped_in_the_middle)
    damaged("no_config", model, "config.json", lambda _: None)
    damaged("no_tokenizer", model, "tokenizer.json", lambda _: None)
    damaged("unknown_model", model, "config.json", lambda _: b'{"model_type": "gpt9"}')
    damaged("flipped_shard", data, shard, flipped_in_the_middle)
    damaged("lost_shard", data, shard, lambda _: None)
    damaged("no_mask", data / "tokenizer", "tokenizer.json", without_mask)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / "no_mask" / name).unlink(missing_ok=True)
    return folder


def flipped_in_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


def without_mask(content: bytes) -> bytes:
    found = json.loads(content)
    found["added_tokens"] = [token for token in found["added_tokens"] if token["content"] != "[MASK]"]
    found["model"]["vocab"]["[OTHER]"] = found["model"]["vocab"].pop("[MASK]")
    return json.dumps(found).encode()


@pytest.fixture
def places(samples: Path, data: Path, run: unmask.Run, tuned: Path, broken: Path, tmp_path: Path) -> Places:
    return Places(samples, data, run.folder, tuned, broken, tmp_path / "out")


def masker(places: Places, **options: Any) -> unmask.Masker:
    return unmask.Masker.from_tokenizer(places.tokenizer, **options)


def collator(places: Places, **options: Any) -> unmask.MaskingCollator:
    return unmask.MaskingCollator(places.tokenizer, **options)


def pretrain(places: Places, *settings: str, data: Path | None = None, **options: Any) -> object:
    given = {"out": places.out, "steps": 1, **options}
    return unmask.pretrain(data or places.data, settings=[*SMALL, *settings], **given)


def prepare(places: Places, file: Path, *settings: str, **options: Any) -> object:
    return unmask.prepare([file], settings=settings, **{"out": places.out, "workers": 1, **options})


def finetune(places: Places, *settings: str, **options: Any) -> object:
    file = places.labelled
    given = {"task": "classify", "train": file, "validation": file, "out": places.out}
    return unmask.finetune(places.model, settings=settings, **{**given, **options})


# Case -> its class of error, what the error names, and how to cause it.
Case = tuple[str, str, Callable[[Places], object]]
MASKING: dict[str, Case] = {
    "a strategy": ("SettingsError", "nonsense", lambda p: masker(p, strategy="nonsense")),
    "a rate of 0": ("SettingsError", "rate", lambda p: masker(p, rate=0.0)),
    "shares that are no shares": ("SettingsError", "replacement", lambda p: masker(p, replacement=(0.8, 0.3, 0.1))),
    "a source of tokens": ("SettingsError", "random_from", lambda p: masker(p, random_from="nonsense")),
    "units": ("SettingsError", "nonsense", lambda p: masker(p, units={"kind": "nonsense"})),
    "a key of units": ("SettingsError", "widht", lambda p: masker(p, units={"kind": "span", "widht": 3})),
    "no frequencies": ("SettingsError", "frequency", lambda p: masker(p, strategy="frequency")(ROW)),
    "no lexicon": ("SettingsError", "lexicon", lambda p: masker(p, strategy="pmi")(ROW)),
    "no annotation": ("DataError", "entities", lambda p: masker(p, strategy="entity")(ROW)),
    "progress": ("SettingsError", "progress", lambda p: masker(p)(ROW, progress=2.0)),
    "an id": ("SettingsError", "999", lambda p: masker(p)([[2, 999, 3]])),
    "no tokenizer": ("TokenizerError", "nowhere", lambda p: unmask.Masker.from_tokenizer(p.broken / "nowhere")),
    "no mask token": ("TokenizerError", "no_mask", lambda p: unmask.Masker.from_tokenizer(p.broken / "no_mask")),
    "a number for a tokenizer": ("TokenizerError", "int", lambda _: unmask.Masker.from_tokenizer(5)),
    "no tables": ("DataError", "nowhere", lambda p: masker(p, strategy="pmi", tables=p.broken / "nowhere")),
    "a damaged lexicon": (
        "DataError", "garbage.safetensors",
        lambda p: masker(p, strategy="pmi", tables=p.broken / "garbage.safetensors"),
    ),
    "a lexicon of the settings": (
        "DataError", "nowhere",
        lambda p: masker(p, units={"kind": "collocations", "lexicon": str(p.broken / "nowhere")}),
    ),
    "frequencies twice": ("SettingsError", "frequencies", lambda p: masker(p, frequencies=[1], tables=p.data)),
    "no column of ids": ("DataError", "input_ids", lambda p: collator(p)([{"ids": [2, 5, 3]}])),
    "a long row": ("DataError", "pad_to_length", lambda p: collator(p, pad_to_length=3)(ROW)),
    "an epoch": ("SettingsError", "-1", lambda p: collator(p).set_epoch(-1)),
    "a rate of fixed rows": ("SettingsError", "rate", lambda p: collator(p).fixed(ROW, rate=3.0)),
    "a probability": ("SettingsError", "masking_prob", lambda _: unmask.MLM(masking_prob=1.5)),
    "masks of a strategy": ("SettingsError", "nonsense", lambda _: unmask.masks("Anna", strategy="nonsense")),
    "a recipe that is none": ("SettingsError", "recipe", lambda p: unmask.audit(p.data, recipe=5)),
}  # fmt: skip
TEXT: dict[str, Case] = {
    "no file": ("CorpusError", "nowhere.txt", lambda p: prepare(p, p.broken / "nowhere.txt")),
    "an empty file": ("CorpusError", "empty.txt", lambda p: prepare(p, p.broken / "empty.txt")),
    "nothing but lines": ("CorpusError", "blank.txt", lambda p: prepare(p, p.broken / "blank.txt")),
    "a line that is no JSON": ("CorpusError", "cut.jsonl: line 2", lambda p: prepare(p, p.broken / "cut.jsonl")),
    "another encoding": ("CorpusError", "latin.txt", lambda p: prepare(p, p.broken / "latin.txt")),
    "a column": (
        "CorpusError", "nosuch", lambda p: prepare(p, p.samples / "annotated.jsonl", "corpus.column=nosuch")
    ),
    "a key": ("SettingsError", "corpus.nosuch", lambda p: prepare(p, p.samples / "corpus.txt", "corpus.nosuch=1")),
    "a share": ("SettingsError", "corpus.holdout", lambda p: prepare(p, p.samples / "corpus.txt", "corpus.holdout=2")),
    "a kind": ("SettingsError", "nonsense", lambda p: prepare(p, p.samples / "corpus.txt", tokenizer_kind="nonsense")),
    "a vocabulary": ("SettingsError", "vocab_size", lambda p: prepare(p, p.samples / "corpus.txt", vocab_size=3)),
    "an annotation": ("SettingsError", "colours", lambda p: prepare(p, p.samples / "corpus.txt", annotate=["colours"])),
    "workers": ("SettingsError", "workers", lambda p: prepare(p, p.samples / "corpus.txt", workers=0)),
    "a part": ("SettingsError", "3/2", lambda p: prepare(p, p.samples / "corpus.txt", part="3/2")),
    "a tokenizer": (
        "TokenizerError", "no_mask", lambda p: prepare(p, p.samples / "corpus.txt", tokenizer=p.broken / "no_mask")
    ),
    "data that is there": ("DataError", "data", lambda p: prepare(p, p.samples / "lines.txt", out=p.data)),
    "a file in the way": (
        "RunError", "corpus.txt", lambda p: pretrain(p, out=p.samples / "corpus.txt")
    ),
    "no prepared data": ("DataError", "samples", lambda p: unmask.lexicon(p.samples, out=p.out)),
    "a lexicon that is there": ("RunError", "classify.jsonl", lambda p: unmask.lexicon(p.data, out=p.labelled)),
}  # fmt: skip
TRAINING: dict[str, Case] = {
    "a key": ("SettingsError", "model.num_layer", lambda p: pretrain(p, "model.num_layer=2")),
    "a section": ("SettingsError", "modle", lambda p: pretrain(p, "modle.num_layers=2")),
    "no value": ("SettingsError", "model.num_layers", lambda p: pretrain(p, "model.num_layers")),
    "a word for a number": ("SettingsError", "many", lambda p: pretrain(p, "model.num_layers=many")),
    "heads": ("SettingsError", "num_heads", lambda p: pretrain(p, "model.num_heads=7")),
    "a rate": ("SettingsError", "masking.rate", lambda p: pretrain(p, "masking.rate=1.2")),
    "steps and minutes": ("UnmaskError", "minutes", lambda p: pretrain(p, minutes=1)),
    "no minutes": ("SettingsError", "minutes", lambda p: pretrain(p, steps=None, minutes=math.nan)),
    "a recipe": ("SettingsError", "nonsense", lambda p: pretrain(p, recipe="nonsense")),
    "a recipe that is cut": ("SettingsError", "cut.toml", lambda p: pretrain(p, recipe=str(p.broken / "cut.toml"))),
    "a section of a recipe": (
        "SettingsError", "nosuchsection", lambda p: pretrain(p, recipe=p.broken / "section.toml")
    ),
    "a run that is there": ("RunError", "short", lambda p: pretrain(p, out=p.run)),
    "resume and overwrite": ("RunError", "overwrite", lambda p: pretrain(p, out=p.run, resume=True, overwrite=True)),
    "a run of another size": (
        "RunError", "model.hidden_size",
        lambda p: pretrain(p, "model.hidden_size=32", out=p.run, steps=60, strategy="whole_word", resume=True),
    ),
    "no data": ("CorpusError", "nowhere.txt", lambda p: pretrain(p, data=p.broken / "nowhere.txt")),
    "a damaged shard": ("DataError", ".arrow", lambda p: pretrain(p, data=p.broken / "flipped_shard")),
    "a lost shard": ("DataError", ".arrow", lambda p: pretrain(p, data=p.broken / "lost_shard")),
    "no annotation": (
        "SettingsError", "entities", lambda p: pretrain(p, data=p.samples / "corpus.txt", strategy="entity")
    ),
    "no model": ("ModelError", "nowhere", lambda p: pretrain(p, from_=p.broken / "nowhere")),
    "a damaged model": ("ModelError", "model.safetensors", lambda p: pretrain(p, from_=p.broken / "cut_weights")),
    "one recipe": ("SettingsError", "two", lambda p: unmask.compare("random", data=p.data, out=p.out, steps=1)),
    "a recipe to compare": (
        "SettingsError", "nonsense", lambda p: unmask.compare(["random", "nonsense"], data=p.data, out=p.out, steps=1)
    ),
}  # fmt: skip
USING: dict[str, Case] = {
    "no folder": ("ModelError", "nowhere", lambda p: unmask.load(p.broken / "nowhere")),
    "damaged weights": ("ModelError", "model.safetensors", lambda p: unmask.load(p.broken / "cut_weights")),
    "a flipped bit": ("ModelError", "model.safetensors", lambda p: unmask.load(p.broken / "flipped", strict=True)),
    "no configuration": ("ModelError", "config.json", lambda p: unmask.load(p.broken / "no_config")),
    "no tokenizer": ("TokenizerError", "no_tokenizer", lambda p: unmask.load(p.broken / "no_tokenizer")),
    "an unknown model": ("ModelError", "gpt9", lambda p: unmask.load(p.broken / "unknown_model")),
    "a precision": ("SettingsError", "float8", lambda p: unmask.load(p.model, precision="float8")),
    "no mask": ("SettingsError", "[MASK]", lambda p: unmask.fill(p.model, "Anna sees .")),
    "no candidates": ("SettingsError", "top_k", lambda p: unmask.fill(p.model, "Anna [MASK] .", top_k=0)),
    "a long text": (
        "SettingsError", "long_texts", lambda p: unmask.load(p.model).embed(["a " * 999], long_texts="error")
    ),
    "an ending": ("RunError", ".txt", lambda p: unmask.embed(p.model, p.broken / "short.txt", out=f"{p.out}.txt")),
    "a pooling": (
        "SettingsError", "pooling",
        lambda p: unmask.embed(p.model, p.broken / "short.txt", out=f"{p.out}.npy", pooling="nonsense"),
    ),
    "a rate": ("SettingsError", "2.0", lambda p: unmask.evaluate(p.model, [p.samples / "lines.txt"], rates=2.0)),
    "no text": ("CorpusError", "empty.txt", lambda p: unmask.evaluate(p.model, [p.broken / "empty.txt"])),
    "no pairs": ("CorpusError", "classify.jsonl: line 1", lambda p: unmask.score(p.model, p.labelled)),
    "a form": (
        "SettingsError", "nonsense", lambda p: unmask.score(p.model, p.samples / "minimal.jsonl", form="nonsense")
    ),
    "a task": ("SettingsError", "nonsense", lambda p: finetune(p, task="nonsense")),
    "a column of labels": ("CorpusError", "colour", lambda p: finetune(p, label="colour")),
    "a column of texts": ("CorpusError", "body", lambda p: finetune(p, text="body")),
    "a column by its number": ("CorpusError", "99", lambda p: finetune(p, label=99)),
    "labels that are no numbers": ("CorpusError", "label", lambda p: finetune(p, task="regress", label="label")),
    "a key of fine-tuning": ("SettingsError", "epoch", lambda p: finetune(p, "finetune.epoch=1")),
    "a result that is there": ("RunError", "classify", lambda p: finetune(p, out=p.tuned)),
    "no examples": ("CorpusError", "nowhere.csv", lambda p: finetune(p, train=p.broken / "nowhere.csv")),
    "a model without a task": ("ModelError", "model", lambda p: unmask.predict(p.model, p.labelled)),
    "a format": ("SettingsError", "tflite", lambda p: unmask.export(p.model, p.out, format="tflite")),
    "a graph": ("SettingsError", "nonsense", lambda p: unmask.export(p.model, p.out, task="nonsense")),
    "nothing to verify": ("ModelError", "nowhere", lambda p: unmask.verify(p.broken / "nowhere")),
    "a key of embedders": (
        "SettingsError", "batch",
        lambda p: unmask.embedder(p.model, [p.labelled], out=p.out, steps=1, settings=["embedder.batch=1"]),
    ),
    "short texts": (
        "CorpusError", "", lambda p: unmask.embedder(p.model, [p.broken / "short.txt"], out=p.out, steps=1)
    ),
    "no index": ("DataError", "nowhere", lambda p: unmask.Index(p.broken / "nowhere")),
    "no documents": (
        "CorpusError", "empty.txt", lambda p: unmask.Index.build(p.model, [p.broken / "empty.txt"], out=p.out)
    ),
    "a baseline": (
        "SettingsError", "google",
        lambda p: unmask.evaluate_search(p.model, [p.samples / "corpus.txt"], baselines=["google"]),
    ),
}  # fmt: skip
CASES = [
    pytest.param(case, id=f"{subject}: {name}")
    for subject, cases in {"masking": MASKING, "text": TEXT, "training": TRAINING, "using": USING}.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize("case", CASES)
def test_an_error_has_its_class_and_names_what_is_wrong(case: Case, places: Places) -> None:
    kind, named, make = case
    with pytest.raises(getattr(unmask, kind)) as caught:
        make(places)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not places.out.exists() or not any(places.out.rglob("*.safetensors"))


def test_every_error_is_a_value_error_of_one_family() -> None:
    names = [name for name in unmask.__all__ if name.endswith("Error")]
    assert {"CorpusError", "DataError", "DivergedError", "MemoryFullError", "ModelError", "RunError", "SettingsError",
            "TokenizerError", "UnsupportedError", "WriteError"} <= set(names)  # fmt: skip
    assert all(issubclass(getattr(unmask, name), unmask.UnmaskError) for name in names)
    assert issubclass(unmask.UnmaskError, ValueError)
    assert issubclass(unmask.WriteError, OSError)


# On the command line: the command -> what the error names.
TYPED: dict[str, tuple[str, str]] = {
    "a command": ("pretran corpus.txt", "pretran"),
    "an option": ("pretrain {data} --out {out} --stepz 3", "--stepz"),
    "no --out": ("pretrain {data} --steps 1", "--out"),
    "a word for a number": ("pretrain {data} --out {out} --steps many", "--steps"),
    "a run that is there": ("pretrain {data} --out {run} --steps 1", "--resume"),
    "a dry run of the rest": ("pretrain --out {run} --resume --dry-run", "--resume"),
    "a line": ("prepare {broken}/cut.jsonl --out {out}", "cut.jsonl: line 2"),
    "data that is there": ("prepare {samples}/corpus.txt --out {data}", "--overwrite"),
    "rates": ("evaluate {model} {samples}/lines.txt --rates 0.15,much", "much"),
    "long texts": ("embed {model} {samples}/lines.txt --out {out}.npy --long-texts error", "--long-texts"),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(name: str, command: Command, places: Places) -> None:
    line, named = TYPED[name]
    words = (word.format(**vars(places), model=places.model) for word in line.split())
    done = command(*words, "--quiet")
    assert (done.code, done.out) == (2, ""), done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert named in done.err


def test_a_mistake_in_a_process_of_its_own_is_one_line_too(places: Places, tmp_path: Path) -> None:
    done = process("-m", "unmask", "pretrain", places.broken / "nowhere.txt", "--out", places.out, cwd=tmp_path)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done.err
    assert "nowhere.txt" in done.err
    assert not places.out.exists()
