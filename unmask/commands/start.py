"""What a training from a checkpoint begins with: tokenizer and model, extended where that is asked for, and old text.

They are put into the run's folder (`start/`, a transformers folder), so that the run goes on without the checkpoint,
and so that other tools can compare what was there before with what came of it. Old text (`old/`) is held-out text of
the domain that the checkpoint comes from: it shows what the further training forgets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
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
from unmask.commands.run_data import START_ANEW, PreparedData, RunFolder, is_prepared, obtain_data
from unmask.core.errors import DataError, RunError
from unmask.core.files import read_object, typed, whole_folder, writing
from unmask.core.hub import lasting_name
from unmask.core.remote import source_named
from unmask.core.results import Reporter
from unmask.data.corpus import Corpus
from unmask.data.data_folder import MANIFEST, Manifest, checked_files, load_manifest
from unmask.data.settings import CorpusSettings
from unmask.data.shards import chunk_bytes, cut_chunks, write_shards
from unmask.data.sources import kept_source
from unmask.data.store import TokenStore
from unmask.model.card_head import base_models
from unmask.model.encoder import MaskedLM
from unmask.model.folder import has_prediction_head, load_model, save_model
from unmask.model.heads import BoundaryHead, LabelHead, PairHead, RetroMAEHead
from unmask.model.initial_weights import initialise, with_positions, with_words
from unmask.model.layout_names import LAYOUTS
from unmask.model.stored_weights import files_checked
from unmask.tokenizer.extension import extend_vocabulary
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer

FACTS = "start.json"
OLD_FACTS = "old.json"
_SHOWN = 8


def data_from_checkpoint(sources: Sequence[str], folder: RunFolder, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Makes the start, prepares the new text with its tokenizer, and puts the old text beside it."""
    assert recipe.start is not None
    preparing, notes = begin_from_checkpoint(sources, folder.start, folder.data, recipe)
    for line in notes:
        reporter.note(line)
    data = obtain_data(sources, folder.data, preparing, reporter)
    check_tokenizer(data.root, data.manifest, folder.start, recipe.start.checkpoint)
    reporter.note(_obtain_old_text(folder.old, recipe.start, data.tokenizer))
    return data


def begin_from_checkpoint(
    sources: Sequence[str], start: Path, data: Path, recipe: Recipe, *, sample_bytes: int | None = None
) -> tuple[Recipe, list[str]]:
    """Makes the folder of the start, unless that was done before.

    New words are looked for in `sample_bytes` of the text, or in all of it. Data that was prepared with this tokenizer
    before has it under the name that it had then, so that a run's folder may be moved.

    Returns:
        The recipe by which the text is prepared, with the tokenizer of the start, and lines for the log.

    Raises:
        UnmaskError: The checkpoint cannot be used or extended, is another one than when the run began, or what was kept
            of it is damaged.
    """
    settings = recipe.start
    assert settings is not None
    if settings.extend_vocab is not None and is_prepared(sources):
        raise DataError(
            f"{sources[0]} is prepared already, with the words that its tokenizer has; new words need the text",
            options=["extend_vocab"],
        )
    if (start / FACTS).is_file():
        facts = read_object(start / FACTS, START_ANEW)
    else:
        facts = _make_start(start, recipe, settings, _training_texts(sources, recipe.corpus, sample_bytes))

    notes = [f"beginning with the model in {facts['checkpoint']}"]
    if facts["new_head"]:
        notes.append("the checkpoint has no head for masked tokens: a new one is made, which knows nothing yet")
    if facts["positions"] is not None:
        notes.append("the model was made longer, from {:,} positions to {:,}".format(*facts["positions"]))
    if settings.extend_vocab is not None:
        words, before, after = facts["new_words"], facts["tokens_before"], facts["tokens_after"]
        most = settings.extend_vocab
        fewer = f" ({most:,} were asked for, the text has no more)" if words < most else ""
        notes.append(
            f"{words:,} new words{fewer}, such as {', '.join(facts['examples'])}: {before:,} tokens of the training "
            f"text become {after:,} ({after / before - 1:+.1%})"
        )
    if is_prepared(sources):  # a prepared folder keeps its own tokenizer, which `check_tokenizer` compares
        return recipe, notes
    path = settings.checkpoint if settings.extend_vocab is None else str(start.absolute())
    if (data / MANIFEST).is_file():
        manifest = load_manifest(data)
        if manifest.tokenizer_sha256 == load_tokenizer(start).fingerprint:
            path = manifest.settings["tokenizer"]["path"]
    return recipe.model_copy(update={"tokenizer": TokenizerSettings(path=path)}), notes


