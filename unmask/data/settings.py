"""Settings of the corpus, its cleaning and what is held out of it, and of annotation."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from unmask.core.settings import AbsolutePath, Settings
from unmask.tokenizer.spans import Column

DocumentUnit = Literal["line", "block", "file"]


class Reading(Settings):
    """How files are read if their content does not show it, or shows it wrongly."""

    encoding: str | None = None
    """Encoding of text files, by Python's name (`cp1252`, `cp932`). Unset: UTF-8, UTF-16, UTF-32 or ISO-2022-JP."""
    delimiter: str | None = None
    """Character between the cells of CSV and TSV; `tab` is allowed. Unset: detected."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first row of CSV and TSV holds the columns' names; `auto` detects it."""

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            "".encode(value or "utf-8")
        except LookupError as error:
            raise ValueError("not a text encoding; use utf-8, utf-16, cp1252, cp932, gb18030, ...") from error
        return value

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = {"tab": "\t", "\\t": "\t"}.get(value or "", value)
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError("give one character, such as ; or tab")
        return value


AS_FOUND = Reading()


class CleaningSettings(Settings):
    """What is dropped: by default nothing. Every dropped document is counted."""

    duplicates: Literal["keep", "drop", "drop_near"] = "keep"
    """`drop` removes documents that repeat an earlier one or one in a held-out file; `drop_near` also removes
    near-duplicates (see `unmask.data.groups.Clusters`). Documents longer than 262,144 characters stay."""


class CorpusSettings(Reading):
    """How files become documents, and what is held out for validation."""

    documents: DocumentUnit | Literal["auto"] = "auto"
    """What a document is in a text file: a `line`, a `block` between empty lines, the whole `file`, or `auto`, which
    decides by the beginning of the text (see `unmask.data.documents.choose_unit`). In tables it is a row. In CoNLL and
    CoNLL-U files each sentence counts as a line, and the text between two `newdoc` marks as a block."""
    column: str | int | tuple[str | int, ...] | None = None
    """Text column of a table: a name, or a number counted from 0; a path to a field inside it (`content.text`); or
    several columns, whose texts are joined (see `unmask.data.columns`). Unset: detected."""
    label: str | int | None = None
    """Column with the class of each document in tables: a name or a number, as for `column`. A row without a value has
    no class. Unset: no classes are read."""
    bad_input: Literal["error", "skip"] = "error"
    """Whether bytes that are not UTF-8, NULs, rows without text and truncated files are an `error`, or are counted and
    skipped (`skip`)."""
    holdout: float = Field(default=0.05, gt=0.0, le=0.5)
    """Expected share of the text to hold out."""
    holdout_from: Literal["hash", "end"] = "hash"
    """What is held out: texts by their `hash`, which are never in both splits and, above 100 documents, stay held out
    when the corpus grows; or the `end` of the text, as in experiments with a fixed corpus; files of a folder are in
    the order of their names."""
    holdout_groups: str | int | None = None
    """Column whose equal values stay in one split when text is held out by its hash, such as patients, authors or
    domains: its name, or its number, counted from 0. Unset: only equal documents."""
    leaks: Literal["keep", "drop"] = "keep"
    """Whether to `keep` or `drop` training texts that nearly repeat held-out text."""
    validation: tuple[AbsolutePath, ...] = ()
    """Files to hold out instead of a share of the text."""
    max_unknown: float = Field(default=0.2, ge=0.0, le=1.0)
    """Largest share of letters that may be unknown to the tokenizer; above 1 % there is a warning."""
    splits: Literal["auto", "ignore"] = "auto"
    """Whether file names such as `train` and `test` in a folder decide what is trained on, held out and not read, if
    most files have one (`auto`, see `unmask.data.sources.find_split`), or all files are trained on (`ignore`)."""
    cleaning: CleaningSettings = CleaningSettings()
    """What is dropped from the text."""

    @field_validator("column")
    @classmethod
    def _one_or_several(cls, value: str | int | tuple[str | int, ...] | None) -> Any:
        """A list of one column is that column, so that both give the same data."""
        if not isinstance(value, tuple):
            return value
        if not value or len(set(map(str, value))) < len(value):
            raise ValueError('name each column once, such as ["title", "body"]')
        return value[0] if len(value) == 1 else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.holdout_groups == "":
            raise ValueError("holdout_groups: give the name of a column")
        if self.holdout_groups is not None and (self.validation or self.holdout_from == "end"):
            other = "validation" if self.validation else "holdout_from"
            raise ValueError(f"holdout_groups and {other} both choose what to hold out; remove one")
        return self


class AnnotationSettings(Settings):
    """Which annotations the text has, and where they come from."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    columns: tuple[Column, ...] = ()
    """What is annotated."""
    source: Literal["auto", "data", "pipeline"] = "auto"
    """Whether annotations come from the `data` (fields of JSONL, Parquet or Arrow rows, CoNLL, CoNLL-U) or from a
    `pipeline`; `auto` uses the data's own for every column that it has."""
    pipeline: str = "en_core_web_sm"
    """The spaCy pipeline that annotates: the name of its package, or a folder."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Other names of the data's annotations: column to field (for CoNLL the column's number, counted from 0; for
    CoNLL-U `xpos` instead of `upos`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"a column occurs twice in {', '.join(self.columns)}")
        if unknown := [name for name in self.fields if name not in self.columns]:
            raise ValueError(f"fields names {', '.join(unknown)}, which annotation.columns does not include")
        if self.fields and self.source == "pipeline":
            raise ValueError('fields are only for annotations in the data; remove them, or set source = "data"')
        return self
