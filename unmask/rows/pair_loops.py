"""Loops that decide where fragments are cut into sentence pairs, and which of them exchange their halves; compiled.

A cut is told by its tail, the length of the second half. Arrays: F = fragments, N = tokens of a window's text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.compiled import compiled, inlined
from unmask.hashing import TAIL

_LOOK_BACK = 32  # candidates that a fragment is compared with, so that windows of one document take no longer
_NONE = -1

Ints = NDArray[np.int64]


class Fragments(NamedTuple):
    """Fragments, and where they may be cut.

    Attributes:
        source: [F]: places of their first tokens.
        length: [F].
        document: [F].
        draw: [F]: a random number of each, in [0, 2**32).
        only: [F]: the one place where it may be cut; -1: where words begin in its middle half.
        starts: [N]: whether words begin.
    """

    source: Ints
    length: Ints
    document: Ints
    draw: Ints
    only: Ints
    starts: NDArray[np.uint8]


@compiled
def only_cuts(source: Ints, length: Ints, starts: NDArray[np.uint8]) -> Ints:
    """[F]: of fragments in whose middle half no word begins, the word nearest to the middle, or the middle; else -1."""
    only = np.full(len(length), _NONE, dtype=np.int64)
    for f in range(len(length)):
        size = length[f]
        nearest, is_free = _NONE, False
        for place in range(1, size):
            if starts[source[f] + place]:
                if -(-size // 4) <= place <= 3 * size // 4:
                    is_free = True
                    break
                if nearest == _NONE or abs(2 * place - size) < abs(2 * nearest - size):
                    nearest = place
        if not is_free:
            only[f] = size // 2 if nearest == _NONE else nearest
    return only


@inlined
def _allows(fragments: Fragments, f: int, tail: int) -> bool:
    """Whether a fragment may have a second half of this length."""
    size = fragments.length[f]
    place = size - tail
    if fragments.only[f] != _NONE:
        return place == fragments.only[f]
    return -(-size // 4) <= place <= 3 * size // 4 and fragments.starts[fragments.source[f] + place] != 0


@inlined
def _allow(fragments: Fragments, one: int, other: int, tail: int) -> bool:
    return _allows(fragments, one, tail) and (one == other or _allows(fragments, other, tail))


@compiled
def _common_tail(fragments: Fragments, one: int, other: int) -> bool:
    """Whether two fragments may have second halves of the same length."""
    for tail in range(1, min(fragments.length[one], fragments.length[other])):
        if _allow(fragments, one, other, tail):
            return True
    return False


@compiled
def _draw_tail(fragments: Fragments, one: int, other: int) -> int:
    """One of the lengths that the second halves of both may have, by the draw of the first."""
    most = min(fragments.length[one], fragments.length[other])
    count = 0
    for tail in range(1, most):
        count += _allow(fragments, one, other, tail)
    left = fragments.draw[one] * count >> TAIL.size
    for tail in range(1, most):
        if _allow(fragments, one, other, tail):
            if left == 0:
                return tail
            left -= 1
    return 0  # never, where a length is common


@compiled
def _exchange(fragments: Fragments, wrong: Ints, partner: Ints, tail: Ints) -> None:
    """Finds pairs of fragments of two documents, about equally long, that may have equally long tails.

    Args:
        fragments: All of a window.
        wrong: Those that look for another, the shortest first.
        partner, tail: [F]: written where two are found.
    """
    waiting = np.empty(len(wrong), dtype=np.int64)
    size = 0
    for index in wrong:
        found = _NONE
        for place in range(size - 1, max(size - 1 - _LOOK_BACK, -1), -1):
            other = waiting[place]
            if fragments.document[other] != fragments.document[index] and _common_tail(fragments, other, index):
                found = place
                break
        if found == _NONE:
            waiting[size] = index
            size += 1
            continue
        other = waiting[found]
        waiting[found : size - 1] = waiting[found + 1 : size].copy()
        size -= 1
        partner[other], partner[index] = index, other
        tail[other] = tail[index] = _draw_tail(fragments, other, index)


@compiled
def tails_and_partners(fragments: Fragments, wrong: Ints) -> tuple[Ints, Ints]:
    """Where fragments are cut, and with whom some exchange their second halves.

    Args:
        fragments: All of a window.
        wrong: Those that look for another, the shortest first; empty where nothing is exchanged.

    Returns:
        [F] each: the tail, 0 of a fragment of one token; the partner, -1 where there is none.
    """
    tail = np.zeros(len(fragments.length), dtype=np.int64)
    partner = np.full(len(fragments.length), _NONE, dtype=np.int64)
    _exchange(fragments, wrong, partner, tail)
    for f in range(len(tail)):
        if partner[f] == _NONE and fragments.length[f] > 1:
            tail[f] = _draw_tail(fragments, f, f)
    return tail, partner
