"""Tables on pages, each between two marks and rewritten by its benchmark; and files of results."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from unmask.measure.uncertainty import mean_interval

PACKAGES = ("torch", "transformers", "numba")


def parser_of(text: str | None, *, table: str | None = None) -> argparse.ArgumentParser:
    """The argument parser of a script, with its docstring as help. `table` names the table that `--table` rewrites."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if table is not None:
        parser.add_argument("--table", type=Path, help=f"page whose table `{table}` is rewritten")
    return parser


def head(titles: str) -> list[str]:
    """The first two lines of a table: its titles, with `|` between them, and the rule."""
    return [f"| {titles} |", "|" + " --- |" * (titles.count("|") + 1)]


def write_table(
    page: Path, name: str, lines: list[str], *, gpu: str | None = None, made: Sequence[str] | None = None
) -> None:
    """Replaces the content between `<!-- NAME -->` and `<!-- end NAME -->` by a table and how it was made.

    Args:
        page: The page; explanations are outside of the marks.
        name: Name of the table.
        lines: The table, and text that belongs to it.
        gpu: Name of the GPU that was used; None: the processor was.
        made: Date, machine and versions; None: those of now.
    """
    if made is None:
        here = circumstances()
        machine = here["processor"] if gpu is None else f"{gpu}, {here['processor']}"
        made = [f"{here['date']}, {describe({**here, 'processor': machine})}."]
    replace_table(page, name, "\n".join(["```", command_line(), "```", "", *made, "", *lines]))


def command_line() -> str:
    """The command line of this process, with absolute paths reduced to names."""
    return " ".join(Path(word).name if Path(word).is_absolute() else word for word in [sys.executable, *sys.argv])


def replace_table(page: Path, name: str, content: str) -> None:
    text = f"<!-- {name} -->\n{content}\n<!-- end {name} -->"
    old = page.read_text(encoding="utf-8")
    new, places = re.subn(rf"<!-- {name} -->.*?<!-- end {name} -->", lambda _: text, old, flags=re.DOTALL)
    if not places:
        sys.exit(f"{page} has no place for {name}: put <!-- {name} --> and <!-- end {name} --> where it belongs")
    page.write_text(new, encoding="utf-8")


def circumstances() -> dict[str, Any]:
    """The date, machine and versions of a measurement made now."""
    return {
        "date": str(datetime.date.today()),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in PACKAGES},
    }


def describe(measured: Mapping[str, Any]) -> str:
    """Machine and versions of `circumstances` as text."""
    versions = [f"{package} {number}" for package, number in measured["versions"].items()]
    return ", ".join([measured["processor"], f"{measured['cores']} cores", *versions])


def made(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dates, machines and versions of results: a line for all that agree."""
    places: dict[str, list[str]] = {}
    for entry in entries:
        places.setdefault(describe(entry), []).append(entry["date"])
    lines = []
    for place, dates in places.items():
        days = " to ".join(dict.fromkeys((min(dates), max(dates))))
        cells = "" if len(places) == 1 else f" ({len(dates)} cells)"
        lines.append(f"{days}{cells}, {place}.")
    return lines


def processor() -> str:
    """The processor's name, and whether it has AMX for bf16."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    text = info.read_text(encoding="utf-8")
    name = re.search(r"model name\s*:\s*(.*)", text)
    return (name.group(1) if name else platform.machine()) + (" with AMX" if "amx_bf16" in text else "")


def with_half(values: Sequence[float], form: str = ".3f") -> str:
    """A mean, and half of its 95 % interval (Student's t) if there are several values."""
    interval = mean_interval(values)
    mean = f"{fmean(values):{form}}"
    return mean if interval is None else f"{mean} ± {(interval[1] - interval[0]) / 2:{form.removeprefix('+')}}"


def append_lines(results: Path, *entries: Mapping[str, Any]) -> None:
    """Appends lines of JSON after the last complete one: a kill may have cut a line short."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab+") as file:
        file.seek(0)
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
        file.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(results: Path) -> list[dict[str, Any]]:
    lines = results.read_text(encoding="utf-8").split("\n") if results.is_file() else [""]
    return [json.loads(line) for line in lines[:-1] if line]
