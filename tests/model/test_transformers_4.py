"""Saved folders load in the oldest transformers that has every layout: 4.48, where ModernBERT came.

UNMASK_TRANSFORMERS_4 names the Python interpreter of an environment with it:

    python -m venv old && old/bin/pip install transformers==4.48.0 torch==2.13.0
    UNMASK_TRANSFORMERS_4=old/bin/python pytest tests/model/test_transformers_4.py
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.model.helpers import MakeModel, all_logits, some_ids
from unmask.model.config import PARTS
from unmask.model.folder import load_model, save_model

PYTHON = os.environ.get("UNMASK_TRANSFORMERS_4")
# What the other interpreter does: logits of our folder, and the same model saved by it.
SCRIPT = """
import sys, torch, transformers
from safetensors.torch import save_file
assert transformers.__version__.startswith("4."), transformers.__version__
folder = sys.argv[1]
model, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
ids = torch.randint(5, 190, (3, 64), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    save_file({"logits": model.eval()(input_ids=ids).logits}, folder + "/logits.safetensors")
model.save_pretrained(folder + "/theirs")
"""


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="UNMASK_TRANSFORMERS_4 does not name a Python with transformers 4.48")
@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize("pad_id", [0, 1])
def test_transformers_4_gives_the_same_logits(make_model: MakeModel, tmp_path: Path, layout: str, pad_id: int) -> None:
    model = make_model(layout=layout, pad_id=pad_id)
    save_model(model, tmp_path)
    done = subprocess.run([PYTHON, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ids = some_ids(length=64)
    ours = all_logits(model, ids)
    assert ours.std() > 0.5
    assert (ours - load_file(tmp_path / "logits.safetensors")["logits"]).abs().max() < 1e-4
    again = load_model(tmp_path / "theirs", mask_id=4).eval()
    assert (ours - all_logits(again, ids)).abs().max() < 1e-4
