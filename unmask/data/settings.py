"""Settings of the corpus, its cleaning and what is held out of it, and of annotation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from unmask.core.settings import Settings
from unmask.tokenizer.spans import Column

DocumentUnit = Literal["line", "block", "file"]


class Reading(Settings):
    """How files are read, as far as their content does not say it, or says it wrongly."""

    encoding: str | None = None
    """Encoding of text files, by a name that Python knows (`cp1252`, `shift_jis`). Unset: UTF-8, UTF-16 or UTF-32."""
    delimiter: str | None = None
    """The character between the cells of CSV and TSV; `tab` is one. Unset: it is found."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first row of CSV and TSV holds the columns' names; `auto` finds it."""

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            "".encode(value or "utf-8")
        except LookupError as error:
            raise ValueError("no encoding of text; known are utf-8, utf-16, cp1252, shift_jis, gb18030, ...") from error
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
    """What is changed or left out. Nothing by default; every document that is left out is counted."""

    html: Literal["keep", "drop"] = "keep"
    """`drop` removes tags and addresses (`https://...`), and puts characters for entities (`&quot;`)."""
    unicode: Literal["NFC", "NFKC"] | None = None
    """Normal form that characters are brought to. Unset: they stay as they are."""
    white_space: Literal["keep", "collapse"] = "keep"
    """`collapse` makes one space of each stretch within a line and removes it at the ends."""
    duplicates: Literal["keep", "drop", "drop_near"] = "keep"
    """`drop` leaves out documents whose text stood before, after the changes above; `drop_near` also near-duplicates of
    an earlier one (see `unmask.data.groups.Clusters`). Longer documents than 262,144 characters stay."""


class ColumnGroups(Settings):
    """Documents with the same value in a column of tables are on one side."""

    kind: Literal["column"] = "column"
    column: str | int
    """The column, such as that of patients, authors or domains; a number, counted from 0, where there are no names."""


class NearDuplicateGroups(Settings):
    """Documents that are near-duplicates are on one side."""

    kind: Literal["near_duplicates"] = "near_duplicates"


HoldoutGroups = Annotated[ColumnGroups | NearDuplicateGroups, Field(discriminator="kind")]
_COLUMN = "column:"


class CorpusSettings(Reading):
    """How files become documents, and how many of them are held out for validation."""

    documents: DocumentUnit | Literal["auto"] = "auto"
    """What a document is in a text file: a `line`, a `block` between empty lines, the whole `file`, or `auto`, which
    looks at the beginning of the text (see `unmask.data.survey`). In tables it is a row. In CoNLL and CoNLL-U files a
    sentence is a line, and a block what stands between two `newdoc` marks."""
    column: str | int | tuple[str | int, ...] | None = None
    """Where the text of a table stands: a name, or a number counted from 0; a path to a field within (`content.text`);
    or several, whose texts are joined (see `unmask.data.columns`). Unset: it is found."""
    label: str | int | None = None
    """Where the class of each document stands in tables: a name, or a number as for `column`. A row without a value
    there has no class. Unset: none is read."""
    bad_input: Literal["error", "skip"] = "error"
    """Whether bytes that are not UTF-8, NULs, rows without text and cut-off files are an `error`, or counted and left
    out (`skip`)."""
    holdout: float = Field(default=0.05, gt=0.0, le=0.5)
    """Expected share of the text that is held out."""
    holdout_from: Literal["hash", "end"] = "hash"
    """What is held out: texts by their `hash`, which stay held out when the corpus grows and never stand on both sides;
    or the `end` of the text, as in experiments with a fixed corpus."""
    holdout_groups: HoldoutGroups | None = None
    """What stays on one side when text is held out by its hash. Also as a string: `near_duplicates`, or the column's
    name, with `column:` before it where the column is called near_duplicates. Unset: equal documents alone."""
    leaks: Literal["keep", "drop"] = "keep"
    """Whether training texts that nearly stand in the held-out text stay (`keep`) or are left out (`drop`)."""
    validation: tuple[str, ...] = ()
    """Files that are held out instead of a share of the text."""
    max_unknown: float = Field(default=0.2, ge=0.0, le=1.0)
    """Largest share of the letters that may be unknown to the tokenizer; above 1 % is a warning."""
    splits: Literal["auto", "ignore"] = "auto"
    """Whether the names of files and parts in a folder say what is trained on, held out and not read, where most have
    one (`auto`, see `unmask.data.sources.find_split`), or all is trained on (`ignore`)."""
    cleaning: CleaningSettings = CleaningSettings()
    """What is changed in the text or left out of it."""

    @field_validator("column")
    @classmethod
    def _one_or_several(cls, value: str | int | tuple[str | int, ...] | None) -> Any:
        """A list of one column is that column, so that data is known by either."""
        if not isinstance(value, tuple):
            return value
        if not value or len(set(map(str, value))) < len(value):
            raise ValueError('name each of the columns once, such as ["title", "body"]')
        return value[0] if len(value) == 1 else value

    @field_validator("holdout_groups", mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        if value == "near_duplicates":
            return {"kind": "near_duplicates"}
        if isinstance(value, str | int) and not isinstance(value, bool):
            column = value.removeprefix(_COLUMN) if isinstance(value, str) else value
            if column == "":
                raise ValueError("give near_duplicates, or the name of a column")
            return {"kind": "column", "column": column}
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.holdout_groups is not None and (self.validation or self.holdout_from == "end"):
            other = "validation" if self.validation else "holdout_from"
            raise ValueError(f"holdout_groups and {other} both say what is held out; leave one of them out")
        if self.cleaning.duplicates == "drop_near" and isinstance(self.holdout_groups, NearDuplicateGroups):
            raise ValueError("drop_near leaves out what holdout_groups = near_duplicates keeps together; choose one")
        return self


class AnnotationSettings(Settings):
    """What is said of the text beside its words, and by whom."""

    columns: tuple[Column, ...] = ()
    """What of the text is annotated."""
    source: Literal["auto", "data", "pipeline"] = "auto"
    """Whether annotations are those of the `data` (fields of JSONL, Parquet or Arrow rows, CoNLL, CoNLL-U) or are made
    by a `pipeline`; `auto` takes those of the data for every column that it has."""
    pipeline: str = "en_core_web_sm"
    """The spaCy pipeline that annotates: the name of its package, or a folder."""
    gazetteer: str | None = None
    """A file with a phrase a line, perhaps with a tab and a label; `entities` are where these phrases stand."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Where annotations of the data stand under another name: column to field (for CoNLL the number of the column,
    counted from 0; for CoNLL-U `xpos` in place of `upos`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"a column occurs twice in {', '.join(self.columns)}")
        if self.gazetteer is not None and "entities" not in self.columns:
            raise ValueError('a gazetteer finds entities: add them with annotation.columns=["entities"]')
        if unknown := [name for name in self.fields if name not in self.columns]:
            raise ValueError(f"fields names {', '.join(unknown)}, which annotation.columns does not ask for")
        if self.fields and self.source == "pipeline":
            raise ValueError('fields are of annotations in the data; leave them out, or take source = "data"')
        return self
