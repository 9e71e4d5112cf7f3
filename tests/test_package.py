"""The sdist and the wheel are complete: a wheel built from the sdist and installed alone runs, with all its data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest

import unmask

ROOT = Path(__file__).parents[1]
USED = """
import unmask, unmask.exporting.onnx  # which reads its template
from unmask.commands.recipe_files import light_recipe, recipe_names
from unmask.report.pages import TEMPLATES
for name in recipe_names():
    light_recipe(name)
for name in TEMPLATES.list_templates():
    TEMPLATES.get_template(name)
assert len(recipe_names()) > 5 and len(TEMPLATES.list_templates()) > 5
print(unmask.__file__)
"""


def run(*command: object, cwd: Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_made_of_the_sdist_runs_alone(tmp_path: Path) -> None:
    """Dependencies come from this environment, whose packages are searched after the new one's."""
    pytest.importorskip("hatchling")
    build = (sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t")
    run(*build, "sdist", cwd=ROOT)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    run(*build, "wheel", cwd=tmp_path / sdist.name.removesuffix(".tar.gz"))
    [wheel] = tmp_path.glob("*.whl")

    venv.create(tmp_path / "venv")
    place = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    scripts, site = (Path(sysconfig.get_path(name, scheme="venv", vars=place)) for name in ("scripts", "purelib"))
    python = scripts / Path(sys.executable).name
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    others = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (site / "others.pth").write_text("".join(f"{path}\n" for path in sorted(others)), encoding="utf-8")

    assert unmask.__version__ in run(scripts / "unmask", "--version", cwd=tmp_path)
    assert "pretrain" in run(scripts / "unmask", "--help", cwd=tmp_path)
    installed = Path(run(python, "-c", USED, cwd=tmp_path).strip()).parent
    assert installed == (site / "unmask").resolve()
    source = {path.relative_to(ROOT / "unmask") for path in (ROOT / "unmask").rglob("*") if path.is_file()}
    expected = {path for path in source if "__pycache__" not in path.parts}
    assert {path for path in expected if not (installed / path).is_file()} == set()
    assert {Path("py.typed"), Path("data/tinyshakespeare.txt")} < expected


def test_every_file_says_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert [project["version"]] == cited == [unmask.__version__]
