"""What many runs depend on: read, checked and hashed before the first of them is trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.comparing.comparison_folder import tokenizer_of
from unmask.comparing.trials import Protocol, TaskFiles
from unmask.errors import SettingsError
from unmask.files import file_sha256, typed
from unmask.finetuning.task_files import (
    Files,
    class_weights,
    needs_packages,
    read_files,
    selecting_metric,
    settings_of,
)
from unmask.measuring.minimal_pairs import check_lengths, read_pairs
from unmask.pretraining.continuing import check_tokenizer
from unmask.pretraining.lexicons import named_lexicon
from unmask.pretraining.run_data import check_annotations, check_labels, check_preparation, is_prepared
from unmask.recipe.recipe import Recipe
from unmask.shards.lexicon_file import load_lexicon
from unmask.shards.manifest import load_manifest
from unmask.tasks.known import task_named
from unmask.tasks.labelled_files import example_files
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import Task
from unmask.text.pipes import is_stream
from unmask.text.sources import SourceSplit, find_sources, find_split
from unmask.tokenizer.loading import load_tokenizer

_OF_TEXT = ("corpus", "tokenizer", "annotation")  # sections that say how text is prepared


def read_inputs(recipes: Mapping[str, Recipe], protocol: Protocol, data: Sequence[str]) -> dict[str, str]:
    """Reads all files that the runs will read, and finds out what does not fit.

    Args:
        recipes: All that runs are made of, by name.
        protocol: Names minimal pairs and the files of a task.
        data: Files, folders or patterns of text, or one prepared folder.

    Returns:
        A hash of the content by path: of text or prepared data, lexicons, minimal pairs and labelled files.

    Raises:
        UnmaskError: A file is missing or cannot be used; a recipe needs of the text what it does not have, or adds
            words to its checkpoint's tokenizer; or, of raw text, recipes prepare it differently.
    """
    found = {**_text(recipes, data), **_lexicons(recipes), **_pairs(protocol), **_task(protocol)}
    if is_prepared(data):
        check_pairs_fit(recipes, protocol, data)
    return found


def check_pairs_fit(recipes: Mapping[str, Recipe], protocol: Protocol, data: Sequence[str]) -> None:
    """Makes sure that every model takes the minimal pairs. Of raw text that is known once it is prepared.

    Args:
        recipes: By name.
        protocol: Names the pairs, or none.
        data: A prepared folder, whose tokenizer tells their lengths.

    Raises:
        SettingsError: A sentence is too long; with file and line.
    """
    if protocol.pairs is None:
        return
    lengths = (recipe.model.max_position_embeddings or recipe.training.sequence_length for recipe in recipes.values())
    check_lengths(read_pairs(Path(protocol.pairs)), load_tokenizer(Path(data[0]) / "tokenizer"), longest=min(lengths))


def _text(recipes: Mapping[str, Recipe], data: Sequence[str]) -> dict[str, str]:
    manifest = load_manifest(Path(data[0])) if is_prepared(data) else None
    for name, recipe in recipes.items():
        _check_words(name, recipe)
        check_annotations(recipe, manifest)
        check_labels(recipe, manifest)
        if manifest is not None:
            check_preparation(Path(data[0]), manifest, recipe)
            if recipe.start is not None:
                check_tokenizer(Path(data[0]), manifest, recipe.start.checkpoint, recipe.start.checkpoint)
    if manifest is not None:
        return {data[0]: manifest.fingerprint}
    first = _alike(recipes)
    held, by_name = first.corpus.validation, first.corpus.splits == "auto"
    paths = [path for path in data if not is_stream(path)]  # what came there is kept
    found = find_split(paths, by_name=by_name, announce=False) if paths else SourceSplit([], [])
    named = find_sources(held, announce=False) if held else found.validation
    return {str(source.path): file_sha256(source.path) for source in (*found.train, *named)}


def _alike(recipes: Mapping[str, Recipe]) -> Recipe:
    """The first of the recipes, which all prepare text as it does."""
    (first_name, first), *others = recipes.items()
    for name, recipe in others:
        for section in _OF_TEXT:
            way_out = f"set it for all with --set {section}.KEY=VALUE, or compare other recipes"
            same = getattr(recipe, section) == getattr(first, section)
            if section == "tokenizer":
                same = _share_tokenizer(first, recipe)
                if first.start is not None or recipe.start is not None:
                    way_out = (
                        "a checkpoint brings its own tokenizer: begin with checkpoints that have the same, and name it "
                        "in recipes without one (tokenizer.path)"
                    )
            if not same:
                raise SettingsError(
                    f"{first_name} and {name} prepare text differently ([{section}]), but runs that are compared share "
                    f"their tokens; {way_out}"
                )
    return first


def _share_tokenizer(one: Recipe, other: Recipe) -> bool:
    """Whether text becomes the same tokens, whatever folders the tokenizers lie in."""
    first, second = tokenizer_of(one), tokenizer_of(other)
    if first == second or first.path is None or second.path is None:
        return first == second
    return load_tokenizer(first.path).fingerprint == load_tokenizer(second.path).fingerprint


def _check_words(name: str, recipe: Recipe) -> None:
    """Makes sure that no run has a tokenizer of its own."""
    if recipe.start is not None and recipe.start.extend_vocab is not None:
        raise SettingsError(
            f"{name}: start.extend_vocab gives each run a tokenizer of its own, but runs that are compared share their "
            f"tokens; add the words before, with unmask pretrain TEXT --from {typed(recipe.start.checkpoint)} "
            f"--extend-vocab {recipe.start.extend_vocab} --steps 1 --out RUN, and begin with RUN/start"
        )


def _lexicons(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    paths = {path for recipe in recipes.values() if (path := named_lexicon(recipe.masking)) is not None}
    return {str(path): load_lexicon(path).fingerprint for path in sorted(paths)}


def _pairs(protocol: Protocol) -> dict[str, str]:
    if protocol.pairs is None:
        return {}
    pairs = [[pair.good, pair.bad, pair.paradigm, pair.phenomenon] for pair in read_pairs(Path(protocol.pairs))]
    return {protocol.pairs: hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}


def _task(protocol: Protocol) -> dict[str, str]:
    if protocol.task is None:
        return {}
    files, task, settings = _task_read(protocol.task, protocol.of_finetuning)
    class_weights(files.train, task, settings.class_weights)
    return {path: example_files(Path(path)).sha256 for path in protocol.task.paths.values()}


def _task_read(named: TaskFiles, overrides: Sequence[str]) -> tuple[Files, Task, FinetuneSettings]:
    """The files as fine-tuning will read them, and what it will do."""
    kind, settings = task_named(named.kind), settings_of(overrides)
    needs_packages()
    paths = {name: example_files(Path(path)) for name, path in named.paths.items()}
    files, task = read_files(kind, paths, settings, lambda remark: None)  # every run says it
    selecting_metric(task, settings.metric)
    return files, task, settings


def items_of(protocol: Protocol) -> dict[str, int]:
    """Of how many items those figures are shares that are shares, by the figure.

    Of tags an item is a word; of entities a word that is in one, of fine-tuning with several seeds each item counts as
    often as it is judged.

    Raises:
        UnmaskError: As `read_inputs`.
    """
    found = {} if protocol.pairs is None else {"pairs_error": len(read_pairs(Path(protocol.pairs)))}
    if protocol.task is None:
        return found
    files, task, settings = _task_read(protocol.task, protocol.of_finetuning)
    items = task.items((files.test or files.validation).records, selecting_metric(task, settings.metric))
    return found if items is None else found | {"task_error": max(1, items) * settings.seeds}
