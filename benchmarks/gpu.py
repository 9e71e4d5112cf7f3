"""Proves and measures the GPU path: `make gpu`, or `python benchmarks/gpu.py`; needs nothing but the checkout.

    check     the device and its peak speeds; tests marked `gpu`; a full-size step compared with the CPU; no step waits
              for the device; recovery from running out of memory
    profile   a step by kinds of kernels, and the share of time in which the device is idle
    bench     our training with Muon and with AdamW, and on short lines, against transformers' (`train.py`)
    train     three minutes of `unmask pretrain`, killed in the middle and resumed

Each stage takes less than eight minutes. It writes its figures to the results folder and its tables to the page, and is
skipped if its figures are already there. `--dry` runs all stages with tiny models on a CPU.

Run it with the Python that has torch for the GPU. Other missing packages are taken from `.wheels`, which
`make gpu-wheels` fills on a machine with a network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS, PACKAGES = ROOT / ".wheels", ROOT / ".gpu-packages"
NEEDED = (
    "torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "numba", "pyarrow", "safetensors",
    "pydantic", "typer", "rich", "tomli_w", "filelock", "huggingface_hub", "jinja2", "pytest",
    "hypothesis",
)  # fmt: skip


def obtain_packages() -> None:
    """Installs packages that this Python lacks from the wheels; exits if a package is in neither."""

    def missing() -> list[str]:
        return [name for name in NEEDED if importlib.util.find_spec(name) is None]

    sys.path.append(str(PACKAGES))
    if missing() and (wheels := sorted(map(str, WHEELS.glob("*.whl")))):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
        subprocess.run([*command, "--target", str(PACKAGES), *wheels], check=True)
        importlib.invalidate_caches()
    if names := missing():
        sys.exit(
            f"make gpu: {sys.executable} lacks {', '.join(names)}; run make gpu-wheels on a machine with a network and "
            "copy .wheels here, or name a Python that has them (make gpu PYTHON=...)"
        )
    parts = [str(ROOT), str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, parts))
    sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="run tiny models on a CPU")
    parser.add_argument("--text", type=Path, default=ROOT / "unmask" / "data" / "tinyshakespeare.txt")
    parser.add_argument("--stages", default="check,profile,bench,train")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results, to be continued")
    page = ROOT / "docs" / "explanation" / "benchmarks.md"
    parser.add_argument("--table", type=Path, default=page, help="page whose tables are filled")
    options = parser.parse_args()
    obtain_packages()
    import torch

    if not options.dry and not torch.cuda.is_available():
        sys.exit("make gpu: torch finds no GPU; make gpu DRY=1 runs the stages with tiny models on a CPU")
    from gpu_stages import STAGES, Bench
    from tables import write_table
    from trained import free_memory

    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    name = None if options.dry else torch.cuda.get_device_name()
    device = torch.device("cpu" if options.dry else "cuda")
    bench = Bench(options.dry, device, name, options.text.resolve(), out, options.table.resolve())
    for name in options.stages.split(","):
        if name not in STAGES:
            sys.exit(f"no stage {name!r}; there are {', '.join(STAGES)}")
        done = out / f"{name}.json"
        if done.is_file():
            print(f"{name}: already done ({done})", flush=True)
        else:
            begin = time.monotonic()
            lines = STAGES[name](bench)
            free_memory()  # the next stage may start processes that need all of it
            done.write_text(json.dumps({"seconds": time.monotonic() - begin, "lines": lines}, indent=1) + "\n")
            print(f"{name}: {time.monotonic() - begin:,.0f} s", flush=True)
        lines = json.loads(done.read_text())["lines"]
        print(*lines, sep="\n", flush=True)
        if lines:
            write_table(bench.page, f"gpu-{name}", lines, gpu=bench.device_name)


if __name__ == "__main__":
    main()
