"""What is said to be sent in a step is what is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.processes import in_processes
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.train import distributed as gradients

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BUCKET_BYTES = 1 << 13  # so that an owner of a small model has several
# As torch calls what the benchmark counts.
KINDS = {
    "c10d.allgather_": "words",
    "c10d.allreduce_": "sums",
    "c10d.reduce_": "gradients",
    "c10d.broadcast_": "weights",
    "c10d._allgather_base_": "gathered",
    "c10d._reduce_scatter_base_": "added up",
    "c10d.alltoall_base_": "dealt",
}


def test_the_page_says_what_is_counted() -> None:
    from messages import table

    found = PAGE.read_text(encoding="utf-8").split("<!-- messages -->\n")[1].split("\n<!-- end messages -->")[0]
    assert found == "\n".join(table()), "python benchmarks/messages.py --table docs/scaling.md makes it anew"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], [8, 64, 1024]])
def test_a_process_sends_what_is_counted(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[int]
) -> None:
    """Two that there are, and one that takes itself for the first of many."""
    from messages import counted_step

    given = {
        "data": str(data_folder),
        "settings": ["model.num_layers=3", "training.micro_batch_tokens=64"],
        "bucket_bytes": BUCKET_BYTES,
        "processes": processes,
    }
    runs, *_ = in_processes(1 if processes else 2, "tests.train.message_runs:counted", tmp_path, given)
    assert len(runs) == 2 * (len(processes) or 1)
    monkeypatch.setattr(gradients, "BUCKET_BYTES", BUCKET_BYTES)
    for name, told in runs.items():
        sharding, number = name.split("-")
        with torch.device("meta"):
            model = MaskedLM(EncoderConfig.model_validate(told["config"]))
        parts = told["parts"]
        group, _ = counted_step(model, int(number), sharding=sharding, parts=parts, gathered=torch.float32)
        assert {KINDS[kind]: count for kind, count in told["calls"].items()} == group.calls, name
        assert {KINDS[kind]: size for kind, size in told["sent"].items()} == group.sent, name
        assert parts == (1 if processes else 2)
        alone = {"gradients", "weights"} if sharding == "owners" else {"gathered", "added up", "dealt"}
        assert group.calls.keys() == {"words", "sums"} | alone
        assert sharding == "full" or group.calls["gradients"] > 2
