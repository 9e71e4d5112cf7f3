"""A single text with the annotations of a pipeline, for showing masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from unmask.annotation.annotator import Annotator
from unmask.annotation.pipeline import PIPELINES, SpacyPipeline
from unmask.annotation.plan import AnnotationPlan
from unmask.errors import SettingsError
from unmask.masking.engine import Masker
from unmask.masking.needs import needed_annotations
from unmask.masking.plain import rows_from_ids
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.packing.rows import Rows
from unmask.tokens.annotated import annotated_tokens
from unmask.tokens.tokenizer import Tokenizer


class AnnotatedText:
    """Annotates a text when somebody needs it, by the first of some usual English pipelines that is installed.

    Args:
        tokenizer: Of the text.
        text: The text.
    """

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text

    def rows(
        self, ids: Sequence[int], columns: Sequence[str], wanted_by: str
    ) -> tuple[Rows, Mapping[str, Sequence[str]]]:
        """The text as a row.

        Args:
            ids: Its tokens, with the special tokens around them.
            columns: Annotations that are needed.
            wanted_by: A strategy.

        Returns:
            The row, and the labels of its annotations.

        Raises:
            SettingsError: No pipeline is installed.
        """
        rows = rows_from_ids([ids], self.tokenizer)
        if not columns:
            return rows, {}
        plan = _plan(columns, wanted_by)
        _, _, aligned = annotated_tokens(self.tokenizer, Annotator(plan), [self.text], [None])
        begin = int(self.tokenizer.special.cls is not None)
        annotations = {}
        for name, column in aligned.items():
            values = torch.zeros_like(rows.input_ids)
            values[0, begin : begin + len(column.values)] = torch.from_numpy(column.values)
            annotations[name] = values
        return replace(rows, annotations=annotations), plan.labels


@dataclass(frozen=True)
class ShownText:
    """A text that is masked to be looked at: by `unmask masks`, and in the pictures of the documentation.

    Attributes:
        tokenizer: Of the text.
        ids: Its tokens, with the special tokens around them.
        annotated: Gives the annotations that a strategy asks for.
    """

    tokenizer: Tokenizer
    ids: Sequence[int]
    annotated: AnnotatedText

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> ShownText:
        """Tokenizes a text."""
        before, behind = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
        ids = [*before, *tokenizer.encode_corpus([text])[0].input_ids.tolist(), *behind]
        return cls(tokenizer, ids, AnnotatedText(tokenizer, text))

    def masker(self, settings: MaskingSettings, name: str, *, tables: Tables, seed: int) -> tuple[Rows, Masker]:
        """The text as a row with all annotations that a strategy needs, and a masker for it.

        Args:
            settings: Of the strategy.
            name: What the strategy is called where it cannot be had.
            tables: What masking may know beside the text.
            seed: Of the masker.

        Raises:
            SettingsError: No pipeline is installed that makes the annotations.
        """
        rows, labels = self.annotated.rows(self.ids, needed_annotations(settings), name)
        return rows, Masker(settings, self.tokenizer, seed=seed, tables=replace(tables, labels=labels))


def _plan(columns: Sequence[str], wanted_by: str) -> AnnotationPlan:
    for name in PIPELINES:
        try:
            pipeline = SpacyPipeline(name, columns)
        except SettingsError as error:
            why = error
            continue
        labels = {column: pipeline.labels(column) for column in columns}
        return AnnotationPlan(dict.fromkeys(columns, "pipeline"), labels, pipeline=name, version=pipeline.version)
    raise SettingsError(f"{wanted_by} needs the annotation {', '.join(columns)} of the text: {why}") from why
