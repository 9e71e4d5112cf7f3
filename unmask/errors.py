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


class DivergedError(UnmaskError):
    """Training produced a loss that is not a finite number."""


class MemoryFullError(UnmaskError):
    """Not even the smallest part of a training step fits into memory."""
