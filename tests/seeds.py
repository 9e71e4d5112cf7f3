"""Inputs that once broke a reader: for tests, and as the seeds of `make fuzz`.

Each must end in one clear error or, if it is valid, be read.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

DEEP = "[" * 100_000 + "]" * 100_000  # nested deeper than Python goes
DIGITS = "9" * 10_000  # more than Python converts
FAR = 1 << 62  # a time that Python cannot represent
Reader = Literal["corpus", "corpus_pos", "answer", "tag", "regress", "pairs"]


@dataclass(frozen=True)
class Seed:
    """A broken file, and its reader; one that `is_right` must be read, any other must be an error."""

    reader: Reader
    name: str
    content: Callable[[], bytes]
    is_right: bool = False

    def write(self, folder: Path) -> Path:
        path = folder / self.name
        path.write_bytes(self.content())
        return path


def packed_lines(line: bytes, number: int) -> bytes:
    """One line again and again, in gzip: a thousandth of its size."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for _ in range(number // 10_000):
            file.write(line * 10_000)
    return out.getvalue()


def parquet_of(columns: Mapping[str, pa.Array]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), out)
    return out.getvalue()


def arrow_of(columns: Mapping[str, pa.Array]) -> bytes:
    """An Arrow stream, as `datasets` keeps tables."""
    out = io.BytesIO()
    table = pa.table(dict(columns))
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table, max_chunksize=4)
    return out.getvalue()


def small_table() -> dict[str, pa.Array]:
    return {
        "text": pa.array(["Anna sleeps here.", None, "Bob runs there.", "Who?", "The king.", "Sea"]),
        "label": pa.array([1, 2, None, 3, 1, 2]),
        "tags": pa.array([[1, 2], None, [], [3], [4], [5, 6]]),
        "doc": pa.array([{"a": "x", "b": n} for n in range(6)]),
        "kind": pa.array(["u", "v", "u", None, "u", "v"]).dictionary_encode(),
    }


def far_times(unit: str = "ms") -> pa.Array:
    """Times of which Python can represent only the first one."""
    return pa.array([0, FAR, -FAR], pa.int64()).cast(pa.timestamp(unit))


def twice_in_struct() -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(["a", "b", "c"]), pa.array(["d", "e", "f"])], names=["x", "x"])


TEXTS = pa.array(["The king sleeps.", "The queen runs.", "Who is there?"])
CONLLU = "1\tAnna\tAnna\tPROPN\tNNP\t_\t{head}\troot\t_\t_\n"
PAIR = b'{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."}\n'


def conllu(first: str, *more: str) -> Callable[[], bytes]:
    """A sentence whose words have these numbers."""
    lines = [CONLLU.format(head=0).replace("1\t", f"{number}\t", 1) for number in (first, *more)]
    return ("".join(lines) + "\n").encode


def squad(**changes: Any) -> Callable[[], bytes]:
    """A question in SQuAD's form with some fields of other types."""
    answer = {"text": changes.pop("text", "Bonn"), "answer_start": changes.pop("answer_start", 3)}
    paragraph = {"context": changes.pop("context", "In Bonn."), "qas": changes.pop("qas", None)}
    entry = {"question": "Where?", "id": "q", "answers": [answer], **changes}
    paragraph["qas"] = [entry] if paragraph["qas"] is None else paragraph["qas"]
    return lambda: json.dumps({"version": "1", "data": [{"title": "t", "paragraphs": [paragraph]}]}).encode()


def archive(kind: str, *, share: float) -> Callable[[], bytes]:
    """The beginning of a tar archive of pairs."""

    def make() -> bytes:
        out = io.BytesIO()
        data = b"".join(PAIR.replace(b"Cats", b"Cats %d" % (n * n)) for n in range(3000))
        with tarfile.open(fileobj=out, mode=f"w:{kind}") as tar:  # type: ignore[call-overload]
            member = tarfile.TarInfo("pairs.jsonl")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        return out.getvalue()[: int(len(out.getvalue()) * share)]

    return make


def packed_zst(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


SEEDS = [
    # Memory: a record that never ends
    Seed("corpus", "endless.conll.gz", lambda: packed_lines(b"a\tO\n", 110_000)),
    Seed("tag", "endless.conllu.gz", lambda: packed_lines(CONLLU.format(head=0).encode(), 110_000)),
    Seed("pairs", "endless.jsonl.gz", lambda: packed_lines(b"a" * 1000, 60_000)),
    Seed("pairs", "array.jsonl.gz", lambda: gzip.compress(b'["' + b"a" * (70 << 20))),
    Seed("answer", "lists.json", lambda: b'{"data": [' + b"[[],[]]," * 1000),
    Seed("tag", "line.txt", lambda: (b"word " * 500_000 + b"\n") * 3, is_right=True),
    # Values that Python cannot represent
    Seed("corpus", "deep.jsonl", f'{{"text": {DEEP}}}'.encode),
    Seed("corpus", "digits.jsonl", f'{{"text": "a", "n": {DIGITS}}}'.encode),
    Seed("answer", "deep.json", f'{{"data": {DEEP}}}'.encode),
    Seed("pairs", "deep.json", DEEP.encode),
    Seed("regress", "big.jsonl", lambda: b'{"text": "a", "label": 1' + b"0" * 400 + b"}"),
    Seed("corpus", "far.parquet", lambda: parquet_of({"text": TEXTS, "seen": far_times()}), is_right=True),
    Seed("corpus", "twice.parquet", lambda: parquet_of({"text": TEXTS, "doc": twice_in_struct()}), is_right=True),
    Seed("regress", "far.parquet", lambda: parquet_of({"text": TEXTS, "label": far_times()})),
    Seed("corpus", "cut.parquet", lambda: parquet_of(small_table())[:-20]),
    # Unexpected types
    Seed("corpus_pos", "digits.conllu", conllu(DIGITS)),
    Seed("answer", "context.json", squad(context=5)),
    Seed("answer", "begin.json", squad(answer_start="3")),
    Seed("pairs", "half.jsonl", lambda: PAIR.replace(b"}", b', "UID": "\\ud83d"}')),
    # Archives
    Seed("pairs", "whole.jsonl.zst", lambda: packed_zst(PAIR * 3), is_right=True),
    Seed("pairs", "cut.jsonl.zst", lambda: packed_zst(PAIR * 3)[:-4]),
    Seed("pairs", "cut.jsonl.xz", lambda: lzma.compress(PAIR * 3)[:-9]),
    Seed("pairs", "cut.tar.gz", archive("gz", share=0.5)),
    Seed("pairs", "cut.tar", archive("", share=0.5)),
    Seed("pairs", "pairs.zip", lambda: b"PK\3\4"),
]
