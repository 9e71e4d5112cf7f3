"""Detecting the layout of CSV and TSV: delimiter, quotes, header, text column; settings that override it; encodings."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.data.corpora import corpus_of, left_of, texts_of
from unmask.core.errors import CorpusError, SettingsError
from unmask.core.files import say_once
from unmask.core.settings import validated
from unmask.data.documents import Documents
from unmask.data.reading import BROKEN_LINES, wide_encoding
from unmask.data.settings import CorpusSettings
from unmask.data.sources import find_sources

SEA = [f"The sea is wide on day {n}, and nobody has seen its end." for n in range(8)]


def rows(pattern: str, count: int = 8) -> str:
    return "".join(pattern.format(n=n, text=SEA[n].replace(",", ""), comma=f'"{SEA[n]}"') + "\n" for n in range(count))


def layout(path: Path, content: str) -> tuple[str, bool, str | tuple[str, ...] | None]:
    """Delimiter, whether there is a header, and the column of the text."""
    path.write_text(content, encoding="utf-8")
    (source,) = Documents(path).sources
    return source.layout.delimiter, source.layout.has_header, source.column


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # Delimiters
        ("id;text\n" + rows("{n};{text}"), (";", True, "text")),
        ("Nr|Inhalt\n" + rows("{n}|{text}"), ("|", True, "Inhalt")),
        ("id\ttext\n" + rows("{n}\t{text}"), ("\t", True, "text")),
        (rows("{n}\x01{text}\x01en"), ("\x01", False, "1")),
        (rows("{n},5;1,{n};{text}"), (";", False, "2")),  # decimal commas
        ("text\n" + rows("{text}; so it is"), (",", True, "text")),  # a semicolon of the text
        ("nr;text;\n" + rows("{n};{text}"), (";", True, "text")),
        ("case,note\n" + rows("{n},{text},"), (",", True, "note")),
        # A header, over numbers, dates, codes, long texts, classes, and in another alphabet
        ("nr,wann,was\n" + rows("{n},2024-01-0{n},{comma}"), (",", True, "was")),
        ("Case #,Wind\n" + rows("Case: {n},sea"), (",", True, "Wind")),
        ("word,sentiment\nhappy,good\nglad,good\nsad,bad\nfine,good\n", (",", True, "word")),  # no sentences
        (",0,1\n" + rows("{n},{text},0"), (",", True, "0")),
        ("سوال,جواب\nکہاں؟,یہاں۔\nکون؟,میرا۔\n", (",", True, "جواب")),
        ("标题,正文\n" + rows("新闻{n},这是第{n}条新闻的正文内容比较长"), (",", True, "正文")),
        ("text,label\n" + rows("{n},{text},good"), (",", True, "text")),  # as R writes names of rows
        # None
        (rows("{n},{text}"), (",", False, "1")),
        ("".join(f"{('text', 'label')[n % 2]},{SEA[n][:20]}\n" for n in range(8)), (",", False, "1")),
        ("post,A text that goes on for a while.\n", (",", False, "1")),
        ("MKVLAT\nAAKLMK\nMKAALA\n", (",", False, "0")),
        # The text is the long column, not a class, an address or a code
        ("url,snippet\n" + rows("https://example.org/a/long/path/to/the/wide/and/endless/sea/{n}.html,{text}"),
         (",", True, "snippet")),
        ("kind,name\n" + rows("a class with a long long name,Sea {n}", 8) * 3, (",", True, "name")),
        ("path,message\n" + "".join(f"/api/users/{n}/items,request done\n" for n in range(30)), (",", True, "message")),
    ],
)  # fmt: skip
def test_layouts(tmp_path: Path, content: str, expected: tuple[str, bool, str]) -> None:
    assert layout(tmp_path / "a.csv", content) == expected
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content.encode()))
    assert texts_of(tmp_path / "a.csv.gz") == texts_of(tmp_path / "a.csv")


def test_settings_overrule_what_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.csv"
    path.write_text("post,The old sea.\npost,The wide sea.\n")
    assert texts_of(path) == ["The old sea.", "The wide sea."]
    assert "corpus.header" in caplog.text, "a guess names the settings"
    caplog.clear()
    assert texts_of(path, header=True, delimiter=",", column=1) == ["The wide sea."]
    assert caplog.messages == []
    assert texts_of(path, delimiter="tab") == ["post,The old sea.", "post,The wide sea."]
    for name, value in (("delimiter", ";;"), ("encoding", "latin-99"), ("encoding", "base64"), ("header", "maybe")):
        with pytest.raises(SettingsError, match=name):
            validated(CorpusSettings, {name: value}, where="corpus")


def test_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,1,note\nx,The sea.,a\ny,The land.,b\n")
    assert texts_of(tmp_path / "a.csv", column=2, header=True) == ["a", "b"]
    assert texts_of(tmp_path / "a.csv", column="1", header=True) == ["The sea.", "The land."]
    assert texts_of(tmp_path / "a.csv", column=[0, 2], header=True) == ["x\n\na", "y\n\nb"]
    corpus = corpus_of(tmp_path / "a.csv", column="1", label=0, header=True)
    assert [(piece.text, piece.label) for piece in corpus.unsplit()] == [("The sea.", "x"), ("The land.", "y")]
    with pytest.raises(CorpusError, match="'3'"):
        texts_of(tmp_path / "a.csv", column=3, header=True)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", "id,text\n1,One.\n2,Two.\nid,text\n3,Three.\n", ["One.", "Two.", "Three."]),  # a header comes again
        ("a.csv", '"text","kind"\n"row 1","One.","x"\n"row 2","Two.","x"\n', ["One.", "Two."]),  # names of rows, by R
        ("a.csv", '"SEP=;"\nid;text\n1;One, two.\n', ["One, two."]),
        # Quotes that enclose cells, and quotes that are letters
        ("a.tsv", 'text\tn\n"One\ttab"\t1\nNo quotes\t2\n', ["One\ttab", "No quotes"]),
        ("a.tsv", 'text\tn\n"One"\t1\n"Two"\t2\n', ["One", "Two"]),
        ("a.tsv", 'text\tn\n"All"\t1\nNone\t2\n"Open\t3\n"So" he\t4\n', ['"All"', "None", '"Open', '"So" he']),
        ("a.tsv", 'text\tn\n"All"\t1\nSo "he" said\t2\nNone\t3\n', ['"All"', 'So "he" said', "None"]),
        ("a.tsv", '"Open\t1\n"Wide\t2\n', ['"Open', '"Wide']),
        # Spaces before quotes, and spaces that belong to the text
        ("a.csv", 'id, text\n1, "Hello, world"\n2, "Fine, ""now"""\n', ["Hello, world", 'Fine, "now"']),
        ("a.csv", 'id,text\n1,"He said, ""no, ""\nand, ""so"", went"\n2,  indented\n3, "so" he said\n',
         ['He said, "no, "\nand, "so", went', "  indented", ' "so" he said']),
    ],
)  # fmt: skip
def test_cells(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    (tmp_path / name).write_text(content)
    assert texts_of(tmp_path / name) == texts


def test_a_header_that_lacks_the_last_name_is_refused(tmp_path: Path) -> None:
    """Quoted cells first in each line are names of rows only below a quoted header: else texts would become labels."""
    lines = "".join(f'"The sea is {word}, and wide.",pos,0.5\n' for word in ("blue", "grey"))
    (tmp_path / "a.csv").write_text(f"text,label\n{lines}")
    with pytest.raises(CorpusError, match="line 2 has 3 cells"):
        texts_of(tmp_path / "a.csv")


def test_quotes_that_are_escaped_by_backslashes_are_refused(tmp_path: Path) -> None:
    """As Spark writes them."""
    (tmp_path / "a.csv").write_text('id,text\n1,"a \\"word\\" here"\n')
    with pytest.raises(CorpusError, match=r'line 2.*\\".*""'):
        texts_of(tmp_path / "a.csv")


def test_lines_of_text_that_hold_commas_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("It rained, and blew.\nThe sea is wide.\nNobody came.\n")
    with pytest.raises(CorpusError, match="line 1 has 2 cells"):
        Documents(path)
    as_text = path.rename(tmp_path / "a.txt")
    assert next(iter(Documents(as_text))).text == "It rained, and blew."


WORDS = "Ma chère, l'été est déjà là, où êtes-vous ?\nVenez à l'hôtel, près de la forêt.\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz"])
def test_wide_encodings_are_read(tmp_path: Path, encoding: str, name: str) -> None:
    text = {"a.csv": f'n,text\r\n1,"{WORDS.rstrip()}"\r\n'}.get(name, WORDS)
    text = "".join(f'{{"text": "{line}"}}\n' for line in WORDS.splitlines()) if name == "a.jsonl" else text
    content = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert "\n".join(texts_of(tmp_path / name)) == WORDS.rstrip()
    if encoding in ("utf-16", "utf-32"):  # with a byte-order mark
        assert "\n".join(texts_of(tmp_path / name, encoding="cp1252")) == WORDS.rstrip()


