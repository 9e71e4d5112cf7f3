"""Model folders: config.json and model.safetensors, as transformers reads and writes them, and checksums of both.

A weight file begins with the name, type and shape of every tensor. We compare this header with config.json before we
build a network or read weights, so no configuration allocates more than the file holds. Anything missing, damaged or
unsupported is a ModelError that names the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.core.errors import ModelError, listed, parse_json, shown
from unmask.core.files import absence, file_sha256, read_object, write_atomically, writing
from unmask.core.hashing import mix_ints
from unmask.core.hub import CONFIG, INDEX, WEIGHTS, local_path
from unmask.model.config import EncoderConfig, Layout
from unmask.model.encoder import MaskedLM, draw, initialise
from unmask.model.layers import (
    OF_TASKS,
    ONLY_TRAINED,
    BoundaryHead,
    Head,
    LabelHead,
    Linear,
    PairHead,
    RetroMAEHead,
    TokenHead,
    heads_for,
)
from unmask.model.layout_names import LAYOUTS, ClassifierPooling, FolderLayout

log = logging.getLogger("unmask")

_WAY_OUT = "give the folder of a model, such as RUN/model"


def find_model(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The folder of a model, given it, a run's folder, or a name on the hub (`unmask.core.hub`). Errors advise
    `way_out`."""
    path = local_path(model, weights=True)
    if not os.path.isdir(path):
        raise ModelError(f"{path}: {absence(path, 'folder')}; {way_out}, or the name of a model on the hub")
    if not (path / CONFIG).is_file() and (path / "model" / CONFIG).is_file():
        path /= "model"
    return path


def find_weights(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """As `find_model`, and checks that configuration and weights are there, in files that our encoder reads."""
    path = find_model(model, way_out=way_out)
    if not (path / CONFIG).is_file():
        raise ModelError(f"{path}: there is no {CONFIG}; {way_out}")
    if not has_weights(path):
        if any(path.glob(_WEIGHTS[1])):
            way_out = "its weights are pickled: load it with transformers and save it again (save_pretrained)"
        raise ModelError(f"{path}: there is no {WEIGHTS}; {way_out}")
    return path


def read_content(folder: Path) -> dict[str, Any]:
    """The content of config.json; its `model_type` is a string."""
    file = folder / CONFIG
    if not file.is_file():
        raise ModelError(f"{folder}: there is no {CONFIG}; {_WAY_OUT}")
    content = read_object(file, _WAY_OUT, raising=ModelError)
    if not isinstance(kind := content.get("model_type"), str):
        raise ModelError(f"{file}: model_type {shown(kind)} is not a model type; supported are {', '.join(LAYOUTS)}")
    return content


def read_config_file(folder: Path) -> tuple[dict[str, Any], FolderLayout]:
    """The content of config.json, and the layout that it names."""
    content = read_content(folder)
    if (kind := content["model_type"]) not in LAYOUTS:
        raise ModelError(
            f"{folder / CONFIG}: model_type {shown(kind)} is not supported; supported are {', '.join(LAYOUTS)} "
            "(fill, embed, evaluate, score and finetune also take models that transformers runs)"
        )
    return content, LAYOUTS[kind]


def has_prediction_head(folder: Path, layout: Layout) -> bool:
    """Whether a folder holds a masked-language-model head. If not, `load_model` makes one."""
    return LAYOUTS[layout].theirs("head.bias")[0] in LAYOUTS[layout].canonical(stored_tensors(folder))


def label_content(names: Sequence[str]) -> dict[str, Any]:
    """The keys of config.json for classes, in the order of their ids. transformers takes their number from it."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def architecture_of(content: Mapping[str, Any]) -> str:
    """The name of the class in transformers; empty if config.json has none."""
    names = content.get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    return first if isinstance(first, str) else ""


def label_names_of(content: Mapping[str, Any], folder: Path) -> tuple[str, ...] | None:
    """The names of a head's outputs in the order of their ids; None if config.json has none."""
    names = content.get("id2label")
    if names is None:
        return None
    try:
        return tuple(str(names[key]) for key in sorted(dict(names), key=int))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: id2label must map numbers to names") from error


# ----------------------------------------
# Weights: one safetensors file, or several that an index lists

_FLOATS = ("F64", "F32", "F16", "BF16")


class StoredTensor(NamedTuple):
    shape: tuple[int, ...]
    kind: str  # its number type, such as `F32`


def has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ModelError(f"{folder}: there is no {WEIGHTS}")
    try:
        files = [folder / Path(name).name for name in sorted(set(parse_json(folder / INDEX)["weight_map"].values()))]
        missing = [file for file in files if not file.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX}: damaged ({error!r})") from error
    if missing:
        raise ModelError(f"{missing[0]}: no such file, although {INDEX} names it")
    return files


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    try:
        yield
    # Besides safetensors' own errors: types that torch lacks, and sizes that do not fit memory.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{file}: damaged ({reason})") from error


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Shapes and types of a folder's tensors, by name. Only the headers are read."""
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder):
        with _damaged(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                tensor = opened.get_slice(name)
                tensors[name] = StoredTensor(tuple(tensor.get_shape()), str(tensor.get_dtype()))
    return tensors


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        with _damaged(file):
            weights |= load_file(file)
    return weights


def check_vocabulary(folder: Path, tokenizer_size: int, model_size: int) -> None:
    """Raises a ModelError if the tokenizer has ids beyond the model's. A model may have more rows."""
    if tokenizer_size > model_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer_size:,} ids, but the model only {model_size:,}; give a model with "
            "the tokenizer that it was trained with; after adding tokens with transformers, call "
            "model.resize_token_embeddings(len(tokenizer)) and save the model again"
        )


