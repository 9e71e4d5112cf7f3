"""What the audit counts: rates, whether every unit is masked as often as its weight says, and sentence pairs.

What is asked for is computed here once more, the plain way: by sorting the units of a segment by weight. The masker
solves for it in rounds, in a compiled loop; the two share nothing but the units and their weights.

Shape suffixes: B = rows, S = positions, T = all positions of a batch in a line, U = units,
P = document pieces, or pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.masking.masker import MaskedRows, Masker, WeighedRows
from unmask.rows.rows import Rows

# A promise is broken beyond so many standard errors. Where all strategies are audited, some 300 figures are judged; by
# chance one of them lies beyond about once in 90,000 audits.
SIGMAS = 5.5

Counts = NDArray[np.int64]


class AuditRatio(NamedTuple):
    """A share of tokens, and its standard error."""

    rate: float
    stderr: float

    def differs_from(self, expected: float) -> bool:
        """Whether chance does not explain the difference."""
        return abs(self.rate - expected) > SIGMAS * self.stderr + 1e-9


def ratio_of_sums(targets_P: Counts, sizes_P: Counts, variance: float = 0.0) -> AuditRatio:
    """The share of targets, with document pieces as the independent draws.

    Pieces that all come out alike have no spread, and one piece tells nothing of chance at all; but each is drawn by
    chance, whose variance is known: the error counts as much at least. That is a quarter a piece where a budget of
    tokens is rounded.

    Args:
        targets_P, sizes_P: Targets and tokens of each piece.
        variance: Of the number of targets, by the way they are drawn.

    Source: Cochran 1977, Sampling Techniques, section 2.11.
    """
    total = max(int(sizes_P.sum()), 1)
    rate = targets_P.sum() / total
    square = max(float(((targets_P - rate * sizes_P) ** 2).sum()), 0.25 * int((sizes_P > 0).sum()), variance)
    return AuditRatio(float(rate), square**0.5 / total)


def stretches(*columns_BS: NDArray[np.signedinteger]) -> Counts:
    """[T]: a running number for each stretch of a row in which all columns stay the same."""
    begins_BS = np.ones(columns_BS[0].shape, dtype=bool)
    begins_BS[:, 1:] = np.any([column[:, 1:] != column[:, :-1] for column in columns_BS], axis=0)
    return np.cumsum(begins_BS.ravel()) - 1


Floats = NDArray[np.float64]

SIZES = ("1 token", "2 tokens", "3 tokens", "4 tokens", "5 tokens", "6 tokens or more")
PLACES = ("the only unit", "first", "first quarter", "second quarter", "third quarter", "last quarter", "last")
LENGTHS = ("1 to 3 tokens", "4 to 7", "8 to 15", "16 to 31", "32 to 63", "64 to 127", "128 to 255", "256 or more")
_CHANCE_ENDS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
CHANCES = (*(f"up to {end:.1%}" for end in _CHANCE_ENDS[:-1]), "less than always", "always")
_LEAST_VARIANCE = 4.0  # of a count that is judged: a smaller one is far from a normal distribution


class Inclusion(NamedTuple):
    """Some units, and how often they are predicted.

    Attributes:
        units: How many there are.
        asked: Mean of the probabilities that their weights give them.
        realised: Share of them that is predicted.
        broken: Whether chance does not explain the difference.
    """

    units: int
    asked: float
    realised: float
    broken: bool


@dataclass(frozen=True)
class InclusionAudit:
    """How often units are predicted, and how often they should be; groups without units are left out.

    Attributes:
        by_size: By tokens of the unit.
        by_place: By place of the unit in its document piece.
        by_length: By tokens of the document piece.
        by_chance: By the probability that is asked for: realised against asked-for weight.
    """

    by_size: dict[str, Inclusion]
    by_place: dict[str, Inclusion]
    by_length: dict[str, Inclusion]
    by_chance: dict[str, Inclusion]

    def groups(self) -> Iterator[tuple[str, str, Inclusion]]:
        """What units are grouped by, a group's name, and what was found of it."""
        kinds = {
            "size": self.by_size,
            "place in the document": self.by_place,
            "length of the document": self.by_length,
            "asked-for probability": self.by_chance,
        }
        for kind, groups in kinds.items():
            for name, found in groups.items():
                yield kind, name, found

    def broken(self) -> Iterator[str]:
        """Groups whose units are predicted too often or too rarely, in words."""
        for kind, name, found in self.groups():
            if found.broken:
                yield (
                    f"units by {kind}, {name}: {found.realised:.2%} of {found.units:,} are predicted, not "
                    f"{found.asked:.2%}"
                )


