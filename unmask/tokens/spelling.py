"""How the entries of a vocabulary spell text: each family has its own way to say where spaces were.

A spelling turns an entry into the UTF-8 of its text, with a space in front where a word begins there by the family's
mark, and behind it where a word ends. So `Ġking` and `▁king` and WordPiece's `king` are all ` king`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

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
