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
PYTHON = sorted(PACKAGE.rglob("*.py"))
FLOW = [
    "core", "tokenizer", "model", "data", "masking", "train",
    "measure", "tasks", "search", "exporting", "report", "commands", "web",
]  # fmt: skip
FORBIDDEN = {"report": {"train", "masking", "measure", "search", "exporting"}}  # though the flow would allow it


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("unmask."):
            names.add(node.module.split(".")[1])
        if isinstance(node, ast.ImportFrom) and node.module == "unmask":
            names |= {alias.name for alias in node.names}
    return names


def test_imports_point_against_the_flow() -> None:
    seen = 0
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for imported in imports_of(path):
            seen += 1
            assert FLOW.index(imported) <= FLOW.index(part), f"{path} imports unmask.{imported}"
            assert imported not in FORBIDDEN.get(part, set()), f"{path} must not know unmask.{imported}"
    assert seen > 100


def test_importing_the_package_and_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, unmask, unmask.commands.cli; print(*(m for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "typer" in loaded
    assert not {"torch", "numpy", "pyarrow", "tokenizers", "pydantic", "matplotlib", "huggingface_hub"} & set(loaded)


def test_every_public_name_is_there() -> None:
    for name in unmask.__all__:
        assert getattr(unmask, name).__doc__
    assert dir(unmask) == sorted(unmask.__all__)


def test_no_file_imports_itself_by_way_of_others() -> None:
    files = {".".join(("unmask", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in PYTHON}
    imports = {name: set[str]() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                imports[name] |= imported & files.keys()
    assert sum(map(len, imports.values())) > 500
    TopologicalSorter(imports).prepare()  # a cycle is an error


def test_names_of_classes_are_unique() -> None:
    classes = Counter(
        node.name
        for path in PYTHON
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert classes.total() > 100
    assert [name for name, count in classes.items() if count > 1] == []