def check_finite(weight: Tensor, name: str, where: str) -> None:
    if not weight.sum().isfinite() and not weight.isfinite().all():
        raise ModelError(
            f"{where}: {shown(name)} holds values that are not finite (NaN or infinity), so the model is useless: its "
            "training diverged, or the file is damaged; give another copy"
        )


def check_kinds(stored: Mapping[str, StoredTensor], where: str) -> None:
    for name, tensor in stored.items():
        if tensor.kind not in _FLOATS:
            raise ModelError(
                f"{where}: {shown(name)} holds numbers of type {tensor.kind}, but weights must be "
                f"{', '.join(_FLOATS)}; if the model is quantised, give the original"
            )


# ----------------------------------------
# Loading and saving


def _load(
    folder: Path,
    config: EncoderConfig,
    make_heads: Callable[[], Sequence[Head]],
    is_needed: Callable[[str], bool] = lambda name: True,
) -> tuple[MaskedLM, dict[str, Tensor], dict[str, list[str]]]:
    """A network with the weights of a folder, built after checking that the files hold what config.json needs.

    `is_needed` tells by a parameter's name whether it must be stored; the others keep their initial values. The
    masked-language-model head may be missing as a whole, or but for the layers that a classifier shares with it.
    Also returns the folder's weights by canonical names, and the names under which our parameters are stored there.
    """
    layout, where = LAYOUTS[config.layout], str(folder / WEIGHTS)
    stored = layout.canonical(stored_tensors(folder))

    def check(name: str, shape: Sequence[int]) -> list[str]:
        expected = (shape[0] // len(layout.theirs(name)), *shape[1:])
        for theirs in layout.theirs(name):
            if theirs not in stored:
                raise ModelError(f"{where}: the weights lack {theirs}, which the layout in config.json has")
            if stored[theirs].shape != expected:
                actual = stored[theirs].shape
                raise ModelError(f"{where}: {theirs} has the shape {actual}, but config.json says {expected}")
        return layout.theirs(name)

    # Check first the sizes that could make the network too large to build, then all shapes on the meta device.
    check("encoder.tokens", (config.vocab_size, config.hidden_size))
    if config.num_layers > len(stored):
        raise ModelError(f"{where}: the weights lack layers, of which config.json has {config.num_layers:,}")
    with torch.device("meta"):
        parameters = MaskedLM(config, make_heads()).named_parameters()
    shapes = {name: each.shape for name, each in parameters if is_needed(name)}
    head_names = [name for name in shapes if name.startswith("head.") and name not in layout.shared]
    if head_names and not any(theirs in stored for name in head_names for theirs in layout.theirs(name)):
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("head.")}
    names = {name: check(name, shape) for name, shape in shapes.items()}
    check_kinds({theirs: stored[theirs] for each in names.values() for theirs in each}, where)

    model = MaskedLM(config, make_heads())
    weights, ours = layout.canonical(read_weights(folder)), {}
    for name, stored_names in names.items():
        parts = [weights[theirs].to(torch.float32) for theirs in stored_names]
        for theirs, part in zip(stored_names, parts, strict=True):
            check_finite(part, theirs, where)
        ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)  # cat copies; most weights have one part
    model.load_state_dict(ours, strict=False)
    return model, weights, names


