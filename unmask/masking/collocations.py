"""Collocations as units: words that stand together more often than chance makes them, from a lexicon.

Shape suffixes: T = all positions of a batch in a line; W = running numbers of words (padded to T).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.compiled import arrays, serves
from unmask.hashing import longer, mix, token_in_word
from unmask.masking.flat import FlatRows
from unmask.masking.hash_set import HashSet
from unmask.masking.kernels.units import collocation_starts
from unmask.masking.tables import Tables
from unmask.settings import Settings

MOST_WORDS = 5


class CollocationUnits(Settings):
    """The longest collocation that begins at a word is a unit, whatever is in none is a whole word.

    Going from left to right, each unit is the longest entry of the lexicon that begins where the last unit has ended. A
    collocation never leaves its segment, and no token that cannot be masked stands within.

    Attributes:
        lexicon: File that `unmask lexicon` has made; None lets `pretrain` make one of the training text. Read by those
            who make the masker: masking itself sees `Tables.collocations`.

    Source: Levine et al. 2021 (PMI-Masking), section 3. There and here, units are drawn uniformly. Here, a unit is
    replaced as a whole, so that no word of a collocation gives the others away.
    """

    replaced_per: ClassVar[Literal["token", "unit"]] = "unit"
    kind: Literal["collocations"] = "collocations"
    lexicon: str | None = None

    def starts(self, rows: FlatRows, tables: Tables) -> Tensor:
        """Where units begin.

        Raises:
            SettingsError: There is no lexicon.
        """
        collocations = tables.collocation_hashes("units of kind collocations")
        if serves(rows.maskable_T):
            batch = arrays(rows.input_ids_T, rows.maskable_T, rows.word_starts_T, rows.segment_begin_T)
            most_words = MOST_WORDS if collocations.size else 1
            return torch.from_numpy(collocation_starts(most_words, collocations.places_P.numpy(), *batch))
        words = _Words(rows)
        length_W = words.longest_matches(collocations)
        begins_W = _chain(length_W, words.first_W, rows.width)
        return words.begins_T & begins_W[words.number_T]


class _Words:
    """The words of a batch: numbered through, hashed, and told apart by what stands between them.

    number_T   number of the word that a token belongs to; that of the last word before, where it belongs to none
    begins_T   whether a word begins at the token
    hash_W     of each word's tokens
    run_W      words of the same number have nothing between them; -1 behind the last word
    first_W    whether the word is the first of its run
    """

    def __init__(self, rows: FlatRows) -> None:
        maskable_T = rows.maskable_T
        places_T = torch.arange(len(maskable_T), device=maskable_T.device)
        first_T = maskable_T & (~torch.roll(maskable_T, 1) | (rows.segment_begin_T == places_T))
        self.begins_T = (rows.word_starts_T & maskable_T) | first_T
        count_T = torch.cumsum(self.begins_T, 0)
        self.number_T = (count_T - 1).clamp(min=0)
        place_T = places_T - torch.cummax(torch.where(self.begins_T, places_T, 0), 0).values
        share_T = torch.where(maskable_T, token_in_word(rows.input_ids_T, place_T), 0)
        self.hash_W = torch.zeros_like(places_T).scatter_add_(0, self.number_T, share_T)
        # Written by every word at its own number, and by all other tokens at a place that is cut off.
        nowhere = len(places_T)
        own_T = torch.where(self.begins_T, self.number_T, nowhere)
        run_T = torch.cumsum(first_T, 0)
        self.run_W = torch.full((nowhere + 1,), -1, device=own_T.device).scatter_(0, own_T, run_T)[:-1]
        self.first_W = torch.ones_like(self.begins_T)
        self.first_W[1:] = self.run_W[1:] != self.run_W[:-1]

    def longest_matches(self, collocations: HashSet) -> Tensor:
        """Words of the longest collocation that begins at each word; 1 where none does. Returns: [W], int64."""
        hash_W, next_W, last_W = self.hash_W, mix(self.hash_W), self.run_W
        hashes, within = [], []
        for _ in range(2, MOST_WORDS + 1):
            next_W = pad(next_W[1:], (0, 1))
            last_W = pad(last_W[1:], (0, 1), value=-2)  # no run has this number
            hash_W = longer(hash_W, next_W)
            hashes.append(hash_W)
            within.append(last_W == self.run_W)
        length_W = torch.ones_like(self.hash_W)
        found = collocations.contains(torch.stack(hashes)) & torch.stack(within)
        for n, matches_W in enumerate(found, start=2):
            length_W = torch.where(matches_W, n, length_W)
        return length_W


def _chain(length_W: Tensor, first_W: Tensor, longest_run: int) -> Tensor:
    """Which words are reached from the first of each run in jumps of these lengths.

    After k rounds a jump is 2**k of the original ones, and all words within fewer jumps than that are reached:

        lengths    2 1 3 1 1 1        jumps from word 0: 0 -> 2 -> 5
        round 1    reached 0 2        jumps of two: 0 -> 5
        round 2    reached 0 2 5

    Jumps never leave a run but to the next one's first word, which is reached anyway.

    Returns:
        [W], bool.
    """
    nowhere = len(length_W)
    places_W = torch.arange(nowhere, device=length_W.device)
    target_W = pad((places_W + length_W).clamp(max=nowhere), (0, 1), value=nowhere)
    reached_W = pad(first_W, (0, 1))
    for _ in range(max(longest_run - 1, 1).bit_length()):
        # Only True is ever written, so it does not matter who writes last.
        reached_W = reached_W.scatter(0, torch.where(reached_W, target_W, nowhere), value=True)
        target_W = target_W[target_W]
    return reached_W[:-1]
