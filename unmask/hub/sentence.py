"""The files of a sentence encoder, where another library made the copy in the hub's cache.

A copy holds what its maker asked for. transformers asks neither for `modules.json` nor for the pooling, and without
them the vectors of a sentence encoder would be plain means, in silence.
"""

from __future__ import annotations

import logging
from pathlib import Path

from unmask.hub.names import HubName
from unmask.hub.needs import MODULES, POOLING
from unmask.hub.reasons import cause_of, failures

log = logging.getLogger("unmask")


def fetch_sentence_files(wanted: HubName, folder: Path) -> None:
    """Fetches what says how a vector is made of the tokens, if the hub has it and the copy does not.

    The hub is asked once, and for the commit of the copy: its library notes in the cache which files there are not.
    Where it cannot be asked, a warning says that the pooling is a guess.

    Args:
        wanted: The model.
        folder: Of its copy, which the cache calls by its commit.
    """
    import huggingface_hub
    from huggingface_hub import errors

    for name in (MODULES, POOLING):
        if (folder / name).is_file():
            continue
        if _is_known_to_lack(wanted.name, folder.name, name):
            return
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
            return


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
