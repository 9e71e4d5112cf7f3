"""Results of commands: attributes, the object that --json prints, and the text for people; progress in a notebook."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import unmask
from tests.conftest import SMALL, make_text
from unmask.core.results import (
    Facts,
    Finished,
    Hint,
    NotebookReporter,
    Progress,
    Reporter,
    Result,
    Sheet,
    Shown,
    Styled,
    as_html,
    as_text,
    decimals,
    usual_reporter,
)


class Weather(Result):
    """A result."""

    degrees: float

    def shown(self) -> Iterator[Shown]:
        """A table and a line."""
        yield Sheet(("day", ">degrees"), [("Monday", "7"), (Styled("<b>", "red"), "12.5")], "the week")
        yield Styled(f"mean {self.degrees:.1f}", "dim")


def test_figures_are_attributes_that_do_not_change() -> None:
    weather = Weather({"degrees": 9.75, "wet": {"monday": True}})
    assert (weather.degrees, weather["degrees"], weather.wet) == (9.75, 9.75, {"monday": True})
    assert weather.to_dict() == {"degrees": 9.75, "wet": {"monday": True}}
    assert "wet" in dir(weather)
    assert "snow" not in weather
    with pytest.raises(AttributeError, match="cannot be changed"):
        weather.degrees = 20.0
    assert pickle.loads(pickle.dumps(weather)) == weather != Weather({"degrees": 1.0})


def test_figures_of_a_folder_are_attributes() -> None:
    finished = Finished(Path("runs/a"), {"validation_loss": 3.5, "steps": 10})
    assert finished.validation_loss == pickle.loads(pickle.dumps(finished)).validation_loss == 3.5
    assert {"validation_loss", "folder", "to_dict"} <= set(dir(finished))
    assert finished.to_dict() == {**finished} == finished.summary


def test_it_reads_as_a_table_in_a_terminal_and_in_a_notebook() -> None:
    weather = Weather({"degrees": 9.75})
    assert repr(weather) == "the week\nday     degrees\nMonday        7\n<b>        12.5\nmean 9.8"
    page = weather._repr_html_()
    assert "<caption>the week</caption>" in page
    assert "<td style='text-align: right'>12.5</td>" in page
    assert "&lt;b&gt;" in page
    assert page.endswith("mean 9.8</span></p>")


def test_small_figures_keep_their_digits() -> None:
    shown = [decimals(value) for value in (None, 0.0, 0.8614, 48213.7741, -0.00012345)]
    assert shown == ["undefined", "0.000", "0.861", "48213.774", "-0.000123"]


def test_facts_are_lines_or_rows() -> None:
    facts = Facts([("loss", "3.2"), ("", "± 95 %"), ("accuracy", "<40 %>")])
    assert as_text(facts) == str(facts) == "loss      3.2\n          ± 95 %\naccuracy  <40 %>"
    assert as_html(facts).count("<tr>") == 3
    assert "&lt;40 %&gt;" in as_html(facts)


def test_a_hint_is_a_command_in_a_terminal_and_a_call_in_python() -> None:
    hint = Hint("unmask fill m", 'unmask.load("m").fill()')
    assert str(hint).endswith("unmask fill m")
    assert as_text(hint).endswith('unmask.load("m").fill()')
    assert "<code>unmask.load(&quot;m&quot;).fill()</code>" in as_html(hint)


Bars = list[list[str]]


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Bars:
    """A fake Jupyter kernel; returns, for each bar, everything that was displayed in its place."""
    made: Bars = []

    def display(shown: Any, *, display_id: bool) -> Any:
        assert display_id
        made.append([shown])
        return SimpleNamespace(update=made[-1].append)

    module: Any = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=object())
    module.display = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return made


def test_progress_is_drawn_only_where_a_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(usual_reporter()) is Reporter
    terminal: Any = ModuleType("IPython")
    terminal.get_ipython = SimpleNamespace
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert type(usual_reporter()) is Reporter


def test_a_bar_is_drawn_in_its_place(bars: Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    line = NotebookReporter()
    now = iter([10.0 + n / 10 for n in range(100)])
    monkeypatch.setattr("unmask.core.results.time.monotonic", lambda: next(now))
    for done in (0, 1, 2, 3, 4):
        line.notify(Progress("<reading>", done, 4, "texts"))
    assert len(bars) == 1
    assert "value='1.0000'></progress> &lt;reading&gt;: 4 of 4 texts" in bars[0][-1]
    assert len(bars[0]) == 3, "some times a second, and at the end"


def test_commands_draw_progress_in_notebooks(bars: Bars, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = make_text(60).split("\n\n")
    run = unmask.pretrain(iter(texts), out=tmp_path / "run", steps=3, vocab_size=150, settings=SMALL)
    words = " ".join(state for bar in bars for state in bar)
    for what in ("reading: 60 texts", "tokenizing: ", "training: step 3, loss "):
        assert what in words
    assert re.search(r"step +3: held-out loss \d", capsys.readouterr().out)
    bars.clear()
    unmask.evaluate(run.model, texts, pseudo_tokens=0)
    assert "hiding 15% of the words" in bars[-1][-1]


def test_a_mistake_in_a_notebook_is_a_line() -> None:
    with pytest.raises(unmask.UnmaskError) as caught:
        unmask.load("nowhere/model")
    (line,) = caught.value._render_traceback_()
    assert line == f"{type(caught.value).__name__}: {caught.value}"
