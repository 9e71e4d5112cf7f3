"""Held-out text of the domain that a checkpoint comes from, so that it shows what a further training forgets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from unmask.corpus.corpus import Corpus
from unmask.corpus.settings import CorpusSettings
from unmask.corpus.sources import STDIN, STDIN_FILE, find_sources
from unmask.errors import DataError
from unmask.files import read_object, whole_folder, writing
from unmask.pretraining.data import is_prepared
from unmask.pretraining.folder import START_ANEW, RunFolder
from unmask.recipe.start import StartSettings
from unmask.tokens.jobs import cut_jobs, job_bytes
from unmask.tokens.manifest import MANIFEST, Manifest, load_manifest, verify_files
from unmask.tokens.shards import TokenStore
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.work import run_job

_WHAT = "old.json"


def check_old_data(paths: Sequence[str]) -> None:
    """Finds out before a long preparation that the old text is not there.

    Raises:
        CorpusError: It is not.
    """
    if paths and not is_prepared(paths):
        find_sources(paths, announce=False)


def obtain_old_text(folder: Path, settings: StartSettings, tokenizer: Tokenizer) -> str:
    """Tokenizes the old text into a folder, unless an earlier sitting did.

    Args:
        folder: Where it goes.
        settings: Name the text, or the checkpoint in whose run it may stand.
        tokenizer: That of the start, so that the same masks serve before and after.

    Returns:
        What is used, or why there is nothing, in a line.

    Raises:
        UnmaskError: The text that was named cannot be used.
    """
    if (folder / _WHAT).is_file():
        return str(read_object(folder / _WHAT, START_ANEW)["source"])
    with whole_folder(folder) as partial:
        find = _named if settings.old_data else _of_run
        source, files = find(settings, tokenizer, partial)
        content = {"source": source, "files": [path.relative_to(partial).as_posix() for path in files]}
        with writing(folder):
            (partial / _WHAT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return source


def open_old_text(folder: Path) -> TokenStore | None:
    """The tokens that `obtain_old_text` made; None where there is no old text."""
    files = read_object(folder / _WHAT, START_ANEW)["files"]
    return TokenStore([folder / name for name in files]) if files else None


def _named(settings: StartSettings, tokenizer: Tokenizer, out: Path) -> tuple[str, list[Path]]:
    """The text that was named: files whole, a prepared folder by its validation split."""
    names = ", ".join(settings.old_data)
    if not is_prepared(settings.old_data):
        files = _write(Corpus(settings.old_data, CorpusSettings(), hold_out=False), tokenizer, out, held_only=False)
        if not files:
            raise DataError(f"--old-data {names}: there is no text in it")
        return f"old text: all of {names}", files
    root = Path(settings.old_data[0])
    manifest = load_manifest(root)
    verify_files(root, manifest)
    if manifest.tokenizer_sha256 != tokenizer.fingerprint:
        raise DataError(
            f"--old-data {root} was prepared with another tokenizer than the training's; give the text itself"
        )
    return f"old text: the validation split of {root}", _copy(root, manifest, out)


def _of_run(settings: StartSettings, tokenizer: Tokenizer, out: Path) -> tuple[str, list[Path]]:
    """The validation split of the run that made the checkpoint, as tokens or, for another tokenizer, as text."""
    way_out = "what the model forgets is not measured (--old-data names text of its old domain)"
    run = RunFolder(Path(settings.checkpoint).parent)
    if Path(settings.checkpoint).name != "model" or not run.holds_run:
        return f"the old text is not known: {way_out}", []
    root = run.data
    if not (root / MANIFEST).is_file() and run.sources.is_file():
        root = Path(json.loads(run.sources.read_text(encoding="utf-8"))[0])  # a prepared folder, if any
    if not (root / MANIFEST).is_file():
        return f"the data of {run.root} is not there any more: {way_out}", []
    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 == tokenizer.fingerprint:
        verify_files(root, manifest)
        return f"old text: the validation split of {root}", _copy(root, manifest, out)
    changed = f"the text that {root} was made from is not there any more as it was: {way_out}"
    if not _is_unchanged(manifest):
        return changed, []
    sources = [str(root / STDIN_FILE) if source == STDIN else source for source in manifest.settings["sources"]]
    corpus = Corpus(sources, CorpusSettings.model_validate(manifest.settings["corpus"]))
    known = {Path(source["path"]).resolve() for source in manifest.sources}
    if {source.path.resolve() for source in corpus.all_sources()} != known:
        return changed, []  # a folder may hold more by now
    return f"old text: what {root} holds out, read again", _write(corpus, tokenizer, out, held_only=True)


def _is_unchanged(manifest: Manifest) -> bool:
    """Whether the files that data was made from are there with the sizes that they had."""
    files = [(Path(source["path"]), source["bytes"]) for source in manifest.sources]
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _copy(root: Path, manifest: Manifest, out: Path) -> list[Path]:
    """The shards of the validation split, so that they are there to the end."""
    return [Path(shutil.copy(root / file.name, out / Path(file.name).name)) for file in manifest.validation.files]


def _write(corpus: Corpus, tokenizer: Tokenizer, out: Path, *, held_only: bool) -> list[Path]:
    """Tokenizes a corpus, or what of it is held out."""
    size = job_bytes(sum(source.path.stat().st_size for source in corpus.all_sources()))
    with closing(corpus.pieces()) as pieces:
        wanted = ((piece, held) for piece, held in pieces if held or not held_only)
        return [out / file.name for job in cut_jobs(wanted, size) for file in run_job(job, tokenizer, out).shards]
