"""Settings of the tokenizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unmask.settings import Settings


class TokenizerSettings(Settings):
    """Which tokenizer is used or trained.

    Attributes:
        path: A folder with a `tokenizer.json`, or that file; None trains one on the corpus.
        kind: What is trained.
        vocab_size: Entries of the trained vocabulary, special tokens included; None sizes it to the corpus.
        lowercase: Whether the trained tokenizer folds case.
    """

    path: str | None = None
    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: int | None = Field(default=None, ge=64, le=1_000_000)
    lowercase: bool = False

    @model_validator(mode="after")
    def _check(self) -> TokenizerSettings:
        if self.path is not None and (self.vocab_size is not None or self.lowercase):
            raise ValueError("vocab_size and lowercase are of a tokenizer that is trained, but path names one")
        return self
