"""Tokenizers without a tokenizer.json, which transformers makes fast ones of.

Its conversions are what its own models run with, so ids are those of transformers. Tokenizers that it has in Python
only (BertJapanese's, PhoBERT's) cannot be converted: nothing else would give their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers

from unmask.errors import TokenizerError
from unmask.hub import CONFIG
from unmask.tokenizer.special_tokens import MOST_IDS
from unmask.values import load_json, shown, too_high

_MOST_LAYERS = 10_000  # or labels, heads, ...
_LINE = 300  # letters of what a library said
OTHER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")


def convert(folder: Path) -> Any:
    """The folder's tokenizer as a fast one of transformers, made without running code from the folder.

    Args:
        folder: With a vocabulary, and a tokenizer_config.json or config.json that says what it is.

    Raises:
        TokenizerError: transformers is not installed, cannot read the folder, or has no fast tokenizer of this kind.
    """
    try:
        import transformers
    except ImportError as error:
        raise TokenizerError(
            f"{folder}: there is no tokenizer.json, and transformers, which makes one of other files, is not "
            "installed: pip install 'unmask[transformers]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    _check_ids(folder / "vocab.json")
    _check_config(folder / CONFIG)
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise TokenizerError(
            f"{folder}: no tokenizer that transformers reads ({_reason(error)}){_hint(folder)}"
        ) from error
    backend = getattr(theirs, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(
            f"{folder}: transformers runs {type(theirs).__name__} in Python only and has no fast form of it, which is "
            "what is read here; give a folder with a tokenizer.json"
        )
    special = set(theirs.all_special_tokens)
    if not any(token not in special for token in backend.get_vocab()):  # what it makes where it finds nothing
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads (it has no vocabulary){_hint(folder)}")
    return theirs


def _check_ids(file: Path) -> None:
    """Ids far apart end the process within the library."""
    if not file.is_file():
        return
    try:
        entries = load_json(file)
        highest = max((id_ for id_ in entries.values() if isinstance(id_, int)), default=0)
    except (OSError, ValueError, AttributeError) as error:
        raise TokenizerError(f"{file}: no table of entries and their ids ({error}); give another copy") from error
    if highest >= MOST_IDS:
        raise TokenizerError(
            f"{file}: the vocabulary has the id {shown(highest)}, but ids up to {MOST_IDS - 1:,} are read; give a "
            "tokenizer whose ids count its entries"
        )


def _check_config(file: Path) -> None:
    """transformers reads it to know the tokenizer's kind, and makes lists of as many entries as there are layers."""
    if not file.is_file():
        return
    try:
        found = too_high(load_json(file), _MOST_LAYERS)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file}: not JSON ({error}); give another copy") from error
    if found is not None:
        raise TokenizerError(
            f"{file}: {shown(found[0])} = {shown(found[1])} is no number that a model has of anything; give the "
            "configuration that belongs to it"
        )


def is_of_library(error: BaseException) -> bool:
    """Whether it is an error, or a panic of Rust, which Python takes for more than an error."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """Makes errors of ours of whatever the `tokenizers` library raises of a file.

    Raises:
        TokenizerError: It cannot read it, or encode with what it has read.
    """
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise TokenizerError(f"{file}: not a tokenizer of the `tokenizers` library: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:_LINE]


def _hint(folder: Path) -> str:
    """The way out where a package is missing, which transformers does not name in each of its errors."""
    files = [name for name in OTHER_FORMS if name.endswith(".model") and (folder / name).is_file()]
    if not files or find_spec("sentencepiece") is not None:
        return ""
    return f"; {files[0]} may need pip install sentencepiece protobuf"
