"""What masking may know beside the rows: tables over the vocabulary, made elsewhere and handed in.

Shape suffixes: V = vocabulary, D = dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unmask.core.errors import SettingsError
from unmask.masking.draw import HashSet

_LEXICON = "give the masker tables=PATH, of a lexicon (`unmask lexicon DATA --out F` makes one) or of prepared data"


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


@dataclass(frozen=True)
class Tables:
    """Tables over the vocabulary; those that a strategy does not need may be missing.

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

    def frequencies(self, wanted_by: str) -> Tensor:
        """The frequencies.

        Raises:
            SettingsError: They are missing or of another vocabulary.
        """
        if self.frequencies_V is None or len(self.frequencies_V) != self.vocab_size:
            raise SettingsError(
                f"{wanted_by} needs the frequency of each of the {self.vocab_size} ids: give tables=PATH of prepared "
                "data, or frequencies=unmask.count_tokens(dataset, tokenizer)"
            )
        return self.frequencies_V

    def documents(self, wanted_by: str) -> tuple[Tensor, int]:
        """In how many documents each id stands, and how many there are.

        Raises:
            SettingsError: This is not known.
        """
        if self.documents_V is None or len(self.documents_V) != self.vocab_size:
            raise SettingsError(
                f"{wanted_by} needs the number of documents in which each of the {self.vocab_size} ids stands: give "
                "tables=PATH of prepared data, where they are counted"
            )
        return self.documents_V, self.num_documents

    @property
    def has_no_scores_yet(self) -> bool:
        """Whether a model has been asked for scores and has none so far: not an error, but equal weights."""
        return self.scores is not None and not self.scores.tables

    def score(self, name: str, wanted_by: str) -> Tensor:
        """A score of the vocabulary.

        Raises:
            SettingsError: There is none.
        """
        if self.scores is None or name not in self.scores.tables:
            raise SettingsError(f"{wanted_by} needs the score {name!r}, which a model makes as it trains")
        return self.scores.tables[name]

    def collocation_hashes(self, wanted_by: str) -> HashSet:
        """The hashes of a lexicon's collocations.

        Raises:
            SettingsError: There is no lexicon.
        """
        if self.collocations is None:
            raise SettingsError(f"{wanted_by} need a lexicon of collocations; {_LEXICON}")
        return self.collocations

    def informativeness(self, wanted_by: str) -> Tensor:
        """How much each token tells of its neighbours.

        Raises:
            SettingsError: There is no lexicon, or it is of another vocabulary.
        """
        if self.informativeness_V is None or len(self.informativeness_V) != self.vocab_size:
            raise SettingsError(f"{wanted_by} need how informative each of the {self.vocab_size} ids is; {_LEXICON}")
        return self.informativeness_V

    def embedding(self, wanted_by: str) -> Tensor:
        """Embeddings of an encoder outside of the training.

        Raises:
            SettingsError: There are none, or they are of another vocabulary.
        """
        if self.embedding_VD is None or len(self.embedding_VD) != self.vocab_size:
            raise SettingsError(
                f"{wanted_by} with an encoder need its embeddings of each of the {self.vocab_size} ids: Tables(..., "
                "embedding_VD=...); training and the audit read them from the encoder's folder"
            )
        return self.embedding_VD

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
        """The same tables with other scores; what follows from the rest is kept where there are none."""
        return self if scores is self.scores else replace(self, scores=scores, _derived={})

    def to(self, device: torch.device) -> Tables:
        """The same tables on another device."""

        def move(table: Tensor | None) -> Tensor | None:
            return None if table is None else table.to(device)

        scores = self.scores
        if scores is not None:
            scores = Scores(scores.version, {name: table.to(device) for name, table in scores.tables.items()})
        return replace(
            self,
            frequencies_V=move(self.frequencies_V),
            documents_V=move(self.documents_V),
            scores=scores,
            collocations=None if self.collocations is None else self.collocations.to(device),
            informativeness_V=move(self.informativeness_V),
            embedding_VD=move(self.embedding_VD),
            _derived={name: table.to(device) for name, table in self._derived.items()},
        )
