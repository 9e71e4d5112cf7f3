"""Which tokens a word of several begins with, and which go on with it, for any family of tokenizers.

    WordPiece                        king, mount      ##ain
    byte-level BPE                   Ġking, Ġmount    ain
        without a space before it    king, mount      ain
    characters                       any letter       any letter

Shape suffixes: A = ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.inference.spellings import Spellings, marks_spaces
from unmask.tokens.characters import Kind, edge_kinds
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class WordPieces:
    """Ids by the place that they may have in a word; all int64.

    Attributes:
        whole_A: A word may begin with them.
        opening_A: Those among them behind which a word may go on.
        further_A: They go on with a word.
    """

    whole_A: Tensor
    opening_A: Tensor
    further_A: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Spellings[WordPieces]:
        """Asks the tokenizer's word starts what they say behind a letter, and before one."""
        ids = np.flatnonzero(tokenizer.ordinary)
        letter = _letter(tokenizer, ids)
        if letter is None:
            whole = cls(torch.from_numpy(ids), torch.from_numpy(ids[:0]), torch.from_numpy(ids[:0]))
            return Spellings(whole, whole)
        goes_on = ~tokenizer.starts(np.stack([np.full_like(ids, letter), ids], axis=1))[:, 1]
        opens = np.ones_like(goes_on)
        if (further := _letter(tokenizer, ids[goes_on])) is not None:
            opens = ~tokenizer.starts(np.stack([ids, np.full_like(ids, further)], axis=1))[:, 1]

        def beginning(begins: NDArray[np.bool_]) -> WordPieces:
            return cls(*(torch.from_numpy(ids[chosen]) for chosen in (begins, begins & opens, goes_on)))

        spaced = beginning(np.ones_like(goes_on) if _spells_spaces(tokenizer) else ~goes_on)
        if not marks_spaces(tokenizer):
            return Spellings(spaced, spaced)
        return Spellings(spaced, beginning(np.array([not tokenizer.space_before(id_) for id_ in ids.tolist()])))


def _letter(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> int | None:
    """The first of some ids whose text begins and ends with a letter, of any script that has words of several."""
    letters = (Kind.LETTER, Kind.LETTER)
    texts = ((id_, tokenizer.text(id_)) for id_ in ids.tolist())
    return next((id_ for id_, text in texts if text and edge_kinds(text) == letters), None)


def _spells_spaces(tokenizer: Tokenizer) -> bool:
    """Whether spaces are tokens of their own, so that nothing marks where a word begins."""
    return tokenizer.word_starts.spelling.family == "plain"
