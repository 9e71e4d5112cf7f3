"""Word starts for each family of tokenizers, and the kinds of characters on which they depend.

Whole-word masking is wrong in most public code because it guesses words from character offsets. Here the vocabulary
decides, once, when text is tokenized. Whether a word begins at a token depends on what the token begins with and what
the token before it ends with: two tables over the vocabulary, and one over kinds of characters.

    family                  words
    WordPiece               what `##` continues; punctuation marks and ideographs apart
    byte-level BPE          GPT-2's pieces: letters, digits, other signs, contractions ('s); white space token by token
    Metaspace, Unigram      between spaces, letters with digits; runs of other signs apart
    characters              letters with digits; each other sign and white space alone

In all families an ideograph begins a word (one of several tokens is one word), accents stay with their letters, no word
begins within a character, a lone space belongs to the word after it, and special tokens end words. In scripts without
spaces other than Chinese (Thai, Khmer, kana) a word extends to the next space or sign.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.core.errors import TokenizerError
from unmask.tokenizer.spans import is_mark

# A spelling turns an entry into the UTF-8 of its text. By the family's marks, it adds a space in front if a word begins
# there, and after it if a word ends. So `Ġking`, `▁king` and WordPiece's `king` are all ` king`.

log = logging.getLogger(__name__)

Family = Literal["wordpiece", "byte_level", "metaspace", "plain", "whole"]
_BYTE_ENTRY = re.compile(r"<0x([0-9A-F]{2})>")
# Pre-tokenizers that drop white space; without marks, ids alone do not show where it was.
_DROP_SPACES = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"}


@dataclass(frozen=True)
class Spelling:
    # `wordpiece` marks continuations (or ends of words), `byte_level` and `metaspace` mark spaces, `plain` spells white
    # space out, and entries of `whole` are words by themselves.
    family: Family
    spell: Callable[[str], bytes]  # the UTF-8 of an entry's text, with spaces for its marks

    def text_bytes(self, token: str) -> bytes:
        """The UTF-8 of an entry's text without its marks; spelled-out white space is text."""
        spelled = self.spell(token)
        if self.family in ("plain", "whole"):
            return spelled
        return spelled.strip(b" ") if self.family == "wordpiece" else spelled.removeprefix(b" ")


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    content = json.loads(backend.to_str())
    model = content["model"]
    parts, nodes = [], [content["normalizer"], content["pre_tokenizer"], content["decoder"]]
    while nodes:  # including those within sequences
        if isinstance(node := nodes.pop(0), dict):
            parts.append(node)
            nodes = [part for key in ("normalizers", "pretokenizers", "decoders") for part in node.get(key, [])] + nodes
    types = {part["type"] for part in parts}
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")

    def with_affix(token: str) -> bytes:
        if prefix:
            continues = token.startswith(prefix) and len(token) > len(prefix)
            return token[len(prefix) :].encode() if continues else f" {token}".encode()
        ends = token.endswith(suffix) and len(token) > len(suffix)
        return f"{token[: -len(suffix)]} ".encode() if ends else token.encode()

    if prefix or suffix:
        return Spelling("wordpiece", with_affix)
    if "ByteLevel" in types:
        # Letters that represent bytes: visible Latin-1 characters themselves, the others from U+0100 on.
        visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = sorted(set(range(256)) - set(visible))
        byte_of = {chr(b): b for b in visible} | {chr(0x100 + n): b for n, b in enumerate(hidden)}

        def from_letters(token: str) -> bytes:  # an added token with other letters represents itself
            return bytes(map(byte_of.__getitem__, token)) if byte_of.keys() >= set(token) else token.encode()

        return Spelling("byte_level", from_letters)
    falls_back = bool(model.get("byte_fallback"))

    def with_bytes(token: str) -> bytes:
        entry = _BYTE_ENTRY.fullmatch(token) if falls_back else None
        return bytes([int(entry[1], 16)]) if entry else token.encode()

    # The mark of a space comes from Metaspace, or from a normalizer that replaces spaces (as in Llama's files).
    marks = [part["replacement"] for part in parts if part["type"] == "Metaspace"]
    replaced = [part for part in parts if part["type"] == "Replace" and part["pattern"] == {"String": " "}]
    marks += [part["content"] for part in replaced if part["content"].strip()]
    if marks:
        mark = marks[0].encode()
        return Spelling("metaspace", lambda token: with_bytes(token).replace(mark, b" "))
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    letters_only = all(len(token) == 1 for token in backend.get_vocab(with_added_tokens=False) if token not in added)
    drops = _DROP_SPACES & types or any(part.get("behavior") == "Removed" for part in parts)
    is_of_words = type(backend.model).__name__ == "WordLevel"
    if letters_only or not (is_of_words or drops):
        return Spelling("plain", with_bytes)
    if not is_of_words:
        log.warning("the tokenizer drops white space and marks no words, so each token counts as a word")
    return Spelling("whole", str.encode)


