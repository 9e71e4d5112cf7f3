"""Inputs and outputs at addresses, in a file system of fsspec's that is made for the test."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

import unmask
from tests.command_line import PATIENCE
from tests.elsewhere import Elsewhere
from unmask.core import remote
from unmask.core.errors import CorpusError, RunError, SettingsError, WriteError
from unmask.core.files import CACHE, ClaimedFolder, cache
from unmask.core.interruption import Interrupted, Interruption
from unmask.core.remote import address_of, lasting_source, local_copies, output_at, source_named

ADDRESS = "elsewhere://bucket/runs/a"


def claim(root: Path) -> ClaimedFolder:
    ours = ("checkpoints", "a.txt", "summary.json")
    return ClaimedFolder(root=root, marker="recipe.toml", what="a run", ours=ours, early=("a.txt",))


def there(server: Elsewhere) -> dict[str, bytes]:
    names = server.find("/bucket/runs/a", detail=False)
    return {name.removeprefix("/bucket/runs/a/"): server.cat_file(name) for name in names}


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_what_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("s3://bucket/a.txt", PurePosixPath("s3://bucket/a.txt"), PureWindowsPath("s3://bucket/a.txt"))
    assert {address_of(name) for name in names} == {"s3://bucket/a.txt"}
    paths = ("a.txt", "C:/a.txt", "C:\\a.txt", "-", "/a:/b", {"text": "s3://a"})
    assert [address_of(name) for name in paths] == [None] * 6
    assert local_copies("file:///a/b.txt") == [Path("/a/b.txt")]
    monkeypatch.setattr(remote, "Path", PureWindowsPath)
    assert local_copies("file:///C:/a/b.txt") == [PureWindowsPath("C:/a/b.txt")]


def test_a_folder_is_fetched_once_and_anew_when_it_has_changed(
    server: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n", "/corpus/more/b.txt": b"Another text.\n", "/other/c.txt": b"No.\n"})
    (folder,) = local_copies("elsewhere://corpus")
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        "a.txt": b"One text.\n", "more/b.txt": b"Another text.\n",
    }  # fmt: skip
    assert "elsewhere://corpus: fetching 2 files (24 bytes)" in caplog.text, "it may take hours"
    assert local_copies("elsewhere://corpus/") == [folder]
    assert len(server.fetched) == 2
    server.pipe("/corpus/a.txt", b"Another one.\n")
    (new,) = local_copies("elsewhere://corpus")
    assert (new / "a.txt").read_bytes() == b"Another one.\n"
    assert (folder / "a.txt").read_bytes() == b"One text.\n", "a run that has begun reads what it began with"
    assert [path.name for path in local_copies("elsewhere://*/*.txt")] == ["a.txt", "c.txt"]


def test_a_server_that_comes_back(server: Elsewhere) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    server.failing["/corpus/a.txt"] = [OSError("gone away")] * (remote.TRIES - 1)
    assert local_copies("elsewhere://corpus/a.txt")[0].read_bytes() == b"One text.\n"
    server.pipe({"/corpus/b.txt": b"Another text.\n"})
    server.failing["/corpus/b.txt"] = [OSError("gone away")] * remote.TRIES
    with pytest.raises(CorpusError, match=r"/corpus/b\.txt"):
        local_copies("elsewhere://corpus")
    server.fetched.clear()
    (folder,) = local_copies("elsewhere://corpus")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt"]
    assert server.fetched == ["/corpus/b.txt"], "what had come by then is not fetched again"


def test_a_download_that_is_cut_short_is_tried_again(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of inputs, and of the work that goes on."""
    whole = Elsewhere.get_file

    def get(self: Elsewhere, source: str, target: str, **options: Any) -> None:
        whole(self, source, target, **options)
        if self.fetched.count(source) == 1:
            os.truncate(target, 3)

    server.pipe({"/corpus/a.txt": b"One text.\n", "/bucket/runs/a/recipe.toml": b"a recipe"})
    monkeypatch.setattr(Elsewhere, "get_file", get)
    assert local_copies("elsewhere://corpus/a.txt")[0].read_bytes() == b"One text.\n"
    with output_at(ADDRESS, claim, resume=True) as output:
        assert (output.path / "recipe.toml").read_bytes() == b"a recipe"