def test_wide_encodings_by_their_look() -> None:
    texts = ("hi\n", "Это простой текст.\n" * 9, "สวัสดี ครับ\nขอบคุณ\n" * 9, "这是一个句子。\n" * 30)
    hidden = (
        "\u3000今日は\u3000天気。\n",
        "می\u200cخواهم این را\n" * 9,
        "für\u00a0alle Welt\n",
        "Do\u00adnau fließt\n",
        ("很长的句子，没有换行。" * 30 + "\n") * 6,
    )
    for text in (*texts, *hidden):
        for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
            assert wide_encoding(text.encode(encoding)) == encoding
    names = b"one\0other\0name\0" * 99  # pairs of letters are Chinese characters in UTF-16
    for content in ("Это.".encode(), b"text\0binary", b"a \0b \0c \0", bytes(range(256)) * 8, b"\0" * 100, names, b""):
        assert wide_encoding(content) is None


def test_japanese_in_seven_bits(tmp_path: Path) -> None:
    """Its bytes are ASCII, so it would be read as UTF-8."""
    (tmp_path / "a.txt").write_bytes("From: a\n日本語です。\n海\n".encode("iso2022_jp"))
    assert texts_of(tmp_path / "a.txt") == ["From: a", "日本語です。", "海"]
    # A sign of Windows, here in a line between others, is in no table of ISO-2022-JP.
    (tmp_path / "b.txt").write_bytes(
        "日本\n".encode("iso2022_jp") + b"\x1b$B-!\x1b(B bad\n" + "海\n山\n".encode("iso2022_jp")
    )
    with pytest.raises(CorpusError, match="byte 14 "):
        texts_of(tmp_path / "b.txt")
    assert left_of(tmp_path / "b.txt") == (["日本", "海", "山"], {BROKEN_LINES: 1})


