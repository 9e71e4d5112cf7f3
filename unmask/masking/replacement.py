"""Replacement: what stands at a chosen token. One draw partitions the chosen tokens into mask, random and keep.

Random replacements come from ordinary tokens only, never special ones and never the token itself.

Shape suffixes: T = all positions of a batch in a line.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.errors import SettingsError
from unmask.core.hashing import SHOWN
from unmask.core.settings import Settings
from unmask.masking.draw import pick
from unmask.masking.draw_loops import replaced

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Replacement(Settings):
    """Shares of the chosen tokens and where random ones come from.

    Attributes:
        shares: Of tokens shown as `[MASK]`, as a random token, and unchanged; they add up to 1.
        random_from: `uniform` over the ordinary tokens, or `unigram`: by how often they stand in the corpus.
        per: Whether the draw is made for each `token` or once for each `unit`; None does what the paper of the
            units does: once for a span (SpanBERT), for each token elsewhere (BERT).

    Source: Devlin et al. 2018, section 3.1 (80/10/10); Wettig et al. 2023 find that masks alone do as well.
    """

    shares: tuple[Share, Share, Share] = (0.8, 0.1, 0.1)
    random_from: Literal["uniform", "unigram"] = "uniform"
    per: Literal["token", "unit"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Replacement:
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"the shares of mask, random and keep must add up to 1, not {sum(self.shares):g}")
        return self


class RandomTokens:
    """Draws ordinary tokens by cumulative counts; uniform is the case of equal counts.

    Args:
        counts: [vocab_size], int64: relative frequency of each id; 0 is never drawn.

    Raises:
        SettingsError: Fewer than two ids can be drawn, so that none could differ from the original.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        if np.count_nonzero(counts) < 2:
            raise SettingsError("random replacement needs at least two ordinary tokens in the vocabulary")
        # Of equal counts, the place in the cumulative counts is a place in the list of the ids.
        listed = np.flatnonzero(counts) if counts.max() == 1 else np.zeros(0, dtype=np.int64)
        self.tables = counts, np.cumsum(counts), listed


def unigram_counts(ordinary: NDArray[np.bool_], frequencies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Corpus counts of ordinary tokens, scaled down where their sum would not fit 31 bits."""
    counts = np.where(ordinary, frequencies, 0)
    scale = max(1.0, counts.sum() / 2**30)
    return np.where(counts > 0, np.maximum(counts / scale, 1.0), 0.0).astype(np.int64)


def replace_tokens(
    input_ids_T: Tensor,
    chosen_T: Tensor,
    bits_T: Tensor,
    *,
    unit_begin_T: Tensor,
    settings: Replacement,
    per_unit: bool | Tensor,
    mask_id: int,
    random_tokens: RandomTokens,
) -> Tensor:
    """Puts masks and random tokens at the chosen places.

    Args:
        input_ids_T: int64; it is not changed.
        chosen_T: bool.
        bits_T: int64: a number for each token, by whose hash it is drawn.
        unit_begin_T: Place at which a token's unit begins.
        settings: Shares and sources.
        per_unit: Whether one draw serves a whole unit; or [T], bool: where it does.
        mask_id: Id of `[MASK]`.
        random_tokens: Gives the random tokens.

    Returns:
        [T], int64: the ids that the model sees.
    """
    own_T = torch.arange(len(bits_T))
    if isinstance(per_unit, Tensor):
        draw_place_T = pick(per_unit, unit_begin_T, own_T)
    else:
        draw_place_T = unit_begin_T if per_unit else own_T
    mask_end, random_end = (round(sum(settings.shares[:n]) * 2**SHOWN.size) for n in (1, 2))
    batch = arrays(input_ids_T, chosen_T, bits_T, draw_place_T)
    return torch.from_numpy(replaced(mask_id, mask_end, random_end, random_tokens.tables, *batch))
