"""Models on the hub: their names, which of their files are fetched, and the copies on this machine.

    answerdotai/ModernBERT-base           the main branch
    answerdotai/ModernBERT-base@COMMIT    a commit, a tag, a branch, or refs/pr/1
    bert-base-uncased                     the oldest models have no owner
    runs/mine/model, ./mine, mine.json    paths, whether they exist or not

Pickles are never fetched, since loading one can run code.

Copies are in the cache of huggingface_hub and are used without asking the network. So a model that was used once works
offline, and a name without a commit means the same model until its copy is removed. Runs record `lasting_name`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

from unmask.core.errors import ModelError, RunError, SettingsError, TokenizerError, UnmaskError, parse_json, shown

_NAME = re.compile(r"([A-Za-z0-9]([\w.-]*\w)?/)?[A-Za-z0-9]([\w.-]*\w)?", re.ASCII)
_REVISION = re.compile(r"refs/[\w./-]{1,99}|[\w.-]{1,99}", re.ASCII)
_LONGEST = 96
_OF_FILES = (
    ".bin", ".csv", ".git", ".gz", ".html", ".json", ".jsonl", ".md", ".model", ".npy", ".onnx", ".parquet", ".pt",
    ".pth", ".safetensors", ".tar", ".toml", ".tsv", ".txt", ".yaml", ".zip",
)  # fmt: skip


@dataclass(frozen=True)
class HubName:
    name: str  # `owner/name`, or `name`
    revision: str | None = None  # branch, tag or commit; None is the main branch

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_name(source: str | Path) -> HubName | None:
    """The model that a string names; None if it is a path.

    Anything that exists is a path. So is anything that can only be a mistyped path, for which the network is not asked:
    a `Path`; a name that the hub does not allow; one with a file's suffix; one whose folder exists.
    """
    if not isinstance(source, str):
        return None
    name, at, revision = source.partition("@")
    if len(name) > _LONGEST or not _NAME.fullmatch(name) or (at and not _REVISION.fullmatch(revision)):
        return None
    if "--" in name or ".." in name or name.lower().endswith(_OF_FILES):
        return None
    if Path(source).exists() or ("/" in name and Path(name).parent.is_dir()):
        return None
    return HubName(name, revision or None)


CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MODULES, POOLING, SPARSE_POOLING = "modules.json", "1_Pooling/config.json", "1_SpladePooling/config.json"
PROMPTS, LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
_VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip
_OF_TOKENIZERS = (
    *_VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    CONFIG,  # may name the tokenizer's class
)  # fmt: skip
OF_NETWORKS = (WEIGHTS, INDEX, "model-*-of-*.safetensors", *_OF_TOKENIZERS)
_OF_MODELS = (*OF_NETWORKS, "checksums.json", MODULES, POOLING, SPARSE_POOLING, LIMITS, PROMPTS)


def _missing_file(folder: Path, *, weights: bool) -> str | None:
    """The required file that a folder lacks, if any: a vocabulary and, with `weights`, a network."""
    needed = [CONFIG, WEIGHTS] if weights else []
    if weights and not (folder / WEIGHTS).is_file() and (index := folder / INDEX).is_file():
        try:  # the files that share the weights
            needed = [CONFIG, *sorted({Path(name).name for name in parse_json(index)["weight_map"].values()})]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: damaged ({error}); remove the model from the hub's cache") from error
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        needed.append(_VOCABULARIES[0])
    return next((name for name in needed if not (folder / name).is_file()), None)


def _failures() -> tuple[type[Exception], ...]:
    from huggingface_hub import errors

    return OSError, RuntimeError, *errors.HfHubHTTPError.__bases__  # of its HTTP client


def _cause(error: Exception) -> str:
    # Why the hub was not reached, in a few words.
    from huggingface_hub import constants

    cause = error.__cause__ or error
    line = next(iter(str(cause).strip().splitlines()), "no reason given")
    return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{type(cause).__name__}: {line}"


def _reason(model: HubName, error: Exception, missing: str | None) -> str:
    """The second half of an error, after words that there is no such path; `missing` is a file that the copy lacks."""
    from huggingface_hub import errors

    token = "set HF_TOKEN, or run `hf auth login`"
    if isinstance(error, errors.GatedRepoError):  # which is a RepositoryNotFoundError, too
        return f"and on the hub it is gated: request access on its page, then {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"and on the hub {model.name} has no revision {model.revision or 'main'!r}; name another"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RepositoryNotFoundError) or status in {401, 403}:
        return f"and no such model on the hub, or it is private; check the spelling, or {token}"
    lacks = "" if missing is None else f"its local copy lacks {missing}, "
    return (
        f"{lacks}and it cannot be downloaded from the hub ({_cause(error)}); give a path, such as RUN/model, or "
        f"try again while online: hf download {model.name}"
    )


log = logging.getLogger("unmask")


def lasting_name(source: str | Path, folder: Path) -> str:
    """A model's name in the records of a run, which always means the same: with its commit, or an absolute path."""
    model = hub_name(source)  # its folder in the hub's cache is named after the commit
    return str(folder.resolve()) if model is None else f"{model.name}@{folder.name}"


