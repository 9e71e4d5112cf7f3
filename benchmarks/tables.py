"""Tables of docs/benchmarks.md: each stands between two marks and is rewritten by the benchmark that makes it."""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numba")
NOT_RECORDED = "not recorded"


def write_table(
    page: Path, name: str, lines: list[str], *, gpu: str | None = None, made: Sequence[str] | None = None
) -> None:
    """Replaces what stands between `<!-- NAME -->` and `<!-- end NAME -->` by a table and how it was made.

    Args:
        page: Explanations stand before the marks or behind them: whatever is between them goes.
        name: Of the table.
        lines: The table, and what belongs to it.
        gpu: Name of the one that computed; None: the processor did.
        made: When, on what and with which versions the lines were measured; None: now and here.
    """
    if made is None:
        here = circumstances()
        machine = here["processor"] if gpu is None else f"{gpu}, {here['processor']}"
        made = [f"{here['date']}, {told({**here, 'processor': machine})}."]
    command = " ".join([Path(sys.executable).name, *map(_anywhere, sys.argv)])
    replace_table(page, name, "\n".join(["```", command, "```", "", *made, "", *lines]))


def replace_table(page: Path, name: str, content: str) -> None:
    """Replaces what stands between `<!-- NAME -->` and `<!-- end NAME -->`, by whatever is to stand there."""
    text = f"<!-- {name} -->\n{content}\n<!-- end {name} -->"
    old = page.read_text(encoding="utf-8")
    new, found = re.subn(rf"<!-- {name} -->.*?<!-- end {name} -->", lambda _: text, old, flags=re.DOTALL)
    if not found:
        sys.exit(f"{page} has no place for {name}: put <!-- {name} --> and <!-- end {name} --> where it belongs")
    page.write_text(new, encoding="utf-8")


def circumstances() -> dict[str, Any]:
    """When, on what and with which versions something is measured, if it is measured now."""
    return {
        "date": str(datetime.date.today()),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in PACKAGES},
    }


def told(measured: Mapping[str, Any]) -> str:
    """Machine and versions of `circumstances`, as much of them as is there."""
    computed_on = measured.get("processor", f"processor {NOT_RECORDED}")
    cores = f"{measured['cores']} cores" if "cores" in measured else f"cores {NOT_RECORDED}"
    versions = [f"{package} {number}" for package, number in measured.get("versions", {}).items()]
    return ", ".join([computed_on, cores, *(versions or [f"versions {NOT_RECORDED}"])])


def shown(picture: Path | None, page: Path, says: str) -> list[str]:
    """Lines that show a picture on a page; none where none was drawn."""
    if picture is None:
        return []
    return ["", f"![{says}]({Path(os.path.relpath(picture, page.parent)).as_posix()})"]


def _anywhere(argument: str) -> str:
    """An argument without the folders that only this machine has."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def processor() -> str:
    """The processor's name, and whether it multiplies bf16."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    text = info.read_text(encoding="utf-8")
    name = re.search(r"model name\s*:\s*(.*)", text)
    return (name.group(1) if name else platform.machine()) + (" with AMX" if "amx_bf16" in text else "")
