"""Texts longer than the model, seen through windows, each with the special tokens around it.

text, model of 7 positions        [CLS] a b c d e f g h [SEP]
cut                               [CLS] a b c d e [SEP] [CLS] f g h [SEP]
the window around d               [CLS] b c d e f [SEP]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unmask.tokens.special import SpecialIds

Ids = NDArray[np.int32]


def special_around(input_ids: Ids, special: SpecialIds) -> tuple[int, int]:
    """How many special tokens stand before and behind the text: 1 or 0 each."""
    if not len(input_ids):
        return 0, 0
    before = int(special.cls is not None and input_ids[0] == special.cls)
    behind = int(special.sep is not None and len(input_ids) > before and input_ids[-1] == special.sep)
    return before, behind


def cut(input_ids: Ids, longest: int, special: SpecialIds) -> list[Ids]:
    """All of a text in windows that follow each other; the text itself where it fits.

    Args:
        input_ids: With special tokens.
        longest: Positions of the model.
        special: Of the tokenizer.
    """
    if len(input_ids) <= longest:
        return [input_ids]
    before, behind = special_around(input_ids, special)
    room, end = longest - before - behind, len(input_ids) - behind
    return [_part(input_ids, begin, min(begin + room, end), before, behind) for begin in range(before, end, room)]


def around(input_ids: Ids, place: int, longest: int, special: SpecialIds) -> tuple[Ids, int]:
    """As much of a text as the model takes, with a place as near the middle as the text's ends allow.

    Returns:
        The window, and the place in it.
    """
    if len(input_ids) <= longest:
        return input_ids, place
    before, behind = special_around(input_ids, special)
    room, end = longest - before - behind, len(input_ids) - behind
    begin = min(max(place - room // 2, before), end - room)
    return _part(input_ids, begin, begin + room, before, behind), place - begin + before


def _part(input_ids: Ids, begin: int, end: int, before: int, behind: int) -> Ids:
    return np.concatenate([input_ids[:before], input_ids[begin:end], input_ids[len(input_ids) - behind :]])
