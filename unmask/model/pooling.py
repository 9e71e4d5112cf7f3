"""Pooling: turns the hidden states of a text's tokens into one vector; and the files that record it.

A pooling is a function and a row in `POOLINGS`. `embed`, search, the embedder, sentence-transformers' files and ONNX
graphs read that table (docs/how-to/extending.md).

Functions import numpy and torch themselves, so that the command line can list the names at once.

Shape suffixes: E = texts, S = tokens of the longest, N = tokens of all texts in a line, D = hidden size.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.core.errors import ModelError, SettingsError, parse_json, shown
from unmask.core.files import read_object, writing
from unmask.core.hub import LIMITS, MODULES, PROMPTS
from unmask.core.plugins import Table

if TYPE_CHECKING:
    from torch import Tensor


# Poolings of sentence-transformers: newer files have the key `pooling_mode`, older ones a key for each mode.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    # Maps hidden states [E, S, D] and an int64 mask [E, S], 1 at tokens and 0 at padding after them, to vectors [E, D].
    # It is exported to ONNX as well, so it must not branch on values.
    vectors: Callable[[Tensor, Tensor], Tensor]
    sentence_transformers: str  # its name there (`pooling_mode`)
    description: str  # of a text's vector, in words

    def __post_init__(self) -> None:
        if self.sentence_transformers not in (names := tuple(_MODES.values())):
            what = f"sentence-transformers has no pooling {self.sentence_transformers!r}"
            raise SettingsError(f"{what}, so a model's folder cannot name it; it has {', '.join(names)}")


def _mean(hidden_ESD: Tensor, mask_ES: Tensor) -> Tensor:
    weight_ES1 = mask_ES[..., None].to(hidden_ESD.dtype)
    return (hidden_ESD * weight_ES1).sum(1) / weight_ES1.sum(1).clamp(min=1.0)


POOLINGS: Table[Pooling] = Table("poolings", {
    "mean": Pooling(_mean, "mean", "the mean of its tokens' hidden states, special tokens included"),
    "first": Pooling(
        lambda hidden_ESD, mask_ES: hidden_ESD[:, 0],
        "cls",
        "the hidden state of its first token",
    ),
    "max": Pooling(
        lambda hidden_ESD, mask_ES: hidden_ESD.masked_fill(mask_ES[..., None] == 0, -1e9).amax(1),
        "max",
        "the largest of its tokens' hidden states in each dimension",
    ),
})  # fmt: skip


def pool(hidden_ND: Tensor, lengths: Sequence[int], pooling: str) -> Tensor:
    """Vectors [E, D] of texts, float32. Their tokens follow one another without padding; `lengths` are at least 1, and
    `pooling` is a name in `POOLINGS`."""
    import numpy as np
    import torch

    if not len(lengths):  # a part of a step without texts
        return hidden_ND.float()
    device, lengths_E = hidden_ND.device, np.asarray(lengths, dtype=np.int64)
    begins_E = np.cumsum(lengths_E) - lengths_E
    # Texts are padded together with others of their octave of lengths, so that at most half of a batch is padding.
    octaves_E = np.ceil(np.log2(lengths_E))
    numbers, vectors = [], []
    for octave in np.unique(octaves_E):
        texts = np.flatnonzero(octaves_E == octave)
        within_S = np.arange(lengths_E[texts].max())
        mask_ES = within_S < lengths_E[texts, None]
        places_ES = np.where(mask_ES, begins_E[texts, None] + within_S, 0)
        arrays = places_ES, mask_ES.astype(np.int64)  # as `attention_mask` in graphs
        places, mask = (torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)
        hidden_ESD = hidden_ND.index_select(0, places.flatten()).view(*places.shape, -1).float()
        vectors.append(POOLINGS[pooling].vectors(hidden_ESD, mask))
        numbers.append(texts)
    order = torch.from_numpy(np.argsort(np.concatenate(numbers))).to(device, non_blocking=True)
    return torch.cat(vectors).index_select(0, order)


# ----------------------------------------
# Small files beside a model's weights that make its folder one of sentence-transformers:
#
#     modules.json             Transformer, Pooling, and Normalize if vectors are divided by their length
#     1_Pooling/config.json    which pooling
#
# or, for sparse vectors, MLMTransformer and SpladePooling (1_SpladePooling/config.json).
#
# We write them for an embedding model, not for a masked language model. Without them `SentenceTransformer` takes the
# mean, `SparseEncoder` makes SPLADE from the head, and `CrossEncoder` puts its own head on the encoder. With them
# `SparseEncoder` would put an untrained autoencoder after the mean.

POOLING_FOLDERS = ("1_Pooling", "2_Normalize")
SPARSE_FOLDER = "1_SpladePooling"
_SETTINGS = (LIMITS, PROMPTS)
_LETTERS = 100  # most characters of a folder's name, or of a pooling's
SPLADE: Literal["splade"] = "splade"  # a pooling of the head's logits, so not in `POOLINGS`
_SPLADE_SETTINGS = {"pooling_strategy": "max", "activation_function": "relu"}
_WAY_OUT = (
    f"name {' or '.join(POOLINGS)} (--pooling, pooling= or --set embedder.pooling=), or give a copy of the folder "
    "without modules.json, which is pooled by the mean"
)


def sentence_modules(folder: Path) -> list[tuple[str, str]]:
    """Class names, without their packages, and their folders; empty if there is no file."""
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        modules = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in parse_json(file)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: damaged ({error!r}); fix or remove it") from error
    for _, path in modules:  # must be a folder in this one, since an export creates it again
        if path and (path == ".." or Path(path).name != path or len(path) > _LETTERS):
            raise ModelError(f"{file}: damaged (path {shown(path)} is not the name of a folder); fix or remove it")
    return modules


def read_side_file(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """The content of a small JSON file beside a model; empty if it is `optional` and missing."""
    if optional and not file.is_file():
        return {}
    return read_object(file, "fix or remove it", raising=ModelError)


def module_file(folder: Path, module: Literal["Pooling", "SpladePooling", "Normalize"]) -> Path | None:
    """The settings file of a sentence-transformers module, which pools hidden states, makes sparse vectors, or divides
    vectors by their length; None if the folder does not have the module."""
    path = next((path for kind, path in sentence_modules(folder) if kind == module), None)
    return None if path is None else folder / path / "config.json"


def read_pooling(folder: Path) -> str:
    """The name in `POOLINGS` of a folder's pooling in sentence-transformers; the mean if no file states it."""
    if module_file(folder, "SpladePooling") is not None:
        raise ModelError(
            f"{folder}: its vectors are sparse (SPLADE); make them with `unmask embed`, `search`, `evaluate-search` "
            "or sentence_transformers.SparseEncoder(folder), or use pooling mean for dense ones"
        )
    for kind, _ in sentence_modules(folder):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ModelError(f"{folder / MODULES}: vectors go through {kind}, which is not supported; {_WAY_OUT}")
    if (file := module_file(folder, "Pooling")) is None:
        return "mean"
    content = read_side_file(file)
    modes = content.get("pooling_mode")  # with several modes, their vectors are concatenated
    if modes is None:
        modes = [mode for key, mode in _MODES.items() if content.get(key)] or ["mean"]
    modes = [mode[:_LETTERS] for mode in map(str, modes if isinstance(modes, list) else [modes])]
    for name, pooling in POOLINGS.items():
        if modes == [pooling.sentence_transformers]:
            return name
    raise ModelError(f"{file}: pooling by {' and '.join(modes)} is not supported; {_WAY_OUT}")