class Expected(NamedTuple):
    """Of the tokens of each unit, at the place where it begins; 0 elsewhere. Each is [T].

    Attributes:
        predicted: How many should be predicted.
        chosen: How many should be chosen.
        spread: The most that the unit adds to the variance of the number of predicted tokens: its probability, times
            the opposite's, times the square of its size.
    """

    predicted: Floats
    chosen: Floats
    spread: Floats


class InclusionTally:
    """Adds up batches."""

    def __init__(self, masker: Masker) -> None:
        self._settings = masker.settings
        self._sums = {
            name: np.zeros((len(groups), 4))  # units, asked for, predicted, variance
            for name, groups in (("size", SIZES), ("place", PLACES), ("length", LENGTHS), ("chance", CHANCES))
        }

    def add(
        self, segment_T: Counts, maskable_T: NDArray[np.bool_], masked: MaskedRows, weighed: WeighedRows
    ) -> Expected:
        """Counts one batch.

        Args:
            segment_T: A running number for each document piece.
            maskable_T: What may be masked.
            masked: What was made of the batch.
            weighed: What it was drawn from.
        """
        begin_T, size_T = weighed.begin.numpy().ravel(), weighed.size.numpy().ravel()
        place_U = np.flatnonzero(maskable_T & (begin_T == np.arange(len(begin_T))))
        segment_U, size_U = segment_T[place_U], size_T[place_U]
        rate_U, log2_U = (tensor.numpy().ravel()[place_U] for tensor in (weighed.rate, weighed.log2_weight))
        least_one, share = self._settings.least_one, self._settings.prediction_rate
        chosen_U = asked_U = asked_for(log2_U, size_U, segment_U, rate_U, least_one=least_one)
        if share is not None:
            asked_U = asked_for(log2_U, size_U, segment_U, np.full_like(rate_U, share), least_one=least_one)
        predicted_U = masked.labels.numpy().ravel()[place_U] >= 0

        tokens_U = np.bincount(segment_T, maskable_T)[segment_U]
        length_U = np.clip(np.log2(tokens_U).astype(np.int64) - 1, 0, len(LENGTHS) - 1)
        chance_U = np.where(asked_U >= 1.0 - 1e-9, len(_CHANCE_ENDS), np.searchsorted(_CHANCE_ENDS, asked_U - 1e-9))
        groups = {
            "size": np.clip(size_U - 1, 0, len(SIZES) - 1),
            "place": _places(segment_U),
            "length": length_U,
            "chance": np.minimum(chance_U, len(CHANCES) - 1),
        }
        variance_U = asked_U * (1.0 - asked_U)
        for name, group_U in groups.items():
            for column, values_U in enumerate((np.ones_like(asked_U), asked_U, predicted_U, variance_U)):
                self._sums[name][:, column] += np.bincount(group_U, values_U, minlength=len(self._sums[name]))
        found = Expected(*(np.zeros(len(begin_T)) for _ in Expected._fields))
        found.predicted[place_U], found.chosen[place_U] = asked_U * size_U, chosen_U * size_U
        found.spread[place_U] = variance_U * size_U**2
        return found

    @property
    def promised(self) -> bool:
        """Whether probabilities are promised: a budget of tokens does not, nor a floor of what is predicted."""
        settings = self._settings
        return settings.budget == "units" and not (settings.least_one and settings.prediction_rate is not None)

    def result(self) -> InclusionAudit:
        """The sum of all batches."""
        promised = self.promised

        def found(name: str, groups: tuple[str, ...]) -> dict[str, Inclusion]:
            table = zip(groups, self._sums[name], strict=True)
            return {group: _inclusion(*sums, promised=promised) for group, sums in table if sums[0]}

        return InclusionAudit(
            found("size", SIZES), found("place", PLACES), found("length", LENGTHS), found("chance", CHANCES)
        )


