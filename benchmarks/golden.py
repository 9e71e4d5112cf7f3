r"""What the commands leave and say, as a file to compare: a change that should change nothing is shown to.

    python benchmarks/golden.py run DATA --package OLD --out old.json     OLD: another checkout, such as a git worktree
    python benchmarks/golden.py run DATA --out new.json
    python benchmarks/golden.py compare old.json new.json

It runs every command of a checkout in a folder of its own, on small parts of DATA (`../shared/data`): preparation and
masks of the demo's text, four trainings of 60 steps (random; adaptive with sentence order; spans with boundaries;
RoBERTa's layout with texts from their vectors), every kind of question, every task, the audit, a comparison, an export,
embedders, indexes and their evaluation. Of files it keeps hashes, of `--json` all keys and values but times and places.
Runs on one machine are equal bit for bit where nothing has changed; on two kinds of processor they are not, so compare
what one machine made.

`compare` names each key that differs, and ends with exit code 1 where one does.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
# Of a machine and a moment, not of what was computed.
OF_THE_MOMENT = {
    "seconds", "tokens_per_second", "learned_per_second", "memory_bytes", "out", "model", "folder", "data", "path",
    "report", "files", "device", "texts_per_second", "minutes",
}  # fmt: skip
TRAININGS = {
    "random": ("--strategy", "random"),
    "adaptive": ("--strategy", "adaptive", "--set", "masking.refresh_steps=20", "--set", "model.layout=bert",
                 "--set", "objectives.pairs.kind=sentence_order"),
    "span": ("--strategy", "span", "--set", "objectives.span_boundary.weight=1"),
    "roberta": ("--strategy", "whole_word", "--set", "model.layout=roberta", "--set", "objectives.retromae.weight=1"),
}  # fmt: skip
SIZE = ("--set", "model.num_layers=2", "--set", "model.hidden_size=128", "--set", "model.num_heads=2", "--set",
        "training.batch_tokens=1024", "--set", "evaluation.times=2")  # fmt: skip
SMALL = ("--set", "finetune.epochs=1", "--set", "finetune.batch_size=16")
MASKS = """
import hashlib, json, sys
import torch
import unmask
rows = [list(range(5 + n, 105 + n)) for n in range(200)]
found = {}
for strategy in ("random", "whole_word", "span"):
    for epoch in (0, 3):
        masker = unmask.Masker.from_tokenizer(sys.argv[1], strategy=strategy, rate=0.2, seed=7)
        masked = masker(rows, epoch=epoch)
        content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
        found[f"{strategy} {epoch}"] = hashlib.sha256(content).hexdigest()
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("data", type=Path)
    run.add_argument("--package", type=Path, default=HERE)
    run.add_argument("--out", type=Path, required=True)
    compare = commands.add_parser("compare")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        with tempfile.TemporaryDirectory() as work:
            found = Checkout(options.package.resolve(), Path(work)).everything(options.data.resolve())
        options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{sum(1 for _ in leaves(found)):,} values in {options.out}")
        return
    old, new = (dict(leaves(json.loads(path.read_text(encoding="utf-8")))) for path in (options.old, options.new))
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    for key in differing:
        print(f"{key}: {old.get(key, 'not there')} -> {new.get(key, 'not there')}")
    print(f"{len(old):,} values before, {len(new):,} now, {len(differing):,} differ")
    sys.exit(bool(differing))


