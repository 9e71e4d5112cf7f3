"""An audit of the realised masking on real data, before any training: rates and shares, checked against every promise.

Expected probabilities are computed here independently, in the plain way: by sorting the units of a segment by weight.
The masker solves for them in rounds, in a compiled loop; the two share only the units and their weights.

Shape suffixes: T = all positions of a batch in a line, U = units, P = document pieces, or pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.data.rows import Rows
from unmask.masking.draw_loops import POINT, RATE_BITS
from unmask.masking.masker import MaskedRows, Masker, WeighedRows
from unmask.masking.settings import MaskingSettings, rate_at

# A promise counts as broken beyond this many standard errors. An audit of all strategies judges about 300 figures; by
# chance, one of them exceeds this in about one of 90,000 such audits.
SIGMAS = 5.5

Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

SIZES = ("1 token", "2 tokens", "3 tokens", "4 tokens", "5 tokens", "6 tokens or more")
PLACES = ("the only unit", "first", "first quarter", "second quarter", "third quarter", "last quarter", "last")
LENGTHS = ("1 to 3 tokens", "4 to 7", "8 to 15", "16 to 31", "32 to 63", "64 to 127", "128 to 255", "256 or more")
_CHANCE_ENDS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
CHANCES = (*(f"up to {end:.1%}" for end in _CHANCE_ENDS[:-1]), "less than always", "always")
# How units are grouped: the criterion in words, and the names of its groups.
GROUPS = {
    "by_size": ("size", SIZES),
    "by_place": ("place in the document", PLACES),
    "by_length": ("length of the document", LENGTHS),
    "by_chance": ("expected probability", CHANCES),
}
_LEAST_VARIANCE = 4.0  # lower bound for judging a count: with less, it is far from normally distributed
MOST_PIECES, MOST_BYTES, MOST_SPAN, MOST_DIGITS = 6, 16, 12, 7
NO_TAG = "(none)"


class AuditRatio(NamedTuple):
    rate: float
    stderr: float

    def differs_from(self, expected: float) -> bool:
        return abs(self.rate - expected) > SIGMAS * self.stderr + 1e-9


def ratio_of_sums(targets_P: Counts, sizes_P: Counts, variance: float = 0.0) -> AuditRatio:
    """The share of targets, with document pieces as the independent draws.

    The observed spread of pieces can be too small: it is 0 if all have the same share, or if there is only one. So the
    sum of squares is at least the known `variance` of the draws, and at least a quarter per piece.

    Source: Cochran 1977, Sampling Techniques, section 2.11.
    """
    total = max(int(sizes_P.sum()), 1)
    rate = targets_P.sum() / total
    square = max(float(((targets_P - rate * sizes_P) ** 2).sum()), 0.25 * int((sizes_P > 0).sum()), variance)
    return AuditRatio(float(rate), square**0.5 / total)


def stretches(*columns_BS: NDArray[np.signedinteger]) -> Counts:
    """[T]: numbers the stretches of each row in which all columns keep their value."""
    begins_BS = np.ones(columns_BS[0].shape, dtype=bool)
    begins_BS[:, 1:] = np.any([column[:, 1:] != column[:, :-1] for column in columns_BS], axis=0)
    return np.cumsum(begins_BS.ravel()) - 1


@dataclass(frozen=True)
class Inclusion:
    """A group of units, and how often they are predicted."""

    units: int
    asked: float  # mean of the probabilities that their weights give
    realised: float  # share that is predicted
    broken: bool  # whether the difference is too large for chance


def _places(segment_U: Counts) -> Counts:
    """The index in `PLACES` of each unit, by its position among the units of its segment."""
    counts = np.bincount(segment_U)
    count_U = counts[segment_U]
    first = np.cumsum(counts) - counts
    number_U = np.arange(len(segment_U)) - first[segment_U]
    place_U = 2 + 4 * number_U // np.maximum(count_U, 1)
    place_U[number_U == count_U - 1] = 6
    place_U[number_U == 0] = 1
    place_U[count_U == 1] = 0
    return place_U


def asked_for(log2_U: Floats, size_U: Counts, segment_U: Counts, rate_U: Floats, *, least_one: bool = False) -> Floats:
    """The expected probability of each unit: in proportion to its weight within a segment, at most 1, and such that the
    expected number of tokens is exact.

    Arguments are, for each unit, the logarithm of its weight to base 2, its tokens, the number of its segment
    (ascending), and the expected share of the segment's tokens. With `least_one`, one unit is taken if less than one is
    expected, in the same proportions.
    """
    asked_U = rate_U.copy()
    ends = np.flatnonzero(np.diff(segment_U, append=-1)) + 1
    begin = 0
    for end in ends:
        inside = slice(begin, int(end))
        if np.ptp(log2_U[inside]) > 0.0:
            weights = np.exp2(np.maximum(log2_U[inside] - log2_U[inside].max(), -1000.0))
            asked_U[inside] = _in_proportion(weights, size_U[inside], float(rate_U[begin]))
        begin = int(end)
    if least_one:
        asked_U = asked_U / np.minimum(np.bincount(segment_U, asked_U), 1.0)[segment_U]
    return asked_U


def expected_units(
    segment_T: Counts, maskable_T: Bools, weighed: WeighedRows, settings: MaskingSettings
) -> tuple[Counts, Counts, Floats, Floats]:
    """Units of a batch, [U] each: where they begin, their number of tokens, and their expected probabilities of being
    predicted and of being chosen."""
    size_T = weighed.units.size_T.numpy()
    place_U = np.flatnonzero(maskable_T & (size_T > 0))
    segment_U, size_U = segment_T[place_U], size_T[place_U]
    log2_U, rate_U = np.zeros(len(place_U)), np.zeros(len(place_U))
    if weighed.log2_T is not None:
        log2_U = weighed.log2_T.numpy()[place_U] / (1 << POINT)
    if isinstance(weighed.rate, float):
        rate_U += weighed.rate
    else:
        rate_U = weighed.rate.numpy()[place_U] / (1 << RATE_BITS)
    chosen_U = asked_U = asked_for(log2_U, size_U, segment_U, rate_U, least_one=settings.least_one)
    if (share := settings.prediction_rate) is not None:
        asked_U = asked_for(log2_U, size_U, segment_U, np.full_like(rate_U, share))
    return place_U, size_U, asked_U, chosen_U


def _in_proportion(weights: Floats, sizes: Counts, rate: float) -> Floats:
    """min(1, c x weight), with c such that `rate` of the tokens are expected; the heaviest units reach 1 first."""
    order = np.argsort(-weights, kind="stable")
    tokens = sizes[order].astype(np.float64)
    before = np.cumsum(tokens) - tokens  # tokens of heavier units
    behind = np.cumsum((weights[order] * tokens)[::-1])[::-1]  # weighted tokens of this and lighter units
    left = rate * tokens.sum() - before
    scales = left / behind  # c, if exactly the heavier units have probability 1
    always = int(np.argmin(np.append(scales * weights[order] >= 1.0, False)))
    scale = scales[always] if always < len(order) else 0.0
    chances = np.empty_like(weights)
    chances[order] = np.where(np.arange(len(order)) < always, 1.0, scale * weights[order])
    return chances


@dataclass(frozen=True)
class Audit:
    """What a masker did to rows at the beginning of training. JSON can hold the values that `asdict` gives."""

    tokens: int  # tokens of text
    rows: int  # document pieces; the halves of a sentence pair are two
    # Share of the tokens that the settings predict: for the rates that pieces drew, and with the targets that
    # `masking.least_one` adds.
    expected_rate: float
    raised_from: float | None  # with `masking.least_one`, the rate without the targets that it adds
    rate: float  # share of the tokens that is predicted
    rate_stderr: float  # its standard error, with document pieces as the independent draws
    shares: tuple[float, ...]  # shares of masks, random tokens and unchanged tokens among the targets
    special_targets: int  # special tokens that are predicted
    special_replacements: int  # special tokens, other than the mask, that replace a target
    changed_outside: int  # tokens that are changed but not chosen, and labels that are not the original token
    rows_without_target: int  # document pieces in which nothing is predicted
    by_pieces: list[list[int]]  # [6, 2]: tokens and targets in words of 1, 2, ... pieces; the last row is open-ended
    by_bytes: list[list[int]]  # [16, 2]: the same for words of 1, 2, ... bytes
    by_frequency: list[list[int]]  # [7, 2]: for tokens that occur 1 to 9, 10 to 99, ... times in the training text
    span_lengths: list[int]  # [12]: runs of targets that span 1, 2, ... words; the last one is open-ended
    # Tokens and targets by part of speech, if the data has it; `NO_TAG` for tokens without one.
    by_pos: dict[str, tuple[int, int]] | None
    # How often units are predicted, and how often they should be: `by_size` in tokens, `by_place` in their document
    # piece, `by_length` of the piece in tokens, and `by_chance`, the probability that weights give. Groups without
    # units are left out.
    inclusion: dict[str, dict[str, Inclusion]]
    split_units: int  # units of which only a part of the tokens is predicted
    # The effective number of tokens drawn together: the sum of the units' squared sizes over the sum of their sizes.
    tokens_a_draw: float
    broken: tuple[str, ...]  # broken promises, in words


def audit(batches: Iterable[tuple[Rows, MaskedRows, WeighedRows]], masker: Masker, frequencies: Counts) -> Audit:
    """Counts what a masker did. A batch is rows on the CPU, these rows masked at progress 0, and the units and weights
    that were drawn from. Frequencies [vocab_size] are those of the training text."""
    tally = _Tally(masker, frequencies)
    for rows, masked, weighed in batches:
        tally.add(rows, masked, weighed)
    return tally.result()


class _Tally:
    def __init__(self, masker: Masker, frequencies: Counts) -> None:
        self.settings, self.tokenizer = masker.settings, masker.tokenizer
        self.digits = np.minimum(np.log10(np.maximum(frequencies, 1)).astype(np.int64), MOST_DIGITS - 1)
        self.special_targets = self.special_replacements = self.changed_outside = 0
        self.kinds = np.zeros(3, dtype=np.int64)
        self.stretches = 0  # runs of adjacent targets
        self.by_pieces, self.by_bytes = (np.zeros((n, 2), dtype=np.int64) for n in (MOST_PIECES, MOST_BYTES))
        self.by_frequency = np.zeros((MOST_DIGITS, 2), dtype=np.int64)
        self.span_lengths = np.zeros(MOST_SPAN, dtype=np.int64)
        self.pos_labels = masker.tables.labels.get("pos")
        self.by_pos: Counts | None = None  # [labels + 1, 2], by number
        self.pieces: list[Counts] = []  # [P, 3]: tokens, targets, and tokens changed in the model's input
        # For each group: number of units, and sums of their probabilities, predictions and variances.
        self.groups = {kind: np.zeros((len(names), 4)) for kind, (_, names) in GROUPS.items()}
        self.expected = self.variance = 0.0  # mean and variance of the number of targets
        self.expected_changes = self.variance_of_changes = 0.0
        self.split = self.squares = 0

    def add(self, rows: Rows, masked: MaskedRows, weighed: WeighedRows) -> None:
        ids_T, seen_T, labels_T = (t.numpy().ravel() for t in (rows.input_ids, masked.input_ids, masked.labels))
        maskable_T, target_T = rows.maskable.numpy().ravel(), labels_T >= 0

        # Targets, and what replaced them.
        ordinary, mask_id = self.tokenizer.ordinary, self.tokenizer.special.mask
        self.special_targets += int((target_T & ~ordinary[ids_T]).sum())
        self.special_replacements += int((target_T & (seen_T != mask_id) & ~ordinary[seen_T]).sum())
        self.changed_outside += int((labels_T != ids_T)[target_T].sum())
        if self.settings.prediction_rate is None:
            self.changed_outside += int((seen_T != ids_T)[~target_T].sum())
        hidden, unchanged = (seen_T == mask_id)[target_T], (seen_T == ids_T)[target_T]
        self.kinds += [hidden.sum(), (~hidden & ~unchanged).sum(), unchanged.sum()]

        # Counts by document piece, frequency, word and part of speech.
        segment_T = stretches(rows.segment_ids.numpy(), rows.segment_keys.numpy())
        columns = (maskable_T, target_T, maskable_T & (seen_T != ids_T))
        self.pieces.append(np.stack([np.bincount(segment_T, each).astype(np.int64) for each in columns], 1))
        _count(self.by_frequency, self.digits[ids_T], maskable_T, target_T)
        starts_T = rows.word_starts.numpy().ravel() & maskable_T
        word_T = np.cumsum(starts_T)
        pieces = np.bincount(word_T, maskable_T).astype(np.int64)
        num_bytes = np.bincount(word_T, np.where(maskable_T, self.tokenizer.token_bytes[ids_T], 0)).astype(np.int64)
        _count(self.by_pieces, np.clip(pieces[word_T] - 1, 0, MOST_PIECES - 1), maskable_T, target_T)
        _count(self.by_bytes, np.clip(num_bytes[word_T] - 1, 0, MOST_BYTES - 1), maskable_T, target_T)
        if "pos" in rows.annotations and self.pos_labels is not None:
            if self.by_pos is None:
                self.by_pos = np.zeros((len(self.pos_labels) + 1, 2), dtype=np.int64)
            _count(self.by_pos, rows.annotations["pos"].numpy().ravel(), maskable_T, target_T)

        # Runs of targets, and the number of words that they touch.
        follows_T = np.zeros_like(target_T)
        follows_T[1:] = target_T[1:] & target_T[:-1] & (segment_T[1:] == segment_T[:-1])
        begins_T = target_T & ~follows_T
        words = np.bincount(np.cumsum(begins_T)[target_T] - 1, (starts_T | begins_T)[target_T]).astype(np.int64)
        self.stretches += len(words)
        self.span_lengths += np.bincount(np.clip(words - 1, 0, MOST_SPAN - 1), minlength=MOST_SPAN)

        # Expected counts. A unit of probability p adds at most p (1 - p) size^2 to the variance of the number of
        # predicted tokens.
        place_U, asked_U, chosen_U = self._add_units(segment_T, maskable_T, target_T, weighed)
        begin_T, size_T = weighed.units.begin_T.numpy(), weighed.units.size_T.numpy()
        size_U = size_T[place_U]
        predicted_U, spread_U = asked_U * size_U, asked_U * (1.0 - asked_U) * size_U**2
        self.expected += float(predicted_U.sum())
        self.variance += float(spread_U.sum())
        self.squares += int((size_T**2).sum())
        self.split += len(np.unique(begin_T[maskable_T & (target_T != target_T[begin_T])]))
        self.expected_changes += float((chosen_U * size_U).sum()) * (1.0 - self.settings.replacement.shares[2])
        self.variance_of_changes += float((chosen_U * size_U**2).sum())  # an upper bound

    def _add_units(
        self, segment_T: Counts, maskable_T: Bools, target_T: Bools, weighed: WeighedRows
    ) -> tuple[Counts, Floats, Floats]:
        """Counts units by group. Returns, [U] each, where they begin, and their expected probabilities of being
        predicted and of being chosen."""
        place_U, size_U, asked_U, chosen_U = expected_units(segment_T, maskable_T, weighed, self.settings)
        segment_U = segment_T[place_U]
        tokens_U = np.bincount(segment_T, maskable_T)[segment_U]
        chance_U = np.where(asked_U >= 1.0 - 1e-9, len(_CHANCE_ENDS), np.searchsorted(_CHANCE_ENDS, asked_U - 1e-9))
        groups = {
            "by_size": np.clip(size_U - 1, 0, len(SIZES) - 1),
            "by_place": _places(segment_U),
            "by_length": np.clip(np.log2(tokens_U).astype(np.int64) - 1, 0, len(LENGTHS) - 1),
            "by_chance": np.minimum(chance_U, len(CHANCES) - 1),
        }
        variance_U = asked_U * (1.0 - asked_U)
        for kind, group_U in groups.items():
            for column, values_U in enumerate((np.ones_like(asked_U), asked_U, target_T[place_U], variance_U)):
                self.groups[kind][:, column] += np.bincount(group_U, values_U, minlength=len(self.groups[kind]))
        return place_U, asked_U, chosen_U

    def result(self) -> Audit:
        pieces = np.concatenate(self.pieces)
        sizes, targets, changed = pieces[pieces[:, 0] > 0].T
        tokens = max(int(sizes.sum()), 1)
        ratio = ratio_of_sums(targets, sizes, self.variance)
        changes = ratio_of_sums(changed, sizes, self.variance_of_changes)
        # If each document piece draws its own rate, the rates drawn for these pieces are the expected ones.
        ratios = [
            ("of the tokens are predicted", ratio, self.expected / tokens),
            ("of the tokens are changed", changes, self.expected_changes / tokens),
        ]
        # The variance of independent draws. The real one is usually smaller, since the number of units drawn in a
        # segment hardly varies; with few units it may be a quarter larger, which so many standard errors allow for.
        inclusion: dict[str, dict[str, Inclusion]] = {kind: {} for kind in GROUPS}
        for kind, (_, names) in GROUPS.items():
            for name, (units, asked, predicted, variance) in zip(names, self.groups[kind].tolist(), strict=True):
                if units:
                    beyond = abs(predicted - asked) > SIGMAS * max(variance, _LEAST_VARIANCE) ** 0.5
                    inclusion[kind][name] = Inclusion(int(units), asked / units, predicted / units, beyond)
        by_pos = None  # parts of speech that occur in the text, in the order of the labels; last, tokens without one
        if self.by_pos is not None and self.pos_labels is not None:
            rows = zip((*self.pos_labels, NO_TAG), np.roll(self.by_pos, -1, axis=0).tolist(), strict=True)
            by_pos = {name: (tokens, chosen) for name, (tokens, chosen) in rows if tokens}
        shares = self.kinds / max(self.kinds.sum(), 1)
        return Audit(
            tokens=int(sizes.sum()),
            rows=len(sizes),
            expected_rate=self.expected / tokens,
            raised_from=rate_at(self.settings.rate, 0.0) if self.settings.least_one else None,
            rate=ratio.rate,
            rate_stderr=ratio.stderr,
            shares=tuple(shares.tolist()),
            special_targets=self.special_targets,
            special_replacements=self.special_replacements,
            changed_outside=self.changed_outside,
            rows_without_target=int((targets == 0).sum()),
            by_pieces=self.by_pieces.tolist(),
            by_bytes=self.by_bytes.tolist(),
            by_frequency=self.by_frequency.tolist(),
            span_lengths=self.span_lengths.tolist(),
            by_pos=by_pos,
            inclusion=inclusion,
            split_units=self.split,
            tokens_a_draw=self.squares / tokens,
            broken=tuple(self._broken(ratios, shares, inclusion)),
        )

    def _broken(
        self,
        ratios: Sequence[tuple[str, AuditRatio, float]],
        shares: Floats,
        inclusion: Mapping[str, Mapping[str, Inclusion]],
    ) -> Iterator[str]:
        for what, realised, expected in ratios:
            if realised.differs_from(expected):
                yield f"{realised.rate:.2%} {what}, not {expected:.2%}"
        draws = max(self.stretches, 1)  # a lower bound of the number of independent draws
        for name, share, expected in zip(
            ("masks", "random tokens", "unchanged tokens"), shares, self.settings.replacement.shares, strict=True
        ):
            if abs(share - expected) > SIGMAS * (expected * (1.0 - expected) / draws) ** 0.5 * 2.0 + 1e-9:
                yield f"{share:.2%} of the targets are {name}, not {expected:.2%}"
        for number, what in (
            (self.special_targets, "special tokens are predicted"),
            (self.special_replacements, "special tokens in place of a target"),
            (self.changed_outside, "tokens are changed without being chosen, or have a wrong label"),
            (self.split, "units are predicted in part"),
        ):
            if number:
                yield f"{number:,} {what}"
        for kind, groups in inclusion.items():
            for name, group in groups.items():
                if group.broken:
                    share = f"{group.realised:.2%} of {group.units:,} are predicted"
                    yield f"units by {GROUPS[kind][0]}, {name}: {share}, not {group.asked:.2%}"


def _count(table: Counts, group_T: Counts, maskable_T: Bools, target_T: Bools) -> None:
    for column, chosen_T in enumerate((maskable_T, target_T)):
        table[:, column] += np.bincount(group_T[chosen_T], minlength=len(table))
