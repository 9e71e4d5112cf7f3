"""Functions that several processes run as one group, as `torchrun` would start them.

    results = in_processes(2, "tests.train.group_runs:trained", tmp_path, {"steps": 20})

calls `trained(folder, steps=20)` in each, and has what they return, in their order.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.command_line import PATIENCE
from tests.forked import Forked


def start(count: int, function: str, folder: Path, arguments: dict[str, Any]) -> list[Forked]:
    """Starts the processes; each writes what the function returns to `folder/NUMBER.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    (folder / "arguments.json").write_text(json.dumps(arguments))
    return [Forked(_member, function, folder, number, count) for number in range(count)]


def ended(processes: list[Forked], *, within: float = PATIENCE) -> list[tuple[int | None, str]]:
    """Exit code and stderr of each; those that do not end in time are killed."""
    try:
        errors = [process.communicate(timeout=within)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def in_processes(count: int, function: str, folder: Path, arguments: dict[str, Any]) -> list[Any]:
    """What the function returns in each process, in their order."""
    codes, errors = zip(*ended(start(count, function, folder, arguments)), strict=True)
    assert not any(codes), "\n\n".join(errors)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(count)]


def _member(name: str, folder: Path, number: int, count: int) -> None:
    """What one of the processes does."""
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=count)
    module, function = name.split(":")
    arguments = json.loads((folder / "arguments.json").read_text())
    result = getattr(importlib.import_module(module), function)(folder, **arguments)
    (folder / f"{number}.json").write_text(json.dumps(result))
    sys.stderr.flush()
    os._exit(0)  # threads of torch's that outlive its groups may abort the interpreter as it ends
