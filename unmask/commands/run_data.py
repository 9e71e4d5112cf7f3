"""The folder of a run, and the data that it trains on: prepared in that folder, or given as a prepared folder.

recipe.toml          every setting; a folder with it holds a run
sources.json         the files that the text comes from
stdin.txt            what came on standard input, if that was one of them
pipes/               what came out of pipes, if some of them were
given/               texts that were in memory, if they were given so
lexicon.safetensors  collocations of the training text, where masking needs them and no other lexicon was given
start/               where the training begins from a checkpoint: the model and tokenizer that it begins with
old/                 held-out text of the checkpoint's own domain, as tokens, where there is any
before.json          what that model came to before the training, on the new and on the old text
data/                prepared shards, unless the run was given a prepared folder
checkpoints/         the latest states
metrics.jsonl        a line every few steps and at every evaluation
tensorboard/         the same for TensorBoard, where it is installed
predictions.json     what the model made of some held-out lines before training, and after it
model/               the result: a transformers folder
summary.json         figures of the result, written last
report.html          all of it for the eye
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.prepare import describe
from unmask.commands.recipe import Recipe
from unmask.core.errors import DataError, RunError, SettingsError, parse_json
from unmask.core.files import ClaimedFolder
from unmask.core.remote import origin_of
from unmask.core.results import Reporter
from unmask.data.data_folder import MANIFEST, Manifest, load_manifest, open_split
from unmask.data.packing import is_mixed
from unmask.data.prepare import preparation_settings, prepare
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.data.store import TokenStore
from unmask.masking.settings import needed_annotations
from unmask.masking.tables import Tables
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

START_ANEW = "start anew, overwriting it"  # the way out where a file of a run is damaged


class RunFolder:
    """Paths within a run's folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.toml"
        self.sources = root / "sources.json"
        self.stdin = root / STDIN_FILE
        self.pipes = root / PIPES
        self.texts = root / GIVEN
        self.start = root / "start"
        self.old = root / "old"
        self.before = root / "before.json"
        self.data = root / "data"
        self.lexicon = root / "lexicon.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.tensorboard = root / "tensorboard"
        self.predictions = root / "predictions.json"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        names = {path.name for path in vars(self).values() if path != root}
        self.claimed = ClaimedFolder(root=root, marker=self.recipe.name, what="a run", ours=names)

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.claimed.is_claimed

    def read_sources(self, way_out: str = START_ANEW) -> list[str]:
        """The sources that the run was begun on, as `unmask.core.remote.lasting_source` names them.

        Raises:
            RunError: The list of them is damaged.
        """
        try:
            names = parse_json(self.sources.read_text(encoding="utf-8"))
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError("it is no list of paths")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.sources}: damaged ({error}); {way_out}") from error
        return names


def packaged_corpus() -> Path:
    """Tiny Shakespeare (1.1 MB, public domain), which stands in where no files are given."""
    return Path(str(resources.files("unmask") / "data" / "tinyshakespeare.txt"))


def is_prepared(paths: Sequence[str | Path]) -> bool:
    """Whether the sources are a folder of prepared shards."""
    return len(paths) == 1 and os.path.isfile(Path(paths[0]) / MANIFEST)


@dataclass(frozen=True)
class PreparedData:
    """Opened shards: the data folder, its manifest and tokenizer, and the tokens of both splits."""

    root: Path
    manifest: Manifest
    tokenizer: Tokenizer
    train: TokenStore
    validation: TokenStore

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """[vocab_size]: counts in the training split."""
        return np.array(self.manifest.token_frequencies, dtype=np.int64)

    @property
    def tables(self) -> Tables:
        """What masking may know: frequencies, and labels of annotations."""
        frequencies = torch.from_numpy(self.frequencies)
        return Tables(self.tokenizer.vocab_size, frequencies, labels=self.manifest.annotations)


def open_prepared(root: Path) -> PreparedData:
    """Opens a data folder. Its files are checked as `unmask.data.data_folder` says.

    Raises:
        DataError: It is incomplete, damaged, or its tokenizer is not the one it was made with.
    """
    manifest = load_manifest(root)
    tokenizer = load_tokenizer(root / "tokenizer")
    if tokenizer.fingerprint != manifest.tokenizer_sha256:
        raise DataError(f"{root}: tokenizer/ is not the one that the shards were made with; prepare the data again")
    for name, split in (("training", manifest.train), ("validation", manifest.validation)):
        if not split.tokens:
            raise DataError(f"{root}: the {name} split holds no tokens; give more text")
    train, validation = (open_split(root, manifest, split) for split in (manifest.train, manifest.validation))
    return PreparedData(root, manifest, tokenizer, train, validation)


