"""Kinds of characters, as far as words depend on them."""

from __future__ import annotations

import unicodedata
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.words import is_mark


class Kind(IntEnum):
    """What a token begins or ends with.

    Attributes:
        BREAK: A special token, or nothing: a word ends here whatever stands beside it.
        GLUE: A lone space that belongs to what follows it (only as what a token ends with).
        REST: The rest of a character that an earlier token began (only as what a token begins with).
        SPACE, LETTER, DIGIT, PUNCTUATION, SYMBOL: Unicode's categories Z, L, N, P and ASCII signs, all others.
        IDEOGRAPH: Chinese characters, which are written without spaces.
        MARK: An accent or vowel sign that combines with the character before it.
    """

    BREAK = 0
    GLUE = 1
    REST = 2
    SPACE = 3
    LETTER = 4
    DIGIT = 5
    PUNCTUATION = 6
    SYMBOL = 7
    IDEOGRAPH = 8
    MARK = 9


# The blocks that BERT's tokenizer takes for Chinese characters.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def kind_of(character: str) -> Kind:
    """The kind of a character. ASCII signs such as `$` and `+` are punctuation, as they are for BERT."""
    if character.isspace():
        return Kind.SPACE
    code = ord(character)
    category = unicodedata.category(character)
    if is_mark(character):
        return Kind.MARK
    if any(first <= code <= last for first, last in _IDEOGRAPHS):
        return Kind.IDEOGRAPH
    if category[0] == "L":
        return Kind.LETTER
    if category[0] == "N":
        return Kind.DIGIT
    is_sign = category[0] == "P" or 33 <= code < 127
    return Kind.PUNCTUATION if is_sign else Kind.SYMBOL


def edge_kinds(text: str) -> tuple[Kind, Kind]:
    """Kinds of the first and the last character of a text that is not empty; marks count as what they are put on."""
    last = next((kind for a in reversed(text) if (kind := kind_of(a)) is not Kind.MARK), Kind.MARK)
    return kind_of(text[0]), last


def kinds_of_bytes(utf8: NDArray[np.uint8], begins: NDArray[np.bool_]) -> NDArray[np.int8]:
    """The kind of the character that each byte is a part of.

    Args:
        utf8: [num_bytes]: UTF-8 of some texts in a line; what is not well formed has kind `SYMBOL`.
        begins: [num_bytes]: where a text begins; no character goes across. True at the first byte.

    Returns:
        [num_bytes], int8.
    """
    leads = begins | ((utf8 & 0xC0) != 0x80)
    places = np.flatnonzero(leads)
    lead = utf8[places].astype(np.int64)
    length = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0).astype(np.int64)
    code = np.where(length == 1, lead, lead & (0x7F >> length))
    for k in range(1, 4):
        following = utf8[np.minimum(places + k, len(utf8) - 1)].astype(np.int64) & 0x3F
        code = np.where(length > k, code << 6 | following, code)
    present = np.diff(np.append(places, len(utf8)))
    sound = (present == length) & (code < 0x110000) & ((lead & 0xC0) != 0x80)
    codes, which = np.unique(np.where(sound, code, -1), return_inverse=True)
    kinds = np.array([Kind.SYMBOL if c < 0 else kind_of(chr(c)) for c in codes.tolist()], dtype=np.int8)
    return kinds[which][np.cumsum(leads) - 1]
