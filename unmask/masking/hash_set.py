"""A set of 64-bit hashes in one tensor, asked for many at once: two looks for each, and no search.

Every hash of the set stands in one of two places, which are read off its lower and its upper bits (a cuckoo table, Pagh
and Rodler 2004). A quarter of the places are in use at most; free ones hold a copy of some hash of the set, so that
nothing has to be told apart. Binary search takes three to nine times as long on a CPU.

Shape suffix: P = places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ROUNDS, _DOUBLINGS = 200, 5


@dataclass(frozen=True, eq=False)
class HashSet:
    """See the module's docstring. Make it with `HashSet.of`.

    Attributes:
        places_P: int64; a power of two of them.
        size: How many hashes there are.
    """

    places_P: Tensor
    size: int

    @classmethod
    def of(cls, hashes: Tensor) -> HashSet:
        """Makes a set of int64 hashes, in any order. They must be well mixed: places are read off their bits."""
        members = np.unique(hashes.cpu().numpy())
        if not len(members):
            return cls(torch.zeros(1, dtype=torch.int64), 0)
        bits = (4 * len(members) - 1).bit_length()
        for more in range(_DOUBLINGS):
            if (places := _placed(members, bits + more)) is not None:
                return cls(torch.from_numpy(places), len(members))
        raise AssertionError("the hashes are not mixed")

    def to(self, device: torch.device) -> HashSet:
        """The same set on another device."""
        return replace(self, places_P=self.places_P.to(device))


def _placed(members: NDArray[np.int64], bits: int) -> NDArray[np.int64] | None:
    """Places hashes among 2**bits: those that lost theirs to another go to their other place, until none has to.

    Returns:
        [2**bits], or None where that does not end.
    """
    last = (1 << bits) - 1
    choices = np.stack([members & last, (members >> 32) & last])
    numbers = np.arange(len(members))
    upper = np.zeros(len(members), dtype=np.int64)
    holder = np.full(last + 1, -1, dtype=np.int64)
    homeless = numbers
    for _ in range(_ROUNDS):
        holder[choices[upper[homeless], homeless]] = homeless
        homeless = numbers[holder[choices[upper, numbers]] != numbers]
        if not len(homeless):
            return members[np.maximum(holder, 0)]
        upper[homeless] ^= 1
    return None
