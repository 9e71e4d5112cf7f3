"""Progress in a notebook: shown there without any option, and nowhere else."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import unmask
from tests.conftest import SMALL, make_text
from unmask.core.results import NotebookReporter, Progress, Reporter, usual_reporter

Drawn = list[list[str]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """A fake Jupyter kernel; returns, for each bar, everything that was displayed in its place."""
    bars: Drawn = []

    def display(shown: Any, *, display_id: bool) -> Any:
        assert display_id
        bars.append([shown])
        return SimpleNamespace(update=bars[-1].append)

    module: Any = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=object())
    module.display = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return bars


def test_only_where_a_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(usual_reporter()) is Reporter
    terminal: Any = ModuleType("IPython")
    terminal.get_ipython = SimpleNamespace
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert type(usual_reporter()) is Reporter


def test_a_bar_is_drawn_in_its_place(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    line = NotebookReporter()
    now = iter([10.0 + n / 10 for n in range(100)])
    monkeypatch.setattr("unmask.core.results.time.monotonic", lambda: next(now))
    for done in (0, 1, 2, 3, 4):
        line.notify(Progress("<reading>", done, 4, "texts"))
    assert len(drawn) == 1
    assert "value='1.0000'></progress> &lt;reading&gt;: 4 of 4 texts" in drawn[0][-1]
    assert len(drawn[0]) == 3, "some times a second, and at the end"


def test_verbs_draw_without_being_asked(
    drawn: Drawn, run: unmask.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = make_text(60).split("\n\n")
    unmask.pretrain(iter(texts), out=tmp_path / "run", steps=3, vocab_size=150, settings=SMALL)
    words = " ".join(state for bar in drawn for state in bar)
    for what in ("reading: 60 texts", "tokenizing: ", "training: step 3, loss "):
        assert what in words
    assert re.search(r"step +3: held-out loss \d", capsys.readouterr().out)
    drawn.clear()
    unmask.evaluate(run.model, texts, pseudo_tokens=0)
    assert "hiding 15% of the words" in drawn[-1][-1]
    unmask.embed(run.model, texts, out=tmp_path / "vectors.npy")
    assert "a text's vector is" in capsys.readouterr().out, "a note"


def test_a_run_is_a_table(run: unmask.Run) -> None:
    page = run._repr_html_()
    assert page.count("<table>") == 1
    assert "<td style='text-align: left'>held-out loss</td>" in page
    assert "unmask.load(" in page
    assert "--" not in page, "nothing of the command line"


def test_a_mistake_is_a_line(drawn: Drawn) -> None:
    with pytest.raises(unmask.UnmaskError) as caught:
        unmask.load("nowhere/model")
    (line,) = caught.value._render_traceback_()
    assert line == f"{type(caught.value).__name__}: {caught.value}"
