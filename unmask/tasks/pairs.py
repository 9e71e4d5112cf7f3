"""Classes of pairs of texts: classification whose files always have two texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from unmask.tasks.classify import Classify
from unmask.tasks.columns import LABELS, UsualColumns


@dataclass(frozen=True)
class Pairs(Classify):  # it is a classification in all but the files it reads, so it is one here, too
    """One of several classes for a pair of texts. Source: Devlin et al. 2018, section 4.1."""

    kind: ClassVar[str] = "pairs"
    title: ClassVar[str] = "classes of pairs of texts"
    usual: ClassVar[UsualColumns | None] = UsualColumns(LABELS, pairs="always", guessed=False)
    lines_lack: ClassVar[str | None] = "pairs"

    @classmethod
    def reads(cls, content: Mapping[str, Any], names: Sequence[str]) -> bool:
        """See `Task`. Folders of others do not tell pairs from single texts: those are `classify`."""
        return False
