"""What a command shows: results on stdout, notes and progress on stderr.

Progress is a bar with speed and time left on a terminal, and a plain line now and then elsewhere. Nothing heavy is
loaded for `--help`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from unmask.core.errors import SettingsError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from unmask.core.results import Progress, Readable, Shown

LINE_SECONDS = 15.0
_quiet = False


def is_main_process() -> bool:
    """Whether this process, of those that train together, is the one that shows something."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


class _PrintableFormatter(logging.Formatter):
    """Spells out whatever a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def prepare_streams() -> None:
    """Lets characters that a stream lacks, streams that are closed and logged warnings do no harm."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


def read_stdin() -> str:
    """The whole of standard input, for a text that is given as `-`."""
    from unmask.data.sources import open_stream

    try:
        with open_stream() as stream:
            text = stream.read().decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SettingsError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from error
    if not text.strip():
        raise SettingsError("standard input is empty")
    return text


@contextmanager
def verbosity(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Shows nothing but warnings, or also what is logged."""
    global _quiet  # noqa: PLW0603  (a process runs one command at a time)
    if quiet and verbose:
        raise SettingsError("--quiet and --verbose exclude each other")
    log, handler = logging.getLogger("unmask"), logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    if verbose:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    _quiet = quiet
    try:
        yield
    finally:
        _quiet = False
        log.removeHandler(handler)


def show(result: Readable, *, as_json: bool) -> None:
    """Prints a result: exactly one JSON object, or what a person reads, in colours on a terminal."""
    from rich.console import Console
    from rich.table import Table

    from unmask.core.results import Sheet

    if as_json:
        sys.stdout.write(json.dumps(result.to_dict(), allow_nan=False) + "\n")
        return
    # What is piped is as wide as it is.
    console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 1000)
    for each in result.shown():
        if isinstance(each, str):  # as it is: a program may read it
            sys.stdout.write(f"{printable(each) if sys.stdout.isatty() else each}\n")
        elif isinstance(each, Sheet):
            title = _styled(each.title, "dim") if each.title else None
            table = Table(box=None, pad_edge=False, show_header=any(each.columns), title=title, title_justify="left")
            for head in each.columns:
                table.add_column(_styled(head.removeprefix(">")), justify="right" if head.startswith(">") else "left")
            for row in each.rows:
                table.add_row(*map(_styled, row))
            console.print(table)
        else:
            console.print(_assembled(each), soft_wrap=True)


def _styled(part: object, style: str = "") -> Text:
    """A text in its style, which can do nothing else to a terminal."""
    from rich.text import Text

    return Text(printable(str(part)), style or getattr(part, "style", ""))


def _assembled(line: Shown) -> Text:
    from rich.text import Text

    return Text.assemble(*map(_styled, line if isinstance(line, tuple) else (line,)))


class ConsoleReporter:
    """Notes and progress on stderr; a `unmask.core.results.Reporter`, which is not loaded for `--help`."""

    def __init__(self) -> None:
        from rich import progress as bars
        from rich.console import Console

        from unmask.core.results import Pace

        self.console: Console = Console(stderr=True, highlight=False, emoji=False, quiet=_quiet)
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[facts]}", markup=False),
            bars.TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: bars.TaskID | None = None
        self._what = ""
        self._pace = Pace()
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def note(self, text: Shown) -> None:
        """Prints it on a line of its own."""
        self.console.print(_assembled(text), soft_wrap=True)

    def notify(self, progress: Progress) -> None:
        """Moves the bar, a new one for each kind of work; prints a line now and then where there is no terminal."""
        share, facts = self._pace.facts(progress)
        if self.bar.disable:
            now = time.monotonic()
            if now - self._last_line >= LINE_SECONDS:
                self._last_line = now
                self.note(f"{progress.what}{'' if share is None else f' {share:.0%}'}: {facts}")
            return
        if self._task is None or progress.what != self._what:
            if self._task is not None:
                self.bar.remove_task(self._task)
            self._what = progress.what
            self._task = self.bar.add_task(printable(progress.what), total=None, facts="")
        values: dict[str, Any] = {"total": None if share is None else 1.0, "completed": share}
        self.bar.update(self._task, **values, facts=printable(facts))
