"""Settings of a training that begins with a model that is there."""

from __future__ import annotations

from pydantic import Field

from unmask.settings import Settings


class StartSettings(Settings):
    """From which checkpoint a training begins, and what is added to it first.

    Attributes:
        checkpoint: Folder of a BERT, RoBERTa or ModernBERT model that unmask or transformers wrote, or of a run; or the
            name of such a model on the hub, with the commit (`owner/name@commit`) when a run has begun.
        sha256: Of its content. Filled in when a run begins; where it is given, the checkpoint must have it.
        extend_vocab: How many words of the training text get an entry of their own; None adds none.
        extend_positions: Whether the model is made longer where `training.sequence_length` goes beyond it.
        old_data: Text of the domain that the model comes from, whole, or one prepared folder (its validation split):
            the model is evaluated on it before the training and after it. Empty takes the validation split of the
            checkpoint's own run, where that is still there.
    """

    checkpoint: str
    sha256: str | None = None
    extend_vocab: int | None = Field(default=None, ge=1, le=1_000_000)
    extend_positions: bool = False
    old_data: tuple[str, ...] = ()
