"""Small files beside a model's weights which say that its folder is one of sentence-transformers.

    modules.json             Transformer, Pooling, and Normalize where vectors are divided by their length
    1_Pooling/config.json    which pooling

or MLMTransformer and SpladePooling (1_SpladePooling/config.json), where vectors are sparse.

They say how tokens become a vector, and are written for an embedding model, not for a masked language model: without
them `SentenceTransformer` takes the mean, `SparseEncoder` makes SPLADE of the head and `CrossEncoder` puts a head of
its own on the encoder; with them `SparseEncoder` would put an untrained autoencoder behind the mean.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import ModelError, load_json, shown
from unmask.core.files import writing
from unmask.model.pooling import POOLINGS

MODULES = "modules.json"
POOLING_FOLDERS = ("1_Pooling", "2_Normalize")
SPARSE_FOLDER = "1_SpladePooling"
_SETTINGS = ("sentence_bert_config.json", "config_sentence_transformers.json")
_LETTERS = 100  # of a name of a folder, or of a kind of pooling
# What newer files say under `pooling_mode`, older ones say with a key each.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
SPLADE: Literal["splade"] = "splade"  # a pooling beside `POOLINGS`, of the head's logits
_SPLADE_SETTINGS = {"pooling_strategy": "max", "activation_function": "relu"}
_WAY_OUT = (
    f"ask for {' or '.join(POOLINGS)} by name (--pooling of embed, or pooling=), or give a copy of the folder without "
    "modules.json, which has the mean"
)


def read_pooling(folder: Path) -> str:
    """How sentence-transformers makes a vector of the tokens of a folder's model; the mean, where no file says so."""
    if sparse_file(folder) is not None:
        raise ModelError(
            f"{folder}: its vectors are sparse (SPLADE), which `unmask embed`, `search` and `evaluate-search` make, "
            "or sentence_transformers.SparseEncoder(folder); for dense ones ask for pooling mean"
        )
    for kind, _ in _modules(folder):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ModelError(f"{folder / MODULES}: vectors go through {kind}, which is not offered; {_WAY_OUT}")
    if (file := pooling_file(folder)) is None:
        return "mean"
    modes = _modes(_read(file), file)
    for name, pooling in POOLINGS.items():
        if modes == [pooling.sentence_transformers]:
            return name
    raise ModelError(f"{file}: pooling by {' and '.join(modes)} is not offered; {_WAY_OUT}")


def sparse_file(folder: Path) -> Path | None:
    """Where a folder says how it makes sparse vectors; None: it makes none."""
    places = [path for kind, path in _modules(folder) if kind == "SpladePooling"]
    return folder / places[0] / "config.json" if places else None


def check_splade(folder: Path) -> None:
    """Makes sure that a folder's sparse vectors are made as ours: log(1 + relu(the largest logit)).

    Args:
        folder: One that makes sparse vectors (`sparse_file`).
    """
    if (file := sparse_file(folder)) is None:
        raise ModelError(f"{folder}: makes no sparse vectors")
    for kind, _ in _modules(folder):
        if kind not in ("Transformer", "MLMTransformer", "SpladePooling"):
            raise ModelError(f"{folder / MODULES}: sparse vectors go through {kind}, which is not offered")
    content = _read(file)
    if not isinstance(content, dict):
        raise ModelError(f"{file}: damaged (no table); mend it")
    for key, offered in _SPLADE_SETTINGS.items():
        if (value := content.get(key, offered)) != offered:
            raise ModelError(
                f"{file}: {key} = {shown(value)} is not offered, only {offered!r}; a copy of the folder without "
                "modules.json is a masked language model, and its logits are offered"
            )


def pooling_file(folder: Path) -> Path | None:
    """Where a folder says how it pools; None: nowhere."""
    places = [path for kind, path in _modules(folder) if kind == "Pooling"]
    return folder / places[0] / "config.json" if places else None


def read_normalize(folder: Path) -> bool:
    """Whether sentence-transformers divides the vectors of a folder's model by their length."""
    return any(kind == "Normalize" for kind, _ in _modules(folder))


def copy_sentence_files(folder: Path, out: Path) -> None:
    """Copies what makes a folder one of sentence-transformers, where it is one, so that vectors are made alike there.

    Args:
        folder: Of a model whose pooling is offered here (`read_pooling`, `check_splade`).
        out: An existing folder.
    """
    modules = _modules(folder)
    for name in (MODULES, *_SETTINGS) if modules else ():
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    for kind, path in modules:
        if path and not kind.endswith("Transformer"):  # whose files are the model's
            (out / path).mkdir(exist_ok=True)
            for file in (folder / path).glob("*.json"):
                shutil.copyfile(file, out / path / file.name)


def write_sentence_files(folder: Path, *, max_length: int, width: int, pooling: str = "mean") -> None:
    """Makes the folder of an encoder one of sentence-transformers 3 to 6, with vectors divided by their length.

    Args:
        folder: With the model.
        max_length: Longest text in tokens, special tokens included; longer ones are cut off there.
        width: Numbers of a vector.
        pooling: A name of `POOLINGS`.
    """
    kinds = {"Transformer": "", "Pooling": POOLING_FOLDERS[0], "Normalize": POOLING_FOLDERS[1]}
    modes = {key: mode == POOLINGS[pooling].sentence_transformers for key, mode in _MODES.items()}
    content = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    similarity = {"similarity_fn_name": "cosine"}
    _write(folder, "sentence_transformers.models", kinds, content, max_length, similarity)


def write_sparse_files(folder: Path, *, max_length: int, width: int) -> None:
    """Makes the folder of a masked language model one of `SparseEncoder` (SPLADE) of sentence-transformers 5 and 6.

    Arguments and errors as of `write_sentence_files`; `width` is that of the vocabulary.
    """
    kinds = {"MLMTransformer": "", "SpladePooling": SPARSE_FOLDER}
    content = {**_SPLADE_SETTINGS, "word_embedding_dimension": width}
    similarity = {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
    _write(folder, "sentence_transformers.sparse_encoder.models", kinds, content, max_length, similarity)


def _write(
    folder: Path, package: str, kinds: dict[str, str], pooling: Any, max_length: int, similarity: dict[str, str]
) -> None:
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    contents: dict[str, Any] = {
        MODULES: modules,
        _SETTINGS[0]: {"max_seq_length": max_length, "do_lower_case": False},
        _SETTINGS[1]: {"prompts": {}, "default_prompt_name": None, **similarity},
        f"{list(kinds.values())[1]}/config.json": pooling,
    }
    with writing(folder):
        for name, content in contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Classes, without the packages that they stand in, and their folders; none where there is no file."""
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        modules = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in _read(file)]
    except (KeyError, TypeError) as error:
        raise ModelError(f"{file}: damaged ({error!r}); mend it or take it away") from error
    for _, path in modules:  # a folder in this one, since an export makes it anew
        if path and (path == ".." or Path(path).name != path or len(path) > _LETTERS):
            raise ModelError(f"{file}: damaged (path {shown(path)} is no name of a folder); mend it or take it away")
    return modules


def _modes(content: Any, file: Path) -> list[str]:
    """The kinds of pooling, whose vectors stand side by side where there are several."""
    if not isinstance(content, dict):
        raise ModelError(f"{file}: damaged (no table); mend it, or {_WAY_OUT}")
    if (named := content.get("pooling_mode")) is not None:
        return [mode[:_LETTERS] for mode in map(str, named if isinstance(named, list) else [named])]
    return [mode for key, mode in _MODES.items() if content.get(key)] or ["mean"]


def _read(file: Path) -> Any:
    try:
        return load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); mend it") from error
