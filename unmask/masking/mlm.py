"""Masking with the interface of labml's annotated implementation of BERT's objective, without its mistakes.

It needs no tokenizer, only the number of ids and the special ones. It uses the same draw as `Masker`.

Shape suffixes: S = positions, B = columns of the batch, T = B x S in a line, column after column; V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.core.compiled import arrays
from unmask.core.errors import SettingsError
from unmask.core.hashing import mix, mix_ints
from unmask.data.rows import Rows
from unmask.masking.draw import draw_units, flatten, partition, pick, random_tokens, replace_tokens
from unmask.masking.draw_loops import positions_and_keys

_MASK, _REPLACE = 3, 4


class MLM:
    """Masks sequences in the columns of a tensor: `x, y = mlm(x)`.

    The interface is labml's. There, "random" and "unchanged" are sampled independently (81.0 / 10.0 / 9.1 instead of
    80 / 10 / 10), random tokens may be padding or the mask, and masks come from torch's random generator. Here one draw
    divides the chosen tokens, random tokens are ordinary and never the token itself, the share of chosen tokens is
    exact, and masks depend only on (seed, epoch, column, content of the column): `mlm(x, epoch=3)` returns the same
    whenever it is called. Without an epoch, calls are counted from 0; to resume, set `mlm.calls`. Each worker
    of a `DataLoader` counts its own calls. Unless `persistent_workers` is set, workers start from 0 in every epoch, so
    pass `epoch`, or the masks repeat.

    Args:
        padding_token: Id of padding. Labels have it wherever nothing is predicted, so the loss is
            `CrossEntropyLoss(ignore_index=padding_token)`.
        mask_token: Id of the mask.
        no_mask_tokens: Further ids that are never masked and never used as random tokens.
        n_tokens: Size of the vocabulary: all ids are below it.
        masking_prob: Expected share of each column's ordinary tokens to predict, in [0, 1].
        randomize_prob: Share of these to replace by a random token.
        no_change_prob: Share of these to leave unchanged; the others become the mask.
        seed: Masks with different seeds are independent.

    Raises:
        SettingsError: A share is outside [0, 1], an id is negative, or fewer than two ids are ordinary.

    Source: Devlin et al. 2018, section 3.1.
    """

    def __init__(
        self,
        padding_token: int = 0,
        mask_token: int = 1,
        no_mask_tokens: Sequence[int] = (),
        n_tokens: int = 67,
        masking_prob: float = 0.15,
        randomize_prob: float = 0.1,
        no_change_prob: float = 0.1,
        *,
        seed: int = 0,
    ) -> None:
        shares = {"masking_prob": masking_prob, "randomize_prob": randomize_prob, "no_change_prob": no_change_prob}
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise SettingsError(f"{name} must be between 0 and 1, not {share}")
        masked = 1.0 - randomize_prob - no_change_prob
        if masked < -1e-9:
            raise SettingsError(f"randomize_prob and no_change_prob must add up to at most 1, not {1.0 - masked:g}")
        specials = [padding_token, mask_token, *no_mask_tokens]
        if min(specials) < 0:
            raise SettingsError(f"token ids start at 0; {min(specials)} is not one")
        self.padding_token, self.mask_token, self.n_tokens = padding_token, mask_token, n_tokens
        self.masking_prob, self.seed, self.calls = masking_prob, seed, 0
        ordinary = np.arange(max(n_tokens, *specials) + 1) < n_tokens
        ordinary[specials] = False
        self._shares = (max(masked, 0.0), randomize_prob, no_change_prob)
        self._random_tokens = random_tokens(ordinary.astype(np.int64))
        known = ordinary.copy()
        known[specials] = True
        self._ordinary_V, self._known_V = torch.from_numpy(ordinary), torch.from_numpy(known)

    def __call__(self, x: Tensor, *, epoch: int | None = None) -> tuple[Tensor, Tensor]:
        """Masks a batch, without changing it.

        Args:
            x: [S, B], int64: one sequence per column.
            epoch: Masks of different epochs are independent; None counts the calls.

        Returns:
            The model's input and the labels, both [S, B], int64. Labels hold the original id at predicted tokens and
            `padding_token` elsewhere.

        Raises:
            SettingsError: The tensor has another shape or type, or an id is not below `n_tokens`.
        """
        if x.ndim != 2 or x.dtype != torch.int64:
            raise SettingsError(f"x must be an int64 tensor [seq_len, batch], not {x.dtype} of {tuple(x.shape)}")
        ids_BS = x.cpu().T.contiguous()
        last = len(self._known_V) - 1
        bad_BS = (ids_BS < 0) | (ids_BS > last) | ~self._known_V[ids_BS.clamp(0, last)]
        if bad_BS.any():
            bad = int(ids_BS[bad_BS][0])
            raise SettingsError(f"x holds the id {bad}, which is not below n_tokens={self.n_tokens} and not special")
        # Columns become rows of one segment each, with tokens as units; equal columns get different masks.
        columns_B1 = torch.arange(ids_BS.shape[0])[:, None]
        whole_BS = torch.ones_like(ids_BS, dtype=torch.bool)
        positions_BS, keys_BS = map(torch.from_numpy, positions_and_keys(*arrays(ids_BS, whole_BS)))
        rows = Rows(
            input_ids=ids_BS,
            segment_ids=torch.zeros_like(ids_BS, dtype=torch.int32),
            position_ids=positions_BS,
            word_starts=whole_BS,
            maskable=self._ordinary_V[ids_BS],
            segment_keys=mix(keys_BS + columns_B1),
        )
        if epoch is None:
            epoch, self.calls = self.calls, self.calls + 1
        flat = flatten(rows, mix_ints(self.seed, epoch, _MASK))
        units = partition(flat, flat.word_starts_T)
        chosen_T, _ = draw_units(flat, units, None, self.masking_prob)
        seen_T = replace_tokens(
            flat.input_ids_T,
            chosen_T,
            mix(flat.bits_T + mix_ints(_REPLACE)),
            unit_begin_T=units.begin_T,
            shares=self._shares,
            per_unit=False,
            mask_id=self.mask_token,
            tokens=self._random_tokens,
        )
        labels_T = pick(chosen_T, flat.input_ids_T, self.padding_token)
        seen_BS, labels_BS = seen_T.view(rows.shape), labels_T.view(rows.shape)
        return seen_BS.T.contiguous().to(x.device), labels_BS.T.contiguous().to(x.device)
