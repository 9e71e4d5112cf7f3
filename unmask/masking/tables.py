"""What masking may know beside the rows: tables over the vocabulary, made elsewhere and handed in.

Shape suffixes: V = vocabulary, D = dimensions, P = places of a hash set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import SettingsError

_ROUNDS, _DOUBLINGS = 200, 5


@dataclass(frozen=True, eq=False)
class HashSet:
    """A set of 64-bit hashes in one tensor, looked up many at once: two looks for each, and no search.

    Every hash of the set stands in one of two places, which are read off its lower and its upper bits. A quarter of the
    places are in use at most; free ones hold a copy of some hash of the set, so that they need no mark. Binary search
    takes three to nine times as long on a CPU. Make it with `HashSet.of`.

    Attributes:
        places_P: int64; a power of two of them.
        size: How many hashes there are.

    Source: Pagh and Rodler 2004 (Cuckoo hashing).
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


def _placed(members: NDArray[np.int64], bits: int) -> NDArray[np.int64] | None:
    # Hashes that lost their place to another go to their other place, until none has to; None where that does not end.
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


@dataclass(frozen=True)
class Scores:
    """What a model made of the vocabulary at some step. Masking never sees the model itself.

    Attributes:
        version: The step that they were made at.
        tables: By name, float32 [V] or [V, D]; `pos_loss` is [labels + 1], by number of the part of speech, 0 for
            tokens without one. None before the first were made.
    """

    version: int
    tables: Mapping[str, Tensor]


_LEXICON = "give the masker tables=PATH, of a lexicon (`unmask lexicon DATA --out F` makes one) or of prepared data"
_MISSING = {
    "frequencies_V": "the frequency of each of the {} ids: give tables=PATH of prepared data, or "
    "frequencies=unmask.count_tokens(dataset, tokenizer)",
    "documents_V": "the number of documents in which each of the {} ids stands: give tables=PATH of prepared data, "
    "where they are counted",
    "collocations": f"a lexicon of collocations; {_LEXICON}",
    "informativeness_V": f"how informative each of the {{}} ids is; {_LEXICON}",
    "embedding_VD": "an encoder's embedding of each of the {} ids: Tables(..., embedding_VD=...); training and the "
    "audit read them from the encoder's folder",
}


@dataclass(frozen=True)
class Tables:
    """Tables over the vocabulary, on the host; those that a strategy does not need may be missing.

    Attributes:
        vocab_size: Number of ids.
        frequencies_V: int64: how often each id stands in the training text.
        documents_V: int64: in how many documents each id stands.
        num_documents: How many documents there are.
        scores: What a model made of the vocabulary.
        collocations: Hashes of a lexicon's collocations (`unmask.core.hashing.longer`).
        informativeness_V: float: how much each token tells of its neighbours; from a lexicon.
        embedding_VD: float: embeddings that do not change, of an encoder outside of the training.
        labels: By column of annotation, the names of its labels; a label's number is its place, counted from 1.
    """

    vocab_size: int
    frequencies_V: Tensor | None = None
    documents_V: Tensor | None = None
    num_documents: int = 0
    scores: Scores | None = None
    collocations: HashSet | None = None
    informativeness_V: Tensor | None = None
    embedding_VD: Tensor | None = None
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _derived: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def need(self, name: str, wanted_by: str) -> Any:
        """One of the tables above by its name, for what the error calls `wanted_by`.

        Raises:
            SettingsError: It is missing or of another vocabulary.
        """
        table = getattr(self, name)
        if table is None or (isinstance(table, Tensor) and len(table) != self.vocab_size):
            raise SettingsError(f"{wanted_by} need {_MISSING[name].format(self.vocab_size)}")
        return table

    def score(self, name: str, wanted_by: str) -> Tensor | None:
        """A score of the vocabulary; None where a model is to make it and has not made any yet: then weights are equal.

        Raises:
            SettingsError: There is no such score.
        """
        if self.scores is not None and not self.scores.tables:
            return None
        if self.scores is None or name not in self.scores.tables:
            raise SettingsError(f"{wanted_by} needs the score {name!r}, which a model makes as it trains")
        return self.scores.tables[name]

    def labels_of(self, column: str, wanted_by: str) -> Sequence[str]:
        """The names of a column's labels.

        Raises:
            SettingsError: They are missing.
        """
        if column not in self.labels:
            raise SettingsError(
                f"{wanted_by} needs the labels of the annotation {column!r}, which stand in the manifest of prepared "
                "data: Tables(..., labels=manifest.annotations)"
            )
        return self.labels[column]

    def derived(self, name: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A table that follows from these, made once."""
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    def with_scores(self, scores: Scores | None) -> Tables:
        """The same tables with other scores, from any device."""
        if scores is None and self.scores is None:
            return self
        if scores is not None:
            scores = Scores(scores.version, {name: table.cpu() for name, table in scores.tables.items()})
        return replace(self, scores=scores, _derived={})
