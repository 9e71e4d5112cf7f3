"""Results of commands: figures as attributes, a table to read, and the object that `--json` prints.

    figures = unmask.evaluate("runs/mine/model", ["runs/mine/data"])
    figures.loss            a figure
    figures                 a table, in a terminal and in a notebook
    figures.to_dict()       what `unmask evaluate --json` prints

A result yields sheets and lines, without any library; the command line draws them in colour, `repr` as text, and a
notebook as HTML.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Protocol, Self, TypedDict

from unmask.core.errors import RunError
from unmask.core.files import read_object

log = logging.getLogger("unmask")


@dataclass(frozen=True)
class Styled:
    """Text in a style of rich's, such as `dim`, `bold` or `red`; plain text if there are no colours."""

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Sheet:
    columns: tuple[str, ...]  # headings; `>` before one aligns its column right. All empty: no row of headings
    rows: Sequence[Sequence[str | Styled]]  # a cell for each column
    title: str = ""  # shown above it


@dataclass(frozen=True)
class Facts:
    """Names and values: a line each in a terminal, a row each in a notebook. An empty name continues the one above."""

    rows: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows)


@dataclass(frozen=True)
class Hint:
    """The next step, as a command and as a Python call."""

    command: str
    python: str

    def __str__(self) -> str:  # in a terminal
        return f"\nTry it: {self.command}"


Line = tuple[Styled | str, ...]
"""A line of several styles, whose parts are joined without spaces."""
Shown = Sheet | Facts | Hint | Line | Styled | str


class Readable(Protocol):
    """The result of a command: JSON to keep, and something to read."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""

    def shown(self) -> Iterator[Shown]:
        """The tables and lines of a terminal."""

    def displayed(self) -> Iterator[Shown]:
        """Those of Python and notebooks."""
        return self.shown()

    def __repr__(self) -> str:
        return "\n".join(map(as_text, self.displayed()))

    def _repr_html_(self) -> str:
        return "".join(map(as_html, self.displayed()))


class Result(Readable):
    """Frozen figures by name, of types that JSON can hold. A subclass annotates them, and its `shown` yields them for
    readers. `{**result}` is a dictionary of them."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.__dict__.update(figures)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is a result and cannot be changed")

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    keys = __iter__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def shown(self) -> Iterator[Shown]:
        yield json.dumps(self.to_dict(), indent=1)


class Finished(Result):
    """A folder that a command has written. Figures of its `summary.json` are attributes, too: `run.validation_loss`."""

    folder: Path
    summary: dict[str, Any]

    def __init__(self, folder: Path, summary: dict[str, Any]) -> None:
        figures = {name: value for name, value in summary.items() if not hasattr(type(self), name)}
        super().__init__({**figures, "folder": folder, "summary": summary})

    @classmethod
    def reopened(cls, folder: Path, way_out: str) -> Self:
        """The result that a command left there. Raises a RunError with the way out if its `summary.json` is damaged."""
        file = folder / "summary.json"
        result = cls(folder, {**read_object(file, way_out), "model": str(folder / "model")})  # it may have been moved
        try:
            repr(result)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RunError(f"{file}: damaged ({type(error).__name__}: {error}); {way_out}") from error
        return result

    def to_dict(self) -> dict[str, Any]:
        return self.summary


def legible(text: str) -> str:
    """A text with visible signs for line breaks, or for a lone space."""
    return "␣" if text == " " else text.replace("\n", "⏎")


