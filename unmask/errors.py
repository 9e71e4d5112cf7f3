"""The errors a user can cause. Each text says what was found, where, and the way out.

All are `ValueError`s, so that library users may catch them without importing this module. Whatever is not one of
these is a defect of ours and keeps its traceback.
"""

from __future__ import annotations


class UnmaskError(ValueError):
    """Base of everything that a user's input, settings or environment can cause."""


class CorpusError(UnmaskError):
    """A source of text cannot be read, or holds too little."""


class TokenizerError(UnmaskError):
    """A tokenizer is missing, incomplete, or of a kind that is not supported."""


class SettingsError(UnmaskError):
    """A recipe or a setting is unknown, malformed or out of range."""


class DataError(UnmaskError):
    """Prepared token shards are missing, damaged, or do not fit the tokenizer."""


class ModelError(UnmaskError):
    """A model folder is missing, incomplete, or of a layout that is not supported."""


class UnsupportedError(ModelError):
    """A model of one of our layouts has a part that our encoder lacks; transformers may run it."""


class RunError(UnmaskError):
    """An output folder cannot be used as asked."""


class WriteError(OSError, RunError):  # in this order, so that Python's own `OSError` reads the arguments
    """A file cannot be written: the disk is full, or the folder is closed to us. What stood there before is kept.

    Made of the system's number or None, the reason, and the file or folder. It is an `OSError` too, so that callers
    that know a better way out can catch both.
    """

    def __str__(self) -> str:
        if self.filename is None:  # made of a text alone
            return super().__str__()
        return (
            f"{self.filename}: cannot be written ({self.strerror}); make room or mend that, and run the same command "
            "again, with --resume where it had begun a run"
        )


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""
