"""The folder of a run, its data, prepared there or elsewhere, and the checkpoint it starts from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.commands.prepare import report_facts
from unmask.commands.recipe import Recipe, StartSettings, checkpoint_sha256, new_model, read_fitting_config
from unmask.core.declarations import PACKAGE
from unmask.core.errors import CorpusError, DataError, RunError, SettingsError, parse_json
from unmask.core.files import ClaimedFolder, read_object, typed, whole_folder, write_atomically, write_object, writing
from unmask.core.hub import MODULES, lasting_name
from unmask.core.remote import source_named
from unmask.core.results import Notify, Reporter, counted, ignore
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.data_folder import (
    MANIFEST,
    Manifest,
    checked_files,
    chunk_bytes,
    cut_chunks,
    is_prepared,
    load_manifest,
    open_split,
    write_shards,
)
from unmask.data.prepare import prepare
from unmask.data.rows import RowStream, special_positions
from unmask.data.settings import CorpusSettings
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, kept_source
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings, needed_annotations
from unmask.masking.tables import Tables, named_files
from unmask.model.card_head import base_models
from unmask.model.encoder import MaskedLM, extended, initialise, retokenized
from unmask.model.folder import files_checked, find_weights, has_prediction_head, load_model, save_model
from unmask.model.layers import LabelHead, PairHead
from unmask.model.layout_names import LAYOUTS
from unmask.tokenizer.extension import extend_vocabulary, respelled
from unmask.tokenizer.loading import load_for_new_model, load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.initialisation import words_from_corpus

FACTS = "start.json"
OLD_FACTS = "old.json"
_SHOWN = 8
START_ANEW = "start the run over with overwrite"  # the way out if a file of a run is damaged


class RunFolder:
    """Paths within a run's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.toml"  # all settings; marks the folder as a run
        self.sources = root / "sources.json"  # the files that the text comes from
        # With a checkpoint: the model and tokenizer that training starts with; held-out text of the checkpoint's own
        # domain, as tokens, if there is any; and figures before training, on the new and on the old text.
        self.start = root / "start"
        self.old = root / "old"
        self.before = root / "before.json"
        self.data = root / "data"  # prepared shards, unless the sources are a prepared folder
        self.lexicon = root / "lexicon.safetensors"  # if masking needs collocations and names no other lexicon
        self.checkpoints = root / "checkpoints"  # the latest states
        self.metrics = root / "metrics.jsonl"  # a line every few steps and at every evaluation
        self.tensorboard = root / "tensorboard"  # the same for TensorBoard, if it is installed
        self.predictions = root / "predictions.json"  # on some held-out lines, before and after training
        self.model = root / "model"  # the result: a transformers folder
        self.summary = root / "summary.json"  # figures of the result, written last
        self.report = root / "report.html"
        # Text that did not come from files is kept here, too.
        names = {path.name for path in vars(self).values() if path != root} | {STDIN_FILE, PIPES, GIVEN}
        self.claimed = ClaimedFolder(
            root=root, marker=self.recipe.name, what="a run", last=self.summary.name, ours=names,
            early={self.sources.name, STDIN_FILE, PIPES, GIVEN}, theirs={self.data.name},
        )  # fmt: skip

    def write_sources(self, names: Sequence[str]) -> None:
        write_atomically(self.sources, json.dumps(names, indent=1) + "\n")

    def read_sources(self, way_out: str = START_ANEW) -> list[str]:
        """The sources that the run was started on, as `unmask.core.remote.lasting_source` names them."""
        try:
            names = parse_json(self.sources)
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError("it is not a list of paths")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.sources}: damaged ({error}); {way_out}") from error
        return names


def packaged_corpus() -> Path:
    """Tiny Shakespeare (1.1 MB, public domain), the text of a run without paths."""
    return PACKAGE / "data" / "tinyshakespeare.txt"


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
        frequencies = torch.from_numpy(self.frequencies)
        return Tables(self.tokenizer.vocab_size, frequencies, labels=self.manifest.annotations)


