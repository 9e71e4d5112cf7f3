"""Every strategy by name: audited with every kind of tokenizer, and trained on real text.

    make release-check TEXT=novels.txt.gz
    python benchmarks/release_check.py TEXT [--minutes 2] [--megabytes 2] [--annotate COLUMNS] [--out runs/release]

It takes half an hour of training with the defaults, and the time of spaCy, which runs once for each kind of tokenizer.
The same command resumes after Ctrl-C or a kill; another `--out` starts over. Progress goes to stderr, the commands'
output to OUT/log.txt, the tables to stdout and OUT/results.md.

The exit code is 1 if a promise of masking is broken, a strategy is left out, or a model does not get below the entropy
of token frequencies; the reasons come last. It is 130 after an interruption.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ours import beginning

from unmask.data.annotations import PIPELINES
from unmask.data.reading import bare_suffix
from unmask.masking.settings import STRATEGIES, needed_annotations

KINDS = ("wordpiece", "bpe", "unigram", "char")
COLUMNS = "entities,pos,dependencies,chunks"
LEAST_GAIN = 0.1  # nats below the entropy of token frequencies; a model with less is still on the plateau
CUT = (".txt", ".md", ".log")


class Check:
    """Runs the steps of a check, one command each, and remembers what failed."""

    def __init__(self, out: Path, steps: int) -> None:
        self.out, self.steps, self.done = out, steps, 0
        self.failed: list[str] = []
        self.begin = time.monotonic()

    def run(self, what: str, *arguments: object) -> dict[str, Any] | None:
        """Runs `unmask`; returns its JSON, or notes the failure and returns None."""
        self.done += 1
        print(f"[{self.done}/{self.steps}] {time.monotonic() - self.begin:6.0f} s  {what}", file=sys.stderr, flush=True)
        code, printed = self._call([*map(str, arguments), "--json"])
        if code not in (0, 1) or not printed.strip():
            self.failed.append(f"{what} ended with exit code {code}; see {self.out / 'log.txt'}")
            return None
        return dict(json.loads(printed))

    def _call(self, words: Sequence[str]) -> tuple[int, str]:
        """Exit code and stdout. An interrupted command gets the time to save its state."""
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n$ unmask {' '.join(words)}\n")
            log.flush()
            # In its own session, or Ctrl-C in a terminal would reach it too, as a second signal, which ends it at once.
            command = [sys.executable, "-m", "unmask", *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
            try:
                printed, _ = process.communicate()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                process.communicate()
                printed = None
        if printed is None or not 0 <= process.returncode < 128:
            print("interrupted; the same command resumes", file=sys.stderr)
            sys.exit(130)
        return process.returncode, printed


def audits(check: Check, text: Path, annotate: Sequence[str]) -> list[str]:
    """Prepares and audits with every kind of tokenizer. Returns the lines of a table."""
    cells: dict[str, list[str]] = {name: [] for name in STRATEGIES}
    left_out = [name for name, pair in STRATEGIES.items() if needed_annotations(pair) and not annotate]
    for kind in KINDS:
        data = check.out / f"data-{kind}"
        result = None
        if check.run(
            f"prepare, {kind}", "prepare", text, "--out", data, "--tokenizer-kind", kind, "--resume", *annotate
        ):
            result = check.run(f"audit, {kind}", "audit", data, "--out", check.out / f"audit-{kind}.html")
        for name, row in cells.items():
            entry = result["strategies"].get(name) if result else None
            row.append("not audited" if entry is None else "broken" if entry["broken"] else f"{entry['rate']:.2%}")
            if entry and entry["broken"]:
                check.failed.append(f"audit of {name} with {kind}: {'; '.join(entry['broken'])}")
            elif result and entry is None and name not in left_out:
                check.failed.append(f"{name} was not audited with {kind}: {result['not_audited'].get(name)}")
    head = ["| strategy | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    return head + [f"| `{name}` | " + " | ".join(row) + " |" for name, row in cells.items()]


def trainings(check: Check, names: Sequence[str], settings: Sequence[str], minutes: float) -> list[str]:
    """Trains with every strategy. Returns the lines of a table."""
    lines = ["| strategy | held-out loss | under token frequencies | tokens a second |", "| --- | --- | --- | --- |"]
    for name in names:
        run = check.out / f"run-{name}"
        summary = check.run(
            f"train by {name}", "pretrain", check.out / f"data-{KINDS[0]}", "--out", run, "--strategy", name,
            "--minutes", minutes, "--resume", *settings,
        )  # fmt: skip
        if summary is None:
            continue
        loss, gain = summary["validation_loss"], summary["unigram_entropy"] - summary["validation_loss"]
        if not gain >= LEAST_GAIN:
            check.failed.append(f"training by {name} is only {gain:.2f} nats below the entropy of token frequencies")
        lines.append(f"| `{name}` | {loss:.3f} | {gain:.2f} | {summary['tokens_per_second']:,.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a few megabytes of text")
    parser.add_argument("--out", type=Path, default=Path("runs/release"))
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of each strategy")
    parser.add_argument("--megabytes", type=float, default=2.0, help="size of the part of a plain text to use")
    parser.add_argument("--annotate", default=COLUMNS, help="annotations to make, or none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the trainings")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    annotate: list[str] = []
    if options.annotate != "none":
        installed = [name for name in PIPELINES if importlib.util.find_spec(name)]
        if not installed:
            sys.exit(
                f"no spaCy pipeline is installed for --annotate {options.annotate}; run `pip install 'unmask[spacy]'` "
                "and `python -m spacy download en_core_web_sm`, or leave annotations out with --annotate none"
            )
        annotate = ["--annotate", options.annotate, "--set", f"annotation.pipeline={installed[0]}"]
    names = [name for name, pair in STRATEGIES.items() if annotate or not needed_annotations(pair)]
    check = Check(options.out, 2 * len(KINDS) + len(names))
    text = options.text
    if bare_suffix(text) in CUT:
        text = beginning(text, "text", options.megabytes, options.out)
    results = audits(check, text, annotate)
    print("\n".join(results), flush=True)
    settings = [word for setting in options.set for word in ("--set", setting)]
    lines = trainings(check, names, settings, options.minutes)
    print("\n" + "\n".join(lines), flush=True)
    (options.out / "results.md").write_text("\n".join([*results, "", *lines]) + "\n", encoding="utf-8")
    if check.failed:
        sys.exit("\n".join(check.failed))


if __name__ == "__main__":
    main()
