"""Peak resident memory of `unmask prepare` on some files, tokenizer training included.

    python benchmarks/memory.py FILE...

Samples /proc (Linux) every 20 ms: the largest process, and the sum over the process and its workers. Shared pages
count in each process, so the sum is an upper bound.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path


def resident_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(int(child) for child in children if is_worker(int(child)))]


def is_worker(pid: int) -> bool:
    """A process that is being started shows the memory of the one that starts it."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "unmask", "prepare", name, "--out", f"{folder}/data"]
            begin = time.perf_counter()
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            own = worker = together = 0
            while process.poll() is None:
                sizes = [resident_bytes(pid) for pid in family(process.pid)]
                own = max(own, sizes[0])
                worker = max([worker, *sizes[1:]])
                together = max(together, sum(sizes))
                time.sleep(0.02)
            seconds = time.perf_counter() - begin
            assert process.returncode == 0, process.returncode
        print(
            f"{name}: process {own / 1e6:,.0f} MB, largest worker {worker / 1e6:,.0f} MB, together "
            f"{together / 1e6:,.0f} MB, {seconds:,.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