def as_text(shown: Shown) -> str:
    """Plain text, as Python shows it; a sheet in columns."""
    if isinstance(shown, tuple):
        return "".join(map(str, shown))
    if isinstance(shown, Hint):
        return f"\nTry it: {shown.python}"
    if not isinstance(shown, Sheet):
        return str(shown)
    lines = [[head.removeprefix(">") for head in shown.columns]] if any(shown.columns) else []
    lines += [[str(cell) for cell in row] for row in shown.rows]
    widths = [max((len(line[n]) for line in lines), default=0) for n in range(len(shown.columns))]
    aligned = [
        "  ".join(
            cell.rjust(width) if head.startswith(">") else cell.ljust(width)
            for cell, width, head in zip(line, widths, shown.columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*([shown.title] if shown.title else []), *aligned])


# A terminal's styles as CSS; the colours suit light and dark backgrounds.
_CSS = {
    "red": "background: rgba(222, 72, 48, .3)",
    "yellow": "background: rgba(232, 170, 0, .3)",
    "green": "background: rgba(40, 160, 80, .3)",
    "dim": "opacity: .7",
}


def _html_of(part: Styled | str) -> str:
    words = part.style.split() if isinstance(part, Styled) else []
    css = "; ".join(_CSS[word] for word in words if word in _CSS)
    text = f"<span style='{css}'>{escape(str(part))}</span>" if css else escape(str(part))
    return f"<b>{text}</b>" if "bold" in words else text


def as_html(shown: Shown) -> str:
    """A sheet as a table, or a line as a paragraph."""
    if isinstance(shown, tuple):
        return f"<p>{''.join(map(_html_of, shown))}</p>"
    if isinstance(shown, Hint):
        return f"<p>Try it: <code>{escape(shown.python)}</code></p>"
    if isinstance(shown, Facts):
        shown = Sheet(("", ""), shown.rows)
    if not isinstance(shown, Sheet):
        return f"<p>{_html_of(shown)}</p>"

    title = f"<caption>{escape(shown.title)}</caption>" if shown.title else ""
    heads, rows = [head.removeprefix(">") for head in shown.columns], []
    for tag, cells in (*([("th", heads)] if any(heads) else []), *(("td", row) for row in shown.rows)):
        line = []
        for cell, head in zip(cells, shown.columns, strict=True):
            side = "right" if head.startswith(">") else "left"
            line.append(f"<{tag} style='text-align: {side}'>{_html_of(cell)}</{tag}>")
        rows.append(f"<tr>{''.join(line)}</tr>")
    return f"<table>{title}{''.join(rows)}</table>"


# In every table ± is half the width of a 95 % interval, unless the column's head names another level; the table's head
# says over which units.

NORMAL = NormalDist().inv_cdf(0.975)  # standard errors, for samples of thousands


def margin(interval: Sequence[float] | None, *, of: float | None = None) -> str:
    """The ± behind a figure; empty without an interval. `of` is the figure itself, if it is a share near 0 or 1: the
    interval is longer on one side, and that side is shown."""
    if interval is None:
        return ""
    half = (interval[1] - interval[0]) / 2 if of is None else max(of - interval[0], interval[1] - of)
    return f" ± {half:.3f}"


def decimals(value: float | None) -> str:
    """A figure: `0.861`; `0.000123`, such as an error in small units; or `undefined`."""
    if value is None:
        return "undefined"
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.3f}"


def over(unit: str) -> str:
    return f"± 95 %, over {unit}"


def documents(summary: Mapping[str, Any]) -> str:
    """How many documents, or groups if groups were held out, a summary.json measured, in words."""
    count = summary["validation_documents"]
    return f"{count:,} {summary['validation_unit'].removesuffix('s' * (count == 1))}"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# A model's predictions of tokens that were hidden in a text, shown within the unchanged text.


class HiddenToken(TypedDict):
    begin: int  # first character
    end: int  # behind the last character
    target: int  # its id
    guesses: list[tuple[str, float]]  # the likeliest tokens, with their probabilities
    probability: float  # of the right token
    right: bool  # whether the first guess is right


class ShownText(TypedDict):
    text: str
    hidden: list[HiddenToken]


def parts_of(shown: ShownText) -> Iterator[tuple[str, HiddenToken | None]]:
    """Splits the text at its hidden tokens; each part comes with its hidden token, or None."""
    text, end = shown["text"], 0
    for token in shown["hidden"]:
        yield text[end : token["begin"]], None
        end = token["end"]
        yield legible(text[token["begin"] : end]), token
    yield text[end:], None


# Progress: one value and one callback for any kind of work.

Unit = Literal["tokens", "bytes", "texts"]


@dataclass(frozen=True)
class Progress:
    what: str  # the current work, in words
    done: int = 0
    total: int | None = None  # approximate; None: unknown
    unit: Unit = "tokens"
    # For work that describes itself, in `facts`: how much of it is done, in [0, 1].
    share: float | None = None
    facts: str | None = None


LINE_SECONDS = 15.0  # between lines of progress, where there is no bar


