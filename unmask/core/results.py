"""Results of commands: figures as attributes, a table to read, and the object that `--json` prints.

    figures = unmask.evaluate("runs/mine/model", ["corpus.txt"])
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
from difflib import get_close_matches
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypedDict

from unmask.core.errors import RunError
from unmask.core.files import read_object

log = logging.getLogger("unmask")


@dataclass(frozen=True)
class Styled:
    """Some text in a style of rich's, such as `dim`, `bold` or `red`; where there are no colours it is text."""

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Sheet:
    columns: tuple[str, ...]  # heads; one that begins with `>` is that of a column to the right. All empty: no head
    rows: Sequence[Sequence[str | Styled]]  # as many cells each
    title: str = ""  # what stands above it


@dataclass(frozen=True)
class Facts:
    """Names and values, a line each in a terminal and a row each in a notebook. Without a name it goes on."""

    rows: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows)


@dataclass(frozen=True)
class Hint:
    """What to do next, as a command and as a Python call."""

    command: str
    python: str

    def __str__(self) -> str:  # in a terminal
        return f"\nTry it: {self.command}"


Line = tuple[Styled | str, ...]
"""A line of several styles, its parts without anything between them."""
Shown = Sheet | Facts | Hint | Line | Styled | str


class Readable(Protocol):
    """The result of a command: JSON to keep, and something to read."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""

    def shown(self) -> Iterator[Shown]:
        """The tables and lines of a terminal or a notebook."""

    def __repr__(self) -> str:
        return "\n".join(as_text(each) for each in self.shown())

    def _repr_html_(self) -> str:
        return "".join(as_html(each) for each in self.shown())


class Result(Readable):
    """Figures by name, frozen; whatever JSON can hold. A subclass annotates them, and says in `shown` how they are
    read. `{**result}` is a dictionary of them."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.__dict__.update(figures)

    if not TYPE_CHECKING:  # for which a figure that no class declares is an error

        def __getattr__(self, name: str) -> Any:
            known = [each for each in self.__dict__ if not each.startswith("_")]
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise AttributeError(f"{type(self).__name__} has no {name!r}; {hint}")

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
        """What a command left there. Raises a RunError with the way out where its `summary.json` is damaged."""
        file = folder / "summary.json"
        result = cls(folder, read_object(file, way_out))
        try:
            repr(result)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RunError(f"{file}: damaged ({type(error).__name__}: {error}); {way_out}") from error
        return result

    def to_dict(self) -> dict[str, Any]:
        return self.summary


def legible(text: str) -> str:
    """A line break and a lone space by signs that can be seen."""
    return "␣" if text == " " else text.replace("\n", "⏎")


def as_text(shown: Shown) -> str:
    """A sheet in columns, or a line, as Python shows it."""
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


# Styles of a terminal on a page; colours let a light or a dark ground through.
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


# In every table ± is half the width of a 95 % interval; the table's head says over which units.

NORMAL = NormalDist().inv_cdf(0.975)  # standard errors, for samples of thousands


def margin(interval: Sequence[float] | None, *, of: float | None = None) -> str:
    """The ± behind a figure; empty where it has no interval. `of` is a share near 0 or 1, whose interval is longer on
    one side, which is shown."""
    if interval is None:
        return ""
    half = (interval[1] - interval[0]) / 2 if of is None else max(of - interval[0], interval[1] - of)
    return f" ± {half:.3f}"


def over(unit: str) -> str:
    return f"± 95 %, over {unit}"


def documents(summary: Mapping[str, Any]) -> str:
    """How many documents, or groups where groups were held out, a summary.json measured, in words."""
    count = summary["validation_documents"]
    return f"{count:,} {summary['validation_unit'].removesuffix('s' * (count == 1))}"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# Predictions in a text, which stands as it was written: what a model makes of tokens that were hidden in it.


class HiddenToken(TypedDict):
    begin: int  # the characters that it covers
    end: int
    target: int  # its id
    guesses: list[tuple[str, float]]  # what the model finds likeliest, with the probabilities
    probability: float  # of the right one
    right: bool  # whether the first guess is


class ShownText(TypedDict):
    text: str
    hidden: list[HiddenToken]


def parts_of(shown: ShownText) -> Iterator[tuple[str, HiddenToken | None]]:
    """The text in parts, some of which are hidden tokens."""
    text, end = shown["text"], 0
    for token in shown["hidden"]:
        yield text[end : token["begin"]], None
        end = token["end"]
        yield legible(text[token["begin"] : end]), token
    yield text[end:], None


class FillExample(NamedTuple):
    prompt: str  # with a mask
    guess: str  # what the model likeliest puts there, and it is right
    probability: float


