"""Where the processes of `torchrun` find each other, also when it has started them anew.

torchrun keeps one store of keys over all its starts, in which the processes of a new start would find the addresses of
those that are gone. So every start agrees on a name, under which its keys stand:

    first   start = name                      name/1/heard = word
    second            start? name/1 = word                        name/1/heard is its own word: that name holds

How often torchrun says that it has started them is no such name: it may count differently on different machines.
"""

from __future__ import annotations

import os
import time
import uuid

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

PATIENCE_SECONDS = 1800.0  # as long as torch waits for a key
_EVERY_SECONDS = 0.05


def store_of_this_start() -> tuple[Store, int, int]:
    """The store of keys, this process's rank and the number of processes.

    Raises:
        RuntimeError, ValueError: As torch calls it when the others are not found.
    """
    store, rank, size = next(rendezvous("env://"))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        store = PrefixStore(agreed_name(store, rank, size), store)
    return store, rank, size


def agreed_name(store: Store, rank: int, size: int) -> str:
    """A name that all processes have, and no process of an earlier start had.

    Raises:
        RuntimeError: Another process does not come within the time that the store waits for a key.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("unmask/start", own)
        for other in range(1, size):
            key = f"unmask/{own}/{other}"
            store.set(f"{key}/heard", store.get(key).decode())
        return own
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE_SECONDS:
        start = store.get("unmask/start").decode()  # that of an earlier start, until the first process has come
        key = f"unmask/{start}/{rank}"
        store.set(key, own)
        if store.check([f"{key}/heard"]) and store.get(f"{key}/heard").decode() == own:
            return start
        time.sleep(_EVERY_SECONDS)
    raise RuntimeError("the first process does not answer")
