"""Results of commands: attributes, the object that --json prints, and the text for people."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from unmask.core.results import Facts, Finished, Hint, Result, Sheet, Shown, Styled, as_html, as_text, decimals


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
    with pytest.raises(AttributeError, match=r"'snow'.*degrees, wet"):
        print(weather.snow)
    with pytest.raises(AttributeError, match=r"'degree'.*'degrees'"):
        print(weather.degree)
    with pytest.raises(AttributeError, match="cannot be changed"):
        weather.degrees = 20.0
    assert pickle.loads(pickle.dumps(weather)) == weather != Weather({"degrees": 1.0})


def test_a_misspelt_figure_of_a_folder_names_the_nearest() -> None:
    finished = Finished(Path("runs/a"), {"validation_loss": 3.5, "steps": 10})
    assert finished.validation_loss == pickle.loads(pickle.dumps(finished)).validation_loss == 3.5
    assert {"validation_loss", "folder", "to_dict"} <= set(dir(finished))
    assert finished.to_dict() == {**finished} == finished.summary
    for misspelt, nearest in (("validation_los", "validation_loss"), ("step", "steps"), ("foldr", "folder")):
        with pytest.raises(AttributeError, match=rf"'{misspelt}'.*'{nearest}'"):
            getattr(finished, misspelt)


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
