"""Models of the hub: their names, which of their files are fetched, and the copies of these on this machine.

    answerdotai/ModernBERT-base           the main branch
    answerdotai/ModernBERT-base@COMMIT    a commit, a tag, a branch, or refs/pr/1
    bert-base-uncased                     the oldest models have no owner
    runs/mine/model, ./mine, mine.json    paths, whether they are there or not

Pickles are never fetched, since reading one can run code.

Copies lie in the cache of huggingface_hub. One that is there is taken without asking the network. So what was used once
works offline, and a name without a commit means the same until its copy is removed from the cache; `lasting_name` is
what a run notes of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unmask.core.errors import ModelError, TokenizerError, UnmaskError, load_json

_NAME = re.compile(r"([A-Za-z0-9]([\w.-]*\w)?/)?[A-Za-z0-9]([\w.-]*\w)?", re.ASCII)
_REVISION = re.compile(r"refs/[\w./-]{1,99}|[\w.-]{1,99}", re.ASCII)
_LONGEST = 96
_OF_FILES = (
    ".bin", ".csv", ".git", ".gz", ".html", ".json", ".jsonl", ".md", ".model", ".npy", ".onnx", ".parquet", ".pt",
    ".pth", ".safetensors", ".tar", ".toml", ".tsv", ".txt", ".yaml", ".zip",
)  # fmt: skip


@dataclass(frozen=True)
class HubName:
    """A model of the hub.

    Attributes:
        name: `owner/name`, or `name`.
        revision: Branch, tag or commit; None is the main branch.
    """

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_name(source: str | Path) -> HubName | None:
    """The name that a string is, or None where it is a path.

    Whatever exists is a path. So is what can only be a mistyped one, so that nobody waits for the network to be told of
    it: a `Path`; a name with more than one `/`; one that begins with `.`, `/` or `~`, ends as files do, or has signs
    that the hub does not allow; and one in a folder that is there.
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
_VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip
_OF_TOKENIZERS = (
    *_VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_OF_NETWORKS = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", "checksums.json")
_OF_SENTENCES = (MODULES, POOLING, SPARSE_POOLING, "sentence_bert_config.json", "config_sentence_transformers.json")


@dataclass(frozen=True)
class Need:
    """What of a model is wanted.

    Attributes:
        files: Names and patterns of all that is fetched, where it is there.
        lacks: Which file a folder must have and has not; None: it has what is needed.
        absent: What errors say of a string that is no path.
        error: Their class.
    """

    files: tuple[str, ...]
    lacks: Callable[[Path], str | None]
    absent: str
    error: type[UnmaskError]


def _lacks_tokenizer(folder: Path) -> str | None:
    return None if any((folder / name).is_file() for name in _VOCABULARIES) else _VOCABULARIES[0]


def _lacks_model(folder: Path) -> str | None:
    if not (folder / CONFIG).is_file():
        return CONFIG
    if not (folder / WEIGHTS).is_file():
        parts = _parts(folder / INDEX) if (folder / INDEX).is_file() else [WEIGHTS]
        if lack := next((name for name in parts if not (folder / name).is_file()), None):
            return lack
    return _lacks_tokenizer(folder)


def _parts(index: Path) -> list[str]:
    """The files that share the weights."""
    try:
        names = sorted(set(load_json(index)["weight_map"].values()))
        return [Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: damaged ({error}); remove the model from the hub's cache") from error


TOKENIZER = Need(
    _OF_TOKENIZERS, _lacks_tokenizer, absent="there is no tokenizer.json and no vocab.txt", error=TokenizerError
)
MODEL = Need((*_OF_NETWORKS, *_OF_TOKENIZERS, *_OF_SENTENCES), _lacks_model, absent="no such folder", error=ModelError)


def failures() -> tuple[type[Exception], ...]:
    """What a request to the hub may raise; which errors of the HTTP client come through depends on its version."""
    from huggingface_hub import errors

    return (OSError, RuntimeError, *errors.HfHubHTTPError.__bases__)


def is_offline(error: Exception) -> bool:
    """Whether the hub was not reached at all, or is down."""
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError | ConnectionError)


def reason(wanted: HubName, error: Exception, lack: str | None) -> str:
    """The second half of a sentence that has said that there is no such path.

    Args:
        wanted: The model.
        error: Of huggingface_hub, or of what it uses.
        lack: A file that a copy in the cache lacks; None: there is no copy.
    """
    from huggingface_hub import errors

    token = "set HF_TOKEN, or run `hf auth login`"
    if isinstance(error, errors.GatedRepoError):
        return f"and on the hub it is gated: ask for access on its page there, then {token}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"and no such model on the hub; mind the spelling, or, if it is private, {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"and on the hub {wanted.name} has no revision {wanted.revision or 'main'!r}; name another one"
    if getattr(getattr(error, "response", None), "status_code", None) in {401, 403}:
        return f"and the hub denies access to it: {token}"
    told = cause_of(error)
    if is_offline(error):
        copy = "no copy of such a model of the hub on this machine" if lack is None else f"its copy lacks {lack}"
        return (
            f"{copy}, and the hub cannot be reached ({told}); give a path, such as RUN/model, or fetch the model where "
            f"there is a network: hf download {wanted.name}"
        )
    return f"and it cannot be fetched from the hub ({told}); give a path, such as RUN/model, or try again"


def cause_of(error: Exception) -> str:
    """Why the hub was not reached, in a few words."""
    from huggingface_hub import constants

    cause = error.__cause__ or error
    return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason is given")


log = logging.getLogger("unmask")


def local_path(source: str | Path, need: Need) -> Path:
    """A path as it is; for the name of a model on the hub, the folder of its copy.

    Raises:
        UnmaskError: As `fetch`.
    """
    wanted = hub_name(source)
    return Path(source) if wanted is None else fetch(wanted, need)


def lasting_name(source: str | Path, folder: Path) -> str:
    """What the record of a run says of a model, so that it always means the same: a commit, or a whole path.

    Args:
        source: As the user gave it.
        folder: Of the model; the hub's cache calls the folders of copies by their commits.
    """
    wanted = hub_name(source)
    return str(folder.resolve()) if wanted is None else f"{wanted.name}@{folder.name}"


def fetch(wanted: HubName, need: Need) -> Path:
    """The folder of a copy, with all that is needed.

    Args:
        wanted: The model.
        need: Which of its files.

    Raises:
        UnmaskError: Of the need's class: there is no such model, or it lacks what is needed; access is denied; or there
            is no copy, and the hub cannot be reached.
    """
    try:
        expected = failures()
    except ImportError as error:
        raise need.error(
            f"{wanted}: {need.absent}, and names of the hub need a package that is not installed: "
            "pip install huggingface_hub"
        ) from error
    copy, is_whole = _copy(wanted, need)
    if copy is not None and is_whole and need.lacks(copy) is None:
        return copy
    log.info("fetching %s from the hub", wanted)
    try:
        folder = _snapshot(wanted, need, local_files_only=False)
    except expected as error:
        lack = None if copy is None else need.lacks(copy)
        if copy is not None and lack is None and is_offline(error):
            return copy  # the hub has more files, but none that must be there
        raise need.error(f"{wanted}: {need.absent}, {reason(wanted, error, lack)}") from error
    if (lack := need.lacks(folder)) is not None:
        pickles = (
            "; weights in pickles (pytorch_model.bin) are not fetched, since reading one can run code: take a revision "
            f"with safetensors ({wanted.name}@refs/pr/1 or so, where one was proposed), or another model"
        )
        raise need.error(f"{wanted}: on the hub it has no {lack}{pickles if lack == WEIGHTS else ''}")
    return folder


def _copy(wanted: HubName, need: Need) -> tuple[Path | None, bool]:
    """The copy in the cache, if any, and whether nothing is known to be missing in it."""
    from huggingface_hub import errors

    try:
        return _snapshot(wanted, need, local_files_only=True), True
    except errors.LocalEntryNotFoundError as error:
        part = getattr(error, "snapshot_path", None)
        return None if part is None else Path(part), False


def _snapshot(wanted: HubName, need: Need, *, local_files_only: bool) -> Path:
    import huggingface_hub

    return Path(
        huggingface_hub.snapshot_download(
            wanted.name,
            revision=wanted.revision,
            allow_patterns=list(need.files),
            local_files_only=local_files_only,
        )
    )


# Where another library made the copy in the hub's cache, it holds what its maker asked for. transformers asks neither
# for `modules.json` nor for the pooling, and without them the vectors of a sentence encoder would be plain means, in
# silence.
def fetch_sentence_files(wanted: HubName, folder: Path) -> None:
    """Fetches what says how a vector is made of the tokens, if the hub has it and the copy does not.

    The hub is asked once, and for the commit of the copy: its library notes in the cache which files there are not.
    Where it cannot be asked, a warning says that the pooling is a guess.

    Args:
        wanted: The model.
        folder: Of its copy, which the cache calls by its commit.
    """
    if not _fetched(wanted, folder, MODULES):
        return
    is_sparse = "SpladePooling" in (folder / MODULES).read_text(encoding="utf-8", errors="replace")
    _fetched(wanted, folder, SPARSE_POOLING if is_sparse else POOLING)


def _fetched(wanted: HubName, folder: Path, name: str) -> bool:
    """Whether a copy has a file now."""
    import huggingface_hub
    from huggingface_hub import errors

    if (folder / name).is_file():
        return True
    if _is_known_to_lack(wanted.name, folder.name, name):
        return False
    try:
        huggingface_hub.hf_hub_download(wanted.name, name, revision=folder.name)
    except failures() as error:
        is_answer = isinstance(error, errors.EntryNotFoundError)
        if not is_answer or isinstance(error, errors.LocalEntryNotFoundError):
            log.warning(
                "%s: its copy on this machine has no %s, and the hub cannot be asked for it (%s); the pooling is a "
                "guess, unless it is asked for by name (--pooling, or pooling=)",
                wanted,
                name,
                cause_of(error),
            )
    return (folder / name).is_file()


def _is_known_to_lack(name: str, commit: str, file: str) -> bool:
    """Whether the cache says that a commit has no such file: it was asked for before, or all files were listed."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(name, file, revision=commit)
    if found is huggingface_hub._CACHED_NO_EXIST:
        return True
    try:
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError
    except ImportError:  # of versions that keep no list
        return False
    try:
        return file not in {entry.path for entry in get_cached_repo_tree(name, revision=commit)}
    except CachedRepoTreeNotFoundError:
        return False
