"""How the entries of a vocabulary spell text, and what becomes of text that it cannot spell.

Each family has its own way to say where spaces were. A spelling turns an entry into the UTF-8 of its text, with a space
in front where a word begins there by the family's mark, and behind it where a word ends. So `Ġking` and `▁king` and
WordPiece's `king` are all ` king`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

from unmask.errors import TokenizerError

log = logging.getLogger(__name__)

Family = Literal["wordpiece", "byte_level", "metaspace", "plain", "whole"]
_BYTE_ENTRY = re.compile(r"<0x([0-9A-F]{2})>")
# Pre-tokenizers that throw white space away; without a mark, ids alone do not tell any more where it was.
_DROP_SPACES = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"}


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary spells text.

    Attributes:
        family: `wordpiece` marks continuations (or ends of words), `byte_level` and `metaspace` mark spaces, `plain`
            spells white space out, and entries of `whole` are words by themselves.
        spell: The UTF-8 of an entry's text, with spaces where the entry's marks stand.
    """

    family: Family
    spell: Callable[[str], bytes]

    def text_bytes(self, token: str) -> bytes:
        """The UTF-8 of an entry's text without its marks. White space that is spelled out is text."""
        spelled = self.spell(token)
        if self.family in ("plain", "whole"):
            return spelled
        return spelled.strip(b" ") if self.family == "wordpiece" else spelled.removeprefix(b" ")


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """Reads off a tokenizer's parts how it spells text."""
    content = json.loads(backend.to_str())
    model = content["model"]
    kind = type(backend.model).__name__
    parts = list(_parts([content["normalizer"], content["pre_tokenizer"], content["decoder"]]))
    types = {part["type"] for part in parts}
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
    if prefix:
        return Spelling("wordpiece", lambda token: _without_prefix(token, prefix))
    if suffix:
        return Spelling("wordpiece", lambda token: _without_suffix(token, suffix))
    if "ByteLevel" in types:
        table = _bytes_of_letters()
        return Spelling("byte_level", lambda token: _from_letters(token, table))
    fallback = bool(model.get("byte_fallback"))
    if mark := _space_mark(parts):
        return Spelling("metaspace", lambda token: _with_bytes(token, fallback).replace(mark.encode(), b" "))
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    letters_only = all(len(token) == 1 for token in backend.get_vocab(with_added_tokens=False) if token not in added)
    drops = _DROP_SPACES & types or any(part.get("behavior") == "Removed" for part in parts)
    if not letters_only and (kind == "WordLevel" or drops):
        if kind != "WordLevel":
            log.warning(
                "the tokenizer drops white space and marks no words: each of its tokens is taken for a word of its own"
            )
        return Spelling("whole", str.encode)
    return Spelling("plain", lambda token: _with_bytes(token, fallback))


def _parts(nodes: list[Any]) -> Iterator[dict[str, Any]]:
    """All normalizers, pre-tokenizers and decoders, also those within sequences."""
    for node in nodes:
        if isinstance(node, dict):
            yield node
            for inner in ("normalizers", "pretokenizers", "decoders"):
                yield from _parts(node.get(inner, []))


def _space_mark(parts: list[dict[str, Any]]) -> str | None:
    """What stands for a space: Metaspace says it, or a normalizer that replaces spaces (as in Llama's files)."""
    for part in parts:
        if part["type"] == "Metaspace":
            return str(part["replacement"])
        if part["type"] == "Replace" and part["pattern"] == {"String": " "} and part["content"].strip():
            return str(part["content"])
    return None


def _without_prefix(token: str, prefix: str) -> bytes:
    if token.startswith(prefix) and len(token) > len(prefix):
        return token[len(prefix) :].encode()
    return b" " + token.encode()


def _without_suffix(token: str, suffix: str) -> bytes:
    if token.endswith(suffix) and len(token) > len(suffix):
        return token[: -len(suffix)].encode() + b" "
    return token.encode()


def _with_bytes(token: str, fallback: bool) -> bytes:
    found = _BYTE_ENTRY.fullmatch(token) if fallback else None
    return bytes([int(found[1], 16)]) if found else token.encode()


def _bytes_of_letters() -> dict[str, int]:
    """The letters that stand for bytes: visible Latin-1 characters for themselves, the others from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(b): b for b in visible} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


def _from_letters(token: str, table: dict[str, int]) -> bytes:
    """An added token that is no such spelling stands for itself."""
    codes = [table.get(letter) for letter in token]
    return token.encode() if None in codes else bytes(code for code in codes if code is not None)


# What a tokenizer without `[UNK]` does with text that its vocabulary cannot spell: BPE leaves out a letter that it has
# no entry for, in silence, and Unigram gives up on it; such letters are found here. Where each byte has an entry
# (byte-level BPE, or bytes to fall back on) there are none. WordPiece and WordLevel look for whole words, and the
# library says where they do not know one.
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
