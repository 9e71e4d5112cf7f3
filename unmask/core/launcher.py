"""Whether `torchrun` or SLURM's `srun` started this process with others, to train together."""

from __future__ import annotations

import os


def launched() -> dict[str, str]:
    """`RANK`, `LOCAL_RANK` and `WORLD_SIZE` of this process, as the launcher set them; empty if it is alone."""
    names = {name: name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    # `srun` without torchrun. The number of tasks is set by srun alone, not within a batch script.
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        names = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
    place = {name: os.environ[key] for name, key in names.items() if key in os.environ}
    return place if "RANK" in place and int(place.get("WORLD_SIZE", "1")) > 1 else {}
