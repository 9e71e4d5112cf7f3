"""Outputs at addresses: a command works in a folder of the cache, which is mirrored (`unmask.mirror`).

What is at the address is what counts. A folder of the cache goes on only where the address holds what was sent from it;
else it is made anew from there. So a command that is started again on another machine goes on from what was sent, and
one on the same machine also from what was not.

One process of a machine writes to an address at a time. That nobody does on another is not known, since servers of
objects have no locks: who has begun stands there, and a warning says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from unmask.addresses import address_of, cache, connect, path_at, tried
from unmask.claimed import ClaimedFolder, check_file, held_file
from unmask.errors import RunError
from unmask.files import writing
from unmask.mirror import Mirror

log = logging.getLogger(__name__)
Wanted = Callable[[Collection[str]], Callable[[str], bool]]
"""Of the names of all files at an address, says which are fetched when work goes on from there."""


def all_of_it(names: Collection[str]) -> Callable[[str], bool]:
    """Fetches everything."""
    return lambda name: True


def refused(out: str | Path, what: str) -> None:
    """Says that a command does not write to addresses.

    Raises:
        RunError: `out` is one.
    """
    if path_at(out) is None:
        raise RunError(f"{address_of(out)}: {what} is not written to an address; give a folder or a file as --out")


@contextmanager
def staged(
    out: str | Path,
    claim: Callable[[Path], ClaimedFolder],
    *,
    resume: bool = False,
    overwrite: bool = False,
    wanted: Wanted = all_of_it,
    unfinished: str | None = None,
) -> Iterator[Path]:
    """The folder to work in: `out`, or, for an address, one whose files are sent there until this is left.

    Args:
        out: A folder or an address.
        claim: The claim on a folder, as the command has it.
        resume: Go on with what is there.
        overwrite: Remove it first.
        wanted: What is fetched of it.
        unfinished: Name of a file beside which the marker does not count: the work goes on anyway.

    Raises:
        UnmaskError: The address cannot be read or written, holds something else, or another process of this machine
            writes there; and whatever the claim says of what is there.
    """
    if (here := path_at(out)) is not None:
        yield here
        return
    address = str(address_of(out))
    address = address.rstrip("/")
    folder = _folder_of(address)
    with held_file(folder, named=address):
        mirror = Mirror(address, folder)
        there = mirror.there()
        claimed = replace(claim(folder), named=address)
        if not mirror.is_as_left(there) or overwrite:
            if folder.exists() and not overwrite:
                log.info("%s: what is there is not what this machine has sent; it is fetched anew", address)
            shutil.rmtree(folder.parent, ignore_errors=True)
            mirror = Mirror(address, folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _check(claimed, there, resume=resume or unfinished in there, overwrite=overwrite)
        _say_who(mirror)
        if overwrite:
            mirror.remove(name for name in there if PurePosixPath(name).parts[0] in _ours(claimed))
            there = {}
        mirror.begin_from(there, wanted(there.keys()))
        with mirror:
            yield folder


def _folder_of(address: str) -> Path:
    key = hashlib.sha256(address.encode()).hexdigest()[:24]
    return cache() / f"out-{key}" / (PurePosixPath(address).name or "out")


def _ours(claimed: ClaimedFolder) -> set[str]:
    return {*claimed.ours, *([claimed.marker] if claimed.marker else [])}


def _check(claimed: ClaimedFolder, there: Collection[str], *, resume: bool, overwrite: bool) -> None:
    """What `ClaimedFolder.check` says of a folder, of what is at an address.

    Raises:
        UnmaskError: As there.
    """
    if resume and overwrite:
        raise claimed.error("--resume and --overwrite exclude each other")
    is_claimed = claimed.marker in there if claimed.marker else bool(there)
    strangers = sorted({PurePosixPath(name).parts[0] for name in there} - _ours(claimed))
    if strangers and not (claimed.is_shared and is_claimed):
        raise claimed.holds_others(strangers)
    if is_claimed and not resume and not overwrite:
        raise claimed.is_there()


def _say_who(mirror: Mirror) -> None:
    own = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    before = mirror.say_who(json.dumps(own) + "\n")
    if before is not None:
        log.warning(
            "%s: somebody has begun to write there and was killed, or has not ended yet (%s); make sure that nobody "
            "else writes there now",
            mirror.address,
            before.strip(),
        )


@contextmanager
def staged_file(out: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """The file to write: `out`, or, for an address, one of the cache that is sent there when this is left.

    Args:
        out: A file or an address.
        overwrite: Replace it.

    Raises:
        RunError: It is there already, or cannot be sent; then it is kept, and the error says where.
    """
    if (here := path_at(out)) is not None:
        yield here
        return
    address = str(address_of(out))
    system, path = connect(address)
    if tried(address, lambda: bool(system.exists(path))) and not overwrite:
        raise RunError(f"{address} is already there; replace it with --overwrite, or give another --out")
    file = _folder_of(address)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    check_file(file, overwrite=overwrite)
    yield file
    how = f"it is kept as {file}, since it was not to be sent"
    tried(address, lambda: system.put_file(str(file), path), how=how, raising=RunError)
    file.unlink()
