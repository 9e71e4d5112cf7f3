"""The tasks that are made of text without labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import starts

PAGES = f"""Queue Class
Represents a queue of things that wait for something.
Short.
{"x" * 301}

Compiler Error C9971
A longer line, which says what is wrong with it.
A line with room, which says what is wrong here.

About classes
This page has no kind, so that it is left out of it.

Linker Tools Warning LNK1
Represents a queue of things that wait for something.

How to: Do it

Compiler Warning C5
A tab	would be a column of its own in the file of it.
Nothing is as it seems to be, which is only a warning.
"""


def test_lines_of_pages_have_the_kind_of_the_title(tmp_path: Path) -> None:
    """The first of the longest; none twice, none without a line or a kind. What is measured is not pretrained on."""
    (tmp_path / "docs.txt").write_text(PAGES)
    starts.write_kinds(tmp_path / "docs.txt", tmp_path / "kinds")
    made = {
        "Queue Class": "Represents a queue of things that wait for something.\tclass",
        "Compiler Error C9971": "A longer line, which says what is wrong with it.\terror",
        "Compiler Warning C5": "Nothing is as it seems to be, which is only a warning.\twarning",
    }
    parts = {title: starts.part_of(title) for title in made}
    assert list(parts.values()) == ["train", "dev", "test"], "the guard of this test"
    for part in ("train", "dev", "test"):
        lines = (tmp_path / "kinds" / f"{part}.tsv").read_text().splitlines()
        assert lines == ["text\tlabel", *(line for title, line in made.items() if parts[title] == part)]
    text = (tmp_path / "kinds" / "text.txt").read_text().strip().split("\n\n")
    pages = PAGES.strip().split("\n\n")
    assert text == [page for page in pages if parts.get(page.partition("\n")[0], "train") == "train"]


def test_pages_are_shared_out_by_their_titles() -> None:
    parts = Counter(starts.part_of(f"C{number} Class") for number in range(4000))
    for part, share in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert abs(parts[part] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


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