def open_prepared(root: Path) -> PreparedData:
    """Opens a data folder. Its files are checked as `unmask.data.data_folder` says."""
    manifest = load_manifest(root)
    tokenizer = load_tokenizer(root / "tokenizer")
    if tokenizer.fingerprint != manifest.tokenizer_sha256:
        raise DataError(f"{root}: tokenizer/ is not the one that the shards were made with; prepare the data again")
    for name, split in (("training", manifest.train), ("validation", manifest.validation)):
        if not split.tokens:
            raise DataError(f"{root}: the {name} split holds no tokens; give more text")
    train, validation = (open_split(root, manifest, split) for split in (manifest.train, manifest.validation))
    return PreparedData(root, manifest, tokenizer, train, validation)


def stream_of(recipe: Recipe, data: PreparedData, *, ahead: bool = False) -> RowStream:
    """The rows of a training, with what its objectives need. Raises a DataError if this text cannot give such rows."""
    pairs = recipe.objectives.pairs
    return RowStream(
        data.train,
        data.tokenizer,
        length=recipe.training.sequence_length,
        seed=recipe.training.seed,
        pairs=None if pairs is None else pairs.kind,
        with_labels=recipe.objectives.label is not None,
        ahead=ahead,
    )


def obtain_data(paths: Sequence[str], folder: Path, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Opens the prepared folder that the paths name, or prepares their files in `folder`, unless already done."""
    is_made = is_prepared(paths)
    root = Path(paths[0]) if is_made else folder
    if not is_made:
        prepare_by(recipe, paths, folder, reporter)
    data = open_prepared(root)
    manifest = data.manifest
    check_data(recipe, manifest, root if is_made else None)

    report_facts(manifest, reporter)
    if manifest.labels and recipe.objectives.label is None:
        reporter.note("classes of documents are not learned; to learn them, set objectives.label.weight=1")
    return data


def tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """The tokenizer for the text of a recipe: a checkpoint brings its own, unless words were added to it, or it gets a
    new one."""
    if recipe.start is None or recipe.start.new_tokenizer or recipe.tokenizer.path is not None:
        return recipe.tokenizer
    return TokenizerSettings(path=recipe.start.checkpoint)


def gets_new_words(recipe: Recipe) -> bool:
    return recipe.start is not None and recipe.start.extend_vocab is not None


def prepare_by(recipe: Recipe, paths: Sequence[str | Path], folder: Path, reporter: Reporter) -> None:
    """Prepares text by a recipe, unless the folder holds complete data."""
    if not (folder / MANIFEST).is_file():
        how: dict[str, Any] = {"notify": reporter.notify, "note": reporter.note, "annotation": recipe.annotation}
        prepare(paths, folder, corpus=recipe.corpus, tokenizer=tokenizer_of(recipe), **how)


def refuse_other_data(folder: Path, paths: Sequence[str | Path]) -> None:
    """Raises a RunError if a folder that no run has claimed holds complete data: a user's, or that of a try that was
    refused. Unless the paths name it, it may be of other text."""
    if is_prepared([folder]) and [Path(path).resolve() for path in paths] != [folder.resolve()]:
        way_out = f"give {typed(folder)} instead of the text to use it, remove it, or give another folder"
        raise RunError(f"{folder} holds prepared data: {way_out}", options=["overwrite", "out"])


# ----------------------------------------
# Whether data fits a recipe.


def check_data(recipe: Recipe, manifest: Manifest | None = None, root: Path | None = None) -> None:
    """Checks that data has what masking and objectives need, and was prepared with the recipe's settings.

    Settings at their defaults are not compared. `manifest` is that of prepared data, None for raw text; `root` is the
    folder of data that was prepared before, perhaps with other settings.
    """
    if manifest is not None and root is not None:
        for name in ("corpus", "tokenizer", "annotation"):
            section = getattr(recipe, name)
            if name == "tokenizer" and recipe.tokenizer.path is not None:
                path = recipe.tokenizer.path
                # As it is: of data made before it was put around texts
                fits = manifest.tokenizer_sha256 in {
                    load(path).fingerprint for load in (load_tokenizer, load_for_new_model)
                }
            else:
                fits = section == type(section)() or section.model_dump(mode="json") == manifest.settings.get(name)
            if not fits:
                way, options = "leave these out", list[str]()
                if name == "tokenizer":  # a recipe may train one of its own, as those of papers do
                    way, options = f"take that of the data with tokenizer.path={typed(root / 'tokenizer')}", ["set"]
                raise DataError(
                    f"{root}: the shards were prepared with other settings than the recipe's [{name}]; {way}, or "
                    "prepare the text again with them",
                    options=options,
                )
    check_annotations(recipe, manifest)
    if recipe.objectives.label is None:
        return
    learns, without = "objectives.label learns the classes of documents", "or objectives.label=none"
    if manifest is None:
        if recipe.corpus.label is None:
            text = f"{learns}; name their column of the tables (corpus.label=COLUMN), {without}"
            raise SettingsError(text, options=["set"])
    elif len(manifest.labels) < 2:
        known = "".join(f"all labelled documents are {name!r}" for name in manifest.labels)
        raise DataError(
            f"{learns}, but {known or 'this data was prepared without'}; prepare it with a column of classes "
            f"(corpus.label=COLUMN), {without}"
        )


def check_before_text(recipe: Recipe) -> None:
    """Checks all that can be known of a recipe before raw text is prepared by it, which may take hours."""
    check_data(recipe)
    if (path := tokenizer_of(recipe).path) is not None:
        check_tokenizer_of_text(recipe, load_for_new_model(path), gets_words=gets_new_words(recipe))


def check_tokenizer_of_text(recipe: Recipe, tokenizer: Tokenizer, *, gets_words: bool = False) -> None:
    """Checks what a tokenizer decides before text is prepared with it: objectives may need special tokens, and files
    that masking names must be made with it. If it still `gets_words`, files that fit it now will not fit the text."""
    pairs = recipe.objectives.pairs
    special_positions(tokenizer, length=recipe.training.sequence_length, pairs=None if pairs is None else pairs.kind)
    if recipe.objectives.span_boundary is not None:
        Masker(MaskingSettings.model_validate({}), tokenizer, with_boundaries=True)
    way_out = f"make it from data that was prepared with --tokenizer {typed(str(tokenizer_of(recipe).path))}"
    if gets_new_words(recipe):
        way_out = "add the new words first, in a run without this file, and start from RUN/start"
    for path, (_, made_with) in named_files(recipe.masking).items():
        if (made_with == tokenizer.fingerprint) == gets_words:
            raise DataError(f"{path} was made with another tokenizer than the text will have; {way_out}")


def check_annotations(recipe: Recipe, manifest: Manifest | None = None) -> None:
    """Checks that there are the annotations that masking needs; arguments and errors are those of `check_data`."""
    columns = recipe.annotation.columns if manifest is None else manifest.annotations
    missing = [column for column in needed_annotations(recipe.masking) if column not in columns]
    if not missing:
        return
    units = recipe.masking.strategy or "these units and weights"
    what = f"masking by {units} needs the annotation {', '.join(missing)}"
    needed = sorted({*columns, *missing})
    if manifest is None:
        names = ",".join(f'"{column}"' for column in needed)
        raise SettingsError(f"{what} of the text; request it with 'annotation.columns=[{names}]'", options=["set"])
    raise DataError(
        f"{what}, which this data was prepared without; make it with unmask prepare ... --annotate {','.join(needed)}"
    )


# ----------------------------------------
# The start of a training from a checkpoint. `start/` has its tokenizer and model, extended as the recipe says, so that
# the run can resume without the checkpoint, and other tools can compare the model before and after. Old text, in
# `old/`, is held-out text of the checkpoint's own domain: it shows what is forgotten.


def data_from_checkpoint(sources: Sequence[str], folder: RunFolder, recipe: Recipe, reporter: Reporter) -> PreparedData:
    """Makes the start, tokenizes the old text, and prepares the new text with the tokenizer of the start.

    A new tokenizer is that of the prepared text, so then this comes first.
    """
    assert recipe.start is not None
    if recipe.start.new_tokenizer:
        data = obtain_data(sources, folder.data, recipe, reporter)
        begin_with_tokenizer(data.tokenizer, folder.start, recipe, note=reporter.note)
        reporter.note(_obtain_old_text(folder.old, recipe.start, recipe.corpus, data.tokenizer))
        return data
    preparing = begin_from_checkpoint(sources, folder.start, recipe, note=reporter.note, notify=reporter.notify)
    tokenizer = load_tokenizer(folder.start)
    # First, since it may be unreadable, and preparing the new text may take hours.
    reporter.note(_obtain_old_text(folder.old, recipe.start, recipe.corpus, tokenizer))
    data = obtain_data(sources, folder.data, preparing, reporter)
    check_tokenizer(data.root, data.manifest, folder.start, recipe.start.checkpoint)
    return data


def begin_from_checkpoint(
    sources: Sequence[str],
    start: Path,
    recipe: Recipe,
    *,
    note: Callable[[str], None],
    notify: Notify = ignore,
    sample_bytes: int | None = None,
) -> Recipe:
    """Makes the folder of the start, unless already done; returns the recipe to prepare the text by, with the tokenizer
    of the start. New words are chosen from `sample_bytes` of the text, or from all of it."""
    settings = recipe.start
    assert settings is not None
    if settings.extend_vocab is not None and is_prepared(sources):
        raise DataError(
            f"{sources[0]} is already prepared with a fixed vocabulary; to add words, give the text itself",
            options=["extend_vocab"],
        )

    def training_texts() -> Iterator[str]:
        num_bytes, corpus = 0, Corpus(sources, recipe.corpus)
        count = counted(notify, "counting words", corpus.num_bytes, "bytes")
        # A sample includes held-out text, since choosing what is held out may require all of the text.
        sampled = ((piece, False) for piece in corpus.unsplit())
        with closing(corpus.pieces() if sample_bytes is None else sampled) as pieces:
            for text in (piece.text for piece, held in pieces if not held):
                yield text
                count(size := len(text.encode()))
                num_bytes += size
                if sample_bytes is not None and num_bytes >= sample_bytes:
                    return

    if not (start / FACTS).is_file():
        _make_start(start, recipe, settings, texts=training_texts())
    facts = start_facts(start)
    _note_start(facts, note)
    if (most := settings.extend_vocab) is not None:
        words, before, after = facts["new_words"], facts["tokens_before"], facts["tokens_after"]
        fewer = f" (of at most {most:,}; the text has no more)" if words < most else ""
        note(
            f"added {words:,} words{fewer}, such as {', '.join(facts['examples'])}: the training text goes from "
            f"{before:,} to {after:,} tokens ({after / before - 1:+.1%})"
        )
    if is_prepared(sources):  # a prepared folder keeps its own tokenizer, which `check_tokenizer` compares
        return recipe
    path = settings.checkpoint
    if settings.extend_vocab is not None:
        path = str(start.absolute())
        check_tokenizer_of_text(recipe, load_tokenizer(start))
    return recipe.model_copy(update={"tokenizer": TokenizerSettings(path=path)})


def begin_with_tokenizer(tokenizer: Tokenizer, start: Path, recipe: Recipe, *, note: Callable[[str], None]) -> None:
    """Makes the folder of a start that gets a new tokenizer, unless already done."""
    assert recipe.start is not None
    if not (start / FACTS).is_file():
        _make_start(start, recipe, recipe.start, tokenizer=tokenizer)
    facts = start_facts(start)
    _note_start(facts, note)
    note(
        f"of the {tokenizer.vocab_size:,} entries of the new tokenizer, {facts['kept_tokens']:,} are also the "
        "checkpoint's, and keep their embeddings"
    )


def _note_start(facts: dict[str, Any], note: Callable[[str], None]) -> None:
    note(f"starting from the model in {facts['checkpoint']}")
    if facts["new_head"]:
        note("the checkpoint has no head for masked tokens: adding a new, untrained one")
    if facts["sentence_encoder"]:
        note(
            "the checkpoint is a sentence encoder: the result is a masked language model without its pooling and "
            "prompts; `unmask embedder RUN/model` makes an embedding model of that"
        )
    if facts["positions"] is not None:
        note("the model was extended from {:,} to {:,} positions".format(*facts["positions"]))


def start_facts(start: Path) -> dict[str, Any]:
    facts: dict[str, Any] = read_object(start / FACTS, START_ANEW, is_sealed=True)["facts"]
    return facts


def _make_start(
    out: Path,
    recipe: Recipe,
    settings: StartSettings,
    *,
    texts: Iterable[str] = (),
    tokenizer: Tokenizer | None = None,
) -> None:
    """Writes the extended checkpoint, or with a new `tokenizer`; the ids of its new tokens; and facts on it, which the
    summary has as `start`.

    `checkpoint` is its folder, or its name and commit on the hub; `positions` the longest sequences before and after;
    `tokens_before` and `tokens_after` the tokens of the training text without the new words and with them;
    `kept_tokens` the number of a new tokenizer's entries that the checkpoint has, too.
    """
    folder = find_weights(settings.checkpoint)
    if checkpoint_sha256(folder) != settings.sha256:
        raise RunError(
            f"{folder}: the checkpoint has changed since the run was started, before it was copied; start over",
            options=["overwrite"],
        )
    new_tokenizer, tokenizer = tokenizer, load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    name = lasting_name(settings.checkpoint, folder)
    # If the checkpoint is an untrained start
    before, new_ids = (start_facts(folder), new_token_ids(folder)) if (folder / FACTS).is_file() else ({}, [])
    facts: dict[str, Any] = {
        "checkpoint": name,
        "sha256": settings.sha256,
        "new_head": not has_prediction_head(folder, config.layout) or before.get("new_head", False),
        "sentence_encoder": before.get("sentence_encoder", False) or (folder / MODULES).is_file(),
        "base_models": before.get("base_models") or base_models(name, folder),
        "positions": None,
        "new_words": before.get("new_words", 0),
        "examples": before.get("examples", []),
        "tokens_before": before.get("tokens_before"),
        "tokens_after": before.get("tokens_after"),
        "kept_tokens": before.get("kept_tokens"),
    }
    with files_checked(folder):
        model = load_model(folder, mask_id=tokenizer.special.mask)
    if new_tokenizer is not None:
        pieces, new_ids = respelled(tokenizer, new_tokenizer)
        tokenizer, special = new_tokenizer, new_tokenizer.special
        ids = {"pad_id": special.pad, "cls_id": special.cls, "sep_id": special.sep, "mask_id": special.mask}
        of_model = model.config.model_copy(update={"vocab_size": tokenizer.vocab_size, **ids})
        model = retokenized(model, pieces, of_model)
        facts["kept_tokens"] = int(tokenizer.ordinary.sum()) - len(new_ids)
    elif settings.extend_vocab is not None:
        extension = extend_vocabulary(tokenizer, texts, settings.extend_vocab)
        tokenizer = extension.tokenizer
        new_ids = [extension.first_id + number for number in range(len(extension.words))]
        model = extended(model, words=[word.pieces for word in extension.words], first_id=extension.first_id)
        facts |= {
            "new_words": len(extension.words),
            "examples": [tokenizer.text(id_) for id_ in new_ids[:_SHOWN]],
            "tokens_before": extension.tokens_before,
            "tokens_after": extension.tokens_after,
        }
    longest, length = config.max_position_embeddings, recipe.training.sequence_length
    if length > longest:
        facts["positions"] = [longest, length]
        model = extended(model, num_positions=length)
    with writing(out), whole_folder(out) as partial:
        save_with_tokenizer(model, tokenizer, partial)
        write_object(partial / FACTS, {"facts": facts, "new_ids": new_ids})


def new_token_ids(start: Path) -> list[int]:
    """Ids of the tokens that a start has and its checkpoint had not."""
    ids: list[int] = read_object(start / FACTS, START_ANEW, is_sealed=True)["new_ids"]
    return ids


def save_with_tokenizer(model: MaskedLM, tokenizer: Tokenizer, folder: Path, *, with_head: bool = True) -> None:
    """Writes a model and its tokenizer, so that transformers uses both as they were trained."""
    save_model(model, folder, with_head=with_head)
    config = model.config
    tokenizer.save(folder, max_length=config.max_position_embeddings, with_types=config.num_types > 1)


def check_tokenizer(root: Path, manifest: Manifest, start: str | Path, checkpoint: str) -> None:
    """Checks that data was prepared with the tokenizer of the start, which was made from this checkpoint."""
    if manifest.tokenizer_sha256 != load_tokenizer(start).fingerprint:
        raise DataError(
            f"{root} was prepared with another tokenizer than {checkpoint} has; prepare it with "
            f"unmask prepare ... --tokenizer {typed(checkpoint)}, or give the text itself"
        )


def start_model(
    recipe: Recipe,
    folder: Path,
    tokenizer: Tokenizer,
    label_names: Sequence[str] = (),
    frequencies: NDArray[np.int64] | None = None,
    store: TokenStore | None = None,
) -> MaskedLM:
    """The model at the start of training. Heads for pairs and for the same classes are the checkpoint's, others new.

    New tokens are initialised from the training text (`store`; None: they stay the mean of their pieces). A new head
    for masked tokens is initialised from the `frequencies` [vocab_size] of the training text: otherwise a short
    training would be spent on learning these, and now the encoder learns from the first step.
    """
    old = load_model(folder, mask_id=tokenizer.special.mask)
    config = old.config.model_copy(update={"dropout": recipe.model.dropout})
    model = new_model(recipe, tokenizer, label_names, config=config)
    initialise(model, seed=recipe.training.seed)
    other = () if model.label_names == old.label_names else ("label_head.",)
    weights = {name: weight for name, weight in old.named_parameters() if not name.startswith(other)}
    pairs: dict[str, Tensor] = {}
    if model.find_head(PairHead) is not None:
        # BERT's pooler and classifier of pairs, by our names, if both are there. They are among the unused weights,
        # except for a pooler that the head for classes uses.
        names = LAYOUTS[old.config.layout]
        ours = [f"pair_head.{part}.{kind}" for part in ("pooler", "classifier") for kind in ("weight", "bias")]
        stored = {name: old.unused_weights.get(names.theirs(name)[0]) for name in ours}
        label_head = old.find_head(LabelHead)
        if label_head is not None and label_head.dense is not None:
            stored |= dict(label_head.dense.named_parameters(prefix="pair_head.pooler"))
        if all(weight is not None for weight in stored.values()):
            pairs = {name: weight for name, weight in stored.items() if weight is not None}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (weight := pairs.get(name, weights.get(name))) is not None:
                parameter.copy_(weight)
        if frequencies is not None and store is not None and (new_ids := new_token_ids(folder)):
            words_from_corpus(model, store, frequencies, new_ids, seed=recipe.training.seed)
        if frequencies is not None and start_facts(folder)["new_head"]:
            counts = np.ones(len(model.head.bias))  # the model may have more rows than tokens
            counts[: len(frequencies)] += np.where(tokenizer.ordinary, frequencies, 0)
            model.head.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
    model.unused_weights = old.unused_weights
    return model


def open_old_text(folder: Path) -> TokenStore | None:
    """The tokens of the old text in a run's folder; None if there is none."""
    files = read_object(folder / OLD_FACTS, START_ANEW, is_sealed=True)["files"]
    return TokenStore([folder / name for name in files]) if files else None


def _obtain_old_text(folder: Path, settings: StartSettings, new: CorpusSettings, tokenizer: Tokenizer) -> str:
    """Tokenizes the old text into a folder, unless already done.

    The tokenizer is that of the start, so that masks are the same before and after. Returns a line on the text.
    """
    if (folder / OLD_FACTS).is_file():
        return str(read_object(folder / OLD_FACTS, START_ANEW, is_sealed=True)["source"])
    is_whole = bool(settings.old_data) and not is_prepared(settings.old_data)
    source, text = _find_old_text(settings, new, tokenizer)
    with whole_folder(folder) as partial, writing(folder):
        files: list[str] = []
        if isinstance(text, Path):  # copied, so that it stays available to the end
            shards = checked_files(text, load_manifest(text).validation)
            files = [Path(shutil.copy(shard, partial)).name for shard in shards]
        elif text is not None:
            size = chunk_bytes(sum(source.path.stat().st_size for source in text.all_sources()))
            with closing(text.pieces()) as pieces:
                old = ((piece, held) for piece, held in pieces if held or is_whole)
                for chunk in cut_chunks(old, size):
                    counts = write_shards(chunk, tokenizer, partial)
                    files += [file.name for split in (counts.train, counts.validation) for file in split.files]
            if not files and settings.old_data:
                raise DataError(f"{', '.join(settings.old_data)}: contains no text", options=["old_data"])
        content = {"source": source, "files": files}
        write_object(partial / OLD_FACTS, content)
    return source


def _find_old_text(
    settings: StartSettings, new: CorpusSettings, tokenizer: Tokenizer
) -> tuple[str, Corpus | Path | None]:
    """A description of the old text, and the text itself: a corpus, a prepared folder, or None.

    All of named text is used, or the validation split of a named prepared folder. Text is read with the encoding and
    the handling of bad input of the `new` text; its tables may have other columns. If none is named, it is the
    validation split of the run that made the checkpoint. If its tokenizer differs, the sources are read again.
    """
    if settings.old_data and not is_prepared(settings.old_data):
        reading = CorpusSettings(encoding=new.encoding, bad_input=new.bad_input)
        corpus = Corpus(settings.old_data, reading, hold_out=False)
        return f"old text: all of {', '.join(settings.old_data)}; a document is {corpus.plan.reason}", corpus
    way_out = "forgetting is not measured (to measure it, give text of the old domain as old_data)"
    if settings.old_data:
        root = Path(settings.old_data[0])
    else:
        run = RunFolder(Path(settings.checkpoint).parent)
        if Path(settings.checkpoint).name != "model" or not run.claimed.is_claimed:
            return f"the checkpoint's training text is not known: {way_out}", None
        root = run.data
        if not (root / MANIFEST).is_file() and run.sources.is_file():  # a prepared folder, if any
            root = Path(source_named(run.read_sources("fix it, or give text of the old domain as old_data")[0]))
        if not (root / MANIFEST).is_file():
            return f"the data of {run.root} is gone: {way_out}", None
    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 == tokenizer.fingerprint:
        return f"old text: the validation split of {root}", root
    with suppress(CorpusError, SettingsError):  # files may be gone or new, a setting unknown
        sources = [kept_source(root, source) for source in manifest.settings["sources"]]
        corpus = Corpus(sources, validated(CorpusSettings, manifest.settings["corpus"], where=f"{root}: corpus"))
        sizes = {source.path.resolve(): source.path.stat().st_size for source in corpus.all_sources()}
        if sizes == {Path(source["path"]).resolve(): source["bytes"] for source in manifest.sources}:
            return f"old text: the held-out part of {root}, tokenized again", corpus
    gone = "the text that it was made from is gone or has changed"
    if settings.old_data:
        what = f"{root} was prepared with another tokenizer than the training's, and {gone}; give the text itself"
        raise DataError(what, options=["old_data"])
    return f"{root} has another tokenizer, and {gone}: {way_out}", None