def _training_texts(sources: Sequence[str], settings: CorpusSettings, most_bytes: int | None) -> Iterator[str]:
    """The training text without what is held out; about so many bytes of it, or all."""
    num_bytes = 0
    with closing(Corpus(sources, settings).pieces()) as pieces:
        for piece, held in pieces:
            if held:
                continue
            yield piece.text
            num_bytes += len(piece.text.encode())
            if most_bytes is not None and num_bytes >= most_bytes:
                return


def _make_start(out: Path, recipe: Recipe, settings: StartSettings, texts: Iterable[str]) -> dict[str, Any]:
    """Writes the checkpoint with what is added to it, and returns what was done, which the summary gives as `start`.

    `checkpoint` is its folder, or its name and commit on the hub; `positions` are the longest sequence before and
    after; `tokens_before` and `tokens_after` those of the training text without the new words and with them.
    """
    folder = find_checkpoint(settings.checkpoint)
    if checkpoint_sha256(folder) != settings.sha256:
        raise RunError(
            f"{folder}: the checkpoint is another one than when the run began, which has made nothing of it yet; begin "
            "anew",
            options=["overwrite"],
        )
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    name = lasting_name(settings.checkpoint, folder)
    facts: dict[str, Any] = {
        "checkpoint": name,
        "sha256": settings.sha256,
        "new_head": not has_prediction_head(folder, config.layout),
        "base_models": base_models(name, folder),
        "positions": None,
        "new_words": 0,
        "examples": [],
        "tokens_before": None,
        "tokens_after": None,
    }
    with files_checked(folder):
        model = load_model(folder, mask_id=tokenizer.special.mask)
    if settings.extend_vocab is not None:
        extension = extend_vocabulary(tokenizer, texts, settings.extend_vocab)
        tokenizer = extension.tokenizer
        model = with_words(model, [word.pieces for word in extension.words], first_id=extension.first_id)
        facts |= {
            "new_words": len(extension.words),
            "examples": [tokenizer.word_starts.text_of(word.entry) for word in extension.words[:_SHOWN]],
            "tokens_before": extension.tokens_before,
            "tokens_after": extension.tokens_after,
        }
    longest, length = config.max_position_embeddings, recipe.training.sequence_length
    if length > longest:
        facts["positions"] = [longest, length]
        model = with_positions(model, length)
    with writing(out), whole_folder(out) as partial:
        save_model(model, partial)
        config = model.config
        tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return facts


def check_tokenizer(root: Path, manifest: Manifest, start: str | Path, checkpoint: str) -> None:
    """Makes sure that data was prepared with the tokenizer of the start, which was made of this checkpoint."""
    if manifest.tokenizer_sha256 != load_tokenizer(start).fingerprint:
        raise DataError(
            f"{root} was prepared with another tokenizer than that of {checkpoint}; prepare it with "
            f"unmask prepare ... --tokenizer {typed(checkpoint)}, or give the text itself"
        )


def start_model(
    recipe: Recipe, folder: Path, tokenizer: Tokenizer, label_names: Sequence[str] = ()
) -> tuple[MaskedLM, list[str]]:
    """The model as the training begins: the checkpoint's weights, and new heads where objectives need them.

    With a line on each head that is taken from the checkpoint or new.
    """
    old = load_model(folder, mask_id=tokenizer.special.mask)
    config = old.config.model_copy(update={"dropout": recipe.model.dropout})
    model = new_model(recipe, tokenizer, label_names, config=config)
    initialise(model, seed=recipe.training.seed)
    weights: dict[str, Tensor] = dict(old.named_parameters())
    same_labels = model.label_names == old.label_names
    if not same_labels:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("label_head.")}
    pairs: dict[str, Tensor] = {}
    if model.find_head(PairHead) is not None:
        # BERT's pooler and classifier of pairs by our names, if both are there. They were loaded without being used,
        # but for the pooler where classes of documents are predicted from it.
        names = LAYOUTS[old.config.layout]
        ours = [f"pair_head.{part}.{kind}" for part in ("pooler", "classifier") for kind in ("weight", "bias")]
        stored = {name: old.kept_weights.get(names.theirs(name)[0]) for name in ours}
        label_head = old.find_head(LabelHead)
        if label_head is not None and label_head.dense is not None:
            stored |= dict(label_head.dense.named_parameters(prefix="pair_head.pooler"))
        pairs = {name: weight for name, weight in stored.items() if weight is not None}
        pairs = pairs if len(pairs) == len(ours) else {}
        weights |= pairs
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    model.kept_weights = old.kept_weights
    old_head = "the checkpoint's"
    heads = (
        (PairHead, "the head for pairs", old_head if pairs else "new"),
        (LabelHead, "the head for classes", old_head if same_labels else "new"),
        (BoundaryHead, "the head for span boundaries", "new"),
        (RetroMAEHead, "the decoder that rebuilds texts", "new"),
    )
    notes = [f"{what} is {origin}" for kind, what, origin in heads if model.find_head(kind) is not None]
    return model, notes


