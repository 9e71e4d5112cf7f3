"""The realised masking on real data, before any training: rates, shares, and every promise checked.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.masking.engine import MaskedRows, Masker
from unmask.masking.schedule import rate_at
from unmask.packing.rows import Rows

SIGMAS = 4.5  # a promise is broken beyond so many standard errors: by chance about once in 150,000 audits
MOST_PIECES, MOST_BYTES, MOST_SPAN, MOST_DIGITS = 6, 16, 12, 7

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Audit:
    """What a masker did to some rows, at the beginning of a training.

    Attributes:
        tokens: Tokens of text.
        rows: Document pieces.
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
    broken: tuple[str, ...]


def audit(batches: Iterable[tuple[Rows, MaskedRows]], masker: Masker, frequencies: Counts) -> Audit:
    """Counts what a masker did.

    Args:
        batches: Rows on the CPU, and what the masker made of them at progress 0.
        masker: The masker.
        frequencies: [vocab_size]: of the training text.
    """
    tally = _Tally(masker, frequencies)
    for rows, masked in batches:
        tally.add(rows, masked)
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
        self.sizes: list[Counts] = []  # tokens and targets of each document piece
        self.targets: list[Counts] = []

    def add(self, rows: Rows, masked: MaskedRows) -> None:
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

        segment_T = _running(rows)
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
        rate = targets.sum() / max(sizes.sum(), 1)
        spread = float(np.sqrt(((targets - rate * sizes) ** 2).sum()))  # a ratio of sums; Cochran 1977, section 2.11
        stderr = spread / max(int(sizes.sum()), 1)
        shares = self.kinds / max(self.kinds.sum(), 1)
        return Audit(
            tokens=int(sizes.sum()),
            rows=len(sizes),
            expected_rate=expected,
            rate=float(rate),
            rate_stderr=stderr,
            shares=(float(shares[0]), float(shares[1]), float(shares[2])),
            special_targets=self.special_targets,
            special_replacements=self.special_replacements,
            changed_outside=self.changed_outside,
            rows_without_target=int((targets == 0).sum()),
            by_pieces=self.by_pieces,
            by_bytes=self.by_bytes,
            by_frequency=self.by_frequency,
            span_lengths=self.span_lengths,
            broken=tuple(self._broken(expected, float(rate), stderr, shares)),
        )

    def _broken(self, expected: float, rate: float, stderr: float, shares: NDArray[np.float64]) -> Iterable[str]:
        if not self.settings.least_one and abs(rate - expected) > SIGMAS * stderr + 1e-9:
            yield f"{rate:.2%} of the tokens are predicted, not {expected:.2%}"
        draws = max(self.stretches, 1)  # the fewest independent draws that there may have been
        for name, found, wanted in zip(
            ("masks", "random tokens", "unchanged tokens"), shares, self.settings.replacement.shares, strict=True
        ):
            if abs(found - wanted) > SIGMAS * (wanted * (1.0 - wanted) / draws) ** 0.5 * 2.0 + 1e-9:
                yield f"{found:.2%} of the targets are {name}, not {wanted:.2%}"
        for number, what in (
            (self.special_targets, "special tokens are predicted"),
            (self.special_replacements, "special tokens stand for a target"),
            (self.changed_outside, "tokens are changed without being chosen, or have a wrong label"),
        ):
            if number:
                yield f"{number:,} {what}"


def _running(rows: Rows) -> Counts:
    """[T]: a number for each segment of a batch."""
    segment_BS = rows.segment_ids.numpy()
    begins_BS = np.ones(segment_BS.shape, dtype=bool)
    begins_BS[:, 1:] = segment_BS[:, 1:] != segment_BS[:, :-1]
    return np.cumsum(begins_BS.ravel()) - 1


def _count(table: Counts, group_T: Counts, maskable_T: NDArray[np.bool_], target_T: NDArray[np.bool_]) -> None:
    for column, chosen_T in enumerate((maskable_T, target_T)):
        table[:, column] += np.bincount(group_T[chosen_T], minlength=len(table))
