"""Inputs on which two forms of a model are compared: the same ones every time, of the model's own vocabulary.

Shape suffixes: B = texts, S = positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.model.config import EncoderConfig
from unmask.tokens.tokenizer import Tokenizer

LONGEST = 192  # positions: more than the usual local window of 128 reaches
MASK_EVERY = 6  # positions: a sixth is hidden, as in training


@dataclass(frozen=True)
class Probe:
    """Three texts of different lengths, one behind another and each alone.

    Attributes:
        texts: Ids of each text, int64 [S].
    """

    texts: tuple[Tensor, ...]

    @property
    def packed(self) -> dict[str, Tensor]:
        """All texts in one row, as the encoder's arguments."""
        numbers = [torch.full_like(ids, number) for number, ids in enumerate(self.texts)]
        places = [torch.arange(len(ids)) for ids in self.texts]
        return {
            "input_ids_BS": torch.cat(self.texts)[None],
            "segment_ids_BS": torch.cat(numbers)[None],
            "position_ids_BS": torch.cat(places)[None],
        }

    def padded(self, pad_id: int) -> dict[str, Tensor]:
        """A row for each text, filled up to the longest: `input_ids`, `attention_mask`, `token_type_ids`.

        The types alternate in the second half of each text, so that a model which has types is seen to use them.
        """
        length = max(len(ids) for ids in self.texts)
        rows = {name: torch.zeros(len(self.texts), length, dtype=torch.int64) for name in _INPUTS}
        rows["input_ids"] += pad_id
        for row, ids in enumerate(self.texts):
            rows["input_ids"][row, : len(ids)] = ids
            rows["attention_mask"][row, : len(ids)] = 1
            rows["token_type_ids"][row, len(ids) // 2 : len(ids)] = 1
        return rows


_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make_probe(config: EncoderConfig, tokenizer: Tokenizer) -> Probe:
    """Texts of random tokens, of 1/2, 1/3 and the rest of the longest row that is looked at; a sixth of them is masked.

    The masks matter. Without them a trained model stands outside of what it knows, and its attention may be so sharp
    that rounding in float32 alone changes logits by hundredths (measured on a model of ten minutes' training: 0.05
    between transformers and us without masks, 0.00005 with them). A difference would then say nothing.

    Args:
        config: Says how long inputs may be, and which ids there are.
        tokenizer: Says which ids text consists of.
    """
    length = min(config.max_position_embeddings, LONGEST)
    lengths = (length // 2, length // 3, length - length // 2 - length // 3)
    ids = np.flatnonzero(tokenizer.ordinary)
    ids = ids[ids < config.vocab_size]
    drawn = torch.randint(len(ids), (length,), generator=torch.Generator().manual_seed(0))
    tokens = torch.from_numpy(ids)[drawn]
    tokens[MASK_EVERY // 2 :: MASK_EVERY] = tokenizer.special.mask
    return Probe(tokens.split(lengths))
