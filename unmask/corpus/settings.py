"""Settings of the corpus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unmask.settings import Settings

DocumentUnit = Literal["line", "block", "file"]


class CorpusSettings(Settings):
    """How files become documents, and how many of them are held out for validation.

    Attributes:
        documents: What a document is: a `line`, a `block` between empty lines, a whole `file`, or `auto`, which
            looks at the beginning of the text (see `unmask.corpus.survey`).
        holdout: Expected share of the text that is held out, in (0, 0.5].
    """

    documents: DocumentUnit | Literal["auto"] = "auto"
    holdout: float = Field(default=0.05, gt=0.0, le=0.5)
