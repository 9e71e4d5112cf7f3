"""A set of 64-bit hashes in two tensors, asked for many at once without a search.

    hashes     in increasing order:     -9 -7 | -2 | 3 4 8        three buckets by the upper bits of a hash
    offsets    where each bucket begins: 0      2    3

A hash is compared with as many entries behind its bucket's begin as the fullest bucket has; that some of them belong
to the next bucket does no harm. Binary search takes three to four times as long on a CPU.

Shape suffixes: N = any; C = hashes of the set; K = buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HashSet:
    """A set of hashes; make it with `HashSet.of`.

    Attributes:
        hashes_C: int64, in increasing order, and copies of the last that fill the fullest bucket up.
        offsets_K: int32: the first of each bucket.
        bits: There are 2**bits buckets.
        probes: Hashes of the fullest bucket.
        size: How many hashes there are.
    """

    hashes_C: Tensor
    offsets_K: Tensor
    bits: int
    probes: int
    size: int

    @classmethod
    def of(cls, hashes: Tensor) -> HashSet:
        """Makes a set of int64 hashes [C], in any order. Hashes must be well mixed: buckets go by their upper bits."""
        sorted_C = torch.unique(hashes.cpu())
        size = len(sorted_C)
        bits = max(1, (4 * size).bit_length())
        counts_K = torch.bincount(_bucket(sorted_C, bits), minlength=1 << bits)
        offsets_K = torch.cumsum(counts_K, 0) - counts_K
        probes = int(counts_K.max())
        padding = sorted_C[-1:].expand(probes)
        return cls(torch.cat([sorted_C, padding]), offsets_K.to(torch.int32), bits, probes, size)

    def to(self, device: torch.device) -> HashSet:
        """The same set on another device."""
        return replace(self, hashes_C=self.hashes_C.to(device), offsets_K=self.offsets_K.to(device))

    def contains(self, hashes_N: Tensor) -> Tensor:
        """Which of these are in the set: [N], bool. Args: hashes_N: int64, on the set's device."""
        found_N = torch.zeros_like(hashes_N, dtype=torch.bool)
        if not self.size:
            return found_N
        offset_N = self.offsets_K[_bucket(hashes_N, self.bits)].clamp(max=self.size)
        for probe in range(self.probes):
            found_N |= self.hashes_C[offset_N + probe] == hashes_N
        return found_N


def _bucket(hashes_N: Tensor, bits: int) -> Tensor:
    """The upper bits of signed integers, counted from the smallest."""
    return (hashes_N >> (64 - bits)) + (1 << (bits - 1))
