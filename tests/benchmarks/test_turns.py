"""Systems that take turns."""

from __future__ import annotations

from turns import alternate


class System:
    """It needs some seconds in all."""

    def __init__(self, name: str, needs: float, log: list[tuple[str, float]]) -> None:
        self._name, self._needs, self._log = name, needs, log
        self.seconds, self.steps, self.finished = 0.0, 0, False
        self.points: list[tuple[float, ...]] = []

    def go(self, seconds: float) -> None:
        self.seconds, self.steps = min(self.seconds + seconds, self._needs), self.steps + 1
        self.finished = self.seconds == self._needs
        self._log.append((self._name, self.seconds))


def test_each_trains_to_its_end_in_turns() -> None:
    log: list[tuple[str, float]] = []
    systems = {name: System(name, needs, log) for name, needs in (("long", 5.0), ("short", 2.0))}
    assert list(alternate(systems, 2.0)) == ["short", "long"]  # type: ignore[arg-type]
    assert log == [("long", 2.0), ("short", 2.0), ("long", 4.0), ("long", 5.0)]
