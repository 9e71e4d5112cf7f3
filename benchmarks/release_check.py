"""Every strategy by name: audited with every kind of tokenizer, and trained on real text. Long; `make release-check`.

Exit code 1 if a promise of masking is broken, or a model does not get below the entropy of token frequencies.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from unmask.masking.settings import STRATEGIES

KINDS = ("wordpiece", "bpe", "unigram", "char")


def unmask(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Runs a command; returns its exit code and its JSON."""
    command = [sys.executable, "-m", "unmask", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def main() -> None:
    """Audits and trains, and prints a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="some megabytes of text")
    parser.add_argument("--out", type=Path, default=Path("runs/release"))
    parser.add_argument("--minutes", type=float, default=2.0, help="of training, for each strategy")
    parser.add_argument("--annotate", help="annotations to make, such as entities,pos,dependencies,chunks")
    options = parser.parse_args()
    failed = []
    annotate = ("--annotate", options.annotate) if options.annotate else ()

    print("| strategy | " + " | ".join(KINDS) + " |\n| --- |" + " --- |" * len(KINDS))
    cells: dict[str, list[str]] = {name: [] for name in STRATEGIES}
    for kind in KINDS:
        data = options.out / f"data-{kind}"
        code, _ = unmask("prepare", options.text, "--out", data, "--tokenizer-kind", kind, "--resume", *annotate)
        if code:
            sys.exit(f"the text could not be prepared with {kind}")
        _, result = unmask("audit", data, "--out", options.out / f"audit-{kind}.html")
        for name in STRATEGIES:
            entry = result["strategies"].get(name)
            if entry is None or entry["broken"]:
                failed.append(
                    f"audit of {name} with {kind}: {entry['broken'] if entry else result['not_audited'][name]}"
                )
            cells[name].append(
                "not audited" if entry is None else "broken" if entry["broken"] else f"{entry['rate']:.2%}"
            )
    for name, row in cells.items():
        print(f"| `{name}` | " + " | ".join(row) + " |")

    print("\n| strategy | held-out loss | under token frequencies | tokens a second |\n| --- | --- | --- | --- |")
    for name in STRATEGIES:
        run = options.out / f"run-{name}"
        code, summary = unmask(
            "pretrain", options.out / "data-wordpiece", "--out", run, "--strategy", name, "--overwrite",
            "--minutes", options.minutes,
        )  # fmt: skip
        if code:
            failed.append(f"training with {name} ended with exit code {code}")
            continue
        gain = summary["unigram_entropy"] - summary["validation_loss"]
        if gain < 0.1:
            failed.append(f"training with {name} did not leave the plateau of token frequencies")
        print(
            f"| `{name}` | {summary['validation_loss']:.3f} | {gain:.2f} | {summary['tokens_per_second']:,.0f} |",
            flush=True,
        )
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
