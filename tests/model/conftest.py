"""The network is tested with the compiled loops that train it, whatever the size of its inputs."""

from __future__ import annotations

import pytest

from unmask.model import fused


@pytest.fixture(autouse=True)
def loops_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "SMALL", 0)
