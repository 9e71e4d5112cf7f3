"""The notebooks run from the first cell to the last, with small budgets in place of their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import PATIENCE
from tests.conftest import SMALL

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
SETTINGS = f'"settings": {[*SMALL, "evaluation.times=1"]}'
PARAMETERS = {
    "first_model": f'budget = {{"steps": 20, {SETTINGS}}}',
    "search": f'pretraining = {{"steps": 20, {SETTINGS}}}\n'
    'embedding = {"steps": 3, "settings": ["embedder.batch_size=8"]}',
    "compare_masking": f'seeds = 2\nbudget = {{"steps": 3, {SETTINGS}}}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "outputs are stripped"
    (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    parameters.source = PARAMETERS[name]
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert code[-1].outputs


def test_every_notebook_is_run() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(PARAMETERS)