def _inclusion(units: float, asked: float, predicted: float, variance: float, *, promised: bool) -> Inclusion:
    """The variance is that of independent draws.

    That of a segment is smaller as a rule, since a number of units is drawn that hardly varies; in a segment of a few
    units it may be a quarter larger, which the many standard errors that are granted leave room for.
    """
    broken = promised and abs(predicted - asked) > SIGMAS * max(variance, _LEAST_VARIANCE) ** 0.5
    return Inclusion(int(units), asked / units, predicted / units, broken)


def _places(segment_U: Counts) -> Counts:
    """Which of `PLACES` each unit has among those of its segment."""
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
    """The probabilities that weights ask for: in proportion to them within a segment, at most 1, and exact in tokens.

    Args:
        log2_U: Logarithms of weights to base 2.
        size_U: Tokens.
        segment_U: Running numbers of segments, in order.
        rate_U: Expected share of the segment's tokens.
        least_one: Whether one unit is taken where less than one is expected, in the same proportions.
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


def _in_proportion(weights: Floats, sizes: Counts, rate: float) -> Floats:
    """min(1, c x weight), with c so that the expected tokens are the rate's; the heaviest reach 1 first."""
    order = np.argsort(-weights, kind="stable")
    tokens = sizes[order].astype(np.float64)
    before = np.cumsum(tokens) - tokens  # of heavier units
    behind = np.cumsum((weights[order] * tokens)[::-1])[::-1]  # of this and of lighter ones, weighted
    left = rate * tokens.sum() - before
    scales = left / behind
    always = int(np.argmin(np.append(scales * weights[order] >= 1.0, False)))
    scale = scales[always] if always < len(order) else 0.0
    found = np.empty_like(weights)
    found[order] = np.where(np.arange(len(order)) < always, 1.0, scale * weights[order])
    return found


@dataclass(frozen=True)
class PairAudit:
    """How the two halves of sentence pairs were masked: each by itself, and both at once.

    Attributes:
        first: Share of the tokens in first halves that is predicted, with its standard error; a text that is too
            short to be cut is a first half without a second.
        second: The same in second halves.
        pairs: Pairs with text in both halves.
        with_both: Those of them in which tokens of both halves are predicted.
        expected: What the shares should be.
    """

    first: AuditRatio
    second: AuditRatio
    pairs: int
    with_both: int
    expected: tuple[float, float]

    def broken(self) -> Iterator[str]:
        """Halves whose rate is not the expected one, in words."""
        halves = (("first", self.first), ("second", self.second))
        for (name, found), expected in zip(halves, self.expected, strict=True):
            if found.differs_from(expected):
                yield f"{found.rate:.2%} of the tokens in {name} halves of pairs are predicted, not {expected:.2%}"


class PairTally:
    """Adds up batches of pairs."""

    def __init__(self) -> None:
        self._sizes: list[Counts] = []  # [P, 2]: of both halves
        self._targets: list[Counts] = []
        self._variance, self._expected = np.zeros(2), np.zeros(2)

    def add(self, rows: Rows, masked: MaskedRows, expected: Expected) -> None:
        """Counts one batch, whose rows have token types. Args: expected: As `InclusionTally.add` returns it."""
        assert rows.token_type_ids is not None
        place_T = 2 * stretches(rows.segment_ids.numpy()) + rows.token_type_ids.numpy().ravel()
        size = 2 * (int(place_T[-1]) // 2 + 1)

        def count(chosen_T: NDArray[np.bool_]) -> Counts:
            return np.bincount(place_T[chosen_T], minlength=size).reshape(-1, 2)

        self._sizes.append(count(rows.maskable.numpy().ravel()))
        self._targets.append(count(masked.labels.numpy().ravel() >= 0))
        self._variance += np.bincount(place_T % 2, expected.spread, minlength=2)
        self._expected += np.bincount(place_T % 2, expected.predicted, minlength=2)

    def result(self) -> PairAudit:
        """The sum of all batches."""
        sizes, targets = np.concatenate(self._sizes), np.concatenate(self._targets)
        whole = (sizes > 0).all(1)
        first, second = (
            ratio_of_sums(targets[:, half], sizes[:, half], float(self._variance[half])) for half in (0, 1)
        )
        shares = self._expected / np.maximum(sizes.sum(0), 1)
        both = int((targets[whole] > 0).all(1).sum())
        return PairAudit(first, second, int(whole.sum()), both, (float(shares[0]), float(shares[1])))
