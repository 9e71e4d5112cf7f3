"""The part of the page about runs: their figures, curves while they train, and runs that the page starts and stops.

A run is a process of its own: it continues when the page, or the studio, is closed.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unmask.commands.compare import STATE, Comparison, label_of
from unmask.commands.recipe_files import recipe_names
from unmask.core.errors import RunError, SettingsError, parse_json, unknown
from unmask.core.files import leaves, read_object
from unmask.core.results import Sheet, sentence
from unmask.masking.settings import STRATEGIES
from unmask.report.pages import flat
from unmask.report.plots import thinned
from unmask.web.copying import copied, words_of
from unmask.web.text import Count, Rate
from unmask.web.things import Library, holder_of, state_of

LOG = "studio.log"
FORECAST_SECONDS = 300
_started: dict[Path, subprocess.Popen[bytes]] = {}  # by folder; this process has to reap them

# ----------------------------------------
# Figures and curves.


class Tail:
    """Follows a metrics.jsonl; returns its new lines as points: their `kind`, and their numbers by dotted names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._offset, self._tokens, self._before = folder, 0, 0.0, ""

    @cached_property
    def _is_weighted(self) -> bool:
        """Whether losses of training, unlike held-out ones, are weighted by the inverse of the rate."""
        with suppress(OSError, ValueError):
            recipe = flat(parse_json(self.folder / "recipe.toml", tomllib.loads))
            return recipe.get("masking.rate.loss_weight") == "inverse"
        return False

    def news(self) -> dict[str, Any] | None:
        """What is new since the last call; None if nothing is. With `anew`, everything before it is void."""
        path, anew = self.folder / "metrics.jsonl", self._offset == 0
        points: list[dict[str, Any]] = []
        with suppress(OSError), path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:  # it was resumed from an earlier step
                anew, self._offset, self._tokens = True, 0, 0.0
            file.seek(self._offset)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._offset += len(whole)
            lines = whole.splitlines()
            stride, trained = thinned(sum(b'"train"' in text for text in lines)), 0
            for text in lines:
                with suppress(ValueError):  # a damaged line
                    line = parse_json(text)
                    kind = str(line.get("kind", "finetuning"))
                    point = {"kind": kind, **dict(_numbers(line))}
                    if isinstance(line.get("lines"), list):
                        point["lines"] = line["lines"]
                    if kind == "train":
                        self._tokens, trained = self._tokens + line.get("tokens", 0), trained + 1
                        if trained % stride:
                            continue
                        point["weighted"] = self._is_weighted
                    if kind != "finetuning":
                        point["tokens"] = self._tokens
                    points.append(point)
        state = _state(self.folder)
        if not points and state == self._before:
            return None
        self._before = state
        return {"run": str(self.folder), "state": state, "anew": anew, "points": points}


def _numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in leaves(line):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, value if isinstance(value, int) else float(f"{value:.6g}")


def recipes(library: Library, *, runs: Annotated[list[str], Field(max_length=12)]) -> dict[str, Any]:
    """Settings in which the recipes of runs differ: the key, and the value of each run."""
    tables = []
    for run in runs:
        path = library.within(run)
        try:
            tables.append(flat(parse_json(path / "recipe.toml", tomllib.loads)))
        except (OSError, ValueError) as error:
            raise RunError(f"{run}: the run's recipe cannot be read; it was removed or is damaged") from error
    keys = dict.fromkeys(key for table in tables for key in table)
    keys.pop("description", None)
    rows = [[key, *(table.get(key, "") for table in tables)] for key in keys]
    return {"rows": [row for row in rows if len(set(row[1:])) > 1], "same": sum(len(set(row[1:])) == 1 for row in rows)}


def comparison(library: Library, *, run: str) -> dict[str, Any]:
    """A comparison's runs, also while they train; once it is finished, also its verdict, tables and intervals."""
    path = library.within(run)
    names = read_object(path / STATE, f"{run} is no longer a comparison, or is damaged")["recipes"]
    labels = list(map(label_of, names))
    runs = [[str(each), each.name, each.name.rpartition("-")[0]] for each in sorted((path / "runs").glob("*-*"))]
    result: dict[str, Any] = {"runs": [[folder, name, labels.index(of)] for folder, name, of in runs if of in labels]}
    if not (path / "result.json").is_file():
        return result | {"remark": "The comparison is not finished: there is a verdict once all runs are."}
    compared = Comparison(read_object(path / "result.json", f"{run}: the result is damaged; run the comparison again"))
    sheets = [each for each in compared.shown() if isinstance(each, Sheet)]
    tables = [[sheet.columns, [[str(cell) for cell in row] for row in sheet.rows]] for sheet in sheets]
    entropies = (each.get("unigram_entropy") for of in compared.runs.values() for each in of)
    if "loss" not in compared.by_figure:  # losses with different vocabularies share no axis
        result["runs"] = []
    return result | {
        "verdict": sentence(compared.verdict),
        "tables": tables,
        "intervals": compared.intervals(),
        "entropy": next(filter(None, entropies), None),
    }