class Pace:
    """The speed of work, in words: the amount done since its first notice, divided by the time since then."""

    def __init__(self) -> None:
        self._what, self._begin, self._before = "", 0.0, 0
        self._last_line = time.monotonic()

    def line(self, progress: Progress) -> str | None:
        """A line about the progress every `LINE_SECONDS`; None at other times."""
        share, facts = self.facts(progress)
        if (now := time.monotonic()) - self._last_line < LINE_SECONDS:
            return None
        self._last_line = now
        return f"{progress.what}{'' if share is None else f' {share:.0%}'}: {facts}"

    def facts(self, progress: Progress) -> tuple[float | None, str]:
        """The share done, and the amounts in words; after a second also the speed, and the time left."""
        if progress.facts is not None:
            return progress.share, progress.facts
        now, done, total, unit = time.monotonic(), progress.done, progress.total, progress.unit
        if progress.what != self._what:
            self._what, self._begin, self._before = progress.what, now, done
        of = f" of {total:,}" if total is not None and unit in ("tokens", "texts") else ""
        facts = f"{done:,}{of} {unit}" if of else amount(done, unit)
        seconds, more = now - self._begin, done - self._before
        if seconds >= 1.0 and more > 0:
            facts += f", {amount(more / seconds, unit)}/s"
            if total is not None and done < total:
                facts += f", {duration((total - done) * seconds / more)} left"
        return None if total is None else min(done / max(total, 1), 1.0), facts


def amount(number: float, unit: Unit) -> str:
    """`0.5 texts`, `1,234 tokens`, `45 kB`, `1.2 MB`."""
    if unit == "bytes" and number >= 1e3:
        return f"{number / 1e3:,.0f} kB" if number < 1e6 else f"{number / 1e6:,.1f} MB"
    return f"{number:.1f} {unit}" if 0 < number < 10 and number % 1 else f"{number:,.0f} {unit}"


def duration(seconds: float) -> str:
    """`4 s`, `2:05`, `1:02:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


Notify = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Takes progress and does nothing."""


def counted(notify: Notify, what: str, total: int | None, unit: Unit = "tokens") -> Callable[[int], None]:
    """A callback that adds up amounts done and notifies of the sum; other arguments as for `Progress`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        notify(Progress(what, done, total, unit))

    return count


class Reporter:
    """Receives notes, warnings and the progress of long work. This one writes them to the log `unmask`."""

    @cached_property
    def _pace(self) -> Pace:
        return Pace()

    def note(self, text: Shown) -> None:
        """A decision or a fact, in one line."""
        log.info("%s", as_text(text))

    def warn(self, text: str) -> None:
        """What puts a result in doubt, in one line."""
        log.warning("%s", text)

    def notify(self, progress: Progress) -> None:
        """Shows the progress."""
        if line := self._pace.line(progress):
            self.note(line)


class SilentReporter(Reporter):
    """Reports nothing: of several processes, only the first one takes notes."""

    def note(self, text: Shown) -> None:
        pass

    def warn(self, text: str) -> None:
        pass


class ProgressReporter(SilentReporter):
    """Passes on progress, but no notes."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def notify(self, progress: Progress) -> None:
        self._reporter.notify(progress)


EVERY_SECONDS = 0.25


class NotebookReporter(Reporter):
    """Shows a progress bar with words in a notebook, without widgets: HTML that is updated in place, and a new bar for
    each kind of work. Notes are printed below."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._pace, self._last, self._what = Pace(), 0.0, ""

    def note(self, text: Shown) -> None:
        print(as_text(text))

    def notify(self, progress: Progress) -> None:
        """Updates the bar, at most four times a second; always for the first and the last state."""
        share, facts = self._pace.facts(progress)
        now = time.monotonic()
        if share != 1.0 and progress.what == self._what and now - self._last < EVERY_SECONDS:
            return
        from IPython import display  # installed, since this is its kernel; no dependency of ours

        value = "" if share is None else f" value='{share:.4f}'"
        line = display.HTML(f"<progress max='1'{value}></progress> {escape(progress.what)}: {escape(facts)}")
        if progress.what == self._what:
            self._handle.update(line)
        else:
            self._handle = display.display(line, display_id=True)
        self._last, self._what = now, progress.what


def usual_reporter() -> Reporter:
    """The notebook's reporter in a notebook's kernel (Jupyter, Colab; not IPython in a terminal), else the log's."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return Reporter() if getattr(shell, "kernel", None) is None else NotebookReporter()


def usual_note(text: Shown) -> None:
    """The default of functions that take a `note`: that of the usual reporter."""
    usual_reporter().note(text)
