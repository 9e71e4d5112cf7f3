"""What masking may know beside the rows: tables over the vocabulary, made elsewhere and handed in.

Shape suffixes: V = vocabulary, D = dimensions, P = places of a hash set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from unmask.core.errors import SettingsError


@dataclass(frozen=True)
class Scores:
    """What a model made of the vocabulary at some step. Masking never sees the model itself."""

    version: int  # the step that they were made at
    # By name, float32 [V] or [V, D]; `pos_loss` is [labels + 1], by number of the part of speech, 0 for tokens
    # without one. None before the first were made.
    tables: Mapping[str, Tensor]


_LEXICON = "give the masker tables=PATH, of a lexicon (`unmask lexicon DATA --out F` makes one) or of prepared data"
_MISSING = {
    "frequencies_V": "the frequency of each of the {} ids: give tables=PATH of prepared data, or "
    "frequencies=unmask.count_tokens(dataset, tokenizer)",
    "documents_V": "the number of documents in which each of the {} ids stands: give tables=PATH of prepared data, "
    "where they are counted",
    "collocations_P": f"a lexicon of collocations; {_LEXICON}",
    "informativeness_V": f"how informative each of the {{}} ids is; {_LEXICON}",
    "embedding_VD": "an encoder's embedding of each of the {} ids: Tables(..., embedding_VD=...); training and the "
    "audit read them from the encoder's folder",
}


@dataclass(frozen=True)
class Tables:
    """Tables over the vocabulary, on the host; those that a strategy does not need may be missing."""

    vocab_size: int  # number of ids
    frequencies_V: Tensor | None = None  # int64: how often each id stands in the training text
    documents_V: Tensor | None = None  # int64: in how many documents each id stands
    num_documents: int = 0  # how many documents there are
    scores: Scores | None = None  # what a model made of the vocabulary
    # int64: hash set of a lexicon's collocations (`unmask.core.hashing.longer`, `hash_set`)
    collocations_P: Tensor | None = None
    informativeness_V: Tensor | None = None  # float: how much each token tells of its neighbours; from a lexicon
    embedding_VD: Tensor | None = None  # float: embeddings that do not change, of an encoder outside of the training
    # By column of annotation, the names of its labels; a label's number is its place, counted from 1
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _derived: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def need(self, name: str, needed_by: str) -> Tensor:
        """One of the tables above by its name. Where it is missing or of another vocabulary, a SettingsError says what
        it is `needed_by`."""
        table: Tensor | None = getattr(self, name)
        if table is None or (name != "collocations_P" and len(table) != self.vocab_size):
            raise SettingsError(f"{needed_by} need {_MISSING[name].format(self.vocab_size)}")
        return table

    def score(self, name: str, needed_by: str) -> Tensor | None:
        """A score of the vocabulary; None where a model is to make it and has not made any yet: then weights are
        equal."""
        if self.scores is not None and not self.scores.tables:
            return None
        if self.scores is None or name not in self.scores.tables:
            raise SettingsError(f"{needed_by} needs the score {name!r}, which a model makes as it trains")
        return self.scores.tables[name]

    def labels_of(self, column: str, needed_by: str) -> Sequence[str]:
        """The names of a column's labels."""
        if column not in self.labels:
            raise SettingsError(
                f"{needed_by} needs the labels of the annotation {column!r}, which stand in the manifest of prepared "
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
