"""The masker: a batch of rows in, what the model sees and what it must predict out.

A mask is a pure function of (seed, epoch, the segment's key, position in it): never of the batch, the row or the order
in which rows arrive. The key says which text the segment is (see `Rows.segment_keys`). One hash gives each token its
random bits; nothing is drawn from a generator. The host does the masking, by loops that are compiled; rows that are on
another device are brought here, and what is made of them goes back.

Shape suffixes: B = rows, S = positions, T = B x S in a line.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import DataError, SettingsError
from unmask.core.hashing import PART, PART_OF_STEP, mix, mix_ints
from unmask.core.results import Readable, Shown
from unmask.core.settings import Settings, settings_within, validated
from unmask.data.data_folder import MANIFEST, load_manifest, open_split
from unmask.data.lexicon import CHUNK_TOKENS, Lexicon, LexiconSettings, build_lexicon, load_lexicon
from unmask.data.rows import Rows
from unmask.data.store import document_frequencies
from unmask.masking.draw import (
    POINT,
    RATE_BITS,
    Boundaries,
    FlatRows,
    FlatUnits,
    HashSet,
    boundaries,
    draw_units,
    flatten,
    partition,
    pick,
    positions_and_keys,
    take,
    up_to_last,
)
from unmask.masking.replacement import RandomTokens, replace_tokens, uniform_counts, unigram_counts
from unmask.masking.settings import (
    BetaRate,
    MaskingSettings,
    MixturePart,
    MixtureUnits,
    RateSchedule,
    Strategy,
    UniformRate,
    all_weights,
    rate_at,
    sampled_rates,
)
from unmask.masking.tables import Scores, Tables
from unmask.masking.units import CollocationUnits, SpanUnits, Units
from unmask.masking.weights import InformativeWeights, TfIdfWeights, Weights
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# Mixtures: one strategy for each document piece, or for each step, in proportions that may change with progress.
#
# Shape suffix: T = all positions of a batch in a line.

_CHOICE = 5  # sets these draws apart from those that choose units


@dataclass(frozen=True)
class Mixed:
    """Segments partitioned by the strategies that fall to them.

    Attributes:
        units: The units.
        log2_T: int64: logarithms of their weights, at the places where they begin.
        per_unit_T: bool: whether replacement draws once for the token's unit.
        in_span_T: bool: whether that is a span.
    """

    units: FlatUnits
    log2_T: Tensor
    per_unit_T: Tensor
    in_span_T: Tensor


def draw_mixture(
    mixture: MixtureUnits,
    rows: FlatRows,
    tables: Tables,
    *,
    seed: int,
    epoch: int,
    step: int,
    progress: float,
) -> Mixed:
    """Partitions each segment by the strategy that falls to it.

    Args:
        mixture: The strategies.
        rows: The batch.
        tables: For the strategies that need some.
        seed: Of the masker.
        epoch: Of the rows.
        step: Number of the step, where the progress does not tell it.
        progress: Of the training, in [0, 1].
    """
    ends = _ends(mixture, progress)
    choice_T = PART.of(mix(take(rows.bits_T, rows.segment_begin_T) + mix_ints(_CHOICE)))
    if mixture.per == "step":  # all segments alike
        one = PART_OF_STEP.of(mix_ints(seed, epoch, step, int(progress * (1 << 53)), _CHOICE))
        choice_T = torch.full_like(choice_T, one)
    part_T = torch.zeros_like(choice_T)
    for end in ends:
        part_T += choice_T >= end

    starts_T = torch.zeros_like(rows.maskable_T)
    log2_T = torch.zeros_like(rows.bits_T)
    per_unit_T = torch.zeros_like(rows.maskable_T)
    in_span_T = torch.zeros_like(rows.maskable_T)
    for number, part in enumerate(mixture.parts):
        mine_T = part_T == number
        part_starts_T = part.units.starts(rows, tables)
        part_units = partition(rows, part_starts_T)
        part_log2_T = part.weights.log2(rows, part_units, tables)
        starts_T = torch.where(mine_T, part_starts_T, starts_T)
        log2_T = pick(mine_T, 0 if part_log2_T is None else part_log2_T, log2_T)
        if part.units.replaced_per == "unit":
            per_unit_T |= mine_T
        if isinstance(part.units, SpanUnits):
            in_span_T |= mine_T
    return Mixed(partition(rows, starts_T), log2_T, per_unit_T, in_span_T)


def _ends(mixture: MixtureUnits, progress: float) -> list[int]:
    """Upper ends of the parts' shares on the scale of the draws."""
    shares = [_share(part, progress) for part in mixture.parts]
    total = sum(shares)
    return [round(end / total * 2**PART.size) for end in accumulate(shares)]


