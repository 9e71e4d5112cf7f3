"""What is put in the place of the tokens that are chosen.

Arrays: T = all positions of a batch in a line; V = vocabulary.
"""

from __future__ import annotations

import numpy as np

from unmask.compiled import compiled
from unmask.hashing import RANDOM_TOKEN, SHOWN
from unmask.masking.kernels.hashing import drawn, mix
from unmask.masking.kernels.rows import Bools, Ints


@compiled
def replaced(
    mask_id: int,
    mask_end: int,
    random_end: int,
    random_tokens: tuple[Ints, Ints, Ints],
    ids_T: Ints,
    chosen_T: Bools,
    bits_T: Ints,
    draw_place_T: Ints,
) -> Ints:
    """Ids with masks and random tokens in the place of those chosen: [T].

    Args:
        mask_id: Id of the mask.
        mask_end, random_end: Draws below show the mask, those from there to the other a random token; of 2**31.
        random_tokens: [V]: how often each id is drawn, the running sum, and the ids that are drawn where all are
            equally likely; else nothing.
        ids_T, chosen_T: The batch.
        bits_T: A number for each token, whose hash draws what is put there.
        draw_place_T: Whose hash draws whether that is the mask: each token's own place, or that of its unit.
    """
    counts_V, ends_V, listed = random_tokens
    seen_T = ids_T.copy()
    for place in range(len(ids_T)):
        if not chosen_T[place]:
            continue
        own_bits = mix(bits_T[place])
        whose = draw_place_T[place]
        draw = drawn(own_bits if whose == place else mix(bits_T[whose]), SHOWN)
        if draw < mask_end:
            seen_T[place] = mask_id
        elif draw < random_end:
            own, end = counts_V[ids_T[place]], ends_V[ids_T[place]]
            nth = (drawn(own_bits, RANDOM_TOKEN) * (ends_V[-1] - own)) >> RANDOM_TOKEN.size
            nth += own * (nth >= end - own)
            if len(listed):
                seen_T[place] = listed[nth]
            else:
                seen_T[place] = np.searchsorted(ends_V, nth, side="right")
    return seen_T
