"""Settings of the tokenizer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unmask.core.settings import Settings

TokenizerKind = Literal["wordpiece", "bpe", "unigram", "char"]


class TokenizerSettings(Settings):
    """Which tokenizer is used or trained.

    Attributes:
        path: A folder with a `tokenizer.json` or a `vocab.txt`, such a file, or the name of a model on the hub (a run
            notes its commit); None trains one on the corpus.
        kind: What is trained: WordPiece, byte-level BPE, Unigram, or a token for each character.
        vocab_size: Entries of the trained vocabulary, special tokens included; None sizes it to the corpus. For
            characters it is the most there may be, and None takes all characters of the corpus.
        lowercase: Whether the trained tokenizer folds case.
        bare: For `char` only: whether `[PAD]` and `[MASK]` are the only special tokens, so that rows are text and
            nothing else. Its characters are those of the whole corpus, held-out text included. None is no.
        sample_bytes: About how much text it is trained on: of a larger corpus, documents chosen by their hashes. For
            characters it is always all.
    """

    path: str | None = None
    kind: TokenizerKind = "wordpiece"
    vocab_size: int | None = Field(default=None, ge=64, le=1_000_000)
    lowercase: bool = False
    bare: bool | None = None
    sample_bytes: int = Field(default=1 << 29, ge=1 << 16)

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name in fields if name != "path" and getattr(self, name) != fields[name].default]
        if self.path is not None and changed:
            raise ValueError(f"{' and '.join(changed)} is of a tokenizer that is trained, but path names one")
        if self.bare is not None and self.kind != "char":
            raise ValueError(f"bare is for kind char, not {self.kind}; leave it out, or take kind char")
        return self
