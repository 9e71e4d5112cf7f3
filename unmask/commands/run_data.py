"""The data of a run, prepared in its folder or given as a prepared folder, and the classes of its documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.prepare import describe
from unmask.commands.recipe import Recipe
from unmask.core.errors import DataError, SettingsError
from unmask.core.remote import origin_of
from unmask.core.results import Reporter
from unmask.data.data_folder import MANIFEST, Manifest, load_manifest, open_split
from unmask.data.packing import is_mixed
from unmask.data.prepare import preparation_settings, prepare
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.store import TokenStore
from unmask.masking.settings import needed_annotations
from unmask.masking.tables import Tables
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer


def check_labels(recipe: Recipe, manifest: Manifest | None) -> None:
    """Makes sure that classes are there where they are an objective.

    Args:
        recipe: Says whether they are, and where raw text has them.
        manifest: Of prepared data; None for raw text.

    Raises:
        SettingsError: Raw text would be prepared without them.
        DataError: The data was prepared without them, or holds only one.
    """
    if recipe.objectives.label is None:
        return
    if manifest is None:
        if recipe.corpus.label is None:
            raise SettingsError(
                "objectives.label learns the classes of documents; name the column of the tables in which they stand "
                "with --set corpus.label=COLUMN, or remove objectives.label (--set objectives.label=none)"
            )
    elif not manifest.labels:
        raise DataError(
            "objectives.label learns the classes of documents, which this data was prepared without; make it with "
            "unmask prepare ... --set corpus.label=COLUMN"
        )
    elif len(manifest.labels) < 2:
        (name,) = manifest.labels
        raise DataError(
            f"objectives.label tells classes from each other, but all labelled documents are {name!r}; name another "
            "column in corpus.label, or remove objectives.label (--set objectives.label=none)"
        )


def is_prepared(paths: Sequence[str | Path]) -> bool:
    """Whether the sources are a folder of prepared shards."""
    return len(paths) == 1 and os.path.isfile(Path(paths[0]) / MANIFEST)


@dataclass(frozen=True)
class PreparedData:
    """Opened shards.

    Attributes:
        root: The data folder.
        manifest: Its ledger.
        tokenizer: Its tokenizer.
        train: Training tokens.
        validation: Held-out tokens.
    """

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
    """Opens the prepared folder that was given, or prepares the files unless that was done before.

    Args:
        paths: Text files, or one prepared folder.
        folder: Where shards are put.
        recipe: Settings of corpus and tokenizer.
        reporter: Called with the progress.

    Raises:
        UnmaskError: The files or the folder cannot be used, or the folder was prepared with other settings than
            the recipe asks for.
    """
    if is_prepared(paths):
        data = open_prepared(Path(paths[0]))
        check_preparation(data.root, data.manifest, recipe)
        check_annotations(recipe, data.manifest)
    else:
        check_annotations(recipe, None)
        check_labels(recipe, None)
        if not _is_ours(folder, paths, recipe):
            prepare_by(recipe, paths, folder, reporter)
        data = open_prepared(folder)
    check_labels(recipe, data.manifest)
    if (note := _on_fetching(data)) is not None:
        reporter.note(note)
    for text in describe(data.manifest):
        reporter.note(text)
    if data.manifest.labels and recipe.objectives.label is None:
        reporter.note("the classes are not learned: that is asked for with --set objectives.label.weight=1")
    return data


def _on_fetching(data: PreparedData) -> str | None:
    """What the first step waits for, of data whose shards lie at an address; None: nothing."""
    origin, split = origin_of(data.root), data.manifest.train
    missing = sum(not (data.root / file.name).is_file() for file in split.files)
    if origin is None or not missing:
        return None
    if is_mixed(split.pieces, split.tokens):
        return (
            f"{missing:,} shards are fetched from {origin} before the first step, since a text of this size is "
            "shuffled as a whole"
        )
    return f"{missing:,} shards are fetched from {origin} while the training goes on"


def prepare_by(recipe: Recipe, paths: Sequence[str], folder: Path, reporter: Reporter) -> None:
    """Prepares text as a recipe says.

    Args:
        recipe: Says how text is read, tokenized and annotated.
        paths: Of the text.
        folder: Where the shards go.
        reporter: Called with the progress.

    Raises:
        UnmaskError: As `prepare`.
    """
    prepare(
        paths,
        folder,
        corpus=recipe.corpus,
        tokenizer=recipe.tokenizer,
        annotation=recipe.annotation,
        notify=reporter.notify,
        note=reporter.note,
    )


def check_annotations(recipe: Recipe, manifest: Manifest | None) -> None:
    """Makes sure that the masking finds the annotations that it needs.

    Args:
        recipe: Says what is needed, and what raw text is annotated with.
        manifest: Of data that is prepared already; None for raw text.

    Raises:
        SettingsError: Raw text would be prepared without them.
        DataError: The data was prepared without them.
    """
    needed = needed_annotations(recipe.masking)
    there = recipe.annotation.columns if manifest is None else manifest.annotations
    if not (missing := [column for column in needed if column not in there]):
        return
    what = (
        f"masking by {recipe.masking.strategy or 'these units and weights'} needs the annotation {', '.join(missing)}"
    )
    every = sorted({*there, *missing})
    if manifest is None:
        names = ",".join(f'"{column}"' for column in every)
        raise SettingsError(f"{what} of the text; ask for it with --set 'annotation.columns=[{names}]'")
    raise DataError(
        f"{what}, which this data was prepared without; make it with unmask prepare ... --annotate {','.join(every)}"
    )


def _is_ours(folder: Path, paths: Sequence[str], recipe: Recipe) -> bool:
    """Whether the folder holds these sources already, prepared with these settings."""
    if not (folder / MANIFEST).is_file():
        return False
    settings = load_manifest(folder).settings
    return settings == preparation_settings(paths, recipe.corpus, recipe.tokenizer, recipe.annotation)


def check_preparation(root: Path, manifest: Manifest, recipe: Recipe) -> None:
    """Makes sure that data was prepared as a recipe asks, where it asks for something.

    Args:
        root: The data folder.
        manifest: Its ledger.
        recipe: Settings of corpus, tokenizer and annotation; those that stand at their defaults ask for nothing.

    Raises:
        DataError: It was prepared with other settings.
        TokenizerError: The recipe's tokenizer cannot be read.
    """
    made = manifest.settings
    for name, asked, default in (
        ("corpus", recipe.corpus.model_dump(mode="json"), CorpusSettings().model_dump(mode="json")),
        ("tokenizer", recipe.tokenizer.model_dump(mode="json"), TokenizerSettings().model_dump(mode="json")),
        ("annotation", recipe.annotation.model_dump(mode="json"), AnnotationSettings().model_dump(mode="json")),
    ):
        if name == "tokenizer" and recipe.tokenizer.path is not None:
            fits = load_tokenizer(recipe.tokenizer.path).fingerprint == manifest.tokenizer_sha256
        else:
            fits = asked in (default, made.get(name))
        if not fits:
            raise DataError(
                f"{root}: the shards were prepared with other settings than [{name}] of the recipe asks for; "
                "leave these away, or prepare the text again with them"
            )
