"""FASTA: a document a sequence, without its description line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unmask.corpus.reading import BadInput, LinePart
from unmask.corpus.text import read_lines


def read_fasta(path: Path, bad: BadInput) -> Iterator[LinePart]:
    """Yields sequences; a sequence of several lines comes in parts, which join without a space.

    Args:
        path: The file.
        bad: What is done about letters before the first `>`, and as for text files.

    Raises:
        CorpusError: As for text files; or there is a sequence before the first description.
    """
    inside = open_sequence = False
    for line in read_lines(path, bad):
        if line.starts and line.text.startswith(">"):
            if open_sequence:
                yield LinePart("", False, True)
            inside, open_sequence = True, False
        elif letters := "".join(line.text.split()):
            if not inside:
                bad.found("sequences without a description", f"{path}: a FASTA file begins with a line `>name`")
                continue
            yield LinePart(letters, not open_sequence, False)
            open_sequence = True
    if open_sequence:
        yield LinePart("", False, True)