def load_model(folder: Path, *, mask_id: int) -> MaskedLM:
    """Loads a model that unmask or transformers wrote.

    A folder of a bare encoder gets a new head (`has_prediction_head`). A classification head is loaded if the folder
    also has a masked-language-model head. `mask_id` is the tokenizer's.
    """
    content, layout = read_config_file(folder)
    config, where = layout.read_config(content, mask_id=mask_id), folder / WEIGHTS

    # A classification head beside the masked-language-model head is loaded if it pools like ours.
    label_names = None
    stored = layout.canonical(stored_tensors(folder))
    label_weights = ["label_head.classifier.weight", *(["label_head.dense.weight"] if config.parts.label_dense else [])]
    has_both = all(theirs in stored for name in (*label_weights, "head.bias") for theirs in layout.theirs(name))
    if has_both and layout.pooling_of(content, CONFIG) == "first":
        num_labels = next(iter(stored[layout.theirs(label_weights[0])[0]].shape), 0)
        label_names = label_names_of(content, folder) or tuple(f"LABEL_{i}" for i in range(num_labels))

    model, weights, names = _load(folder, config, lambda: heads_for(config, label_names=label_names))
    has_head, table = "head.bias" in names, model.encoder.tokens
    if not has_head:
        draw(model.head.dense.weight, config.initializer_range, torch.Generator().manual_seed(0))
    for name in layout.known:
        decoder = weights.get(name) if has_head and name.endswith("decoder.weight") else None
        if decoder is not None and (decoder.shape != table.shape or not torch.equal(decoder.to(torch.float32), table)):
            log.warning(
                "%s: %s differs from the embedding, although config.json ties them; we use the embedding, "
                "but other libraries may use the former (unmask verify compares them)", where, name,
            )  # fmt: skip

    # Other weights are kept to be written back if the layout knows them, else dropped with a warning.
    used = {theirs for name, _ in model.named_parameters() for theirs in layout.theirs(name)}
    rest = {name: tensor for name, tensor in weights.items() if name not in used and name not in layout.known}
    model.unused_weights = {name: tensor for name, tensor in rest.items() if name.startswith(layout.unused)}
    if left_out := sorted(rest.keys() - model.unused_weights.keys()):
        log.warning("%s: not loaded, since a masked language model has no place for it: %s", where, listed(left_out, 8))
    return model


def save_model(model: MaskedLM, folder: Path, *, with_head: bool = True) -> None:
    """Writes the model so that `AutoModelForMaskedLM.from_pretrained(folder)` gives the same logits.

    Weights are written in float32, the tied decoder once, as the embedding. `unused_weights` (BERT's pooler) are
    written unchanged. With a pair head `BertForPreTraining` loads the folder too, with a classification head
    `AutoModelForSequenceClassification`. The span-boundary head and RetroMAE's decoder are left out, which is logged.
    Without `with_head` the folder is a bare encoder's, without the masked-language-model head.
    """
    layout = LAYOUTS[model.config.layout]
    left_out = (*(f"{head.name}." for head in ONLY_TRAINED), *([] if with_head else ["head."]))
    if model.find_head(BoundaryHead) is not None:
        log.info("the span-boundary head is not saved with the model: transformers has no place for it")
    if model.find_head(RetroMAEHead) is not None:
        log.info("the decoder that rebuilds texts is not saved with the model: only training needs it")
    content = layout.write_config(model.config)
    if model.find_head(PairHead) is not None or "cls.seq_relationship.weight" in model.unused_weights:
        content["architectures"].append(layout.pair_architecture)
    if model.label_names is not None:
        content |= label_content(model.label_names) | layout.pooling_content("first")
    weights = {name: weight for name, weight in model.named_parameters() if not name.startswith(left_out)}
    with writing(folder, SafetensorError):
        _write({**model.unused_weights, **layout.to_transformers(weights)}, content, folder)


