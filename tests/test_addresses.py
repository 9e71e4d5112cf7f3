"""Text that lies elsewhere, in file systems of fsspec's that are made for the test."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import unmask
from tests.command_line import Main
from unmask import addresses
from unmask.addresses import address_of, local_copies
from unmask.errors import CorpusError, WriteError
from unmask.text.given import told_apart


class Elsewhere(MemoryFileSystem):  # type: ignore[misc]
    """A server that now and then does not answer."""

    protocol = "elsewhere"
    store: dict[str, Any] = {}  # noqa: RUF012  (as its base has it)
    pseudo_dirs = [""]  # noqa: RUF012
    fetched: list[str] = []  # noqa: RUF012
    failing: dict[str, list[Exception]] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("elsewhere://", "memory://")))

    def get_file(self, rpath: str, lpath: str, **named: Any) -> None:
        if self.failing.get(rpath):
            raise self.failing[rpath].pop()
        self.fetched.append(rpath)
        super().get_file(rpath, lpath, **named)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    monkeypatch.setenv(addresses.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.0)
    Elsewhere.store.clear()
    Elsewhere.fetched.clear()
    Elsewhere.failing.clear()
    return Elsewhere(skip_instance_cache=True)


def test_what_is_an_address() -> None:
    assert address_of("s3://bucket/a.txt") == address_of(Path("s3://bucket/a.txt")) == "s3://bucket/a.txt"
    assert [address_of(name) for name in ("a.txt", "C:/a.txt", "C:\\a.txt", "-", "/a:/b", {"text": "s3://a"})] == [
        None
    ] * 6
    assert local_copies("file:///a/b.txt") == [Path("/a/b.txt")]
    (path,) = told_apart(Path("file:///a/b.txt")) or []
    assert path == Path("/a/b.txt")


def test_a_folder_is_fetched_once_and_anew_when_it_has_changed(server: Elsewhere) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n", "/corpus/more/b.txt": b"Another text.\n", "/other/c.txt": b"No.\n"})
    (folder,) = local_copies("elsewhere://corpus")
    assert folder.name == "corpus"
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        "a.txt": b"One text.\n", "more/b.txt": b"Another text.\n",
    }  # fmt: skip
    assert local_copies("elsewhere://corpus/") == [folder]
    assert len(server.fetched) == 2
    server.pipe("/corpus/a.txt", b"Another one.\n")
    (new,) = local_copies("elsewhere://corpus")
    assert (new / "a.txt").read_bytes() == b"Another one.\n"
    assert (folder / "a.txt").read_bytes() == b"One text.\n", "a run that has begun reads what it began with"
    assert [path.name for path in local_copies("elsewhere://corpus/*.txt")] == ["a.txt"]


def test_a_server_that_comes_back(server: Elsewhere, caplog: pytest.LogCaptureFixture) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    server.failing["/corpus/a.txt"] = [OSError("gone away")] * (addresses.TRIES - 1)
    assert local_copies("elsewhere://corpus/a.txt")[0].read_bytes() == b"One text.\n"
    assert "gone away; trying again" in caplog.text
    server.pipe({"/corpus/b.txt": b"Another text.\n"})
    server.failing["/corpus/b.txt"] = [OSError("gone away")] * addresses.TRIES
    with pytest.raises(CorpusError, match=r"elsewhere://corpus: /corpus/b\.txt: it was not to be had in 7 tries"):
        local_copies("elsewhere://corpus")
    server.fetched.clear()
    (folder,) = local_copies("elsewhere://corpus")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt"]
    assert server.fetched == ["/corpus/b.txt"], "what had come by then is not fetched again"


def test_what_cannot_be_fetched(server: Elsewhere) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    for address, text in (
        ("elsewhere://nothing", "FileNotFoundError|there is no file"),
        ("elsewhere://corpus/*.gz", "nothing there has such a name"),
        ("nowhere://corpus", r"cannot be read \(Protocol not known: nowhere"),
    ):
        with pytest.raises(CorpusError, match=text):
            local_copies(address)
    server.failing["/corpus/a.txt"] = [OSError(errno.ENOSPC, "No space left on device")]
    with pytest.raises(WriteError, match="No space left"):
        local_copies("elsewhere://corpus")


def test_prepare_and_pretrain_from_an_address(
    server: Elsewhere, corpus_file: Path, data_folder: Path, tmp_path: Path, main: Main
) -> None:
    server.pipe("/bucket/corpus.txt", corpus_file.read_bytes())
    code, _, errors = main("prepare", "elsewhere://bucket/corpus.txt", "--out", tmp_path / "data", "--vocab-size", 200)
    assert code == 0, errors
    shards = [path.relative_to(data_folder) for path in data_folder.rglob("*.arrow")]
    assert shards
    assert all((tmp_path / "data" / shard).read_bytes() == (data_folder / shard).read_bytes() for shard in shards)
    server.put(str(data_folder), "/bucket/prepared", recursive=True)
    small = {"model.num_layers": 1, "model.hidden_size": 32, "model.num_heads": 2, "training.batch_tokens": 512}
    run = unmask.pretrain("elsewhere://bucket/prepared", out=tmp_path / "run", steps=2, settings=small)
    assert run.steps == 2
    assert not (tmp_path / "run" / "data").exists(), "prepared data is used where it was put"