# ----------------------------------------
# Old text.


def open_old_text(folder: Path) -> TokenStore | None:
    """The tokens of old text that a run's folder holds; None where there is no old text."""
    files = read_object(folder / OLD_FACTS, START_ANEW)["files"]
    return TokenStore([folder / name for name in files]) if files else None


def _obtain_old_text(folder: Path, settings: StartSettings, tokenizer: Tokenizer) -> str:
    """Tokenizes the old text into a folder, unless that was done before.

    The tokenizer is that of the start, so that the same masks serve before and after. Returns what is used, or why
    there is nothing, in a line.
    """
    if (folder / OLD_FACTS).is_file():
        return str(read_object(folder / OLD_FACTS, START_ANEW)["source"])
    source, text = _find_old_text(settings, tokenizer)
    with whole_folder(folder) as partial, writing(folder):
        files: list[str] = []
        if isinstance(text, Path):  # copied, so that it is there to the end
            shards = checked_files(text, load_manifest(text).validation)
            files = [Path(shutil.copy(shard, partial)).name for shard in shards]
        elif text is not None:
            size = chunk_bytes(sum(source.path.stat().st_size for source in text.all_sources()))
            with closing(text.pieces()) as pieces:
                old = ((piece, held) for piece, held in pieces if held or settings.old_data)
                for chunk in cut_chunks(old, size):
                    counts = write_shards(chunk, tokenizer, partial)
                    files += [file.name for split in (counts.train, counts.validation) for file in split.files]
            if not files and settings.old_data:
                raise DataError(f"{', '.join(settings.old_data)}: there is no text in it", options=["old_data"])
        content = {"source": source, "files": files}
        (partial / OLD_FACTS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return source


def _find_old_text(  # noqa: PLR0911  (a case a line)
    settings: StartSettings, tokenizer: Tokenizer
) -> tuple[str, Corpus | Path | None]:
    """What the old text is, in words, and it: text, a prepared folder, or nothing.

    Named text is taken whole, a prepared folder by its validation split. Else it is the validation split of the run
    that made the checkpoint; for another tokenizer, the text that it was made from is read again.
    """
    if settings.old_data:
        if not is_prepared(settings.old_data):
            corpus = Corpus(settings.old_data, CorpusSettings(), hold_out=False)
            return f"old text: all of {', '.join(settings.old_data)}", corpus
        root = Path(settings.old_data[0])
        if load_manifest(root).tokenizer_sha256 != tokenizer.fingerprint:
            raise DataError(
                f"{root} was prepared with another tokenizer than the training's; give the text itself",
                options=["old_data"],
            )
        return f"old text: the validation split of {root}", root

    way_out = "what the model forgets is not measured (old_data names text of its old domain)"
    run = RunFolder(Path(settings.checkpoint).parent)
    if Path(settings.checkpoint).name != "model" or not run.holds_run:
        return f"the old text is not known: {way_out}", None
    root = run.data
    if not (root / MANIFEST).is_file() and run.sources.is_file():  # a prepared folder, if any
        root = Path(source_named(run.read_sources("mend it, or name the text of the old domain")[0]))
    if not (root / MANIFEST).is_file():
        return f"the data of {run.root} is not there any more: {way_out}", None
    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 == tokenizer.fingerprint:
        return f"old text: the validation split of {root}", root
    sizes = {Path(source["path"]).resolve(): source["bytes"] for source in manifest.sources}
    if all(path.is_file() and path.stat().st_size == size for path, size in sizes.items()):
        sources = [kept_source(root, source) for source in manifest.settings["sources"]]
        corpus = Corpus(sources, CorpusSettings.model_validate(manifest.settings["corpus"]))
        if {source.path.resolve() for source in corpus.all_sources()} == sizes.keys():  # a folder may hold more by now
            return f"old text: what {root} holds out, read again", corpus
    return f"the text that {root} was made from is not there any more as it was: {way_out}", None
