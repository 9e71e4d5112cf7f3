from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.documents import Document, split_lines
from unmask.data.reading import LinePart
from unmask.data.settings import DocumentUnit


def split(text: str, unit: DocumentUnit, **kwargs: int) -> list[Document]:
    return list(split_lines([([LinePart(line, True, True) for line in text.split("\n")], unit)], **kwargs))


@pytest.mark.parametrize(
    ("unit", "text", "documents"),
    [
        ("line", "a b\n\n  \nc", ["a b", "c"]),
        ("block", "\na\nb\n\n \nc\n", ["a\nb", "c"]),
        ("file", "a\n\nb", ["a\n\nb"]),
    ],
)
def test_documents_of_lines(unit: DocumentUnit, text: str, documents: list[str]) -> None:
    pieces = split(text, unit)
    assert [(p.document, p.text) for p in pieces] == list(enumerate(documents))
    if unit == "line":
        assert pieces[1] == Document(1, 0, "c", id=4)


def test_a_file_ends_a_document_and_files_may_differ_in_kind() -> None:
    files = [(["a"], "block"), (["b", "", "c"], "line"), (["d", "e"], "block"), (["f"], "file")]
    pieces = split_lines([([LinePart(line, True, True) for line in lines], unit) for lines, unit in files])  # type: ignore[misc]
    assert [(p.document, p.text) for p in pieces] == list(enumerate(["a", "b", "c", "d\ne", "f"]))


def test_a_long_document_is_cut_behind_white_space_with_byte_offsets() -> None:
    pieces = split("äää bb cc dddddddddddddddddddd e", "line", piece_chars=8)
    assert pieces[0] == Document(0, 0, "äää bb ", last=False, id=1)
    assert pieces[1].offset == len("äää bb ".encode())
    assert all(len(p.text) <= 8 for p in pieces)


@given(
    st.lists(st.text(alphabet="ab é\t", max_size=40), max_size=12),
    st.sampled_from(["line", "block", "file"]),
    st.integers(2, 30),
)
def test_no_character_of_a_document_is_lost(lines: list[str], unit: DocumentUnit, piece_chars: int) -> None:
    whole = split("\n".join(lines), unit)
    pieces = split("\n".join(lines), unit, piece_chars=piece_chars)
    for document in whole:
        mine = [p for p in pieces if p.document == document.document]
        assert "".join(p.text for p in mine).strip() == document.text.strip()
        offset = 0
        for piece in mine:
            assert piece.offset == offset
            assert len(piece.text) <= piece_chars
            offset += len(piece.text.encode())
    assert {p.document for p in pieces} == {p.document for p in whole}
    text = "".join("".join(lines).split())
    assert "".join("".join(p.text for p in pieces).split()) == text
