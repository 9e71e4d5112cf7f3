"""The notebooks run from the first cell to the last, with small budgets in place of their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import PATIENCE
from tests.conftest import SMALL
from tests.docs.test_pages import LESS

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
SETTINGS = f'"settings": {[*SMALL, *LESS["pretrain"]]}'
PARAMETERS = {
    "first_model": f'budget = {{"steps": 20, {SETTINGS}}}',
    "search": f'pretraining = {{"steps": 20, {SETTINGS}}}\n'
    'embedding = {"steps": 3, "settings": ["embedder.batch_size=8"]}',
    "compare_masking": f'seeds = 2\nbudget = {{"steps": 3, {SETTINGS}}}',
}


@pytest.mark.slow
def test_the_notebooks_run(tmp_path: Path) -> None:
    """In one kernel, which loads the libraries once and forgets all names in between; each has its folder."""
    everything, last_cells = nbformat.v4.new_notebook(), []
    for name, values in PARAMETERS.items():
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code), f"outputs of {name} are stripped"
        (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
        parameters.source = values
        (tmp_path / name).mkdir()
        everything.cells += [nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path / name}"), *code]
        last_cells.append(code[-1])
    nbclient.NotebookClient(everything, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.outputs for cell in last_cells)


def test_every_notebook_is_run() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(PARAMETERS)