def finetuning(library: Library, *, run: str) -> dict[str, Any]:
    """A fine-tuning's confusions, figures by class and most confident mistakes on its validation file."""
    path, way_out = library.within(run), "the fine-tuning is not finished, or is damaged"
    summary = read_object(path / "summary.json", way_out)
    mistakes = read_object(path / "mistakes.json", way_out, is_sealed=True)
    facts = {"task": summary["task"], "warning": summary["warning"]}
    return facts | {"examples": summary["examples"]["validation"]["records"], **mistakes}


# ----------------------------------------
# Starting and stopping runs.


def choices(library: Library) -> dict[str, Any]:
    return {"recipes": recipe_names(), "strategies": list(STRATEGIES), "root": str(library.base)}


def begin(  # noqa: PLR0913  (a form)
    library: Library,
    *,
    what: Literal["forecast", "start", "resume", "command"],
    name: Annotated[str, Field(min_length=1, max_length=1_000)],
    data: str | None = None,
    from_: str | None = None,
    recipe: str | None = None,
    minutes: Annotated[float, Field(gt=0.0, le=100_000)] | None = None,
    steps: Annotated[int, Field(gt=0)] | None = None,
    strategy: str | None = None,
    rate: Rate | None = None,
    seed: Count | None = None,
    prompts: Annotated[list[str], Field(max_length=20)] = [],  # noqa: B006
) -> dict[str, Any]:
    """Starts, resumes or forecasts a run, or returns its command; `name` is its folder in the studio's first folder."""
    out = library.within(name)
    arguments = [] if data is None else [str(library.typed(data))]
    settings = [] if rate is None else [f"masking.rate={rate}"]
    settings += [f"evaluation.prompts={json.dumps(prompts, ensure_ascii=False)}"] if prompts else []
    if recipe is not None and recipe not in recipe_names():  # not a file, either
        raise SettingsError(unknown("recipe", recipe, recipe_names()))
    options: dict[str, Any] = {
        "out": str(out), "recipe": recipe, "minutes": minutes, "steps": steps, "strategy": strategy, "seed": seed,
        "from_": None if from_ is None else str(library.typed(from_)), "settings": settings,
    }  # fmt: skip
    if what == "resume":
        arguments, options = [], {"out": str(out), "resume": True}
    same = copied("pretrain", arguments, options)
    if what == "command":
        return {"copy": same}
    words = [sys.executable, "-m", *words_of("pretrain", arguments, options)]
    if what == "forecast":
        try:
            done = subprocess.run(
                [*words, "--dry-run", "--quiet"], capture_output=True, encoding="utf-8", errors="replace",
                timeout=FORECAST_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the dry run took more than {FORECAST_SECONDS} seconds; try it in a terminal") from error
        if done.returncode:
            raise RunError(done.stderr.strip().removeprefix("unmask: ") or "the dry run failed")
        return {"forecast": done.stdout, "copy": same}
    if _state(out) in ("running", "starting"):
        raise RunError(f"{name}: a process is already training there")
    if what == "start" and out.exists():
        raise RunError(f"{name} already exists; give another name, or resume it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with _log_of(library, out).open("wb") as log:
        _started[out] = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # Windows sends Ctrl-C to a whole console
        )  # fmt: skip
    return {"run": str(out), "copy": same}


def _log_of(library: Library, out: Path) -> Path:
    """The file beside a run, `.NAME.studio.log`; in the run's folder if the studio was started on it."""
    return out / f".{LOG}" if out in library.roots else out.with_name(f".{out.name}.{LOG}")


def log(library: Library, *, run: str) -> dict[str, Any]:
    """The last output of a run that was started here."""
    text = ""
    with suppress(OSError), _log_of(library, library.within(run)).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8_000))
        text = file.read().decode(errors="replace")
    return {"text": text}


def stop(library: Library, *, run: str) -> dict[str, Any]:
    """Asks a run to save and end, as Ctrl-C does."""
    out = library.within(run)
    _reap()
    pid = holder_of(out)
    if pid is None:
        raise RunError(f"{run}: nothing is training there, or it trains on another machine")
    command = Path(f"/proc/{pid}/cmdline")
    is_ours = any(pid == each.pid for each in list(_started.values()))
    if not is_ours and not (command.exists() and b"unmask" in command.read_bytes()):
        raise RunError(f"{run}: process {pid} was started elsewhere; stop it there")
    os.kill(pid, signal.SIGINT)
    return {}


def _state(out: Path) -> str:
    """The state of a run; one that was started here is "starting" until its process holds the folder."""
    _reap()
    state = state_of(out)
    return "starting" if state in ("gone", "stopped") and out in _started else state


def _reap() -> None:
    """Reaps ended processes, which would look alive otherwise."""
    for out in [out for out, process in list(_started.items()) if process.poll() is not None]:
        _started.pop(out, None)
