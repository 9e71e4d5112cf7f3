r"""Should I pretrain at all? Makes tasks from unlabelled text, and the table that compares a model's starts.

    python benchmarks/starts.py kinds cpp_docs_prose.txt.gz --out kinds
    python benchmarks/starts.py works hungarian.txt.gz --out works
    python benchmarks/starts.py table docs=runs/starts-docs hungarian=runs/starts-hungarian \
        --table docs/explanation/results.md

`kinds` makes a task from Microsoft's documentation of C++, which is unlabelled: is a page about a class, an error, a
warning, or how to do something? The title gives the class. The input is a line of the page without the title: the
longest of 40 to 300 letters. A hash of its title assigns a page to a split. `text.txt` is the text to pretrain on: the
documentation without the pages of validation and test, whose titles give the class away.

`works` makes a task from books, separated by empty lines: which book is a paragraph of 40 to 160 letters from? Each
book gives equally many paragraphs; books with too few are left out. `text.txt` is all books without the paragraphs of
validation and test.

`table` writes the results of `unmask compare --from` in folders (docs/explanation/results.md has the commands): a row
for each start, with the task's error over seeds and the start's cost. Run it on the machine of the comparisons, on the
day that they end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tables import parser_of, with_half, write_table

from unmask.data.reading import open_bytes

KINDS = {
    "class": r" Class$",
    "error": r"^(Compiler|Fatal|Linker Tools|ML Nonfatal|NMAKE Fatal) Error",
    "warning": r"^(Compiler|Linker Tools) Warning",
    "how to": r"^How to:",
}
LETTERS, SHORT = range(40, 301), range(40, 161)
EACH = {"train": 40, "dev": 20, "test": 40}  # paragraphs of each work, by split


def examples(pages: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yields pages that have a kind and a line, with both; a line of several pages counts for the first."""
    seen = set()
    for page in pages:
        title, *lines = page.split("\n")
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, title)), None)
        line = max((line for line in lines if len(line) in LETTERS and "\t" not in line), key=len, default=None)
        if kind is not None and line is not None and line not in seen:
            seen.add(line)
            yield page, kind, line


def part_of(page: str) -> str:
    """The split of a page, by its title: seven of ten are for training, one for validation, two for test."""
    share = int.from_bytes(hashlib.sha256(page.partition("\n")[0].encode()).digest()[:4]) / 2**32
    return "train" if share < 0.7 else "dev" if share < 0.8 else "test"


def documents_of(text: Path) -> list[str]:
    with open_bytes(text) as file:
        return [document.strip() for document in re.split(r"\n\s*\n", file.read().decode())]


def write_kinds(text: Path, out: Path) -> None:
    pages = documents_of(text)
    rows: dict[str, list[tuple[str, str]]] = {part: [] for part in EACH}
    measured = set()
    for page, kind, line in examples(pages):
        rows[part_of(page)].append((line, kind))
        if part_of(page) != "train":
            measured.add(page)
    write(out, rows, [page for page in pages if page not in measured])


def write_works(text: Path, out: Path) -> None:
    works = documents_of(text)
    rows: dict[str, list[tuple[str, str]]] = {part: [] for part in EACH}
    times = Counter(line for work in works for line in work.split("\n"))
    for number, work in enumerate(works, 1):
        lines = [line for line in work.split("\n") if len(line) in SHORT and "\t" not in line and times[line] == 1]
        shuffled = iter(sorted(lines, key=lambda line: hashlib.sha256(line.encode()).digest()))
        if len(lines) >= sum(EACH.values()):
            for part, count in EACH.items():
                rows[part] += [(line, f"work {number}") for line in islice(shuffled, count)]
    measured = {line for part in ("dev", "test") for line, _ in rows[part]}
    write(out, rows, ["\n".join(line for line in work.split("\n") if line not in measured) for work in works])


def write(out: Path, rows: dict[str, list[tuple[str, str]]], documents: Iterable[str]) -> None:
    """Writes the splits of a task, and the text to pretrain on."""
    out.mkdir(parents=True, exist_ok=True)
    for part, lines in rows.items():
        text = "".join(f"{line}\t{label}\n" for line, label in lines)
        (out / f"{part}.tsv").write_text("text\tlabel\n" + text, encoding="utf-8")
        print(f"{out / part}.tsv: {len(lines):,} lines")
    (out / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of the table, and the verdict on each task."""
    lines = [
        "| task | start | error, % (± 95 %, over seeds) | pretraining, minutes | fine-tuning, minutes | parameters |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for task, result in results.items():
        for start, estimate in result["recipes"].items():
            cost = result["costs"][start]
            before = "-" if cost["pretraining_minutes"] is None else f"{cost['pretraining_minutes']:.1f}"
            error = with_half([100.0 * value for value in estimate["values"]], ".1f")
            minutes = f"{before} | {cost['finetuning_minutes']:.1f}"
            lines.append(f"| {task} | {start} | {error} | {minutes} | {cost['num_parameters']:,.0f} |")
    return [*lines, "", *(f"- {task}: {result['verdict']}." for task, result in results.items())]


def main() -> None:
    parser = parser_of(__doc__)
    ways = parser.add_subparsers(required=True)
    for name, make in (("kinds", write_kinds), ("works", write_works)):
        task = ways.add_parser(name)
        task.add_argument("text", type=Path)
        task.add_argument("--out", type=Path, required=True)
        task.set_defaults(run=lambda options, make=make: make(options.text, options.out))
    made = ways.add_parser("table")
    made.add_argument("comparisons", nargs="+", metavar="NAME=FOLDER")
    made.add_argument("--table", type=Path, required=True, help="the page with the marks <!-- starts -->")

    def write_results(options: argparse.Namespace) -> None:
        folders = dict(each.split("=", 1) for each in options.comparisons)
        read = {name: json.loads((Path(folder) / "result.json").read_text()) for name, folder in folders.items()}
        write_table(options.table, "starts", table(read))

    made.set_defaults(run=write_results)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
