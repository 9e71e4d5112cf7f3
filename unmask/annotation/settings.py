"""Settings of annotation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unmask.corpus.spans import Column
from unmask.settings import Settings


class AnnotationSettings(Settings):
    """What is said of the text beside its words, and by whom.

    Attributes:
        columns: What is wanted: `entities`, `pos`, `dependencies`, `chunks`.
        source: Whether annotations are those of the `data` (fields of JSONL, Parquet or Arrow rows, CoNLL, CoNLL-U) or
            are made by a `pipeline`; `auto` takes those of the data for every column that it has.
        pipeline: A spaCy pipeline: the name of its package, or a folder.
        gazetteer: A file with a phrase a line, perhaps a tab and a label; `entities` are where these phrases stand.
        fields: Where annotations of the data stand under another name: column to field (for CoNLL the number of the
            column, counted from 0; for CoNLL-U `xpos` in place of `upos`).
    """

    columns: tuple[Column, ...] = ()
    source: Literal["auto", "data", "pipeline"] = "auto"
    pipeline: str = "en_core_web_sm"
    gazetteer: str | None = None
    fields: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"a column stands twice in {', '.join(self.columns)}")
        if self.gazetteer is not None and "entities" not in self.columns:
            raise ValueError('a gazetteer finds entities: add them with annotation.columns=["entities"]')
        if unknown := [name for name in self.fields if name not in self.columns]:
            raise ValueError(f"fields names {', '.join(unknown)}, which annotation.columns does not ask for")
        if self.fields and self.source == "pipeline":
            raise ValueError('fields are of annotations in the data; leave them out, or take source = "data"')
        return self