def check_splade(folder: Path) -> None:
    """Checks that a folder makes sparse vectors as ours do: log(1 + relu(the largest logit))."""
    if (file := module_file(folder, "SpladePooling")) is None:
        raise ModelError(f"{folder}: makes no sparse vectors")
    for kind, _ in sentence_modules(folder):
        if kind not in ("Transformer", "MLMTransformer", "SpladePooling"):
            raise ModelError(f"{folder / MODULES}: sparse vectors go through {kind}, which is not supported")
    content = read_side_file(file)
    for key, offered in _SPLADE_SETTINGS.items():
        if (value := content.get(key, offered)) != offered:
            raise ModelError(
                f"{file}: {key} = {shown(value)} is not supported, only {offered!r}; without modules.json, a "
                "copy of the folder works as a masked language model"
            )


def copy_sentence_files(folder: Path, out: Path) -> None:
    """Copies the files of sentence-transformers, if there are any, into an existing folder."""
    modules = sentence_modules(folder)
    for name in (MODULES, *_SETTINGS) if modules else ():
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    for kind, path in modules:
        if path and not kind.endswith("Transformer"):  # a Transformer's files are the model's
            (out / path).mkdir(exist_ok=True)
            for file in (folder / path).glob("*.json"):
                shutil.copyfile(file, out / path / file.name)


def write_sentence_files(folder: Path, *, max_length: int, width: int, pooling: str = "mean") -> None:
    """Writes the files with which `SentenceTransformer` 3 to 6 loads a model's folder, for vectors of size `width`
    divided by their length; with `SPLADE`, those for `SparseEncoder` 5 and 6. Texts are truncated to `max_length`
    tokens, special tokens included."""
    kinds: Mapping[str, str]
    content: dict[str, Any] = {"word_embedding_dimension": width}
    if pooling == SPLADE:
        package = "sentence_transformers.sparse_encoder.models"
        kinds = {"MLMTransformer": "", "SpladePooling": SPARSE_FOLDER}
        content = {**_SPLADE_SETTINGS, **content}
        similarity = {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
    else:
        package = "sentence_transformers.models"
        kinds = {"Transformer": "", "Pooling": POOLING_FOLDERS[0], "Normalize": POOLING_FOLDERS[1]}
        content |= {key: mode == POOLINGS[pooling].sentence_transformers for key, mode in _MODES.items()}
        content["include_prompt"] = True
        similarity = {"similarity_fn_name": "cosine"}
    files: dict[str, Any] = {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"}
            for number, (kind, path) in enumerate(kinds.items())
        ],
        _SETTINGS[0]: {"max_seq_length": max_length, "do_lower_case": False},
        _SETTINGS[1]: {"prompts": {}, "default_prompt_name": None, **similarity},
        f"{list(kinds.values())[1]}/config.json": content,
    }
    with writing(folder):
        for name, file_content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(file_content, indent=2) + "\n", encoding="utf-8")