class Checkout:
    """A version of the package, and a folder to run its commands in.

    Args:
        package: A checkout.
        work: An empty folder.
    """

    def __init__(self, package: Path, work: Path) -> None:
        self.package, self.work = package, work

    def everything(self, data: Path) -> dict[str, Any]:
        """All that is kept, by the command that made it."""
        write_inputs(data, self.work)
        found: dict[str, Any] = {}
        found["prepare"] = self.said("prepare", "shakespeare.txt", "--out", "data", "--vocab-size", "2000")
        found["data"] = {
            path.relative_to(self.work).as_posix(): sha256(path)
            for path in sorted((self.work / "data").rglob("*.arrow"))
        }
        found["tokenizer"] = sha256(self.work / "data" / "tokenizer" / "tokenizer.json")
        found["masker"] = json.loads(self.python("-c", MASKS, "data/tokenizer").stdout)
        found["lexicon"] = self.said("lexicon", "data", "--out", "pmi.lexicon")
        text = "It was the best of times, it was the worst of times, it was the age of wisdom."
        found["masks"] = self.said("masks", text, "--tokenizer", "data/tokenizer", "--rate", "0.3")
        found["audit"] = self.said("audit", "data", "--max-tokens", "50000")
        for name, options in TRAININGS.items():
            found[f"pretrain {name}"] = self.said("pretrain", "data", "--out", name, "--steps", "60", *options, *SIZE)
            found[f"run {name}"] = self.run_of(name)
        found |= self.questions()
        found |= self.tasks()
        found |= self.searches()
        return found

    def questions(self) -> dict[str, Any]:
        """What is asked of a trained model."""
        model = "random/model"
        self.said("embed", model, "lines.txt", "--out", "vectors.npy")
        text = "What, art thou [MASK]? The [MASK] is here."
        return {
            "fill": self.said("fill", model, text, "--top-k", "10"),
            "fill candidates": self.said("fill", model, "The [MASK] is here.", "--candidates", "king,messenger"),
            "embed": sha256(self.work / "vectors.npy"),
            "evaluate": self.said("evaluate", model, "lines.txt", "--rates", "0.15,0.3", "--pseudo-tokens", "100"),
            "score": self.said("score", model, "blimp.tar.gz", "--pairs-per-paradigm", "2"),
            "export": self.said("export", model, "--out", "onnx"),
            "verify": self.said("verify", model, "--onnx", "onnx"),
            "further": self.said(
                "pretrain", "lines.txt", "--from", model, "--extend-vocab", "20", "--steps", "10", "--out", "further",
                "--set", "training.batch_tokens=1024",
            ),
            "compare": self.said(
                "compare", "random", "span", "--data", "data", "--steps", "5", "--seeds", "2", "--out", "compared",
                "--set", "training.batch_tokens=512",
            ),
        }  # fmt: skip

    def tasks(self) -> dict[str, Any]:
        """Fine-tuning for every task, and predictions."""
        found: dict[str, Any] = {}
        for task, suffix in (
            ("classify", "tsv"),
            ("regress", "jsonl"),
            ("pairs", "jsonl"),
            ("tag", "conll"),
            ("answer", "json"),
        ):
            name = f"{task}.{suffix}"
            found[f"finetune {task}"] = self.said(
                "finetune", "adaptive/model", "--task", task, "--train", name, "--validation", name, "--out",
                f"tuned-{task}", *SMALL,
            )  # fmt: skip
            found[f"tuned {task}"] = sha256(self.work / f"tuned-{task}" / "model" / "model.safetensors")
            found[f"config {task}"] = sha256(self.work / f"tuned-{task}" / "model" / "config.json")
            found[f"predict {task}"] = self.said("predict", f"tuned-{task}", name)
            found[f"verify {task}"] = self.said("verify", f"tuned-{task}/model")
        return found

    def searches(self) -> dict[str, Any]:
        """Embedders of both kinds, an index of each, and how well they search."""
        found: dict[str, Any] = {}
        for kind, options in (("dense", ()), ("sparse", ("--sparse",))):
            out = f"embedder-{kind}"
            found[f"embedder {kind}"] = self.said(
                "embedder", "random/model", "lines.txt", "--steps", "10", "--out", out, "--set",
                "embedder.batch_size=32", *options,
            )  # fmt: skip
            found[f"embedder {kind} weights"] = sha256(self.work / out / "model" / "model.safetensors")
            found[f"index {kind}"] = self.said("search", "index", f"{out}/model", "lines.txt", "--out", f"index-{kind}")
            found[f"query {kind}"] = self.said("search", "query", f"index-{kind}", "the old house by the sea")
        found["evaluate-search"] = self.said(
            "evaluate-search", "embedder-dense/model", "shakespeare.txt", "--against", "embedder-sparse/model", "--all",
            "--queries", "100", "--max-documents", "500",
        )  # fmt: skip
        return found

    def run_of(self, name: str) -> dict[str, Any]:
        """What a training left: its weights, and the loss of every step."""
        if not (self.work / name / "model" / "config.json").is_file():
            return {"model": "not there"}
        lines = (self.work / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses = [json.loads(line).get("loss") for line in lines]
        model = self.work / name / "model"
        return {
            "losses": hashlib.sha256(json.dumps(losses).encode()).hexdigest(),
            "weights": sha256(model / "model.safetensors"),
            "config": json.loads((model / "config.json").read_text(encoding="utf-8")),
            "files": sorted(path.name for path in (self.work / name).iterdir()),
        }

    def said(self, *arguments: str) -> Any:
        """A command's JSON, without what is of the moment; of one that fails, its exit code and last line."""
        print("unmask", *arguments, file=sys.stderr, flush=True)
        done = self.python("-m", "unmask", *arguments, "--json")
        if done.returncode:
            print(f"ended with {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return {"failed": done.returncode, "error": done.stderr.splitlines()[-1:]}
        return lasting(json.loads(done.stdout))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What Python does with this version of the package."""
        environment = os.environ | {"PYTHONPATH": str(self.package), "OMP_NUM_THREADS": "2"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.work, env=environment, capture_output=True, text=True, check=False
        )


def write_inputs(data: Path, work: Path) -> None:
    """Small files of every kind that commands read."""
    shutil.copy(data / "tinyshakespeare" / "input.txt", work / "shakespeare.txt")
    shutil.copy(data / "blimp" / "blimp.tar.gz", work / "blimp.tar.gz")
    with gzip.open(data / "novels" / "novels.valid.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line for line in itertools.islice(file, 3000) if line.strip()]
    (work / "lines.txt").write_text("".join(lines[:1500]), encoding="utf-8")
    sentences = (data / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[:400]
    (work / "classify.tsv").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    texts = [line.rsplit("\t", 1)[0] for line in sentences]
    rows = {
        "regress": [{"text": text, "score": len(text) / 10} for text in texts],
        "pairs": [
            {"sentence1": text, "sentence2": other, "label": "longer" if len(text) > len(other) else "shorter"}
            for text, other in itertools.pairwise(texts)
        ],
    }
    for name, records in rows.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")
    tagged = (data / "wnut17" / "wnut17train.conll").read_text(encoding="utf-8").split("\n\n")[:200]
    (work / "tag.conll").write_text("\n\n".join(tagged) + "\n", encoding="utf-8")
    questions = [
        {
            "context": text,
            "qas": [{"id": str(n), "question": "Who?", "answers": [{"text": word, "answer_start": text.index(word)}]}],
        }
        for n, text in enumerate(texts[:100])
        for word in text.split()[1:2]
    ]
    (work / "answer.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": questions}]}), encoding="utf-8")


def lasting(value: Any) -> Any:
    """A JSON value without what is of the moment."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in OF_THE_MOMENT}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a JSON value, with what leads to them."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{where} > {key}" if where else key)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{where}[{number}]")
    else:
        yield where, value


def sha256(path: Path) -> str:
    """Of a file; one that a command should have left and has not is not there."""
    if not path.is_file():
        return "not there"
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
