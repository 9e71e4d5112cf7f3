"""What a training from a checkpoint begins with: tokenizer and model, extended where that is asked for.

They are put into the run's folder (`start/`, a transformers folder), so that the run goes on without the checkpoint,
and so that other tools can compare what was there before with what came of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.commands.recipe import (
    Recipe,
    StartSettings,
    checkpoint_sha256,
    find_checkpoint,
    new_model,
    read_fitting_config,
)
from unmask.commands.run_data import PreparedData, is_prepared, obtain_data
from unmask.commands.run_folder import START_ANEW, RunFolder
from unmask.core.errors import DataError, RunError, parse_json
from unmask.core.files import read_object, typed, whole_folder, writing
from unmask.core.hub import lasting_name
from unmask.core.remote import source_named
from unmask.core.results import Reporter
from unmask.data.corpus import Corpus
from unmask.data.data_folder import MANIFEST, Manifest, checked_files, load_manifest
from unmask.data.settings import CorpusSettings
from unmask.data.shards import chunk_bytes, cut_chunks, write_shards
from unmask.data.sources import find_sources, is_stream, kept_source
from unmask.data.store import TokenStore
from unmask.model.card_head import base_models
from unmask.model.encoder import MaskedLM
from unmask.model.folder import has_prediction_head, load_model, save_model
from unmask.model.heads import BoundaryHead, LabelHead, PairHead, RetroMAEHead
from unmask.model.initial_weights import initialise, with_positions, with_words
from unmask.model.layout_names import LAYOUTS
from unmask.model.stored_weights import files_checked
from unmask.tokenizer.extension import Extension, extend_vocabulary
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer

FACTS = "start.json"
_SHOWN = 8


@dataclass(frozen=True)
class StartFacts:
    """What was done to a checkpoint before the training; the summary gives it as `start`.

    Attributes:
        checkpoint: Its folder, or its name and commit on the hub.
        sha256: Of its content.
        new_head: Whether it had no head for masked tokens, so that one was drawn.
        base_models: What the hub knows it by; None in runs of earlier versions.
        positions: Longest sequence before and after, where the model was made longer.
        new_words: Words that were given entries.
        examples: The first of them.
        tokens_before, tokens_after: Tokens of the training text without these entries and with them.
    """

    checkpoint: str
    sha256: str
    new_head: bool
    base_models: tuple[str, ...] | None = None
    positions: tuple[int, int] | None = None
    new_words: int = 0
    examples: tuple[str, ...] = ()
    tokens_before: int | None = None
    tokens_after: int | None = None

    def describe(self, asked: int | None) -> Iterator[str]:
        """Lines for the log.

        Args:
            asked: How many words were asked for.
        """
        yield f"beginning with the model in {self.checkpoint}"
        if self.new_head:
            yield "the checkpoint has no head for masked tokens: a new one is made, which knows nothing yet"
        if self.positions is not None:
            yield f"the model was made longer, from {self.positions[0]:,} positions to {self.positions[1]:,}"
        if self.tokens_before is not None and self.tokens_after is not None:
            fewer = f" ({asked:,} were asked for, the text has no more)" if asked and self.new_words < asked else ""
            yield (
                f"{self.new_words:,} new words{fewer}, such as {', '.join(self.examples)}: {self.tokens_before:,} "
                f"tokens of the training text become {self.tokens_after:,} "
                f"({self.tokens_after / self.tokens_before - 1:+.1%})"
            )


def training_texts(sources: Sequence[str], settings: CorpusSettings) -> Callable[[], Iterator[str]]:
    """Gives the training text anew at each call, without what is held out."""

    def texts() -> Iterator[str]:
        with closing(Corpus(sources, settings).pieces()) as pieces:
            yield from (piece.text for piece, held in pieces if not held)

    return texts


def obtain_start(folder: Path, recipe: Recipe, texts: Callable[[], Iterable[str]]) -> StartFacts:
    """Makes the folder of the start, unless that was done before.

    Args:
        folder: Where it goes.
        recipe: With `start`.
        texts: The new domain; called where words are added.

    Raises:
        RunError: The checkpoint is not the one that the run began with, or what was kept of it is damaged.
        UnmaskError: The checkpoint cannot be used, or extended as asked.
    """
    if (folder / FACTS).is_file():
        content = read_object(folder / FACTS, START_ANEW)
        for name in ("positions", "base_models"):
            content[name] = content.get(name) and tuple(content[name])
        return StartFacts(**{**content, "examples": tuple(content["examples"])})
    assert recipe.start is not None
    facts, model, tokenizer = _started(recipe.start, recipe.training.sequence_length, texts)
    config = model.config
    with writing(folder), whole_folder(folder) as partial:
        save_model(model, partial)
        tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
        (partial / FACTS).write_text(json.dumps(asdict(facts), indent=1) + "\n", encoding="utf-8")
    return facts


def _started(
    settings: StartSettings, length: int, texts: Callable[[], Iterable[str]]
) -> tuple[StartFacts, MaskedLM, Tokenizer]:
    """The checkpoint with what is added to it."""
    folder = find_checkpoint(settings.checkpoint)
    if checkpoint_sha256(folder) != settings.sha256:
        raise RunError(
            f"{folder}: the checkpoint is another one than when the run began, which has made nothing of it yet; "
            "begin anew with --overwrite"
        )
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    changes: dict[str, Any] = {}
    extension = None
    if settings.extend_vocab is not None:
        extension = extend_vocabulary(tokenizer, texts(), settings.extend_vocab)
        changes |= _of_words(extension)
    new_head = not has_prediction_head(folder, config.layout)
    with files_checked(folder):
        model = load_model(folder, mask_id=tokenizer.special.mask)
    if extension is not None:
        tokenizer = extension.tokenizer
        model = with_words(model, [word.pieces for word in extension.words], first_id=extension.first_id)
    if length > config.max_position_embeddings:
        changes["positions"] = (config.max_position_embeddings, length)
        model = with_positions(model, length)
    name = lasting_name(settings.checkpoint, folder)
    known = base_models(name, folder)
    return StartFacts(name, settings.sha256, new_head, base_models=known, **changes), model, tokenizer


def _of_words(extension: Extension) -> dict[str, Any]:
    spell = extension.tokenizer.word_starts.text_of
    return {
        "new_words": len(extension.words),
        "examples": tuple(spell(word.entry) for word in extension.words[:_SHOWN]),
        "tokens_before": extension.tokens_before,
        "tokens_after": extension.tokens_after,
    }


def check_text(recipe: Recipe, sources: Sequence[str]) -> None:
    """Makes sure that new words can be found.

    Raises:
        DataError: Words are to be added to the tokenizer of text that is prepared already.
    """
    if recipe.start is not None and recipe.start.extend_vocab is not None and is_prepared(sources):
        raise DataError(
            f"{sources[0]} is prepared already, with the words that its tokenizer has; --extend-vocab needs the text"
        )


def with_start_tokenizer(recipe: Recipe, start: Path, data: Path, sources: Sequence[str]) -> Recipe:
    """The recipe by which the text is prepared: with the tokenizer of the start.

    Args:
        recipe: Of the run.
        start: Folder of the start, which is made.
        data: Where the text is prepared. If that is done, with this tokenizer, it counts under the name that it had
            then, so that a run's folder may be moved.
        sources: A prepared folder keeps its own tokenizer, which `check_tokenizer` compares.
    """
    assert recipe.start is not None
    if is_prepared(sources):
        return recipe
    path = recipe.start.checkpoint if recipe.start.extend_vocab is None else str(start.absolute())
    if (data / MANIFEST).is_file():
        manifest = load_manifest(data)
        if manifest.tokenizer_sha256 == load_tokenizer(start).fingerprint:
            path = manifest.settings["tokenizer"]["path"]
    return recipe.model_copy(update={"tokenizer": TokenizerSettings(path=path)})


def check_tokenizer(root: Path, manifest: Manifest, start: str | Path, checkpoint: str) -> None:
    """Makes sure that data speaks the model's language.

    Args:
        root: The data folder.
        manifest: Its ledger.
        start: The model that the training begins with.
        checkpoint: What it was made of, for the error.

    Raises:
        DataError: It was prepared with another tokenizer.
    """
    if manifest.tokenizer_sha256 != load_tokenizer(start).fingerprint:
        raise DataError(
            f"{root} was prepared with another tokenizer than that of {checkpoint}; prepare it with "
            f"unmask prepare ... --tokenizer {typed(checkpoint)}, or give the text itself"
        )


def start_model(
    recipe: Recipe, folder: Path, tokenizer: Tokenizer, label_names: Sequence[str] = ()
) -> tuple[MaskedLM, list[str]]:
    """The model as the training begins: the checkpoint's weights, and new heads where objectives need them.

    Args:
        recipe: Its objectives say which heads there are beside that for masked tokens.
        folder: Of the start.
        tokenizer: Of the start.
        label_names: The classes of documents, where they are an objective.

    Returns:
        The model, and a line on each head that is taken from the checkpoint or new.
    """
    found = load_model(folder, mask_id=tokenizer.special.mask)
    config = found.config.model_copy(update={"dropout": recipe.model.dropout})
    model = new_model(recipe, tokenizer, label_names, config=config)
    initialise(model, seed=recipe.training.seed)
    weights: dict[str, Tensor] = dict(found.named_parameters())
    if model.label_names != found.label_names:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("label_head.")}
    notes = []
    if model.find_head(PairHead) is not None:
        pairs = _kept_pair_head(found)
        notes.append(f"the head for pairs is {_whose(bool(pairs))}")
        weights |= pairs
    if model.find_head(LabelHead) is not None:
        notes.append(f"the head for classes is {_whose(model.label_names == found.label_names)}")
    if model.find_head(BoundaryHead) is not None:
        notes.append(f"the head for span boundaries is {_whose(False)}")
    if model.find_head(RetroMAEHead) is not None:
        notes.append(f"the decoder that rebuilds texts is {_whose(False)}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    model.kept_weights = found.kept_weights
    return model, notes


def _whose(kept: bool) -> str:
    return "the checkpoint's" if kept else "new"


def _kept_pair_head(found: MaskedLM) -> dict[str, Tensor]:
    """BERT's pooler and classifier of pairs by our names; empty without both.

    They were loaded without being used, but for the pooler where classes of documents are told from it.
    """
    names = LAYOUTS[found.config.layout]
    ours = [f"pair_head.{part}.{kind}" for part in ("pooler", "classifier") for kind in ("weight", "bias")]
    stored = {name: found.kept_weights.get(names.theirs(name)[0]) for name in ours}
    label_head = found.find_head(LabelHead)
    if label_head is not None and label_head.dense is not None:
        pooler = label_head.dense.named_parameters(prefix="pair_head.pooler")
        stored |= {name: weight.detach() for name, weight in pooler}
    kept = {name: weight for name, weight in stored.items() if weight is not None}
    return kept if len(kept) == len(ours) else {}


# ----------------------------------------
# The data of a training that goes on from a checkpoint: its own, and old text for comparison.
#
# Old text is held-out text of the domain that the checkpoint comes from: it shows what the further training forgets.

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
    return [Path(shutil.copy(file, out / file.name)) for file in checked_files(root, manifest.validation)]


def _write(corpus: Corpus, tokenizer: Tokenizer, out: Path, *, held_only: bool) -> list[Path]:
    """Tokenizes a corpus, or what of it is held out."""
    size = chunk_bytes(sum(source.path.stat().st_size for source in corpus.all_sources()))
    with closing(corpus.pieces()) as pieces:
        wanted = ((piece, held) for piece, held in pieces if held or not held_only)
        chunks = cut_chunks(wanted, size)
        counts = [write_shards(chunk, tokenizer, out) for chunk in chunks]
        return [out / file.name for each in counts for file in (*each.train.files, *each.validation.files)]


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