# How far work has come: one value, whatever the work is, and one kind of callback that takes it.

Unit = Literal["tokens", "bytes", "characters", "texts"]


@dataclass(frozen=True)
class Progress:
    what: str  # is done now, in words
    done: int = 0
    total: int | None = None  # of how much, about; None where that is not known
    unit: Unit = "tokens"
    # Of work that says it in words of its own instead: how much of it is done, in [0, 1].
    share: float | None = None
    facts: str | None = None


class Pace:
    """How fast work goes on, in words: what was done since the first notice of it, by the time since then."""

    def __init__(self) -> None:
        self._what, self._begin, self._before = "", 0.0, 0

    def facts(self, progress: Progress) -> tuple[float | None, str]:
        """The share that is done, and how much of how much; after a second also how fast, and the time left."""
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
    """`0.5 texts`, `1,234 tokens`, `45 kB`, `1.2 M characters`."""
    if unit in ("bytes", "characters") and number >= 1e3:
        short = {"bytes": ("kB", "MB"), "characters": ("thousand characters", "M characters")}[unit]
        return f"{number / 1e3:,.0f} {short[0]}" if number < 1e6 else f"{number / 1e6:,.1f} {short[1]}"
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
    """A callback for how much more was done, which notifies of the sum; other arguments as for `Progress`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        notify(Progress(what, done, total, unit))

    return count


class Reporter:
    """Takes notes on long work, and how far it has come. This one writes notes to the log `unmask`."""

    def note(self, text: Shown) -> None:
        """A decision or a fact, in one line."""
        log.info("%s", as_text(text))

    def notify(self, progress: Progress) -> None:
        """How far the work has come."""

    def plot(self, points: Sequence[tuple[float, float]], what: str) -> None:
        """A curve so far."""


class SilentReporter(Reporter):
    """Of several processes the first one alone takes notes."""

    def note(self, text: Shown) -> None:
        pass


class ProgressReporter(SilentReporter):
    """Passes on how far the work has come, and its curves, but no notes."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def notify(self, progress: Progress) -> None:
        self._reporter.notify(progress)

    def plot(self, points: Sequence[tuple[float, float]], what: str) -> None:
        self._reporter.plot(points, what)


EVERY_SECONDS = 0.25


class NotebookReporter(Reporter):
    """Draws a bar with words beside it in a notebook, without widgets: HTML that is replaced where it stands, a new one
    for each kind of work. Notes stand below."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._curve: Any = None
        self._pace, self._last, self._what = Pace(), 0.0, ""

    def note(self, text: Shown) -> None:
        print(as_text(text))

    def notify(self, progress: Progress) -> None:
        """Moves the bar, at most some times a second; to the first and the last state always."""
        share, facts = self._pace.facts(progress)
        now = time.monotonic()
        if share != 1.0 and progress.what == self._what and now - self._last < EVERY_SECONDS:
            return
        from IPython import display  # there, since this is its kernel; no dependency of ours

        value = "" if share is None else f" value='{share:.4f}'"
        line = display.HTML(f"<progress max='1'{value}></progress> {escape(progress.what)}: {escape(facts)}")
        if progress.what == self._what:
            self._handle.update(line)
        else:
            self._handle = display.display(line, display_id=True)
        self._last, self._what = now, progress.what

    def plot(self, points: Sequence[tuple[float, float]], what: str) -> None:
        from IPython import display

        picture = display.HTML(curve_html(points, what))
        if self._curve is None:
            self._curve = display.display(picture, display_id=True)
        else:
            self._curve.update(picture)


def curve_html(points: Sequence[tuple[float, float]], what: str) -> str:
    """A curve as SVG, in the colours of the page around it; nothing of fewer than two points."""
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    places = " ".join(
        f"{6 + 308 * (x - left) / ((right - left) or 1):.1f},{6 + 88 * (high - y) / ((high - low) or 1):.1f}"
        for x, y in points
    )
    return (
        "<svg viewBox='0 0 400 100' width='400' role='img' fill='none' stroke='currentColor' stroke-width='2' "
        f"style='max-width: 100%'><title>{escape(what)}</title><polyline points='{places}'/>"
        f"<g fill='currentColor' stroke='none' font-size='12'><text x='320' y='14'>{high:.3f}</text>"
        f"<text x='320' y='98'>{points[-1][1]:.3f}</text><text x='320' y='56'>{escape(what)}</text></g></svg>"
    )


def usual_reporter() -> Reporter:
    """A notebook's in the kernel of one (Jupyter's, Colab's; a terminal with IPython is none), else the log."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return Reporter() if getattr(shell, "kernel", None) is None else NotebookReporter()
