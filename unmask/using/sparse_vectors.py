"""Vectors of which most numbers are 0: the others alone are kept, vector by vector, or number by number to be searched.

three vectors of 5    0 2 0 0 1    begins 0 2 3 3    tokens 1 4 0    values 2 1 7
                      7 0 0 0 0
                      0 0 0 0 0
their postings        begins 0 1 2 2 2 3    vectors 1 0 0    values 7 2 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SparseVectors:
    """N vectors, Z numbers of which are not 0.

    Attributes:
        begins: [N + 1], int64: where each one's numbers begin.
        tokens: [Z], int32: which number of the vector each is, ascending within a vector.
        values: [Z], float32.
        width: Numbers of a vector, with those that are 0.
    """

    begins: NDArray[np.int64]
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    def __len__(self) -> int:
        return len(self.begins) - 1

    def __getitem__(self, some: slice) -> SparseVectors:
        """Vectors that follow each other."""
        begin, end, step = some.indices(len(self))
        if step != 1:
            raise ValueError("only vectors that follow each other are taken")
        begins = self.begins[begin : max(begin, end) + 1]
        taken = slice(begins[0], begins[-1])
        return SparseVectors(begins - begins[0], self.tokens[taken], self.values[taken], self.width)

    @classmethod
    def of(cls, dense_ND: NDArray[np.float32]) -> SparseVectors:
        """What is not 0 of vectors."""
        rows, tokens = np.nonzero(dense_ND)
        begins = np.searchsorted(rows, np.arange(len(dense_ND) + 1))
        return cls(begins, tokens.astype(np.int32), dense_ND[rows, tokens], dense_ND.shape[1])

    @classmethod
    def joined(cls, parts: Sequence[SparseVectors]) -> SparseVectors:
        """Several one after the other, at least one."""
        counts = [np.diff(part.begins) for part in parts]
        begins = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        tokens, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "values"))
        return cls(begins, tokens, values, parts[0].width)

    def dense(self) -> NDArray[np.float32]:
        """All numbers: [N, width]."""
        found = np.zeros((len(self), self.width), dtype=np.float32)
        found[np.repeat(np.arange(len(self)), np.diff(self.begins)), self.tokens] = self.values
        return found

    def unit(self) -> SparseVectors:
        """Divided by their length; those of length 0 stay."""
        owners = np.repeat(np.arange(len(self)), np.diff(self.begins))
        lengths = np.sqrt(np.bincount(owners, self.values.astype(np.float64) ** 2, minlength=len(self)))
        values = (self.values / lengths[owners]).astype(np.float32)
        return SparseVectors(self.begins, self.tokens, values, self.width)

    def postings(self) -> Postings:
        """The same by their numbers."""
        order = np.argsort(self.tokens, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(self.tokens, minlength=self.width))])
        owners = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.begins))
        return Postings(begins.astype(np.int32), owners[order], self.values[order], len(self))


@dataclass(frozen=True)
class Postings:
    """Of each number of vectors those in which it is not 0: an inverted index.

    Attributes:
        begins: [width + 1], int32.
        vectors: [Z], int32: numbers of vectors, ascending within a posting list.
        values: [Z], float32.
        count: How many vectors there are.
    """

    begins: NDArray[np.int32]
    vectors: NDArray[np.int32]
    values: NDArray[np.float32]
    count: int

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return len(self.begins) - 1

    def products(self, tokens: NDArray[np.int32], values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Inner products [count] of a vector with all of these; each depends on its two vectors alone.

        Products of two numbers of float32 are exact in float64, and are added up in the order of tokens.

        Raises:
            ValueError: The lists are damaged.
        """
        lists = [slice(begin, end) for begin, end in zip(self.begins[tokens], self.begins[tokens + 1], strict=True)]
        if not lists:
            return np.zeros(self.count)
        weights = np.repeat(values.astype(np.float64), [each.stop - each.start for each in lists])
        weights *= np.concatenate([self.values[each] for each in lists])
        owners = np.concatenate([self.vectors[each] for each in lists])
        if len(owners) and not 0 <= owners.min() <= owners.max() < self.count:
            raise ValueError(f"posting lists of vectors that are none of {self.count:,}")
        return np.bincount(owners, weights, minlength=self.count).astype(np.float64, copy=False)

    def to_array(self) -> NDArray[np.int32]:
        """All of it in a line, for a file."""
        return np.concatenate([self.begins, self.vectors, self.values.view(np.int32)], dtype="<i4")

    @classmethod
    def of_array(cls, array: NDArray[np.int32], *, width: int, count: int) -> Postings:
        """What `to_array` gave, which may be mapped from a file and is not copied.

        Raises:
            ValueError: It is of other vectors, or damaged.
        """
        if array.ndim != 1 or array.dtype != np.int32 or len(array) <= width:
            raise ValueError(f"no posting lists of {width:,} numbers")
        size = int(array[width])
        if len(array) != width + 1 + 2 * size:
            raise ValueError(f"{len(array):,} numbers, not {width + 1 + 2 * size:,}")
        if array[0] != 0 or (np.diff(array[: width + 1]) < 0).any():
            raise ValueError("posting lists that do not begin one behind the other")
        behind = width + 1 + size
        return cls(array[: width + 1], array[width + 1 : behind], array[behind:].view(np.float32), count)
