"""What a tokenizer without `[UNK]` does with text that its vocabulary cannot spell.

BPE leaves out a letter that it has no entry for, in silence, and Unigram gives up on it; such letters are found here.
Where each byte has an entry (byte-level BPE, or bytes to fall back on) there are none. WordPiece and WordLevel look for
whole words, and the library says where they do not know one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import tokenizers

from unmask.errors import TokenizerError


class LetterCheck:
    """Finds letters of a text that have no entry. Each letter is looked up once.

    Args:
        backend: A tokenizer whose model is BPE or Unigram, without an unknown token.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        model = json.loads(backend.to_str())["model"]
        self._prefixes = {"", model.get("continuing_subword_prefix") or ""}
        self._suffixes = {"", model.get("end_of_word_suffix") or ""}
        # Unigram falls back on bytes only behind its unknown token.
        self._falls_back = model["type"] == "BPE" and bool(model.get("byte_fallback"))
        self._known: set[str] = set()

    def find_unknown(self, text: str) -> str | None:
        """The first, in the order of their code points, of the letters that cannot be spelled; None: there are none."""
        normalizer = self._backend.normalizer
        letters = set(text if normalizer is None else normalizer.normalize_str(text)) - self._known
        unknown = next((letter for letter in sorted(letters) if not self._spells(letter)), None)
        if unknown is None:
            self._known |= letters
        return unknown

    def _spells(self, letter: str) -> bool:
        """A pre-tokenizer may turn it into bytes or a mark, which have entries of their own, or take it away."""
        part = self._backend.pre_tokenizer
        pieces = [letter] if part is None else [piece for piece, _ in part.pre_tokenize_str(letter)]
        return all(self._has(symbol) for symbol in "".join(pieces))

    def _has(self, symbol: str) -> bool:
        """Whether there is an entry for it, as it stands somewhere in a word."""
        forms = (prefix + symbol + suffix for prefix in self._prefixes for suffix in self._suffixes)
        if any(self._backend.token_to_id(form) is not None for form in forms):
            return True
        bytes_ = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        return self._falls_back and all(self._backend.token_to_id(entry) is not None for entry in bytes_)


def letter_check(backend: tokenizers.Tokenizer) -> LetterCheck | None:
    """The check of a tokenizer's letters; None where none of them is left out, nor given up on."""
    model = json.loads(backend.to_str())["model"]
    unknown = {"BPE": "unk_token", "Unigram": "unk_id"}.get(model["type"])
    return None if unknown is None or model.get(unknown) is not None else LetterCheck(backend)


@contextmanager
def spelling() -> Iterator[None]:
    """Makes errors of ours of those that the library raises where it cannot spell a word.

    Raises:
        TokenizerError: It cannot.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:  # the library raises bare ones
            raise
        raise TokenizerError(
            f"the tokenizer cannot spell the text ({error}); take out what is not in its vocabulary, or give a "
            "tokenizer with [UNK]"
        ) from error