def _share(part: MixturePart, progress: float) -> float:
    share = part.share
    return share if isinstance(share, float) else share.at(progress)


# ----------------------------------------
# Rows from plain token ids, for callers who do not pack: each row is one segment, keyed by its content.


def rows_from_ids(rows: Tensor | Sequence[Sequence[int]], tokenizer: Tokenizer) -> Rows:
    """Makes a batch of token ids.

    Args:
        rows: Ids with their special tokens: a list of lists, or a [B, S] integer tensor, padded on the right.
        tokenizer: Whose ids they are.

    Raises:
        SettingsError: The ids are not integers in the vocabulary, or not two-dimensional.
    """
    input_ids = _padded(rows, tokenizer.special.pad)
    check_ids(input_ids, tokenizer)
    device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")
    return content_rows(input_ids, before_padding(input_ids, tokenizer), tokenizer).to(device)


def content_rows(input_ids: NDArray[np.int64], inside: NDArray[np.bool_], tokenizer: Tokenizer) -> Rows:
    """Makes a batch in which each row is one segment, keyed by its ids and their places, however it is padded.

    Args:
        input_ids: [B, S]: ids in the vocabulary, with their special tokens.
        inside: [B, S]: what belongs to the row; the rest is padding, on either side.
        tokenizer: Whose ids they are.
    """
    positions, keys = positions_and_keys(input_ids, inside)
    maskable = tokenizer.ordinary[input_ids] & inside
    starts = tokenizer.starts(input_ids) & maskable
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(np.where(inside, 0, -1).astype(np.int32)),
        position_ids=torch.from_numpy(positions),
        word_starts=torch.from_numpy(starts),
        maskable=torch.from_numpy(maskable),
        segment_keys=torch.from_numpy(keys),
    )