def obtain_data(paths: Sequence[str], folder: Path, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Opens the prepared folder that was given, or prepares the files in `folder` unless that was done before.

    Raises:
        UnmaskError: The files or the folder cannot be used, or the folder was prepared with other settings than
            the recipe asks for.
    """
    root = Path(paths[0]) if is_prepared(paths) else folder
    if root == folder:
        check_data(recipe)
        prepare_by(recipe, paths, folder, reporter)
    data = open_prepared(root)
    manifest = data.manifest
    check_data(recipe, manifest, root if root != folder else None)

    # Of data at an address, what the first step waits for.
    missing = sum(not (root / file.name).is_file() for file in manifest.train.files)
    if missing and (origin := origin_of(root)) is not None:
        when = "while the training goes on"
        if is_mixed(manifest.train.pieces, manifest.train.tokens):
            when = "before the first step, since a text of this size is shuffled as a whole"
        reporter.note(f"{missing:,} shards are fetched from {origin} {when}")
    for text in describe(manifest):
        reporter.note(text)
    if manifest.labels and recipe.objectives.label is None:
        reporter.note("the classes are not learned: that is asked for with the setting objectives.label.weight=1")
    return data


def prepare_by(recipe: Recipe, paths: Sequence[str | Path], folder: Path, reporter: Reporter) -> None:
    """Prepares text as a recipe says, unless the folder holds these sources with these settings already."""
    corpus, tokenizer, annotation = recipe.corpus, recipe.tokenizer, recipe.annotation
    settings = preparation_settings(paths, corpus, tokenizer, annotation)
    if not (folder / MANIFEST).is_file() or load_manifest(folder).settings != settings:
        prepare(
            paths,
            folder,
            corpus=corpus,
            tokenizer=tokenizer,
            annotation=annotation,
            notify=reporter.notify,
            note=reporter.note,
        )


# ----------------------------------------
# Whether data fits a recipe.


def check_data(recipe: Recipe, manifest: Manifest | None = None, root: Path | None = None) -> None:
    """Makes sure that data has what masking and objectives need, and was prepared as the recipe asks.

    Args:
        recipe: Settings of corpus, tokenizer and annotation that stand at their defaults ask for nothing.
        manifest: Of prepared data; None for raw text.
        root: The folder of data that was prepared before, and perhaps otherwise.

    Raises:
        SettingsError: Raw text would be prepared without annotations or classes.
        DataError: The data was prepared without them or with other settings, or holds only one class.
        TokenizerError: The recipe's tokenizer cannot be read.
    """
    if manifest is not None and root is not None:
        for name in ("corpus", "tokenizer", "annotation"):
            section = getattr(recipe, name)
            if name == "tokenizer" and recipe.tokenizer.path is not None:
                fits = load_tokenizer(recipe.tokenizer.path).fingerprint == manifest.tokenizer_sha256
            else:
                fits = section == type(section)() or section.model_dump(mode="json") == manifest.settings.get(name)
            if not fits:
                raise DataError(
                    f"{root}: the shards were prepared with other settings than [{name}] of the recipe asks for; "
                    "leave these away, or prepare the text again with them"
                )
    check_annotations(recipe, manifest)
    if recipe.objectives.label is None:
        return
    without = "or remove objectives.label (objectives.label=none)"
    if manifest is None:
        if recipe.corpus.label is None:
            raise SettingsError(
                "objectives.label learns the classes of documents; name the column of the tables in which they stand "
                f"(corpus.label=COLUMN), {without}",
                options=["set"],
            )
    elif not manifest.labels:
        raise DataError(
            "objectives.label learns the classes of documents, which this data was prepared without; prepare it again "
            "with corpus.label=COLUMN"
        )
    elif len(manifest.labels) < 2:
        (name,) = manifest.labels
        raise DataError(
            f"objectives.label tells classes from each other, but all labelled documents are {name!r}; name another "
            f"column in corpus.label, {without}"
        )


def check_annotations(recipe: Recipe, manifest: Manifest | None = None) -> None:
    """Makes sure that masking finds the annotations that it needs; arguments and errors are those of `check_data`."""
    columns = recipe.annotation.columns if manifest is None else manifest.annotations
    missing = [column for column in needed_annotations(recipe.masking) if column not in columns]
    if not missing:
        return
    what = (
        f"masking by {recipe.masking.strategy or 'these units and weights'} needs the annotation {', '.join(missing)}"
    )
    every = sorted({*columns, *missing})
    if manifest is None:
        names = ",".join(f'"{column}"' for column in every)
        raise SettingsError(f"{what} of the text; ask for it with annotation.columns=[{names}]", options=["set"])
    raise DataError(
        f"{what}, which this data was prepared without; make it with unmask prepare ... --annotate {','.join(every)}"
    )
