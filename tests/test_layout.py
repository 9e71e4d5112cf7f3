"""The flow of imports: a file imports only earlier rooms, and the package itself imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import unmask

PACKAGE = Path(unmask.__file__).parent
TREES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
FLOW = [
    "core", "tokenizer", "model", "data", "masking", "train",
    "measure", "tasks", "search", "exporting", "report", "commands", "web",
]  # fmt: skip
FORBIDDEN = {"report": {"train", "masking", "measure", "search", "exporting"}}  # though the flow would allow it


def imported_by(tree: ast.Module) -> set[str]:
    """Modules of the package, and names in them."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {name for each in imports for name in (each.module, *(f"{each.module}.{a.name}" for a in each.names))}
    return {name for name in names if name.startswith("unmask.")}


def test_imports_point_against_the_flow() -> None:
    seen = 0
    for path, tree in TREES.items():
        part = path.parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for imported in {name.split(".")[1] for name in imported_by(tree)}:
            seen += 1
            assert FLOW.index(imported) <= FLOW.index(part), f"{path} imports unmask.{imported}"
            assert imported not in FORBIDDEN.get(part, set()), f"{path} must not know unmask.{imported}"
    assert seen > 100


def test_importing_the_package_and_its_light_commands_loads_nothing_heavy() -> None:
    code = "import sys, unmask, unmask.commands.cli; unmask.settings('seed'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"typer", "unmask.commands.settings"} <= set(loaded)
    assert not {"torch", "numpy", "pyarrow", "tokenizers", "pydantic", "huggingface_hub"} & set(loaded)


def test_every_public_name_is_there() -> None:
    for name in unmask.__all__:
        assert getattr(unmask, name).__doc__
    assert dir(unmask) == sorted(unmask.__all__)


def test_no_file_imports_itself_by_way_of_others() -> None:
    files = {".".join(("unmask", *path.with_suffix("").parts)): tree for path, tree in TREES.items()}
    imports = {name: imported_by(tree) & files.keys() for name, tree in files.items()}
    assert sum(map(len, imports.values())) > 500
    TopologicalSorter(imports).prepare()  # a cycle is an error


def test_names_of_classes_are_unique() -> None:
    nodes = (node for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    classes = Counter(node.name for node in nodes if not node.name.startswith("_"))
    assert classes.total() > 100
    assert [name for name, count in classes.items() if count > 1] == []
