"""The copy of a hub's model on this machine, in the cache of huggingface_hub, fetched where it is not there yet.

A copy that is there is taken without asking the network. So what was used once works offline, and a name without a
commit means the same until its copy is removed from the cache; `lasting_name` is what a run notes of it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from unmask.hub.names import HubName, hub_name
from unmask.hub.needs import WEIGHTS, Need
from unmask.hub.reasons import failures, is_offline, reason

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
