"""The realised masking on real data, before any training: rates, shares, and every promise checked.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.masking.masker import MaskedRows, Masker, WeighedRows
from unmask.masking.rate_schedule import rate_at
from unmask.measuring.inclusion import (
    SIGMAS,
    AuditRatio,
    Counts,
    InclusionAudit,
    InclusionTally,
    PairAudit,
    PairTally,
    ratio_of_sums,
    stretches,
)
from unmask.rows.rows import Rows

MOST_PIECES, MOST_BYTES, MOST_SPAN, MOST_DIGITS = 6, 16, 12, 7
NO_TAG = "(none)"


@dataclass(frozen=True)
class Audit:
    """What a masker did to some rows, at the beginning of a training.

    Attributes:
        tokens: Tokens of text.
        rows: Document pieces; the halves of a sentence pair are two.
        expected_rate: What the settings ask for.
        rate: Share of the tokens that is predicted.
        rate_stderr: Its standard error, with document pieces as the independent draws.
        shares: Of masks, random tokens and unchanged ones among the targets.
        special_targets: Special tokens that are predicted.
        special_replacements: Special tokens, other than the mask, that stand for a target.
        changed_outside: Tokens that are changed but not chosen, and labels that are not the original token.
        rows_without_target: Document pieces in which nothing is predicted.
        by_pieces: [6, 2]: tokens and targets in words of 1, 2, ... pieces; the last is open.
        by_bytes: [16, 2]: the same for words of 1, 2, ... bytes.
        by_frequency: [7, 2]: the same for tokens that stand 1 to 9, 10 to 99, ... times in the training text.
        span_lengths: [12]: stretches of targets of 1, 2, ... words; the last is open.
        by_pos: Tokens and targets by part of speech, where the data has it; `NO_TAG` for those without one.
        pairs: Of sentence pairs, where the rows hold such.
        inclusion: How often units are predicted, by size, place, length of the document and weight.
        tokens_a_draw: How many tokens are drawn together, as errors count: the sum of the units' squared sizes
            over that of their sizes.
        split_units: Units of which some tokens are predicted and others are not.
        broken: Promises that do not hold, in words.
    """

    tokens: int
    rows: int
    expected_rate: float
    rate: float
    rate_stderr: float
    shares: tuple[float, float, float]
    special_targets: int
    special_replacements: int
    changed_outside: int
    rows_without_target: int
    by_pieces: Counts
    by_bytes: Counts
    by_frequency: Counts
    span_lengths: Counts
    by_pos: Mapping[str, tuple[int, int]] | None
    pairs: PairAudit | None
    inclusion: InclusionAudit
    split_units: int
    tokens_a_draw: float
    broken: tuple[str, ...]


def audit(batches: Iterable[tuple[Rows, MaskedRows, WeighedRows]], masker: Masker, frequencies: Counts) -> Audit:
    """Counts what a masker did.

    Args:
        batches: Rows on the CPU, what the masker made of them at progress 0, and what it drew from.
        masker: The masker.
        frequencies: [vocab_size]: of the training text.
    """
    tally = _Tally(masker, frequencies)
    for rows, masked, weighed in batches:
        tally.add(rows, masked, weighed)
    return tally.result()


class _Tally:
    """Adds up batches."""

    def __init__(self, masker: Masker, frequencies: Counts) -> None:
        self.masker = masker
        self.settings, self.tokenizer = masker.settings, masker.tokenizer
        self.digits = np.minimum(np.log10(np.maximum(frequencies, 1)).astype(np.int64), MOST_DIGITS - 1)
        self.special_targets = self.special_replacements = self.changed_outside = 0
        self.kinds = np.zeros(3, dtype=np.int64)
        self.stretches = 0  # of targets that stand together
        self.by_pieces, self.by_bytes = (np.zeros((n, 2), dtype=np.int64) for n in (MOST_PIECES, MOST_BYTES))
        self.by_frequency = np.zeros((MOST_DIGITS, 2), dtype=np.int64)
        self.span_lengths = np.zeros(MOST_SPAN, dtype=np.int64)
        self.pos_labels = masker.tables.labels.get("pos")
        self.by_pos: Counts | None = None  # [labels + 1, 2], by number
        self.pairs: PairTally | None = None
        self.sizes: list[Counts] = []  # tokens and targets of each document piece
        self.targets: list[Counts] = []
        self.inclusion = InclusionTally(masker)
        self.expected = self.variance = 0.0  # of the number of targets
        self.split = self.squares = 0
        self.changed: list[Counts] = []  # tokens of each document piece that the model sees changed
        self.expected_changes = self.variance_of_changes = 0.0

    def add(self, rows: Rows, masked: MaskedRows, weighed: WeighedRows) -> None:
        ids_T, seen_T, labels_T = (t.numpy().ravel() for t in (rows.input_ids, masked.input_ids, masked.labels))
        maskable_T, target_T = rows.maskable.numpy().ravel(), labels_T >= 0
        ordinary, mask_id = self.tokenizer.ordinary, self.tokenizer.special.mask
        self.special_targets += int((target_T & ~ordinary[ids_T]).sum())
        self.special_replacements += int((target_T & (seen_T != mask_id) & ~ordinary[seen_T]).sum())
        self.changed_outside += int((labels_T != ids_T)[target_T].sum())
        if self.settings.prediction_rate is None:
            self.changed_outside += int((seen_T != ids_T)[~target_T].sum())
        hidden, kept = (seen_T == mask_id)[target_T], (seen_T == ids_T)[target_T]
        self.kinds += [hidden.sum(), (~hidden & ~kept).sum(), kept.sum()]

        segment_T = stretches(rows.segment_ids.numpy(), rows.segment_keys.numpy())
        self.sizes.append(np.bincount(segment_T, maskable_T).astype(np.int64))
        self.targets.append(np.bincount(segment_T, target_T).astype(np.int64))
        _count(self.by_frequency, self.digits[ids_T], maskable_T, target_T)
        starts_T = rows.word_starts.numpy().ravel() & maskable_T
        word_T = np.cumsum(starts_T)
        pieces = np.bincount(word_T, maskable_T).astype(np.int64)
        num_bytes = np.bincount(word_T, np.where(maskable_T, self.tokenizer.token_bytes[ids_T], 0)).astype(np.int64)
        _count(self.by_pieces, np.clip(pieces[word_T] - 1, 0, MOST_PIECES - 1), maskable_T, target_T)
        _count(self.by_bytes, np.clip(num_bytes[word_T] - 1, 0, MOST_BYTES - 1), maskable_T, target_T)
        self._add_spans(target_T, starts_T, segment_T)
        expected = self.inclusion.add(segment_T, maskable_T, masked, weighed)
        self.expected += float(expected.predicted.sum())
        self.variance += float(expected.spread.sum()) if self.settings.budget == "units" else 0.0
        begin_T, size_T = weighed.begin.numpy().ravel(), weighed.size.numpy().ravel()
        self.squares += int(size_T[maskable_T].sum())  # each unit's size, once for each of its tokens
        self.split += len(np.unique(begin_T[maskable_T & (target_T != target_T[begin_T])]))
        self.changed.append(np.bincount(segment_T, maskable_T & (seen_T != ids_T)).astype(np.int64))
        self.expected_changes += float(expected.chosen.sum()) * (1.0 - self.settings.replacement.shares[2])
        self.variance_of_changes += float((expected.chosen * size_T).sum())  # more than it can be
        if "pos" in rows.annotations and self.pos_labels is not None:
            if self.by_pos is None:
                self.by_pos = np.zeros((len(self.pos_labels) + 1, 2), dtype=np.int64)
            _count(self.by_pos, rows.annotations["pos"].numpy().ravel(), maskable_T, target_T)
        if rows.token_type_ids is not None:
            self.pairs = self.pairs or PairTally()
            self.pairs.add(rows, masked, expected)

    def _add_spans(self, target_T: NDArray[np.bool_], starts_T: NDArray[np.bool_], segment_T: Counts) -> None:
        """Stretches of targets and how many words they touch."""
        follows_T = np.zeros_like(target_T)
        follows_T[1:] = target_T[1:] & target_T[:-1] & (segment_T[1:] == segment_T[:-1])
        begins_T = target_T & ~follows_T
        stretch = np.cumsum(begins_T)[target_T] - 1
        words = np.bincount(stretch, (starts_T | begins_T)[target_T]).astype(np.int64)
        self.stretches += len(words)
        self.span_lengths += np.bincount(np.clip(words - 1, 0, MOST_SPAN - 1), minlength=MOST_SPAN)

    def result(self) -> Audit:
        sizes, targets = np.concatenate(self.sizes), np.concatenate(self.targets)
        sizes, targets = sizes[sizes > 0], targets[sizes > 0]
        expected = self.settings.prediction_rate or rate_at(self.settings.rate, 0.0)
        ratio = ratio_of_sums(targets, sizes, self.variance)
        inclusion = self.inclusion.result()
        pairs = None if self.pairs is None else self.pairs.result()
        shares = self.kinds / max(self.kinds.sum(), 1)
        return Audit(
            tokens=int(sizes.sum()),
            rows=len(sizes),
            expected_rate=expected,
            rate=ratio.rate,
            rate_stderr=ratio.stderr,
            shares=(float(shares[0]), float(shares[1]), float(shares[2])),
            special_targets=self.special_targets,
            special_replacements=self.special_replacements,
            changed_outside=self.changed_outside,
            rows_without_target=int((targets == 0).sum()),
            by_pieces=self.by_pieces,
            by_bytes=self.by_bytes,
            by_frequency=self.by_frequency,
            span_lengths=self.span_lengths,
            by_pos=self._named_pos(),
            pairs=pairs,
            inclusion=inclusion,
            split_units=self.split,
            tokens_a_draw=self.squares / max(int(sizes.sum()), 1),
            broken=(*self._broken(ratio, shares, pairs), *inclusion.broken()),
        )

    def _named_pos(self) -> dict[str, tuple[int, int]] | None:
        """Parts of speech that stand in the text, in the order of the labels; at last tokens without one."""
        if self.by_pos is None or self.pos_labels is None:
            return None
        counts = {NO_TAG: self.by_pos[0]} | dict(zip(self.pos_labels, self.by_pos[1:], strict=True))
        counts[NO_TAG] = counts.pop(NO_TAG)
        return {name: (int(tokens), int(chosen)) for name, (tokens, chosen) in counts.items() if tokens}

    def _broken(self, found: AuditRatio, shares: NDArray[np.float64], pairs: PairAudit | None) -> Iterable[str]:
        if self.inclusion.promised or not self.settings.least_one:
            tokens = max(int(np.concatenate(self.sizes).sum()), 1)
            # Where each document piece draws its rate, what these pieces drew.
            if found.differs_from(expected := self.expected / tokens):
                yield f"{found.rate:.2%} of the tokens are predicted, not {expected:.2%}"
            changed = ratio_of_sums(np.concatenate(self.changed), np.concatenate(self.sizes), self.variance_of_changes)
            if changed.differs_from(wanted := self.expected_changes / tokens):
                yield f"{changed.rate:.2%} of the tokens are changed, not {wanted:.2%}"
            if pairs is not None:
                yield from pairs.broken()
        draws = max(self.stretches, 1)  # the fewest independent draws that there may have been
        for name, share, wanted in zip(
            ("masks", "random tokens", "unchanged tokens"), shares, self.settings.replacement.shares, strict=True
        ):
            if abs(share - wanted) > SIGMAS * (wanted * (1.0 - wanted) / draws) ** 0.5 * 2.0 + 1e-9:
                yield f"{share:.2%} of the targets are {name}, not {wanted:.2%}"
        for number, what in (
            (self.special_targets, "special tokens are predicted"),
            (self.special_replacements, "special tokens stand for a target"),
            (self.changed_outside, "tokens are changed without being chosen, or have a wrong label"),
            (self.split, "units are predicted in part"),
        ):
            if number:
                yield f"{number:,} {what}"


def _count(table: Counts, group_T: Counts, maskable_T: NDArray[np.bool_], target_T: NDArray[np.bool_]) -> None:
    for column, chosen_T in enumerate((maskable_T, target_T)):
        table[:, column] += np.bincount(group_T[chosen_T], minlength=len(table))
