"""The data of a training that goes on from a checkpoint: its own, and old text for comparison.

Old text is held-out text of the domain that the checkpoint comes from: it shows what the further training forgets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from unmask.addresses import source_named
from unmask.errors import DataError, RunError
from unmask.files import read_object, whole_folder, writing
from unmask.pretraining.continuing import (
    check_text,
    check_tokenizer,
    obtain_start,
    training_texts,
    with_start_tokenizer,
)
from unmask.pretraining.run_data import PreparedData, is_prepared, obtain_data
from unmask.pretraining.run_folder import START_ANEW, RunFolder
from unmask.pretraining.run_reporter import Reporter
from unmask.recipe.recipe import Recipe, StartSettings
from unmask.shards.job_work import run_job
from unmask.shards.jobs import cut_jobs, job_bytes
from unmask.shards.manifest import MANIFEST, Manifest, load_manifest
from unmask.shards.opening import obtain_split
from unmask.shards.store import TokenStore
from unmask.text.corpus import Corpus
from unmask.text.pipes import is_stream, kept_source
from unmask.text.settings import CorpusSettings
from unmask.text.sources import find_sources
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.values import parse_json

_WHAT = "old.json"


def check_old_data(paths: Sequence[str]) -> None:
    """Finds out before a long preparation that the old text is not there.

    Raises:
        CorpusError: It is not.
    """
    if paths and not is_prepared(paths):
        find_sources(paths, announce=False)


def obtain_old_text(folder: Path, settings: StartSettings, tokenizer: Tokenizer) -> str:
    """Tokenizes the old text into a folder, unless that was done before.

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
        root = _first_source(run)  # a prepared folder, if any
    if not (root / MANIFEST).is_file():
        return f"the data of {run.root} is not there any more: {way_out}", []
    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 == tokenizer.fingerprint:
        return f"old text: the validation split of {root}", _copy(root, manifest, out)
    changed = f"the text that {root} was made from is not there any more as it was: {way_out}"
    if not _is_unchanged(manifest):
        return changed, []
    sources = [kept_source(root, source) for source in manifest.settings["sources"]]
    corpus = Corpus(sources, CorpusSettings.model_validate(manifest.settings["corpus"]))
    known = {Path(source["path"]).resolve() for source in manifest.sources}
    if {source.path.resolve() for source in corpus.all_sources()} != known:
        return changed, []  # a folder may hold more by now
    return f"old text: what {root} holds out, read again", _write(corpus, tokenizer, out, held_only=True)


def _first_source(run: RunFolder) -> Path:
    """What the run of a checkpoint was made from, the first of it.

    Raises:
        RunError: The file that says it is damaged.
    """
    try:
        return Path(source_named(parse_json(run.sources.read_text(encoding="utf-8"))[0]))
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise RunError(
            f"{run.sources}: damaged ({error!r}); mend it, or name the text of the old domain with --old-data"
        ) from error


def _is_unchanged(manifest: Manifest) -> bool:
    """Whether the files that data was made from are there with the sizes that they had."""
    files = [(Path(source["path"]), source["bytes"]) for source in manifest.sources]
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _copy(root: Path, manifest: Manifest, out: Path) -> list[Path]:
    """The shards of the validation split, so that they are there to the end."""
    return [Path(shutil.copy(file, out / file.name)) for file in obtain_split(root, manifest.validation)]


def _write(corpus: Corpus, tokenizer: Tokenizer, out: Path, *, held_only: bool) -> list[Path]:
    """Tokenizes a corpus, or what of it is held out."""
    size = job_bytes(sum(source.path.stat().st_size for source in corpus.all_sources()))
    with closing(corpus.pieces()) as pieces:
        wanted = ((piece, held) for piece, held in pieces if held or not held_only)
        return [out / file.name for job in cut_jobs(wanted, size) for file in run_job(job, tokenizer, out)[0].shards]


def data_from_checkpoint(sources: Sequence[str], folder: RunFolder, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Makes the start, prepares the new text with its tokenizer, and puts the old text beside it.

    Args:
        sources: Text files, or one prepared folder.
        folder: Of the run.
        recipe: With `start`.
        reporter: Told of what is done.

    Raises:
        UnmaskError: As `obtain_start`, `obtain_data` and `obtain_old_text`.
    """
    assert recipe.start is not None
    check_text(recipe, sources)
    facts = obtain_start(folder.start, recipe, training_texts(sources, recipe.corpus))
    for line in facts.describe(recipe.start.extend_vocab):
        reporter.note(line)
    preparing = with_start_tokenizer(recipe, folder.start, folder.data, sources)
    data = obtain_data(sources, folder.data, preparing, reporter)
    check_tokenizer(data.root, data.manifest, folder.start, recipe.start.checkpoint)
    reporter.note(obtain_old_text(folder.old, recipe.start, data.tokenizer))
    return data


def tokenizer_and_notes(
    sources: Sequence[str | Path], recipe: Recipe, folder: Path, *, sample_bytes: int
) -> tuple[TokenizerSettings, list[str]]:
    """What a dry run needs of the same: the start is made, with words of the beginning of the text alone.

    Args:
        sources: As the user gave them.
        recipe: With `start` or without.
        folder: Where the start goes.
        sample_bytes: How much text is looked at for new words.

    Returns:
        With which tokenizer text is prepared, and what there is to say.

    Raises:
        UnmaskError: As the real training.
    """
    if recipe.start is None:
        return recipe.tokenizer, []
    paths = [str(path) for path in sources]
    if any(map(is_stream, paths)):
        raise RunError("--dry-run would use standard input or a pipe up; give a file")
    check_old_data(recipe.start.old_data)
    check_text(recipe, paths)
    folder.parent.mkdir()
    texts = training_texts(paths, recipe.corpus)
    facts = obtain_start(folder, recipe, lambda: _first(texts(), sample_bytes))
    lines = list(facts.describe(recipe.start.extend_vocab))
    if recipe.start.extend_vocab is not None:
        lines.append(f"these are words of the first {sample_bytes / 2**20:.0f} MiB; the run looks at all of the text")
    return with_start_tokenizer(recipe, folder, folder.with_name("data"), paths).tokenizer, lines


def _first(texts: Iterable[str], num_bytes: int) -> Iterator[str]:
    """Texts until there are so many bytes."""
    gone = 0
    for text in texts:
        yield text
        gone += len(text.encode())
        if gone >= num_bytes:
            return
