"""The masker: a batch of rows in, what the model sees and what it must predict out.

A mask is a pure function of (seed, epoch, what a segment holds, position in it): never of the batch, the row or the
order in which rows arrive. One hash gives each token its random bits; nothing is drawn from a generator.

Shape suffixes: B = rows, S = positions, T = B x S in a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import SettingsError
from unmask.hashing import mix, mix_ints
from unmask.masking.budget import choose
from unmask.masking.flat import flatten, partition
from unmask.masking.plain import rows_from_ids
from unmask.masking.replacement import RandomTokens, replace, uniform_counts, unigram_counts
from unmask.masking.schedule import RateSchedule, rate_at
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.packing.rows import Rows
from unmask.settings import validated
from unmask.tokens.tokenizer import Tokenizer, as_tokenizer

IGNORED = -100
_MASK, _REPLACE = 1, 2


@dataclass(frozen=True)
class MaskedRows:
    """What a masker makes of rows. It unpacks like a mapping: `model(**masked)` works with transformers.

    Attributes:
        input_ids: [B, S], int64: what the model sees.
        labels: [B, S], int64: the original id where it is to be predicted, -100 elsewhere.
        attention_mask: [B, S], int64: 1 at tokens, 0 at padding.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor

    def part(self, begin: int, end: int) -> MaskedRows:
        """Rows `begin` to `end`, without a copy."""
        return MaskedRows(*(self[name][begin:end] for name in self.keys()))

    def keys(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(("input_ids", "labels", "attention_mask"))

    def __getitem__(self, name: str) -> Tensor:
        if name not in tuple(self.keys()):
            raise KeyError(name)
        tensor: Tensor = getattr(self, name)
        return tensor


class Masker:
    """Masks batches of rows by one strategy.

    Args:
        settings: Strategy, rate and replacement.
        tokenizer: For the ids that are ordinary, and the mask's.
        seed: Masks of different seeds are independent.
        frequencies: [vocab_size]: how often each id stands in the corpus; needed for `random_from="unigram"` and for
            weights by frequency.
        tables: These and others, in place of `frequencies`.

    Raises:
        SettingsError: The frequencies are needed and missing, or do not fit the vocabulary.
    """

    def __init__(
        self,
        settings: MaskingSettings,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        frequencies: NDArray[np.int64] | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.seed = seed
        counted = None if frequencies is None else torch.from_numpy(np.asarray(frequencies, dtype=np.int64))
        self.tables = tables or Tables(tokenizer.vocab_size, counted)
        self._on_device: dict[torch.device, Tables] = {}
        counts = uniform_counts(tokenizer.ordinary)
        if settings.replacement.random_from == "unigram":
            counts = unigram_counts(tokenizer.ordinary, self.tables.frequencies('random_from = "unigram"').numpy())
        self._random_tokens = RandomTokens(counts)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        *,
        strategy: str = "random",
        rate: float | RateSchedule = 0.15,
        replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        random_from: str = "uniform",
        seed: int = 0,
        frequencies: Sequence[int] | NDArray[np.int64] | None = None,
        tables: Tables | None = None,
    ) -> Masker:
        """Makes a masker for a tokenizer.

        Args:
            tokenizer: A `tokenizers.Tokenizer`, a transformers fast tokenizer, or a folder.
            strategy: A name of `unmask.masking.settings.STRATEGIES`.
            rate: Expected share of the text's tokens that is predicted, in (0, 1), or a schedule.
            replacement: Shares of mask, random and unchanged among them.
            random_from: `uniform` or `unigram`.
            seed: Masks of different seeds are independent.
            frequencies: [vocab_size]: counts for `unigram`.
            tables: These and others, in place of `frequencies`.

        Raises:
            SettingsError: A value is unknown or out of range.
            TokenizerError: The tokenizer cannot be used.
        """
        settings = validated(
            MaskingSettings,
            {
                "strategy": strategy,
                "rate": rate,
                "replacement": {"shares": replacement, "random_from": random_from},
            },
            where="masking",
        )
        counts = None if frequencies is None else np.asarray(frequencies, dtype=np.int64)
        return cls(settings, as_tokenizer(tokenizer), seed=seed, frequencies=counts, tables=tables)

    def _tables_on(self, device: torch.device) -> Tables:
        if device not in self._on_device:
            self._on_device[device] = self.tables.to(device)
        return self._on_device[device]

    def __call__(
        self, rows: Rows | Tensor | Sequence[Sequence[int]], *, epoch: int = 0, progress: float = 0.0
    ) -> MaskedRows:
        """Masks a batch. The rows are unchanged.

        Args:
            rows: Packed rows; or token ids with their special tokens, as a list of lists of any lengths or a
                padded [B, S] integer tensor.
            epoch: Masks of different epochs are independent, unless the settings say `static`.
            progress: Of the training, in [0, 1], for the rate's schedule.

        Raises:
            SettingsError: Ids lie outside the vocabulary, or the progress outside [0, 1].
        """
        if not 0.0 <= progress <= 1.0:
            raise SettingsError(f"progress is a number from 0 to 1, not {progress}")
        batch = rows if isinstance(rows, Rows) else rows_from_ids(rows, self.tokenizer)
        replacement = self.settings.replacement
        key = mix_ints(self.seed, 0 if self.settings.static else epoch, _MASK)
        flat = flatten(batch, key)
        tables = self._tables_on(batch.input_ids.device)
        units = partition(flat, self.settings.units.starts(flat, tables))
        keys_T = self.settings.weights.keys(flat, units, tables)
        chosen_T = choose(flat, units, keys_T, rate_at(self.settings.rate, progress))

        ids_T = batch.input_ids.reshape(-1)
        seen_T = replace(
            ids_T,
            chosen_T,
            mix(flat.bits_T + mix_ints(_REPLACE)),
            unit_begin_T=units.begin_T,
            settings=replacement,
            per_unit=(replacement.per or self.settings.units.replaced_per) == "unit",
            mask_id=self.tokenizer.special.mask,
            random_tokens=self._random_tokens,
        )
        labels_T = torch.where(chosen_T, ids_T, IGNORED)
        attention_mask = (batch.segment_ids >= 0).to(torch.int64)
        return MaskedRows(seen_T.view(batch.shape), labels_T.view(batch.shape), attention_mask)