@pytest.mark.parametrize("address", ["elsewhere://nothing", "elsewhere://corpus/*.gz", "nowhere://corpus"])
def test_what_cannot_be_fetched(server: Elsewhere, address: str) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    with pytest.raises(CorpusError, match=address.replace("*", r"\*")):
        local_copies(address)


def test_a_full_disk(server: Elsewhere) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    server.failing["/corpus/a.txt"] = [OSError(errno.ENOSPC, "No space left on device")]
    with pytest.raises(WriteError, match="No space left"):
        local_copies("elsewhere://corpus")


def test_records_name_an_input_by_its_content(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pipe({"/corpus/a.txt": b"One text.\n"})
    (path,) = local_copies("elsewhere://corpus/a.txt")
    name = lasting_source(path)
    assert name == f"elsewhere://corpus/a.txt#{path.parent.name}"
    assert source_named(name) == str(path)
    changed = path.stat().st_mtime_ns
    shutil.rmtree(cache())  # as on another machine
    assert Path(source_named(name)).read_bytes() == b"One text.\n"
    assert path.stat().st_mtime_ns == changed, "so a preparation goes on there"
    assert lasting_source("a.txt") == source_named("a.txt") == "a.txt"
    shutil.rmtree(cache())
    server.pipe({"/corpus/a.txt": b"Another one.\n"})
    with pytest.raises(CorpusError, match="elsewhere://corpus/a.txt"):
        source_named(name)
    monkeypatch.chdir(cache())
    monkeypatch.setenv(CACHE, "relative")
    assert lasting_source(*local_copies("elsewhere://corpus/a.txt")).startswith("elsewhere://corpus/a.txt#")


def test_a_claim_is_sent_first_and_what_says_that_others_are_whole_last(server: Elsewhere) -> None:
    with output_at(ADDRESS, claim) as output:
        write(output.path, "recipe.toml", "summary.json", "a.txt", "metrics.jsonl", "data/train/0.arrow")
        write(output.path, "data/manifest.json")
        write(output.path, "checkpoints/step-1/state.json", "checkpoints/step-1/model.safetensors")
        write(output.path, "a.txt.partial", ".lock", ".lock.json", "checkpoints/x.partial/model.safetensors")
    order = [name.removeprefix("/bucket/runs/a/") for name in server.sent]
    assert set(order) == set(there(server))
    assert order[0] == "recipe.toml", "where the upload is broken off, the run can resume"
    assert set(order[1:5]) == {"a.txt", "metrics.jsonl", "data/train/0.arrow", "checkpoints/step-1/model.safetensors"}
    assert order[5:] == ["data/manifest.json", "checkpoints/step-1/state.json", "summary.json"]


def test_only_what_has_changed_is_sent_and_what_is_gone_is_removed(server: Elsewhere) -> None:
    with output_at(ADDRESS, claim) as output:
        write(output.path, "recipe.toml", "a.txt", "checkpoints/step-1/state.json")
        output.put()
        server.sent.clear()
        (output.path / "a.txt").write_text("longer than before")
        shutil.rmtree(output.path / "checkpoints" / "step-1")
        write(output.path, "checkpoints/step-2/state.json")
        output.put()
        assert sorted(server.sent) == ["/bucket/runs/a/a.txt", "/bucket/runs/a/checkpoints/step-2/state.json"]
        assert set(there(server)) == {"recipe.toml", "a.txt", "checkpoints/step-2/state.json"}


def test_work_goes_on_elsewhere_from_what_was_sent(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `resume`, too, before it claims the folder; a claimed folder is not fetched to be refused."""
    with output_at(ADDRESS, claim) as output:
        write(output.path, "a.txt")
    monkeypatch.setenv("UNMASK_CACHE", str(cache() / "of another machine"))
    with output_at(ADDRESS, claim) as output:
        assert (output.path / "a.txt").read_text() == "a.txt"
        write(output.path, "recipe.toml", "checkpoints/step-1/state.json")
    server.fetched.clear()
    with pytest.raises(RunError, match=ADDRESS):
        output_at(ADDRESS, claim).__enter__()
    assert not server.fetched
    with output_at(ADDRESS, claim, resume=True) as output:
        assert (output.path / "checkpoints/step-1/state.json").read_text() == "checkpoints/step-1/state.json"
        with pytest.raises(RunError, match=ADDRESS):  # another process writes there
            output_at(ADDRESS, claim, resume=True).__enter__()
        write(output.path, "checkpoints/step-2/state.json")
    assert set(there(server)) == {"a.txt", "recipe.toml", *(f"checkpoints/step-{n}/state.json" for n in (1, 2))}


def test_overwriting_removes_nothing_before_there_is_something_new(
    server: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    def overwrite(*names: str) -> None:
        with output_at(ADDRESS, claim, overwrite=True) as output:
            write(output.path, *names)
            if not names:
                raise SettingsError("a setting is wrong")

    with output_at(ADDRESS, claim) as output:
        write(output.path, "recipe.toml", "a.txt", "checkpoints/step-1/state.json", "summary.json")
    before = there(server)
    with pytest.raises(SettingsError):
        overwrite()
    assert there(server) == before
    assert not caplog.text
    overwrite("recipe.toml", "a.txt")
    assert set(there(server)) == {"recipe.toml", "a.txt"}


def test_files_of_others_stay(server: Elsewhere) -> None:
    server.pipe("/bucket/runs/a/thesis.tex", b"mine")
    for options in ({}, {"overwrite": True}):
        with pytest.raises(RunError, match="thesis.tex"):
            output_at(ADDRESS, claim, **options).__enter__()
    assert there(server) == {"thesis.tex": b"mine"}


def test_a_server_that_stays_away(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OSError("gone away")

    def work() -> None:
        with output_at(ADDRESS, claim) as output:
            write(output.path, "recipe.toml")
            monkeypatch.setattr(Elsewhere, "before_put", staticmethod(away))

    with pytest.raises(RunError, match=r"recipe\.toml.*gone away"):
        work()
    (kept,) = cache().glob("out-*-*/a/recipe.toml")
    assert kept.read_text() == "recipe.toml", "nothing that was made is lost"


def test_a_signal_is_no_failure_of_the_server(server: Elsewhere) -> None:
    server.pipe("/bucket/runs/a/recipe.toml", b"a recipe")
    server.failing["/bucket/runs/a/recipe.toml"] = [Interrupted(signal.SIGTERM, "stopped")]
    with pytest.raises(Interrupted):
        output_at(ADDRESS, claim, resume=True).__enter__()
    assert not server.fetched, "it was tried again"


def test_a_signal_ends_transfers(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads do not wait for the rest of large files, even of a library that never calls back; a second one, while
    results are sent, keeps them here."""
    complete, has_begun, is_over = list[str](), threading.Event(), threading.Event()

    def get(self: Elsewhere, source: str, target: str, *, callback: Any) -> None:
        if source == "/corpus/silent.txt":
            has_begun.set()
            is_over.wait(PATIENCE)
            Path(target).write_text("One text.\n")
        else:
            has_begun.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                time.sleep(0.01)
                callback.relative_update(1)
        complete.append(source)

    def put(self: Elsewhere, source: str, target: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)

    def send() -> None:
        with Interruption(), output_at(ADDRESS, claim) as output:
            write(output.path, "recipe.toml")

    server.pipe({"/corpus/silent.txt": b"One text.\n", "/corpus/a.txt": b"One text.\n"})
    monkeypatch.setattr(Elsewhere, "get_file", get)
    monkeypatch.setattr(Elsewhere, "put_file", put)
    with pytest.raises(Interrupted), Interruption():
        local_copies("elsewhere://corpus")
    with pytest.raises(Interrupted):
        send()
    assert not complete
    is_over.set()
    for thread in threading.enumerate():
        if thread.name == "unmask-transfer":
            thread.join()
    assert complete == ["/corpus/silent.txt"]
    assert not list(cache().rglob("silent.txt")), "the next fetch may be writing it by now"
    (kept,) = cache().glob("out-*-*/a/recipe.toml")
    assert kept.read_text() == "recipe.toml"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server of S3's kind on this machine, which has an empty bucket."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.get_host_and_port()[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()
    client = s3fs.S3FileSystem()
    client.mkdir("bucket")
    yield client
    client.rm("bucket", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.slow
def test_work_in_a_bucket_goes_on_elsewhere(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that remembers what it has listed."""
    address = "s3://bucket/runs/a"

    def there() -> set[str]:
        bucket.invalidate_cache()
        return {name.removeprefix("bucket/runs/a/") for name in bucket.find("bucket/runs/a")}

    with output_at(address, claim) as output:
        write(output.path, "recipe.toml", "checkpoints/step-1/state.json")
        output.put()
        assert there() == {"recipe.toml", "checkpoints/step-1/state.json"}
        write(output.path, "checkpoints/step-2/state.json")
    with pytest.raises(RunError, match=address):
        output_at(address, claim).__enter__()
    monkeypatch.setenv(CACHE, str(cache() / "of another machine"))
    with output_at(address, claim, resume=True) as output:
        assert (output.path / "checkpoints/step-2/state.json").read_text() == "checkpoints/step-2/state.json"
        shutil.rmtree(output.path / "checkpoints" / "step-1")
        write(output.path, "summary.json")
    assert there() == {"recipe.toml", "checkpoints/step-2/state.json", "summary.json"}
    for content in ("summary.json", "another.json"):
        (folder,) = local_copies(address)
        assert (folder / "summary.json").read_text() == content
        bucket.pipe_file("bucket/runs/a/summary.json", b"another.json")  # of the same size


def test_a_file_at_an_address(server: Elsewhere, tmp_path: Path) -> None:
    def send(*, overwrite: bool = False) -> None:
        with output_at("elsewhere://bucket/v.npy", overwrite=overwrite) as output:
            output.path.write_bytes(b"vectors")

    with output_at(tmp_path / "v.npy") as output:
        assert output.path == tmp_path / "v.npy"
    send()
    assert server.cat_file("/bucket/v.npy") == b"vectors"
    with pytest.raises(RunError, match=r"elsewhere://bucket/v\.npy"):
        send()
    send(overwrite=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda out: unmask.export("model", out=out),
        lambda out: unmask.lexicon("data", out=out),
        lambda out: unmask.compare(["tiny", "mini"], data="d", out=out, minutes=1),
        lambda out: unmask.embedder("model", "text.txt", out=out),
        lambda out: unmask.Index.build("model", "text.txt", out=out),
        lambda out: unmask.audit("text.txt", out=out),
        lambda out: unmask.predict("model", "text.txt", out=f"{out}.csv"),
    ],
)
def test_what_is_not_written_to_addresses(call: Callable[[str], object]) -> None:
    with pytest.raises(RunError, match="s3://bucket/x"):
        call("s3://bucket/x")


class Signed(BaseHTTPRequestHandler):
    """Gives a file to requests that are signed."""

    def do_GET(self) -> None:
        is_signed = self.path == "/corpus.txt?X-Amz-Expires=60&X-Amz-Signature=hunter2"
        content = b"The king sees the ship.\nThe queen sleeps.\n" * 40 if is_signed else b"no"
        self.send_response(200 if is_signed else 403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_secrets_of_an_address_are_neither_written_nor_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Passwords and signatures; a signed address is no pattern."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "TRIES", 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Signed) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        address = f"http://me:hunter2@127.0.0.1:{http.server_port}/corpus.txt?X-Amz-Expires=60&X-Amz-Signature=hunter2"
        prepared = unmask.prepare(address, out=tmp_path / "data", vocab_size=70)
        unmask.prepare(address, out=tmp_path / "data", vocab_size=70, resume=True)
        wrong = f"{address}&token=hunter3"
        with pytest.raises(CorpusError, match=r"127\.0\.0\.1") as refused:
            unmask.prepare(wrong, out=tmp_path / "more")
        http.shutdown()
    assert prepared.documents > 0
    told = traceback.format_exception(refused.value)
    everything = [repr(prepared), str(refused.value), repr(refused.value), *told, caplog.text, *capfd.readouterr()]
    for file in [*tmp_path.rglob("*"), *cache().rglob("*")]:
        everything += [file.name, file.read_bytes().decode(errors="replace") if file.is_file() else ""]
    assert not [text[:500] for text in everything if "hunter" in text]
    assert any("corpus.txt?X-Amz-Expires=60&X-Amz-Signature=***" in text for text in everything)
