"""The site is built without a complaint, and is read without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unmask
from unmask.commands.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_pages_fetch_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        fetched = re.findall(r"<(?:script|img|link|iframe)[^>]* (?:src|href)=.?(\w+:)?//", page.read_text("utf-8"))
        assert not fetched, page.name


@pytest.mark.slow
def test_reference_has_every_command_and_every_public_name(site: Path) -> None:
    commands, python = ((site / "reference" / f"{name}.html").read_text("utf-8") for name in ("commands", "python"))
    assert set(re.findall(r'<h2 id="([^"]+)"', commands)) >= {name.replace(" ", "-") for name in COMMANDS}
    assert set(re.findall(r'id="unmask\.[\w.]+\.(\w+)"', python)) >= set(unmask.__all__)
