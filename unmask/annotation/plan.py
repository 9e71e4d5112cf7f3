"""Which annotations a preparation makes, whence, and with which labels.

Labels are numbered once for the whole corpus, so that the shards are the same however the work is shared out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from unmask.annotation.gazetteer import Phrases

Origin = Literal["data", "pipeline", "gazetteer"]


@dataclass(frozen=True)
class AnnotationPlan:
    """What is annotated, and by whom.

    Attributes:
        origins: Where each column comes from.
        labels: The labels of each column; a label's number is its place, counted from 1.
        pipeline: Name of the spaCy pipeline, None where none is used.
        version: Of spaCy and the pipeline.
        phrases: Of the gazetteer.
    """

    origins: Mapping[str, Origin]
    labels: Mapping[str, tuple[str, ...]]
    pipeline: str | None = None
    version: str | None = None
    phrases: Phrases = ()

    @property
    def fingerprint(self) -> str:
        """A hash of all of it: equal plans annotate the same text in the same way."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def of_origin(self, origin: Origin) -> list[str]:
        """The columns that come from there."""
        return [column for column, found in self.origins.items() if found == origin]

    def describe(self) -> str:
        """One line for the reader of a log."""
        names = {"data": "from the data", "pipeline": f"by {self.pipeline}", "gazetteer": "by the gazetteer"}
        return "annotation: " + ", ".join(f"{column} {names[origin]}" for column, origin in self.origins.items())