def _write(weights: dict[str, Tensor], content: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


# ----------------------------------------
# Folders of fine-tuned models: a transformers folder with a task's head and labels.
#
# Facts for which transformers' config.json has no key are under a key of our own, which transformers ignores. The task
# defines its content (`unmask.tasks`); heads, weights and labels are handled here.

KEY = "unmask_task"
_NEW_HEAD = 5  # gives the head's draws another seed than those of all weights
_POOLER = "bert.pooler.dense."


@dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model, as its folder describes it."""

    head: str  # its name in `unmask.model.layers`
    architecture: str  # the name of transformers' class after `For`
    names: tuple[str, ...]  # of its outputs; empty if they have none
    problem_type: str | None  # transformers' `problem_type` of a head for whole texts; None: a head for tokens
    pooling: ClassifierPooling | None  # of whole texts; None: a head for tokens
    own: Mapping[str, Any]  # content of our own key in config.json

    def new(self, config: EncoderConfig) -> LabelHead | TokenHead:
        """The module, before its weights are drawn."""
        if self.head == LabelHead.name:
            return LabelHead(config, self.names)
        return TokenHead(self.head, config, self.names)

    def needs(self, name: str, layout: FolderLayout) -> bool:
        """Whether transformers' model with this head has our parameter of this name."""
        return name.startswith(("encoder.", f"{self.head}.")) or name in layout.shared


def with_task_head(
    model: MaskedLM, head: TaskHead, *, seed: int, dropout: float | None = None, trained: bool = True
) -> MaskedLM:
    """A copy of the model with a new head, and with the same weights unless `trained` is false.

    The layer before BERT's classifier is the folder's pooler, if it has one. `dropout` replaces the model's rates, in
    the encoder and before the classifier. If not `trained`, all weights are drawn by the seed, and norms start at 1
    and biases at 0.
    """
    rates = {} if dropout is None else {"dropout": dropout, "classifier_dropout": dropout}
    config = model.config.model_copy(update=rates)
    new_head = head.new(config)
    new = MaskedLM(config, [new_head])
    if trained:
        known = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(OF_TASKS)}
        new.load_state_dict(known, strict=False)
    else:
        initialise(new, seed=seed)

    # The head is initialised as in transformers' classes of the layout. ModernBERT's classifier has a standard
    # deviation of hidden_size^-1/2, cut at two of them, so that its logits have one of about 1. Other classifiers, and
    # the layer before them, have `initializer_range`. With 0.02 for ModernBERT's, logits would be near 0, and much of a
    # short fine-tuning would go into making them larger (docs/explanation/experiments.md).
    generator = torch.Generator().manual_seed(mix_ints(seed, _NEW_HEAD))
    for module in new_head.modules():
        if isinstance(module, Linear) and config.parts.wide_classifier:
            draw(module.weight, config.hidden_size**-0.5, generator)
        elif isinstance(module, Linear):
            torch.nn.init.normal_(module.weight, 0.0, config.initializer_range, generator=generator)
    if trained and isinstance(new_head, LabelHead) and new_head.dense is not None:
        # RoBERTa's classifiers have a layer of their own, so only BERT's reuses that of a pretrained label head.
        old_head = model.find_head(LabelHead)
        if config.layout == "bert" and old_head is not None and old_head.dense is not None:
            new_head.dense.load_state_dict(old_head.dense.state_dict())
        elif f"{_POOLER}weight" in model.unused_weights:
            new_head.dense.load_state_dict({kind: model.unused_weights[_POOLER + kind] for kind in ("weight", "bias")})
    return new


