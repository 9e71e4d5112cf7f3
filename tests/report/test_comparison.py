"""The plot of a comparison."""

from __future__ import annotations

import pytest

from unmask.report.plots import comparison_plot


@pytest.mark.usefixtures("drawn")
def test_recipes_named_by_long_paths_leave_room_for_the_figures() -> None:
    """Matplotlib warns where there is none, and warnings are errors here."""
    names = ["tiny", "/home/somebody/" + "experiments/" * 20 + "a_$recipe$_of_mine.toml"]
    found = {name: {"mean": 1.5, "interval": (1.0, 2.0), "values": (1.0, 2.0)} for name in names}
    drawn = comparison_plot(found, what="loss")
    assert drawn.startswith("<svg")
    assert "…" in drawn
    assert "a_$recipe$_of_mine.toml" in drawn
    assert names[1] not in drawn