@pytest.mark.parametrize(
    ("encoding", "text", "named"),
    [
        ("cp1252", WORDS, "cp1252"),
        ("cp1251", "Привет, как дела? Это простой текст на русском языке.\n", "cp1251"),
        ("shift_jis", "これは日本語の文章です。今日は天気がいいですね。\n", "cp932"),
        ("gb18030", "这是一个中文句子。今天天气很好。\n", "gb18030"),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy.\n", "cp1250"),
    ],
)
def test_other_encodings_are_named_with_a_sample_and_read_where_they_are_set(
    tmp_path: Path, encoding: str, text: str, named: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" + text.encode(encoding))
    word = next(word for word in text.split() if not word.isascii())
    with pytest.raises(CorpusError, match="byte") as error:
        texts_of(path)
    assert f"--encoding {named}" in str(error.value)
    assert word in str(error.value)
    assert texts_of(path, encoding=named) == ["plain", *text.splitlines()]


def test_lines_of_utf8_and_of_another_encoding(tmp_path: Path) -> None:
    """No encoding reads both, so none is named as the way out."""
    (tmp_path / "a.log").write_bytes("kunde=Müller\n".encode() + "kunde=Jäger\n".encode("cp1252"))
    with pytest.raises(CorpusError, match="kunde=Jäger") as error:
        texts_of(tmp_path / "a.log")
    assert "--encoding" not in str(error.value)
    assert left_of(tmp_path / "a.log") == (["kunde=Müller"], {BROKEN_LINES: 1})


def test_broken_bytes_in_an_encoding_that_is_set(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\x81 bad\n\xe9t\xe9\n")
    with pytest.raises(CorpusError, match="byte 5 .*cp1252"):
        texts_of(tmp_path / "a.txt", encoding="cp1252")
    assert left_of(tmp_path / "a.txt", encoding="cp1252") == (["good", "été"], {BROKEN_LINES: 1})
    (tmp_path / "b.txt").write_bytes("One sea.\nTwo seas.\n".encode("utf-16-le") + b"x")
    assert left_of(tmp_path / "b.txt")[0] == ["One sea.", "Two seas."]


def test_molecules_with_ids(tmp_path: Path) -> None:
    """The id follows the first space, up to a tab; lines that are not SMILES, such as subtitles, stay whole."""
    content = "CCO\tZINC1\t34.5\n\nc1cc(Br)ccc1 para bromo\n[Na+].[Cl-]\nC/C=C\\C%12N#C zinc_9 \n"
    texts = [("CCO", "ZINC1"), ("c1cc(Br)ccc1", "para bromo"), ("[Na+].[Cl-]", 4), ("C/C=C\\C%12N#C", "zinc_9")]
    (tmp_path / "a.smi").write_text(content)
    assert [(each.text, each.id) for each in Documents(tmp_path / "a.smi")] == texts
    (tmp_path / "a.smi.gz").write_bytes(gzip.compress(f"smiles zinc_id\n{content}".encode()))
    assert [each.text for each in Documents(tmp_path / "a.smi.gz")] == [text for text, _ in texts]
    (tmp_path / "c.smi").write_text("SMILES\nCCO\nCCN\n")
    assert [each.text for each in Documents(tmp_path / "c.smi")] == ["CCO", "CCN"], "as a column that pandas writes"
    (tmp_path / "b.smi").write_text("<SAMI> one\n<P> CCO said she\n")
    assert [each.text for each in Documents(tmp_path / "b.smi")] == ["<SAMI> one", "<P> CCO said she"]


def test_plain_text_of_other_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.py", "b.smi", "c.notes", "README"):
        (tmp_path / name).write_text("One sea.\nTwo seas.\n")
        assert texts_of(tmp_path / name) == ["One sea.", "Two seas."]
    assert {source.path.name for source in corpus_of(tmp_path).sources} == {"a.py", "b.smi"}
    for rows_of_table, names in (("x", {"a.py", "b.smi", "u.csv"}), ("x" * 99, {"u.csv"})):
        (tmp_path / "u.csv").write_text(f"text\n{rows_of_table}\n")
        assert {source.path.name for source in find_sources([tmp_path])} == names, "a folder of text, or of a table"
    say_once.cache_clear()
    (tmp_path / "d.log").write_text('{"text": "One sea."}\n')
    assert texts_of(tmp_path / "d.log") == ['{"text": "One sea."}']
    assert "d.log: " in caplog.text
    assert ".jsonl" in caplog.text
    (tmp_path / "f.txt").write_text("1\tOne sea.\n" * 5)
    assert texts_of(tmp_path / "f.txt") == ["1\tOne sea."] * 5
    assert ".tsv" in caplog.text
    for content in (b"PK\x03\x04\0\0", b"\x01\x02\xff\xfe", b""):
        (tmp_path / "e.bin").write_bytes(content)
        with pytest.raises(CorpusError, match=r"e\.bin: "):
            texts_of(tmp_path / "e.bin")
