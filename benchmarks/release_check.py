"""Every strategy by name: audited with every kind of tokenizer, and trained on real text.

    make release-check TEXT=novels.txt.gz
    python benchmarks/release_check.py TEXT [--minutes 2] [--megabytes 2] [--annotate COLUMNS] [--out runs/release]

It takes half an hour of training with the defaults, and the time of spaCy, which runs once for each kind of tokenizer.
The same command resumes after Ctrl-C or a kill; another `--out` starts over. Progress goes to stderr, the tables to
stdout and OUT/results.md.

The exit code is 1 if a promise of masking is broken, a strategy is left out, or a model does not get below the entropy
of token frequencies; the reasons come last.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ours import beginning
from tables import head, parser_of

import unmask
from unmask.data.annotations import PIPELINES
from unmask.data.reading import bare_suffix
from unmask.masking.settings import STRATEGIES, needed_annotations

KINDS = ("wordpiece", "bpe", "unigram", "char")
COLUMNS = "entities,pos,dependencies,chunks"
LEAST_GAIN = 0.1  # nats below the entropy of token frequencies; a model with less is still on the plateau
CUT = (".txt", ".md", ".log")


class Check:
    """Runs the steps of a check, and remembers what failed."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.failed: list[str] = []
        self.begin = time.monotonic()

    def run(self, what: str, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The result of a step; None if it failed, which is noted."""
        self.done += 1
        print(f"[{self.done}/{self.steps}] {time.monotonic() - self.begin:6.0f} s  {what}", file=sys.stderr, flush=True)
        try:
            return step(*arguments, **named)
        except Exception as error:  # the others go on
            self.failed.append(f"{what}: {error}")
            return None


def audits(check: Check, text: Path, out: Path, annotations: Mapping[str, Any]) -> list[str]:
    """Prepares and audits with every kind of tokenizer. Returns the lines of a table."""
    cells: dict[str, list[str]] = {name: [] for name in STRATEGIES}
    left_out = [name for name, pair in STRATEGIES.items() if needed_annotations(pair) and not annotations]
    for kind in KINDS:
        data, result = out / f"data-{kind}", None
        how = {"out": data, "tokenizer_kind": kind, "resume": True, **annotations}
        if check.run(f"prepare, {kind}", unmask.prepare, text, **how) is not None:
            page = out / f"audit-{kind}.html"
            result = check.run(f"audit, {kind}", unmask.audit, data, out=page, overwrite=True)
        for name, row in cells.items():
            entry = result.strategies.get(name) if result is not None else None
            row.append("not audited" if entry is None else "broken" if entry["broken"] else f"{entry['rate']:.2%}")
            if entry and entry["broken"]:
                check.failed.append(f"audit of {name} with {kind}: {'; '.join(entry['broken'])}")
            elif result is not None and entry is None and name not in left_out:
                check.failed.append(f"{name} was not audited with {kind}: {result.not_audited.get(name)}")
    rows = (f"| `{name}` | {' | '.join(row)} |" for name, row in cells.items())
    return [*head(" | ".join(["strategy", *KINDS])), *rows]


def trainings(check: Check, names: Sequence[str], out: Path, settings: Sequence[str], minutes: float) -> list[str]:
    """Trains with every strategy. Returns the lines of a table."""
    lines = head("strategy | held-out loss | under token frequencies | tokens a second")
    for name in names:
        run = check.run(
            f"train by {name}", unmask.pretrain, out / f"data-{KINDS[0]}", out=out / f"run-{name}", strategy=name,
            minutes=minutes, resume=True, settings=settings,
        )  # fmt: skip
        if run is None:
            continue
        gain = run.unigram_entropy - run.validation_loss
        if not gain >= LEAST_GAIN:
            check.failed.append(f"training by {name} is only {gain:.2f} nats below the entropy of token frequencies")
        lines.append(f"| `{name}` | {run.validation_loss:.3f} | {gain:.2f} | {run.tokens_per_second:,.0f} |")
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("text", type=Path, help="a few megabytes of text")
    parser.add_argument("--out", type=Path, default=Path("runs/release"))
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of each strategy")
    parser.add_argument("--megabytes", type=float, default=2.0, help="size of the part of a plain text to use")
    parser.add_argument("--annotate", default=COLUMNS, help="annotations to make, or none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the trainings")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    annotations: dict[str, Any] = {}
    if options.annotate != "none":
        installed = [name for name in PIPELINES if importlib.util.find_spec(name)]
        if not installed:
            sys.exit(
                f"no spaCy pipeline is installed for --annotate {options.annotate}; run `pip install 'unmask[spacy]'` "
                "and `python -m spacy download en_core_web_sm`, or leave annotations out with --annotate none"
            )
        annotations = {
            "annotate": options.annotate.split(","), "settings": [f"annotation.pipeline={installed[0]}"],
        }  # fmt: skip
    names = [name for name, pair in STRATEGIES.items() if annotations or not needed_annotations(pair)]
    check = Check(2 * len(KINDS) + len(names))
    text = options.text
    if bare_suffix(text) in CUT:
        text = beginning(text, "text", options.megabytes, options.out)
    results = audits(check, text, options.out, annotations)
    print("\n".join(results), flush=True)
    lines = trainings(check, names, options.out, options.set, options.minutes)
    print("\n" + "\n".join(lines), flush=True)
    (options.out / "results.md").write_text("\n".join([*results, "", *lines]) + "\n", encoding="utf-8")
    if check.failed:
        sys.exit("\n".join(check.failed))


if __name__ == "__main__":
    main()
