"""The masker: turns a batch of rows into the model's input and labels.

A mask is a pure function of (seed, epoch, the segment's key, position in it), never of the batch, the row or the order
of rows. The key identifies the segment's text (see `Rows.segment_keys`). A hash gives each token its random bits; there
is no random generator. Masking runs on the host, in compiled loops: rows on another device are copied to the host, and
the results are copied back.

Shape suffixes: B = rows, S = positions, T = B x S in a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import SettingsError
from unmask.core.hashing import PART, PART_OF_STEP, SAMPLED_RATE, mix, mix_ints
from unmask.core.settings import Settings, validated
from unmask.data.rows import Rows, map_tensors, moved
from unmask.masking.draw import (
    Boundaries,
    FlatRows,
    FlatUnits,
    boundaries,
    draw_units,
    flatten,
    partition,
    pick,
    random_tokens,
    replace_tokens,
)
from unmask.masking.draw_loops import RATE_BITS
from unmask.masking.features import rows_from_ids
from unmask.masking.settings import (
    MaskingSettings,
    MixtureUnits,
    RateSchedule,
    Strategy,
    UniformRate,
    add_kind,
    rate_at,
)
from unmask.masking.tables import Scores, Tables, lexicon_of, named_lexicon, stored_tables, with_lexicon
from unmask.masking.units import SpanUnits, Units
from unmask.masking.weights import Weights
from unmask.model.fused import IGNORED
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

_MASK, _REPLACE, _RATE, _CHOICE = 1, 2, 4, 5  # make the draws of units, replacements, rates, strategies independent
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class MaskedRows:
    """Masked rows. They unpack like a mapping: `model(**masked)` works with transformers.

    Attributes:
        input_ids: [B, S], int64: the model's input.
        labels: [B, S], int64: the original id at predicted tokens, -100 elsewhere.
        attention_mask: [B, S], int64: 1 at tokens, 0 at padding.
        loss_weights: [B, S], float32: weight of each target's loss, if the rate has weights; else None. Not among the
            keys.
        boundaries: Boundaries of each token's unit, if the masker was made `with_boundaries`. Not among the keys.
        bits: [B, S], int64: random bits of each token, a hash of (seed, epoch, segment, position), for further random
            choices; None if nothing was masked. Not among the keys.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor
    loss_weights: Tensor | None = None
    boundaries: Boundaries | None = None
    bits: Tensor | None = None

    def part(self, begin: int, end: int) -> MaskedRows:
        return map_tensors(self, lambda tensor: tensor[begin:end])

    def to(self, device: torch.device) -> MaskedRows:
        return moved(self, device)

    def keys(self) -> Iterator[str]:
        return iter(("input_ids", "labels", "attention_mask"))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


@dataclass(frozen=True)
class WeighedRows:
    """The flattened input of the draw: units, weights and rates. Values at padding and special tokens do not matter."""

    rows: FlatRows  # the batch
    units: FlatUnits  # its partition
    # int64: logarithm of each unit's weight, at its first token, to base 2 in 2**-18; None: all are equal. Only
    # differences within a segment matter.
    log2_T: Tensor | None
    # Expected share of tokens to choose; or [T], int64, in 2**-24: that of each token's segment
    rate: float | Tensor
    per_unit: bool | Tensor  # whether replacement draws once for a whole unit; or [T], bool: the same for each token
    in_span_T: Tensor | None  # bool: whether the token's unit is a span; None: all units are of one kind


