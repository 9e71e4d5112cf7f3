"""Which annotations a preparation makes, whence, and with which labels; and texts to annotations by such a plan.

Labels are numbered once for the whole corpus, so that the shards are the same however the work is shared out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal, Protocol

from unmask.text.annotators import Gazetteer, Phrases, SpacyPipeline
from unmask.text.spans import Spans

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


class TextAnnotator(Protocol):
    """Says something of texts: a spaCy pipeline, a gazetteer, or anything else with this method."""

    def annotate(self, texts: Sequence[str]) -> Iterable[Spans]:
        """The annotations of each text, in characters of it; sorted, and without overlaps within a column."""
        ...


class Annotator:
    """Carries out a plan. The pipeline is loaded when the first text comes.

    Args:
        plan: What is annotated, and by whom.
    """

    def __init__(self, plan: AnnotationPlan) -> None:
        self.plan = plan

    @cached_property
    def _annotators(self) -> list[TextAnnotator]:
        found: list[TextAnnotator] = []
        if columns := self.plan.of_origin("pipeline"):
            assert self.plan.pipeline is not None, "the plan names it"
            found.append(SpacyPipeline(self.plan.pipeline, columns))
        if self.plan.phrases:
            found.append(Gazetteer(self.plan.phrases))
        return found

    def annotate(self, texts: Sequence[str], given: Sequence[Spans | None]) -> list[Spans]:
        """The annotations of each text, every column of the plan.

        Args:
            texts: The texts.
            given: What came with each of them.

        Raises:
            SettingsError: As the pipeline.
        """
        found = [dict(spans or {}) for spans in given]
        for annotator in self._annotators:
            for spans, more in zip(found, annotator.annotate(texts), strict=True):
                spans.update(more)
        return [{column: spans.get(column, ()) for column in self.plan.origins} for spans in found]
