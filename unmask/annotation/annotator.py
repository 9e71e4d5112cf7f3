"""Texts to annotations, by a plan: what came with the text, and what pipelines and gazetteers say of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from unmask.annotation.gazetteer import Gazetteer
from unmask.annotation.plan import AnnotationPlan
from unmask.corpus.spans import Spans


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
            from unmask.annotation.pipeline import SpacyPipeline

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