@contextmanager
def spelling() -> Iterator[None]:
    """Turns the library's error about a word that it cannot spell into a TokenizerError."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:  # the library raises bare ones
            raise
        raise TokenizerError(
            f"the tokenizer cannot spell the text ({error}); remove what is not in its vocabulary, or give a "
            "tokenizer with [UNK]"
        ) from error


class Kind(IntEnum):
    """What a token begins or ends with.

    Attributes:
        BREAK: A special token, or nothing: a word ends here in any case.
        GLUE: A lone space that belongs to what follows it (only at a token's end).
        REST: The rest of a character that an earlier token began (only at a token's beginning).
        SPACE, LETTER, DIGIT, PUNCTUATION, SYMBOL: Unicode's categories Z, L, N, P with ASCII signs, and all others.
        IDEOGRAPH: Chinese characters, which are written without spaces.
        MARK: An accent or vowel sign that combines with the character before it.
    """

    BREAK, GLUE, REST, SPACE, LETTER, DIGIT, PUNCTUATION, SYMBOL, IDEOGRAPH, MARK = range(10)


# Blocks that BERT's tokenizer treats as Chinese characters.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def kind_of(character: str) -> Kind:
    """The kind of a character. ASCII signs such as `$` and `+` are punctuation, as they are for BERT."""
    if character.isspace():
        return Kind.SPACE
    if is_mark(character):
        return Kind.MARK
    code, category = ord(character), unicodedata.category(character)[0]
    if any(first <= code <= last for first, last in _IDEOGRAPHS):
        return Kind.IDEOGRAPH
    other = Kind.PUNCTUATION if 33 <= code < 127 else Kind.SYMBOL
    return {"L": Kind.LETTER, "N": Kind.DIGIT, "P": Kind.PUNCTUATION}.get(category, other)


def kinds_of_bytes(utf8: NDArray[np.uint8], begins: NDArray[np.bool_]) -> NDArray[np.int8]:
    """For each byte of concatenated texts, the kind of the character that contains it: [num_bytes], int8; `SYMBOL` for
    invalid UTF-8. `begins` [num_bytes] marks where texts begin, including the first byte."""
    places = np.flatnonzero(begins)
    apart = np.insert(utf8, places, ord("\n")).tobytes()  # so that no character spans two texts
    text = apart.decode(errors="surrogateescape").encode("utf-32-le", "surrogatepass")
    codes, which = np.unique(np.frombuffer(text, dtype=np.uint32), return_inverse=True)
    characters = [chr(code) for code in codes.tolist()]  # an invalid byte is a surrogate, which is a symbol
    kinds = np.array([kind_of(character) for character in characters], dtype=np.int8)
    sizes = np.array([len(character.encode(errors="surrogateescape")) for character in characters])
    return np.delete(np.repeat(kinds[which], sizes[which]), places + np.arange(len(places)))


_APOSTROPHE, _CONTRACTED, _WANTS_E, _L, _E = 1, 2, 3, 4, 5
_CONTRACTIONS = {b"'": _APOSTROPHE, b"r": _WANTS_E, b"v": _WANTS_E, b"l": _L, b"e": _E} | dict.fromkeys(
    (b"s", b"t", b"m", b"d", b"re", b"ve", b"ll"), _CONTRACTED
)


class WordStarts:
    """Word starts of tokens, from tables over the vocabulary; see the module's docstring.

    Example: `un ##mask ##ed , yes` has word starts `1 0 0 1 1`.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.spelling: Spelling = spelling_of(backend)
        self._rules = _rules(self.spelling.family)
        vocab = backend.get_vocab(with_added_tokens=True)
        size = max(vocab.values(), default=0) + 1
        self._between_texts = size  # an extra id that ends words and is in none
        self._first: NDArray[np.int8] = np.full(size + 1, Kind.BREAK, dtype=np.int8)
        self._last: NDArray[np.int8] = np.full(size + 1, Kind.BREAK, dtype=np.int8)
        self._code: NDArray[np.int8] = np.zeros(size + 1, dtype=np.int8)
        self._broken: NDArray[np.bool_] = np.zeros(size + 1, dtype=bool)
        self._begin: NDArray[np.int64] = np.zeros(size + 1, dtype=np.int64)
        added = backend.get_added_tokens_decoder()
        unknown = getattr(backend.model, "unk_token", None) or "[UNK]"
        family = self.spelling.family
        broken_parts = [b""] * size  # bytes of entries that cut characters; neighbours decide their kinds
        for token, id_ in vocab.items():
            if id_ in added and added[id_].special:
                if token in (unknown, "<unk>") and family not in ("wordpiece", "whole"):
                    self._first[id_] = self._last[id_] = Kind.LETTER  # an unknown letter within a word
                continue
            spelled = self.spelling.spell(token)
            if family == "byte_level":
                self._code[id_] = _CONTRACTIONS.get(spelled, 0)
            try:
                text = spelled.decode()
            except UnicodeDecodeError:
                self._broken[id_], broken_parts[id_] = True, spelled
                continue
            if text:  # a mark counts as the character that it is on
                self._first[id_] = kind_of(text[0])
                self._last[id_] = next((k for a in reversed(text) if (k := kind_of(a)) is not Kind.MARK), Kind.MARK)
            if text == " " and family in ("byte_level", "metaspace"):
                self._last[id_] = Kind.GLUE
        self._begin[1:] = np.cumsum([len(part) for part in broken_parts])
        self._bytes: NDArray[np.uint8] = np.frombuffer(b"".join(broken_parts), dtype=np.uint8)

    def of_ids(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Whether a word begins at each token of a document [S] or of rows [B, S]; true at the first."""
        starts = np.ones(input_ids.shape, dtype=bool)
        if input_ids.ndim == 0 or input_ids.size == 0:
            return starts
        first, last = self._first[input_ids], self._last[input_ids]
        broken = self._broken[input_ids]
        if broken.any():  # tokens that cut characters; runs of them spell whole characters
            run = broken.copy()
            run[..., 1:] &= ~broken[..., :-1]
            ids = input_ids[broken]
            length = self._begin[ids + 1] - self._begin[ids]
            end = np.cumsum(length)
            begin = end - length
            utf8 = self._bytes[np.repeat(self._begin[ids] - begin, length) + np.arange(end[-1])]
            begins = np.zeros(len(utf8), dtype=bool)
            begins[begin[run[broken]]] = True
            kinds = kinds_of_bytes(utf8, begins)
            is_rest = (utf8[begin] & 0xC0) == 0x80
            first[broken], last[broken] = np.where(is_rest, np.int8(Kind.REST), kinds[begin]), kinds[end - 1]
        starts[..., 1:] = self._rules[last[..., :-1], first[..., 1:]]
        if self.spelling.family == "byte_level":
            # Tokens after an apostrophe that form a contraction with it, as in `it 's` and `we ' r e`.
            code = self._code[input_ids]
            following = np.zeros_like(code)
            following[..., :-1] = code[..., 1:]
            ends = (code == _CONTRACTED) | ((code == _WANTS_E) & (following == _E)) | ((code == _L) & (following == _L))
            starts[..., 1:] &= ~(ends[..., 1:] & (code == _APOSTROPHE)[..., :-1] & starts[..., :-1])
        return starts

    def of_texts(self, input_ids: NDArray[np.integer[Any]], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """As `of_ids`, for the tokens [S] of consecutive texts of these lengths [num_texts]."""
        places = np.arange(len(input_ids)) + np.repeat(np.arange(len(lengths)), lengths)  # a free place after each text
        apart = np.full(len(input_ids) + len(lengths), self._between_texts, dtype=np.int64)
        apart[places] = input_ids
        return self.of_ids(apart)[places]


def _rules(family: Family) -> NDArray[np.bool_]:
    """[kinds, kinds]: whether a word begins between two tokens, by the kinds that end the one and begin the other."""
    # Kinds of the same group continue a word; BERT separates punctuation from words, but no other signs.
    group = {kind: kind for kind in Kind}
    group[Kind.SYMBOL] = Kind.LETTER if family == "wordpiece" else Kind.PUNCTUATION
    if family != "byte_level":
        group[Kind.DIGIT] = Kind.LETTER
    # Signs that never continue a word, not even one of signs.
    apart = {"wordpiece": {Kind.PUNCTUATION}, "plain": {Kind.PUNCTUATION, Kind.SYMBOL}}.get(family, set())
    rules = np.ones((len(Kind), len(Kind)), dtype=bool)
    for before, after in product(Kind, Kind):
        if family == "whole" or Kind.BREAK in (before, after):
            begins = True
        elif after is Kind.REST or Kind.SPACE in (before, after):
            begins = after is not Kind.REST
        elif before is Kind.GLUE or after is Kind.MARK:
            begins = False
        elif before is Kind.MARK:  # an entry of a mark alone goes with the letter or emoji before it
            begins = after in (Kind.PUNCTUATION, Kind.IDEOGRAPH)
        elif Kind.IDEOGRAPH in (before, after) or after in apart:
            begins = True
        else:
            begins = group[before] != group[after]
        rules[before, after] = begins
    return rules
