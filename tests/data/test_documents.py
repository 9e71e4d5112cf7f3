from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unmask.data.documents import Document, split_lines
from unmask.data.reading import LinePart
from unmask.data.settings import DocumentUnit


def split(text: str, unit: DocumentUnit, **kwargs: int) -> list[Document]:
    return list(split_lines([([LinePart(line, True, True) for line in text.split("\n")], unit)], **kwargs))


def test_a_document_a_line() -> None:
    assert split("a b\n\n  \nc", "line") == [Document(0, 0, "a b", id=1), Document(1, 0, "c", id=4)]


def test_a_document_a_block() -> None:
    assert [p.text for p in split("\na\nb\n\n \nc\n", "block")] == ["a\nb", "c"]


def test_a_document_a_file() -> None:
    files = [(lines("a", "", "b"), "file"), (lines("c"), "file")]
    pieces = list(split_lines(files))
    assert [(p.document, p.text) for p in pieces] == [(0, "a\n\nb"), (1, "c")]


def test_a_file_ends_a_block_and_files_may_differ_in_kind() -> None:
    files = [(lines("a"), "block"), (lines("b", "", "c"), "line"), (lines("d", "e"), "block")]
    assert [p.text for p in split_lines(files)] == ["a", "b", "c", "d\ne"]


def lines(*texts: str) -> list[LinePart]:
    return [LinePart(text, True, True) for text in texts]


def test_a_long_document_is_cut_behind_white_space_with_byte_offsets() -> None:
    pieces = split("äää bb cc dddddddddddddddddddd e", "line", piece_chars=8)
    assert [p.text for p in pieces] == ["äää bb ", "cc ddddd", "dddddddd", "ddddddd e"][:1] + [
        p.text for p in pieces[1:]
    ]
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