def save_task_model(model: MaskedLM, head: TaskHead, folder: Path) -> None:
    """Writes a model with a task's head so that transformers' class for the task gives the same logits. The
    masked-language-model head is left out, except layers that the task shares: the encoder beneath it has changed."""
    layout = LAYOUTS[model.config.layout]
    content = layout.write_config(model.config)
    content["architectures"] = [f"{layout.architecture.removesuffix('ForMaskedLM')}For{head.architecture}"]
    if head.names:
        content |= label_content(head.names)
    if head.pooling is not None:
        content |= layout.pooling_content(head.pooling)
        content["problem_type"] = head.problem_type
    content[KEY] = dict(head.own)
    weights = {name: weight for name, weight in model.named_parameters() if head.needs(name, layout)}
    _write(layout.to_transformers(weights), content, folder)


def load_task_model(folder: Path, head: TaskHead, *, mask_id: int) -> MaskedLM:
    """Loads a fine-tuned model of one of our layouts, whichever library wrote it; `head` is as config.json describes
    it."""
    content, layout = read_config_file(folder)
    config = layout.read_config(content, mask_id=mask_id)
    model, _, names = _load(folder, config, lambda: [head.new(config)], lambda name: head.needs(name, layout))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in names:
                parameter.zero_()  # it belongs to a head that the folder lacks and the task does not use
    return model.eval()


# ----------------------------------------
# checksums.json    {"config.json": SHA-256, "model.safetensors": ..., "tokenizer.json": ..., ...}
#
# `pretrain` and `finetune` write it; transformers and the hub ignore it. A file that differs was damaged, or rewritten
# on purpose: by `save_pretrained` into the same folder, by merging, by hand. These cases look the same, so loading
# warns of both. Files that are not listed (README.md, files of sentence-transformers) may change freely.

CHECKSUMS = "checksums.json"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_FILES = (
    CONFIG, *_WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
)  # fmt: skip


def write_checksums(folder: Path) -> None:
    content = {path.name: file_sha256(path) for path in _checked_files(folder)}
    write_atomically(folder / CHECKSUMS, json.dumps(content, indent=2) + "\n")


def read_checksums(folder: Path) -> dict[str, str] | None:
    """SHA-256 of each file by name, or None if the folder has no checksums (transformers writes none)."""
    if not (file := folder / CHECKSUMS).is_file():
        return None
    content = read_object(file, "remove it to do without checksums", raising=ModelError)
    return {name: str(value) for name, value in content.items()}


def weights_fingerprint(folder: Path) -> str:
    """SHA-256 over a folder's configuration and weights: models with equal ones have equal hidden states."""
    files = {path.name: file_sha256(path) for pattern in (CONFIG, *_WEIGHTS) for path in folder.glob(pattern)}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


@contextmanager
def files_checked(folder: Path, *, strict: bool = False) -> Iterator[None]:
    """Compares a model's files with their checksums in another thread while the model is loaded. A changed file is
    logged as a warning, or raised as an error if `strict`. If loading fails, its own error is raised."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(_complaint, folder)
        yield
        if (complaint := pending.result()) is None:
            return
        if strict:
            raise ModelError(complaint)
        log.warning("%s", complaint)


def _complaint(folder: Path) -> str | None:
    try:
        checksums = read_checksums(folder)
    except ModelError as error:
        return str(error)
    if checksums is None:
        return None
    names = []
    for path in _checked_files(folder):
        expected = checksums.get(path.name)
        is_new = expected is None and any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS)
        if is_new or (expected is not None and file_sha256(path) != expected):
            names.append(shown(path.name)[1:-1])
    if not names:
        return None
    are, them = ("are", "them") if len(names) > 1 else ("is", "it")
    return (
        f"{folder}: {', '.join(names[:4])} {are} not as {CHECKSUMS} recorded: damaged, or saved again since. "
        f"If you changed {them} on purpose (save_pretrained, merging, an edit), remove {CHECKSUMS}; otherwise "
        "use another copy of the model"
    )


def _checked_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()})
