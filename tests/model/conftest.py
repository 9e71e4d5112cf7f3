"""Tests of the network use the compiled loops of training, whatever the size of the inputs."""

from __future__ import annotations

import pytest

from unmask.model import fused


@pytest.fixture(autouse=True)
def loops_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "SMALL", 0)
