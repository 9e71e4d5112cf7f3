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
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom."
TASKS = {"classify": "tsv", "regress": "jsonl", "pairs": "jsonl", "tag": "conll", "answer": "json"}  # their files
MASKS = """
import hashlib, json, sys
import torch
import unmask
rows = [list(range(5 + n, 105 + n)) for n in range(200)]
masks = {}
for strategy in ("random", "whole_word", "span"):
    for epoch in (0, 3):
        masker = unmask.Masker.from_tokenizer(sys.argv[1], strategy=strategy, rate=0.2, seed=7)
        masked = masker(rows, epoch=epoch)
        content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
        masks[f"{strategy} {epoch}"] = hashlib.sha256(content).hexdigest()
print(json.dumps(masks))
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
            results = everything(options.data.resolve(), options.package.resolve(), Path(work))
        options.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{sum(1 for _ in leaves(results)):,} values in {options.out}")
        return
    old, new = (dict(leaves(json.loads(path.read_text(encoding="utf-8")))) for path in (options.old, options.new))
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    for key in differing:
        print(f"{key}: {old.get(key, 'not there')} -> {new.get(key, 'not there')}")
    print(f"{len(old):,} values before, {len(new):,} now, {len(differing):,} differ")
    sys.exit(bool(differing))


def everything(data: Path, package: Path, work: Path) -> dict[str, Any]:
    """Runs all commands of a checkout in an empty folder; what they print and leave, by the command."""

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "2"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    def printed(*arguments: str) -> Any:
        """A command's JSON, without what is of the moment; of one that fails, its exit code and last line."""
        print("unmask", *arguments, file=sys.stderr, flush=True)
        done = python("-m", "unmask", *arguments, "--json")
        if done.returncode:
            print(f"ended with {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return {"failed": done.returncode, "error": done.stderr.splitlines()[-1:]}
        return lasting(json.loads(done.stdout))

    write_inputs(data, work)
    results: dict[str, Any] = {}
    results["prepare"] = printed("prepare", "shakespeare.txt", "--out", "data", "--vocab-size", "2000")
    results["data"] = {
        path.relative_to(work).as_posix(): sha256(path) for path in sorted((work / "data").rglob("*.arrow"))
    }
    results["tokenizer"] = sha256(work / "data" / "tokenizer" / "tokenizer.json")
    results["masker"] = json.loads(python("-c", MASKS, "data/tokenizer").stdout)
    results["lexicon"] = printed("lexicon", "data", "--out", "pmi.lexicon")
    results["masks"] = printed("masks", TEXT, "--tokenizer", "data/tokenizer", "--rate", "0.3")
    results["audit"] = printed("audit", "data", "--max-tokens", "50000")
    for name, options in TRAININGS.items():
        results[f"pretrain {name}"] = printed("pretrain", "data", "--out", name, "--steps", "60", *options, *SIZE)
        model = work / name / "model"
        if not (model / "config.json").is_file():
            results[f"run {name}"] = {"model": "not there"}
            continue
        lines = (work / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses = [json.loads(line).get("loss") for line in lines]
        results[f"run {name}"] = {
            "losses": hashlib.sha256(json.dumps(losses).encode()).hexdigest(),
            "weights": sha256(model / "model.safetensors"),
            "config": json.loads((model / "config.json").read_text(encoding="utf-8")),
            "files": sorted(path.name for path in (work / name).iterdir()),
        }

    model, text = "random/model", "What, art thou [MASK]? The [MASK] is here."
    small = ("--set", "training.batch_tokens=1024")
    printed("embed", model, "lines.txt", "--out", "vectors.npy")
    results["embed"] = sha256(work / "vectors.npy")
    questions = {
        "fill": (model, text, "--top-k", "10"),
        "fill candidates": (model, "The [MASK] is here.", "--candidates", "king,messenger"),
        "evaluate": (model, "lines.txt", "--rates", "0.15,0.3", "--pseudo-tokens", "100"),
        "score": (model, "blimp.tar.gz", "--pairs-per-paradigm", "2"),
        "export": (model, "--out", "onnx"),
        "verify": (model, "--onnx", "onnx"),
        "compare": ("random", "span", "--data", "data", "--steps", "5", "--seeds", "2", "--out", "compared", *small),
    }
    for name, arguments in questions.items():
        results[name] = printed(name.split()[0], *arguments)
    further = ("--from", model, "--extend-vocab", "20", "--steps", "10", "--out", "further", *small)
    results["further"] = printed("pretrain", "lines.txt", *further)

    for task, suffix in TASKS.items():
        name, out = f"{task}.{suffix}", f"tuned-{task}"
        files = ("--train", name, "--validation", name, "--out", out)
        results[f"finetune {task}"] = printed("finetune", "adaptive/model", "--task", task, *files, *SMALL)
        results[f"tuned {task}"] = sha256(work / out / "model" / "model.safetensors")
        results[f"config {task}"] = sha256(work / out / "model" / "config.json")
        results[f"predict {task}"] = printed("predict", out, name)
        results[f"verify {task}"] = printed("verify", f"{out}/model")

    for kind, options in {"dense": (), "sparse": ("--sparse",)}.items():
        out = f"embedder-{kind}"
        how = ("--steps", "10", "--out", out, "--set", "embedder.batch_size=32", *options)
        results[f"embedder {kind}"] = printed("embedder", "random/model", "lines.txt", *how)
        results[f"embedder {kind} weights"] = sha256(work / out / "model" / "model.safetensors")
        results[f"index {kind}"] = printed("search", "index", f"{out}/model", "lines.txt", "--out", f"index-{kind}")
        results[f"query {kind}"] = printed("search", "query", f"index-{kind}", "the old house by the sea")
    against = ("--against", "embedder-sparse/model", "--all", "--queries", "100", "--max-documents", "500")
    results["evaluate-search"] = printed("evaluate-search", "embedder-dense/model", "shakespeare.txt", *against)
    return results


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