class Masker:
    """Masks batches of rows with one strategy.

    Args:
        settings: Strategy, rate and replacement.
        tokenizer: Tells ordinary ids from special ones, and gives the id of the mask.
        seed: Masks with different seeds are independent.
        tables: Frequencies of ids, needed for `random_from="unigram"` and for weights by frequency, and other tables.
        with_boundaries: Also return where the masked units begin and end. The tokenizer must put `[CLS]` and `[SEP]`
            around a text.

    Raises:
        SettingsError: The frequencies, or these special tokens, are needed but missing.
    """

    def __init__(
        self,
        settings: MaskingSettings,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        tables: Tables | None = None,
        with_boundaries: bool = False,
    ) -> None:
        if with_boundaries and (tokenizer.special.cls is None or tokenizer.special.sep is None):
            raise SettingsError(
                "the span-boundary objective needs [CLS] and [SEP] as boundaries at the ends of a text, but "
                "the tokenizer lacks one of them; use another tokenizer, or remove objectives.span_boundary"
            )
        self.settings, self.tokenizer, self.seed, self.with_boundaries = settings, tokenizer, seed, with_boundaries
        self.tables = tables or Tables(tokenizer.vocab_size)
        self._latest = self.tables  # with the scores that came last
        counts = tokenizer.ordinary.astype(np.int64)
        if settings.replacement.random_from == "unigram":
            frequencies_V = self.tables.need("frequencies_V", 'replacements with random_from = "unigram"')
            counts = np.where(tokenizer.ordinary, frequencies_V.numpy(), 0)
            scale = max(1.0, counts.sum() / 2**30)  # so that the sum fits 31 bits
            counts = np.where(counts > 0, np.maximum(counts / scale, 1.0), 0.0).astype(np.int64)
        self._random_tokens = random_tokens(counts)

    @classmethod
    def from_tokenizer(  # noqa: PLR0913  (the parts of a masking, each by its name)
        cls,
        tokenizer: Any,
        *,
        strategy: Strategy | str | None = None,
        units: Units | Mapping[str, Any] | None = None,
        weights: Weights | Mapping[str, Any] | None = None,
        rate: float | RateSchedule | Mapping[str, Any] = 0.15,
        replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        random_from: Literal["uniform", "unigram"] = "uniform",
        seed: int = 0,
        frequencies: Sequence[int] | NDArray[np.int64] | None = None,
        tables: Tables | str | Path | None = None,
    ) -> Masker:
        """Makes a masker for a tokenizer.

        Args:
            tokenizer: A `tokenizers.Tokenizer`, a transformers fast tokenizer, a folder, or a name on the hub.
            strategy: A name in `unmask.masking.settings.STRATEGIES`; None: `random`, or the given units and weights.
            units: How a row is partitioned, in place of the strategy's: one of `unmask.masking.units`, a table of its
                settings (`{"kind": "span", "p": 0.4}`), or your own object with the `starts` and `replaced_per` of
                `unmask.masking.units.Units`.
            weights: How likely a unit is: one of `unmask.masking.weights`, a table, or your own object with a `log2`.
                Your own object must be hashable, and may be pickled for workers.
            rate: Expected share of the text's tokens to predict, in (0, 1), or a schedule of it over the training, such
                as `{"kind": "linear", "start": 0.3, "end": 0.15}`.
            replacement: Shares of mask, random and unchanged among the chosen tokens.
            random_from: `uniform` or `unigram`.
            seed: Masks of different seeds are independent.
            frequencies: [vocab_size]: counts for `unigram` and for weights by frequency; `unmask.count_tokens` counts
                them.
            tables: Frequencies and other tables; or the path of a lexicon (`pmi`), of prepared data (`frequency`,
                `contextual` and other strategies that need counts) or of a run. They must not include tables given by
                `frequencies` or by a lexicon of the settings.

        Raises:
            SettingsError: A value is unknown or out of range, or a table is given twice.
            TokenizerError: The tokenizer cannot be used.
            DataError: The files of `tables` or of a lexicon cannot be used, or belong to another tokenizer.
        """
        parts = {name: part for name, part in (("units", units), ("weights", weights)) if part is not None}
        own = {name: part for name, part in parts.items() if not isinstance(part, Settings | Mapping)}
        for part in parts.values():
            add_kind(part)
        content = {
            "strategy": strategy,
            **{name: part for name, part in parts.items() if name not in own},
            "rate": rate,
            "replacement": {"shares": replacement, "random_from": random_from},
        }
        settings = validated(MaskingSettings, content, where="masking")
        if own:
            settings = settings.model_copy(update={**own, "strategy": None})
            if "weights" in own and isinstance(settings.units, MixtureUnits):
                raise SettingsError("masking: the weights of a mixture belong to its parts; leave `weights` out")
        ready = as_tokenizer(tokenizer)
        if isinstance(tables, str | Path):
            tables = stored_tables(Path(tables), ready, settings)
        tables = tables or Tables(ready.vocab_size)
        if frequencies is not None:
            if tables.frequencies_V is not None:
                raise SettingsError("`tables` has frequencies, too: leave out `frequencies`, or give tables without")
            counts_V = np.asarray(frequencies)
            if not (np.isfinite(counts_V).all() and (counts_V >= 0).all() and (counts_V == np.floor(counts_V)).all()):
                raise SettingsError("`frequencies` must be counts of tokens, whole numbers of at least 0, not shares")
            tables = replace(tables, frequencies_V=torch.from_numpy(counts_V.astype(np.int64)))
        if (path := named_lexicon(settings)) is not None:
            if tables.collocations_P is not None:
                raise SettingsError(f"`tables` has a lexicon, too: leave it out, or the setting lexicon = '{path}'")
            tables = with_lexicon(tables, lexicon_of(path, ready))
        return cls(settings, ready, seed=seed, tables=tables)

    def __call__(
        self,
        rows: Rows | Tensor | Sequence[Sequence[int]],
        *,
        epoch: int = 0,
        progress: float = 0.0,
        step: int = 0,
        scores: Scores | None = None,
    ) -> MaskedRows:
        """Masks a batch, without changing the rows.

        Args:
            rows: Packed rows; or token ids with their special tokens, as a list of lists of any lengths or a
                padded [B, S] integer tensor.
            epoch: Masks of different epochs are independent, unless the settings are `static`.
            progress: Share of the training that is done, in [0, 1], for the rate's schedule.
            step: Number of the step. Only a mixture with `per="step"` uses it, to choose a strategy if `progress` does
                not change with every step.
            scores: A model's scores of the vocabulary, for strategies that follow the model; None: those of the tables.
                Before the first scores, `unmask.masking.tables.Scores(0, {})` makes all units equally likely.

        Raises:
            SettingsError: Ids are outside the vocabulary, the progress is outside [0, 1], or scores are missing.
        """
        if not 0.0 <= progress <= 1.0:
            raise SettingsError(f"progress must be between 0 and 1, not {progress}")
        if not isinstance(rows, Rows):
            rows = rows_from_ids(rows, self.tokenizer)
        batch = rows.map(lambda tensor: tensor.to(_HOST))  # waits if the rows are on another device
        settings = self.settings
        weighed = self.weighed(batch, epoch=epoch, progress=progress, step=step, scores=scores)
        flat, units, rate = weighed.rows, weighed.units, weighed.rate
        chosen_T, target_T = draw_units(
            flat, units, weighed.log2_T, rate, prediction_rate=settings.prediction_rate, least_one=settings.least_one
        )
        seen_T = replace_tokens(
            flat.input_ids_T,
            chosen_T,
            flat.bits_T + mix_ints(_REPLACE),
            unit_begin_T=units.begin_T,
            shares=settings.replacement.shares,
            per_unit=weighed.per_unit if settings.replacement.per is None else settings.replacement.per == "unit",
            mask_id=self.tokenizer.special.mask,
            tokens=self._random_tokens,
        )
        labels_T = pick(target_T, flat.input_ids_T, IGNORED)
        seen, labels, bits = (each_T.view(batch.shape) for each_T in (seen_T, labels_T, flat.bits_T))
        loss_weights = None
        if isinstance(rate, Tensor) and getattr(settings.rate, "loss_weight", "none") == "inverse":
            loss_weights = ((1 << RATE_BITS) / rate).to(torch.float32).view(batch.shape)
        outside = boundaries(units, batch.shape, weighed.in_span_T) if self.with_boundaries else None
        attention_mask = (batch.segment_ids >= 0).to(torch.int64)
        masked = MaskedRows(seen, labels, attention_mask, loss_weights, outside, bits)
        return masked.to(rows.input_ids.device)

    def weighed(
        self, rows: Rows, *, epoch: int = 0, progress: float = 0.0, step: int = 0, scores: Scores | None = None
    ) -> WeighedRows:
        """The units that masking samples from, with their weights. Arguments as in `__call__`; rows on the host."""
        settings = self.settings
        scores, known = scores or self.tables.scores, self._latest.scores
        if (scores and scores.version) != (known and known.version):  # new tables, so that derived ones are recomputed
            on_host = scores and Scores(scores.version, {name: each.cpu() for name, each in scores.tables.items()})
            self._latest = replace(self.tables, scores=on_host)
        tables = self._latest
        flat = flatten(rows, mix_ints(self.seed, 0 if settings.static else epoch, _MASK))
        rate: float | Tensor
        if isinstance(settings.rate, UniformRate):
            # Uniform between both ends, by bits that are the same for all tokens of a segment
            bits_T = mix(flat.bits_T.index_select(0, flat.segment_begin_T) + mix_ints(_RATE))
            low, high = (round(end * (1 << RATE_BITS)) for end in (settings.rate.low, settings.rate.high))
            rate = low + (((high - low) * SAMPLED_RATE.of(bits_T)) >> SAMPLED_RATE.size)
        else:
            rate = rate_at(settings.rate, progress)
        if not isinstance(settings.units, MixtureUnits):
            units = partition(flat, settings.units.starts(flat, tables))
            log2_T = settings.weights.log2(flat, units, tables)
            return WeighedRows(flat, units, log2_T, rate, settings.units.replaced_per == "unit", None)

        # A mixture: every strategy partitions and weighs the whole batch, and each segment uses one strategy's result.
        choice_T = PART.of(mix(flat.bits_T.index_select(0, flat.segment_begin_T) + mix_ints(_CHOICE)))
        if settings.units.per == "step":  # one choice for all segments
            choice = PART_OF_STEP.of(mix_ints(self.seed, epoch, step, int(progress * (1 << 53)), _CHOICE))
            choice_T = torch.full_like(choice_T, choice)
        parts = settings.units.parts
        shares = settings.units.shares_at(progress)
        part_T = torch.zeros_like(choice_T)
        for end in accumulate(shares):
            part_T += choice_T >= round(end / sum(shares) * 2**PART.size)
        mixed_starts_T, per_unit_T, in_span_T = (torch.zeros_like(flat.maskable_T) for _ in range(3))
        mixed_log2_T = torch.zeros_like(flat.bits_T)
        for number, part in enumerate(parts):
            mine_T = part_T == number
            starts_T = part.units.starts(flat, tables)
            log2_T = part.weights.log2(flat, partition(flat, starts_T), tables)
            mixed_starts_T = torch.where(mine_T, starts_T, mixed_starts_T)
            mixed_log2_T = pick(mine_T, 0 if log2_T is None else log2_T, mixed_log2_T)
            if part.units.replaced_per == "unit":
                per_unit_T |= mine_T
            if isinstance(part.units, SpanUnits):
                in_span_T |= mine_T
        return WeighedRows(flat, partition(flat, mixed_starts_T), mixed_log2_T, rate, per_unit_T, in_span_T)


def unmasked(rows: Rows) -> MaskedRows:
    """Rows without masks: the model sees everything, and predicts nothing."""
    labels = torch.full_like(rows.input_ids, IGNORED)
    return MaskedRows(rows.input_ids, labels, (rows.segment_ids >= 0).to(torch.int64))
