"""The tasks that are made of text without labels, and the table of a model's starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import starts

PAGES = f"""Queue Class
Represents a queue of things that wait for something.
Short.
{"x" * 301}

Compiler Error C9999
A longer line, which says what is wrong with it.
A line with room, which says what is wrong here.

About classes
This page has no kind, so that it is left out of it.

Linker Tools Warning LNK1
Represents a queue of things that wait for something.

How to: Do it

Compiler Warning C1
A tab	would be a column of its own in the file of it.
Nothing is as it seems to be, which is only a warning.
"""


def test_lines_of_pages_have_the_kind_of_the_title() -> None:
    made = [(page.partition("\n")[0], kind, line) for page, kind, line in starts.examples(PAGES.split("\n\n"))]
    assert made == [
        ("Queue Class", "class", "Represents a queue of things that wait for something."),
        ("Compiler Error C9999", "error", "A longer line, which says what is wrong with it."),
        ("Compiler Warning C1", "warning", "Nothing is as it seems to be, which is only a warning."),
    ], "the first of the longest; none twice, none without a line or a kind"


def test_pages_are_shared_out_by_their_titles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = Counter(starts.part_of(f"C{number} Class") for number in range(4000))
    for part, share in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert abs(parts[part] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5
    title = next(title for title in (f"C{number} Class" for number in range(99)) if starts.part_of(title) == "test")
    (tmp_path / "docs.txt").write_text(f"{title}\n{'y' * 50}\n\n{PAGES}")
    starts.write_kinds(tmp_path / "docs.txt", tmp_path / "kinds")
    files = {part: (tmp_path / "kinds" / f"{part}.tsv").read_text().splitlines() for part in ("train", "dev", "test")}
    assert {lines[0] for lines in files.values()} == {"text\tlabel"}
    rows = {(line, part) for part, lines in files.items() for line in lines[1:]}
    pages = PAGES.strip().split("\n\n")
    assert rows == {
        *((f"{line}\t{kind}", starts.part_of(page)) for page, kind, line in starts.examples(pages)),
        (f"{'y' * 50}\tclass", "test"),
    }
    text = (tmp_path / "kinds" / "text.txt").read_text().strip().split("\n\n")
    measured = [page for page, *_ in starts.examples(pages) if starts.part_of(page) != "train"]
    assert text == [page for page in pages if page not in measured], "what is measured is not pretrained on"
    assert capsys.readouterr().out.count("lines") == 3


def test_paragraphs_have_the_number_of_their_work(tmp_path: Path) -> None:
    both = "A paragraph of both works, which tells nothing of either."
    books = [
        [f"Here is paragraph {number} of the {which} of three works." for number in range(120)]
        for which in ("first", "third")
    ]
    few = [line.replace("first", "second") for line in books[0][:99]]
    (tmp_path / "books.txt").write_text("\n\n".join("\n".join([*book, both]) for book in (books[0], few, books[1])))
    starts.write_works(tmp_path / "books.txt", tmp_path / "works")
    rows = {
        part: [line.split("\t") for line in (tmp_path / "works" / f"{part}.tsv").read_text().splitlines()[1:]]
        for part in starts.EACH
    }
    for part, count in starts.EACH.items():
        assert Counter(label for _, label in rows[part]) == {"work 1": count, "work 3": count}, "the second has too few"
    assert all(line in books[label == "work 3"] for part in rows.values() for line, label in part)
    assert len({line for part in rows.values() for line, _ in part}) == 2 * sum(starts.EACH.values())
    text = set((tmp_path / "works" / "text.txt").read_text().splitlines())
    assert text == {both, "", *few, *books[0], *books[1]} - {line for part in ("dev", "test") for line, _ in rows[part]}


def test_the_table_by_hand() -> None:
    """Of two values 10 and 20, Student's t has 12.706 x 7.071 / 2^0.5 = 63.5 on each side."""
    costs = {"pretraining_minutes": 2.04, "finetuning_minutes": 0.5, "num_parameters": 1234.0}
    result = {
        "recipes": {"scratch": {"values": [0.1, 0.2]}, "as-is": {"values": [0.05]}},
        "costs": {"scratch": costs, "as-is": costs | {"pretraining_minutes": None}},
        "verdict": "no difference shown",
    }
    assert starts.table({"kinds": result})[2:] == [
        "| kinds | scratch | 15.0 ± 63.5 | 2.0 | 0.5 | 1,234 |",
        "| kinds | as-is | 5.0 | - | 0.5 | 1,234 |",
        "",
        "- kinds: no difference shown.",
    ]