def check_ids(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> None:
    """Raises: SettingsError: An id lies outside the vocabulary."""
    if input_ids.size and (input_ids.min() < 0 or input_ids.max() >= tokenizer.vocab_size):
        bad = input_ids[(input_ids < 0) | (input_ids >= tokenizer.vocab_size)][0]
        raise SettingsError(f"id {bad} lies outside the tokenizer's vocabulary (0 to {tokenizer.vocab_size - 1})")


def before_padding(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """[B, S]: true up to the last token of each row that is no padding; a pad id amid the row belongs to it."""
    return up_to_last(tokenizer.special.pad, input_ids)


def _padded(rows: Tensor | Sequence[Sequence[int]], pad_id: int) -> NDArray[np.int64]:
    if isinstance(rows, Tensor):
        if rows.ndim != 2 or rows.is_floating_point():
            raise SettingsError(f"rows are a [B, S] tensor of integers, not {rows.dtype} of shape {tuple(rows.shape)}")
        return rows.cpu().numpy().astype(np.int64)
    parts = [_row(number, row) for number, row in enumerate(rows)]
    padded = np.full((len(parts), max(map(len, parts), default=0)), pad_id, dtype=np.int64)
    for number, values in enumerate(parts):
        padded[number, : len(values)] = values
    return padded


def _row(number: int, row: Sequence[int]) -> NDArray[Any]:
    """Raises: SettingsError: The row is not a list of token ids."""
    try:
        values = np.asarray(row)
    except ValueError as error:  # lists of several lengths
        raise SettingsError(f"row {number} is not a list of token ids") from error
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise SettingsError(f"row {number} is not a list of token ids; give a list of rows, such as [[2, 50, 3]]")
    return values


# ----------------------------------------
# Tables of a masker from what is on the disk: a lexicon, prepared data, or the folder of a run.

LEXICON_OF_RUN, DATA_OF_RUN = "lexicon.safetensors", "data"


def lexicon_tables(lexicon: str | Path, tokenizer: Any) -> Tables:
    """Reads a lexicon for a masker: `Masker.from_tokenizer(tokenizer, strategy="pmi", tables=...)`.

    Args:
        lexicon: File that `unmask lexicon` has made.
        tokenizer: A `tokenizers.Tokenizer`, a transformers fast tokenizer, or a folder.

    Raises:
        DataError: The file cannot be used, or was made with another tokenizer.
        TokenizerError: The tokenizer cannot be used.
    """
    ready = as_tokenizer(tokenizer)
    found = load_lexicon(Path(lexicon))
    found.check_tokenizer(ready, name=str(lexicon))
    return with_lexicon(Tables(ready.vocab_size), found)


def with_lexicon(tables: Tables, lexicon: Lexicon) -> Tables:
    """Adds what a lexicon says to the tables of a masker, whose vocabulary is the same."""
    return replace(
        tables,
        collocations=HashSet.of(torch.from_numpy(lexicon.hashes())),
        informativeness_V=torch.from_numpy(lexicon.informativeness),
    )


def needs_lexicon(settings: MaskingSettings) -> bool:
    """Whether units or weights, of a mixture too, come from a lexicon."""
    return any(isinstance(part, CollocationUnits | InformativeWeights) for part in settings_within(settings))


def stored_tables(source: Path, tokenizer: Tokenizer, settings: MaskingSettings) -> Tables:
    """What a strategy needs, as far as it is on the disk.

    Args:
        source: File of a lexicon; folder of prepared data, whose tokens, documents and, where the strategy wants it,
            collocations are counted; or of a run, with its data and its lexicon.
        tokenizer: Of the masker.
        settings: Say what is needed.

    Raises:
        DataError: It is none of these, is damaged, or belongs to another tokenizer.
    """
    if source.is_file():
        return lexicon_tables(source, tokenizer)
    own = source / LEXICON_OF_RUN
    root = source if (source / MANIFEST).is_file() else source / DATA_OF_RUN
    if (root / MANIFEST).is_file():
        return _of_data(root, own, tokenizer, settings)
    if own.is_file():  # a run on data that lies elsewhere
        return lexicon_tables(own, tokenizer)
    raise DataError(f"{source}: give the file of a lexicon, or the folder of prepared data or of a run")


def _of_data(root: Path, lexicon: Path, tokenizer: Tokenizer, settings: MaskingSettings) -> Tables:
    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 != tokenizer.fingerprint:
        raise DataError(f"{root} was prepared with another tokenizer than the one in use; give {root / 'tokenizer'}")
    store = open_split(root, manifest, manifest.train)
    counts = np.array(manifest.token_frequencies, dtype=np.int64)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(counts), labels=manifest.annotations)
    if any(isinstance(weights, TfIdfWeights) for weights in all_weights(settings)):
        documents = torch.from_numpy(document_frequencies(store, tokenizer.vocab_size))
        tables = replace(tables, documents_V=documents, num_documents=len(store))
    if not needs_lexicon(settings):
        return tables
    if lexicon.is_file():
        found = load_lexicon(lexicon)
        found.check_tokenizer(tokenizer, name=str(lexicon))
        return with_lexicon(tables, found)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        made = build_lexicon(
            lambda: store.chunks(CHUNK_TOKENS),
            tokenizer,
            LexiconSettings(),
            frequencies=counts,
            data_sha256=manifest.fingerprint,
            scratch=Path(scratch),
        )
    return with_lexicon(tables, made)


IGNORED = -100
_SHARES = ("masked", "random", "unchanged")
_MASK, _REPLACE, _RATE = 1, 2, 4
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class MaskedRows:
    """What a masker makes of rows. It unpacks like a mapping: `model(**masked)` works with transformers.

    Attributes:
        input_ids: [B, S], int64: what the model sees.
        labels: [B, S], int64: the original id where it is to be predicted, -100 elsewhere.
        attention_mask: [B, S], int64: 1 at tokens, 0 at padding.
        loss_weights: [B, S], float32: of the loss at each target, where the rate asks for weights; else None. It is not
            among the keys.
        boundaries: Of the units in which targets stand, where the masker was asked for them; not among the keys.
        bits: [B, S], int64: random bits of each token, a hash of (seed, epoch, segment, position), for whatever else is
            drawn for it; None where nothing was masked. Not among the keys.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor
    loss_weights: Tensor | None = None
    boundaries: Boundaries | None = None
    bits: Tensor | None = None

    def part(self, begin: int, end: int) -> MaskedRows:
        """Rows `begin` to `end`, without a copy."""
        weights = None if self.loss_weights is None else self.loss_weights[begin:end]
        input_ids, labels, attention_mask = (self[name][begin:end] for name in self.keys())
        outside = None if self.boundaries is None else self.boundaries.part(begin, end)
        bits = None if self.bits is None else self.bits[begin:end]
        return MaskedRows(input_ids, labels, attention_mask, weights, outside, bits)

    def to(self, device: torch.device) -> MaskedRows:
        """The same on another device."""
        weights = None if self.loss_weights is None else self.loss_weights.to(device)
        outside = None if self.boundaries is None else self.boundaries.to(device)
        input_ids, labels, attention_mask = (self[name].to(device) for name in self.keys())
        bits = None if self.bits is None else self.bits.to(device)
        return MaskedRows(input_ids, labels, attention_mask, weights, outside, bits)

    def keys(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(("input_ids", "labels", "attention_mask"))

    def __getitem__(self, name: str) -> Tensor:
        if name not in tuple(self.keys()):
            raise KeyError(name)
        tensor: Tensor = getattr(self, name)
        return tensor


@dataclass(frozen=True)
class WeighedRows:
    """What masking draws from: units, weights and rates. Each is [B, S]; of padding and special tokens nothing counts.

    Attributes:
        begin: int64: place in the line of all rows at which the token's unit begins.
        size: int64: tokens of its unit.
        log2_weight: float64: logarithm of its weight to base 2; only differences within a segment mean anything.
        rate: float64: expected share of its segment's tokens that is chosen.
    """

    begin: Tensor
    size: Tensor
    log2_weight: Tensor
    rate: Tensor


class _Weighed(NamedTuple):
    """The same in a line, with what replacement needs."""

    rows: FlatRows
    units: FlatUnits
    rate: float | Tensor
    log2_T: Tensor | None
    per_unit: bool | Tensor
    in_span_T: Tensor | None  # None: all are alike


class Masker(Readable):
    """Masks batches of rows by one strategy.

    Args:
        settings: Strategy, rate and replacement.
        tokenizer: For the ids that are ordinary, and the mask's.
        seed: Masks of different seeds are independent.
        frequencies: [vocab_size]: how often each id stands in the corpus; needed for `random_from="unigram"` and for
            weights by frequency.
        tables: These and others, in place of `frequencies`.
        with_boundaries: Whether masked rows say where the units end.

    Raises:
        SettingsError: The frequencies are needed and missing, or do not fit the vocabulary; or boundaries are asked
            for and the tokenizer puts nothing around a text.
    """

    def __init__(
        self,
        settings: MaskingSettings,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        frequencies: NDArray[np.int64] | None = None,
        tables: Tables | None = None,
        with_boundaries: bool = False,
    ) -> None:
        if with_boundaries and (tokenizer.special.cls is None or tokenizer.special.sep is None):
            raise SettingsError(
                "the span-boundary objective predicts a span from the tokens on either side of it, but the tokenizer "
                "has no [CLS] or no [SEP] to stand there at the ends of a text; take another tokenizer, or remove "
                "objectives.span_boundary"
            )
        self.with_boundaries = with_boundaries
        self.settings = settings
        self.tokenizer = tokenizer
        self.seed = seed
        counted = None if frequencies is None else torch.from_numpy(np.asarray(frequencies, dtype=np.int64))
        self.tables = tables or Tables(tokenizer.vocab_size, counted)
        self._held: Tables | None = None  # with the latest scores
        counts = uniform_counts(tokenizer.ordinary)
        if settings.replacement.random_from == "unigram":
            counts = unigram_counts(tokenizer.ordinary, self.tables.frequencies('random_from = "unigram"').numpy())
        self._random_tokens = RandomTokens(counts)

    @classmethod
    def from_tokenizer(  # noqa: PLR0913  (what a masking is made of, each by its name)
        cls,
        tokenizer: Any,
        *,
        strategy: Strategy | None = None,
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
            strategy: A name of `unmask.masking.settings.STRATEGIES`; None: `random`, or what units and weights say.
            units: How a row is partitioned, in place of the strategy's: one of `unmask.masking.units`, a table of its
                settings (`{"kind": "span", "p": 0.4}`), or an object of your own that has `starts` and `replaced_per`
                as `unmask.masking.units.Units` says.
            weights: How likely a unit is: likewise of `unmask.masking.weights`, or with a `log2` of its own. An object
                of your own must be hashable, and may be pickled for workers.
            rate: Expected share of the text's tokens that is predicted, in (0, 1), or a schedule.
            replacement: Shares of mask, random and unchanged among them.
            random_from: `uniform` or `unigram`.
            seed: Masks of different seeds are independent.
            frequencies: [vocab_size]: counts for `unigram` and for weights by frequency.
            tables: These and others, in place of `frequencies`; or where they are on the disk: a lexicon, prepared
                data or a run (see `unmask.masking.masker.stored_tables`).

        Raises:
            SettingsError: A value is unknown or out of range.
            TokenizerError: The tokenizer cannot be used.
            DataError: What `tables` names cannot be used, or belongs to another tokenizer.
        """
        own = {name: part for name, part in (("units", units), ("weights", weights)) if _is_own(part)}
        given = {"units": units, "weights": weights}
        content = {
            "strategy": strategy,
            **{name: part for name, part in given.items() if part is not None and name not in own},
            "rate": rate,
            "replacement": {"shares": replacement, "random_from": random_from},
        }
        settings = validated(MaskingSettings, content, where="masking")
        if own:
            settings = settings.model_copy(update={**own, "strategy": None})
        ready = as_tokenizer(tokenizer)
        if isinstance(tables, str | Path):
            tables = stored_tables(Path(tables), ready, settings)
        counts = None if frequencies is None else np.asarray(frequencies, dtype=np.int64)
        return cls(settings, ready, seed=seed, frequencies=counts, tables=tables)

    def to_dict(self) -> dict[str, Any]:
        """Its settings, and the seed; units and weights of the caller's own by the names of their classes."""
        settings = self.settings
        own = {
            name: type(part).__name__
            for name, part in (("units", settings.units), ("weights", settings.weights))
            if _is_own(part)
        }
        return {**settings.model_dump(mode="json", exclude=set(own)), **own, "seed": self.seed}

    def shown(self) -> Iterator[Shown]:
        """A line."""
        facts, rate = self.to_dict(), self.settings.rate
        parts = (part["kind"] if isinstance(part, dict) else part for part in (facts["units"], facts["weights"]))
        shares = ", ".join(
            f"{share:.0%} {name}" for share, name in zip(self.settings.replacement.shares, _SHARES, strict=True)
        )
        yield (
            f"masking {facts['strategy'] or ' by weights '.join(parts)}, "
            f"{f'{rate:.0%}' if isinstance(rate, float) else facts['rate']['kind']} of the tokens ({shares}), "
            f"seed {self.seed}, {self.tokenizer.vocab_size:,} entries"
        )

    def _tables_with(self, scores: Scores | None) -> Tables:
        """The tables on the host; those of other scores are made when they are first seen."""
        wanted = scores or self.tables.scores
        if self._held is None or _version(self._held.scores) != _version(wanted):
            self._held = self.tables.with_scores(wanted).to(_HOST)
        return self._held

    def __call__(
        self,
        rows: Rows | Tensor | Sequence[Sequence[int]],
        *,
        epoch: int = 0,
        progress: float = 0.0,
        step: int = 0,
        scores: Scores | None = None,
    ) -> MaskedRows:
        """Masks a batch. The rows are unchanged.

        Args:
            rows: Packed rows; or token ids with their special tokens, as a list of lists of any lengths or a
                padded [B, S] integer tensor.
            epoch: Masks of different epochs are independent, unless the settings say `static`.
            progress: Of the training, in [0, 1], for the rate's schedule.
            step: Number of the step. Only a mixture `per="step"` looks at it, so that steps of the same epoch and
                progress have strategies of their own; where the progress moves with each step, it may be left out.
            scores: What a model made of the vocabulary, for strategies that follow one; None: none yet.

        Raises:
            SettingsError: Ids lie outside the vocabulary, or the progress outside [0, 1].
        """
        if not 0.0 <= progress <= 1.0:
            raise SettingsError(f"progress is a number from 0 to 1, not {progress}")
        given = rows if isinstance(rows, Rows) else rows_from_ids(rows, self.tokenizer)
        batch = given.map(lambda tensor: tensor.to(_HOST))  # waits for the device where the rows are on one
        settings = self.settings
        weighed = self._weighed(batch, epoch=epoch, progress=progress, step=step, scores=scores)
        flat, units, rate = weighed.rows, weighed.units, weighed.rate
        chosen_T, target_T = draw_units(
            flat, units, weighed.log2_T, rate, prediction_rate=settings.prediction_rate, least_one=settings.least_one
        )

        ids_T = batch.input_ids.reshape(-1)
        seen_T = replace_tokens(
            ids_T,
            chosen_T,
            flat.bits_T + mix_ints(_REPLACE),
            unit_begin_T=units.begin_T,
            settings=settings.replacement,
            per_unit=weighed.per_unit if settings.replacement.per is None else settings.replacement.per == "unit",
            mask_id=self.tokenizer.special.mask,
            random_tokens=self._random_tokens,
        )
        labels_T = pick(target_T, ids_T, IGNORED)
        attention_mask = (batch.segment_ids >= 0).to(torch.int64)
        weights = None
        if isinstance(rate, Tensor) and getattr(settings.rate, "loss_weight", "none") == "inverse":
            weights = ((1 << RATE_BITS) / rate).to(torch.float32).view(batch.shape)
        outside = boundaries(units, batch.shape, weighed.in_span_T) if self.with_boundaries else None
        seen, labels, bits = (each_T.view(batch.shape) for each_T in (seen_T, labels_T, flat.bits_T))
        masked = MaskedRows(seen, labels, attention_mask, weights, outside, bits)
        return masked.to(given.input_ids.device)

    def weighed(
        self,
        rows: Rows,
        *,
        epoch: int = 0,
        progress: float = 0.0,
        step: int = 0,
        scores: Scores | None = None,
    ) -> WeighedRows:
        """What masking draws from: the units of the rows, their weights and the rates, for whoever checks the masks.

        Args:
            rows: Packed rows, on the host.
            epoch, progress, step, scores: As `__call__` takes them.
        """
        found = self._weighed(rows, epoch=epoch, progress=progress, step=step, scores=scores)
        shape = rows.shape
        begin_T, log2_T = found.units.begin_T, found.log2_T
        rate = found.rate if isinstance(found.rate, float) else found.rate.double() / (1 << RATE_BITS)
        return WeighedRows(
            begin=begin_T.view(shape),
            size=take(found.units.size_T, begin_T).view(shape),
            log2_weight=torch.zeros(shape, dtype=torch.float64)
            if log2_T is None
            else (take(log2_T, begin_T).double() / (1 << POINT)).view(shape),
            rate=torch.full(shape, rate, dtype=torch.float64) if isinstance(rate, float) else rate.view(shape),
        )

    def _weighed(self, batch: Rows, *, epoch: int, progress: float, step: int, scores: Scores | None) -> _Weighed:
        settings = self.settings
        flat = flatten(batch, mix_ints(self.seed, 0 if settings.static else epoch, _MASK))
        tables = self._tables_with(scores)
        rate = self._rate(flat, progress)
        if isinstance(settings.units, MixtureUnits):
            mixed = draw_mixture(
                settings.units, flat, tables, seed=self.seed, epoch=epoch, step=step, progress=progress
            )
            return _Weighed(flat, mixed.units, rate, mixed.log2_T, mixed.per_unit_T, mixed.in_span_T)
        units = partition(flat, settings.units.starts(flat, tables))
        log2_T = settings.weights.log2(flat, units, tables)
        return _Weighed(flat, units, rate, log2_T, settings.units.replaced_per == "unit", None)

    def _rate(self, flat: FlatRows, progress: float) -> float | Tensor:
        """The rate of all segments, or of each."""
        rate = self.settings.rate
        if isinstance(rate, UniformRate | BetaRate):
            bits_T = mix(take(flat.bits_T, flat.segment_begin_T) + mix_ints(_RATE))
            return sampled_rates(rate, bits_T, RATE_BITS)
        return rate_at(rate, progress)


def _is_own(part: Any) -> bool:
    """Whether units or weights are an object of the caller's own class."""
    return part is not None and not isinstance(part, Settings | Mapping)


def unmasked(rows: Rows) -> MaskedRows:
    """Rows as they are: the model sees everything, and no token is to be predicted."""
    labels = torch.full_like(rows.input_ids, IGNORED)
    return MaskedRows(rows.input_ids, labels, (rows.segment_ids >= 0).to(torch.int64))


def _version(scores: Scores | None) -> int | None:
    return None if scores is None else scores.version
