"""Text that lies elsewhere, in file systems of fsspec's that are made for the test."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from tests.elsewhere import Elsewhere
from unmask.commands import run_data
from unmask.commands.recipe import load_recipe
from unmask.commands.reporting import LogReporter
from unmask.commands.run_data import PreparedData, obtain_data, open_prepared
from unmask.core import remote as addresses
from unmask.core.errors import CorpusError, DataError, WriteError
from unmask.core.remote import address_of, lasting_source, local_copies, source_named
from unmask.data import data_folder as opening
from unmask.data import packing as order_module
from unmask.data.data_folder import load_manifest
from unmask.data.sources import told_apart


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


def data_at(server: Elsewhere, folder: Path, address: str) -> None:
    server.put(str(folder), address, recursive=True)


def test_prepared_data_is_fetched_once_wherever_it_lies(server: Elsewhere, data_folder: Path) -> None:
    """A shard when it is wanted; two addresses with the same data are one folder of the cache."""
    data_at(server, data_folder, "/bucket/a")
    data_at(server, data_folder, "/other/b")
    server.fetched.clear()
    (root,) = local_copies("elsewhere://bucket/a")
    assert sorted(path.name for path in root.iterdir() if path.name[0] != ".") == [
        "manifest.json", "origin.json", "tokenizer",
    ]  # fmt: skip
    opened = open_prepared(root)
    shards = [name for name in server.fetched if name.endswith(".arrow")]
    assert sorted(shards) == sorted(
        f"/bucket/a/{path.relative_to(data_folder)}" for path in data_folder.rglob("*.arrow")
    )
    assert opened.train.lengths.tolist() == open_prepared(data_folder).train.lengths.tolist()
    server.fetched.clear()
    assert local_copies("elsewhere://other/b") == [root]
    open_prepared(root)
    assert server.fetched == []


def test_prepared_data_that_is_damaged_or_missing_there(server: Elsewhere, data_folder: Path) -> None:
    data_at(server, data_folder, "/bucket/a")
    name = load_manifest(data_folder).train.files[0].name
    server.pipe(f"/bucket/a/{name}", b"something else")
    (root,) = local_copies("elsewhere://bucket/a")
    with pytest.raises(
        DataError, match=rf"elsewhere://bucket/a/{name}: its content does not fit the checksum in the m"
    ):
        open_prepared(root)
    server.rm(f"/bucket/a/{name}")
    with pytest.raises(CorpusError, match=rf"elsewhere://bucket/a/{name}: FileNotFoundError"):
        open_prepared(root)
    assert not list(root.rglob("*.partial"))


def test_shards_come_before_they_are_wanted(
    server: Elsewhere, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a split that is taken by blocks the next block's come while one is read."""
    data_at(server, data_folder, "/bucket/a")
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    (root,) = local_copies("elsewhere://bucket/a")
    manifest = load_manifest(root)
    split = replace(manifest.train, files=manifest.train.files + manifest.validation.files)
    server.fetched.clear()
    store = opening.open_split(root, manifest, split)
    assert [Path(name).name for name in server.fetched] == ["00000-00000.arrow"], (
        "the first says which columns there are"
    )
    store.ahead([len(split.files) - 1, 0])
    deadline = time.monotonic() + 20
    while not (root / split.files[-1].name).is_file():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.gather(np.array([0, len(store) - 1]))
    assert len(server.fetched) == 2, "nobody fetches what is there"


def test_what_the_first_step_waits_for(
    server: Elsewhere, data_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data_at(server, data_folder, "/bucket/a")
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    caplog.set_level("INFO")
    (root,) = local_copies("elsewhere://bucket/a")

    def noted() -> str:
        caplog.clear()
        monkeypatch.setattr(run_data, "open_prepared", without_shards)
        obtain_data([str(root)], root / "not used", load_recipe(), LogReporter())
        return caplog.text

    def without_shards(root: Path) -> PreparedData:
        data = open_prepared(root)
        (root / data.manifest.train.files[0].name).unlink()
        return data

    assert (
        "1 shards are fetched from elsewhere://bucket/a before the first step, since a text of this size is" in noted()
    )
    monkeypatch.setattr(order_module, "MIXED_PIECES", 1)
    assert "1 shards are fetched from elsewhere://bucket/a while the training goes on" in noted()


def test_what_a_run_began_with_is_named_alike_on_every_machine(
    server: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    (path,) = local_copies("elsewhere://corpus/a.txt")
    name = lasting_source(path)
    assert name.startswith("elsewhere://corpus/a.txt#")
    assert source_named(name) == str(path)
    assert lasting_source(tmp_path / "a.txt") == source_named(str(tmp_path / "a.txt")) == str(tmp_path / "a.txt")
    monkeypatch.setenv(addresses.CACHE, str(tmp_path / "of another machine"))
    there = Path(source_named(name))
    assert there != path
    assert (there.read_bytes(), lasting_source(there)) == (b"One text.\n", name)
    server.pipe({"/corpus/a.txt": b"Another text.\n"})
    monkeypatch.setenv(addresses.CACHE, str(tmp_path / "of a third machine"))
    with pytest.raises(
        CorpusError, match=r"elsewhere://corpus/a\.txt: what is there has changed since it was read first"
    ):
        source_named(name)