def local_path(source: str | Path, *, weights: bool) -> Path:
    """A path unchanged; for a model's name on the hub, the folder of its copy, with a tokenizer and, with `weights`, a
    network. If there is none, a ModelError (without `weights`, a TokenizerError) says why."""
    model = hub_name(source)
    if model is None:
        return Path(source)
    import huggingface_hub
    from huggingface_hub import errors

    patterns = list(_OF_MODELS if weights else _OF_TOKENIZERS)
    kind: type[UnmaskError] = ModelError if weights else TokenizerError
    absent = "no such folder" if weights else "there is no tokenizer.json and no vocab.txt"
    snapshot = partial(huggingface_hub.snapshot_download, model.name, revision=model.revision, allow_patterns=patterns)
    copy = None
    try:
        copy = Path(str(snapshot(local_files_only=True)))
        if _missing_file(copy, weights=weights) is None:
            return copy
    except errors.LocalEntryNotFoundError as error:  # no copy, or one that is known to lack files
        if part := getattr(error, "snapshot_path", None):
            copy = Path(part)
    log.info("fetching %s from the hub", model)
    try:
        folder = Path(str(snapshot(local_files_only=False)))
    except _failures() as error:
        missing = None if copy is None else _missing_file(copy, weights=weights)
        if copy and missing is None and isinstance(error, errors.LocalEntryNotFoundError | ConnectionError):
            return copy  # the copy lacks no required file
        raise kind(f"{model}: {absent}, {_reason(model, error, missing)}") from error
    if (missing := _missing_file(folder, weights=weights)) is not None:
        pickles = (
            "; weights in pickles (pytorch_model.bin) are not fetched, since loading one can run code: name a "
            f"revision with safetensors (such as {model.name}@refs/pr/1, if one was proposed), or another model"
        )
        raise kind(f"{model}: the hub's copy has no {missing}{pickles if missing == WEIGHTS else ''}")
    return folder


_REPLACED = (*_OF_MODELS, "onnx/*")  # * matches folders, too
_UPLOADED = (*_REPLACED, "README.md", "LICENSE*")


def upload(folder: Path, name: str, parts: Collection[str], *, private: bool | None) -> tuple[str, list[str]]:
    """Uploads the files of a model's folder that belong to the model, also those in its folders `parts`; returns the
    repository's URL, and the files."""
    import huggingface_hub

    if "/" not in name or "--" in name or ".." in name or not _NAME.fullmatch(name):
        raise SettingsError(f"{shown(name)} is not the name of a hub repository; give owner/name")
    present = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = [
        file
        for file in present
        if file.partition("/")[0] in parts or any(fnmatchcase(file, pattern) for pattern in _UPLOADED)
    ]
    api = huggingface_hub.HfApi()
    try:
        url = str(api.create_repo(name, private=private, exist_ok=True))
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=files,
            delete_patterns=list(_REPLACED),  # of an earlier model; spares the files that are uploaded
            commit_message="Upload a model with unmask",
        )
    except _failures() as error:
        raise RunError(
            f"{name}: the upload failed ({_cause(error)}); it needs a network and a token with write access "
            f"to {name}: set HF_TOKEN, or run `hf auth login`"
        ) from error
    return url, files


# A copy that another library made has only the files which that library asked for. transformers asks for none of
# sentence-transformers' files. Without them the vectors of a sentence encoder would silently be plain means, and its
# searches would lack their prompts.
@cache
def fetch_sentence_files(model: HubName, folder: Path) -> None:
    """Fetches the files that define pooling, prompts and limits, if the hub has them and the copy does not.

    The hub is asked once per process, for the copy's commit; its library records in the cache which files do not exist.
    If it cannot be asked, a warning says what is not known.
    """
    import huggingface_hub
    from huggingface_hub import errors

    names = [MODULES]
    for name in names:
        # The cache may know that the file does not exist: from an earlier request, or from a list of all files.
        is_absent = (
            huggingface_hub.try_to_load_from_cache(model.name, name, revision=folder.name)
            is huggingface_hub._CACHED_NO_EXIST
        )
        with suppress(ImportError, AttributeError, getattr(errors, "CachedRepoTreeNotFoundError", OSError)):
            tree = huggingface_hub.get_cached_repo_tree(model.name, revision=folder.name)
            is_absent |= name not in {entry.path for entry in tree}
        if not (folder / name).is_file() and not is_absent:
            try:
                huggingface_hub.hf_hub_download(model.name, name, revision=folder.name)
            except _failures() as error:
                is_answer = isinstance(error, errors.EntryNotFoundError)
                if not is_answer or isinstance(error, errors.LocalEntryNotFoundError):
                    reason = f"the local copy has no {name}, and the hub cannot be reached ({_cause(error)})"
                    ways = "--pooling, pooling= or --set embedder.pooling="
                    what = "pooling, prompts or limits may not be the model's; if you know the pooling, name it"
                    log.warning(f"{model}: {reason}, so {what} ({ways})")
                    return
        if name == MODULES and (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
            names += [SPARSE_POOLING if "SpladePooling" in text else POOLING, PROMPTS, LIMITS]
