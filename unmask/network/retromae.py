"""The decoder of RetroMAE: rebuilds texts from their vectors. It is for training; no model's folder holds it.

Each token is predicted from the text's vector, its place, and what the place sees of the other tokens: a random set of
them, its own. The vector goes where the text's first token stands, so that rows stay as long as they are:

    text           [CLS]    the     cat     sat    [SEP]
    queries         v+p0    v+p1    v+p2    v+p3    v+p4     what a place asks with: the vector, and where it is
    keys, values     v     the+p1  cat+p2  sat+p3  [SEP]+p4

    "the" sees       v       -      cat      -       -       the vector always, its own token never,
    "cat" sees       v       -       -      sat    [SEP]     others by chance, and nothing of other texts
    "sat" sees       v      the     cat      -       -

There is one layer, so that what is seen has seen nothing itself.

Source: Xiao et al. 2022 (RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder), section
3.3, "enhanced decoding". As there, texts are whole in the decoder, whatever is hidden from the encoder, and the vector
stands without a position among keys. Here tokens are seen one by one; the released code draws whole words, and up to
256 sets for a text that its places share.

Shape suffixes: B = rows, S = positions, E = texts, N = predicted positions, D = hidden size, H = heads, K = size of a
head, V = vocabulary; b, q = rows and queries of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.hashing import GOLDEN, SEEN, mix
from unmask.network.config import EncoderConfig
from unmask.network.layers import GatedMLP, Linear, Norm, PlainMLP

_PAIRS, _GPU_PAIRS = 1 << 20, 1 << 25  # of a tile: a hash takes 8 and 256 MB for each of its steps


@dataclass(frozen=True)
class DecodedRows:
    """What the decoder knows of packed rows.

    Attributes:
        input_ids_BS: int64: the tokens, none of them hidden.
        text_BS: int64: which text each is of, counted from 0 over all rows; at padding the number of texts.
        place_BS: int64: where in its text each stands, from 0; 0 at padding.
        bits_BS: int64: random bits of each position, by which it sees others.
    """

    input_ids_BS: Tensor
    text_BS: Tensor
    place_BS: Tensor
    bits_BS: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> DecodedRows:
        """The same with a change made to each tensor."""
        return DecodedRows(change(self.input_ids_BS), change(self.text_BS), change(self.place_BS), change(self.bits_BS))

    def part(self, rows: slice) -> DecodedRows:
        """Some rows, without a copy."""
        return self.map(lambda tensor: tensor[rows])

    def seen(self, queries: slice, *, rate: float) -> Tensor:
        """What some places see of their rows: bool [B, q, S].

        Padding sees the padding of its row, so that no place sees nothing.

        Args:
            queries: Which places.
            rate: Share of the tokens that is hidden from each, in [0, 1].
        """
        text_BS1, place_BS1, bits_BS1 = (each[:, queries, None] for each in (self.text_BS, self.place_BS, self.bits_BS))
        text_B1S, place_B1S = self.text_BS[:, None], self.place_BS[:, None]
        by_chance_BqS = SEEN.of(mix(bits_BS1 + place_B1S * GOLDEN)) >= round(rate * 2**SEEN.size)
        return (text_BS1 == text_B1S) & ((place_B1S == 0) | (by_chance_BqS & (place_BS1 != place_B1S)))


class RetroMAEHead(nn.Module):
    """Vectors of texts, and what each place sees, to what the prediction head makes logits of.

    A layer like one of the encoder (its MLP, heads and biases), with norms behind what it adds, as BERT has them. It
    has positions of its own: some layouts have no table of them, and the encoder's are not to bend to the decoder.
    Nothing is dropped in it.

    Args:
        config: Of the encoder.

    Source: see the module.
    """

    name: ClassVar[str] = "retromae_head"
    stored: ClassVar[Mapping[str, Mapping[str, tuple[str, ...]]]] = {}

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, eps, bias = config.hidden_size, config.norm_eps, config.parts.bias
        self.num_heads = config.num_heads
        self.places = nn.Parameter(torch.empty(config.max_position_embeddings, hidden))
        self.vector_norm = Norm(hidden, eps=eps, bias=bias)
        self.token_norm = Norm(hidden, eps=eps, bias=bias)
        self.query = Linear(hidden, hidden, bias=bias)
        self.key_value = Linear(hidden, 2 * hidden, bias=bias, num_fused=2)
        self.out = Linear(hidden, hidden, bias=bias)
        self.attention_norm = Norm(hidden, eps=eps, bias=bias)
        mlp = GatedMLP if config.parts.gated else PlainMLP
        self.mlp = mlp(hidden, config.intermediate_size, config.activation, bias=bias)
        self.norm = Norm(hidden, eps=eps, bias=bias)

    def forward(
        self, vectors_ED: Tensor, tokens_VD: Tensor, rows: DecodedRows, positions_N: Tensor, *, rate: float
    ) -> Tensor:
        """Representations [N, D] of the tokens at some positions. Only attention is computed for all of a row.

        Args:
            vectors_ED: Of the texts, in the compute type.
            tokens_VD: The embedding matrix.
            rows: The texts.
            positions_N: int64: places in the flattened rows (row x S + position).
            rate: As for `DecodedRows.seen`.
        """
        dtype = vectors_ED.dtype
        vectors_ED = functional.pad(self.vector_norm(vectors_ED), (0, 0, 0, 1))  # and one of padding
        vector_BSD = functional.embedding(rows.text_BS, vectors_ED)
        place_BSD = functional.embedding(rows.place_BS, self.places)
        token_BSD = self.token_norm((functional.embedding(rows.input_ids_BS, tokens_VD) + place_BSD).to(dtype))
        asked_BSD = vector_BSD + place_BSD.to(dtype)
        told_BSD = torch.where(rows.place_BS[..., None] == 0, vector_BSD, token_BSD)
        query_BSD, (key_BSD, value_BSD) = self.query(asked_BSD), self.key_value(told_BSD).chunk(2, -1)
        mixed_BSD = self._attend(query_BSD, key_BSD, value_BSD, rows, rate)
        asked_ND, mixed_ND = (each.flatten(0, 1).index_select(0, positions_N) for each in (asked_BSD, mixed_BSD))
        _, x_ND = self.attention_norm.of_sum(asked_ND, self.out(mixed_ND))
        return self.norm.of_sum(x_ND, self.mlp(x_ND))[1]

    def _attend(self, query_BSD: Tensor, key_BSD: Tensor, value_BSD: Tensor, rows: DecodedRows, rate: float) -> Tensor:
        """[B, S, D], tile by tile. What is seen is not kept, but drawn again in the backward pass."""
        num_rows, length, _ = query_BSD.shape
        if not num_rows:
            return query_BSD + key_BSD + value_BSD  # nothing, of which all have a gradient
        most = _PAIRS if query_BSD.device.type == "cpu" else _GPU_PAIRS
        num_queries = min(length, max(1, most // length))
        num = max(1, most // (length * num_queries))
        heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (query_BSD, key_BSD, value_BSD)]
        found = []
        for begin in range(0, num_rows, num):
            part = slice(begin, begin + num)
            query_bHSK, key_bHSK, value_bHSK = (each[part] for each in heads)
            tiles = [
                checkpoint(
                    _attend_tile,
                    query_bHSK[:, :, queries],
                    key_bHSK,
                    value_bHSK,
                    rows.part(part),
                    queries,
                    rate,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                for queries in (slice(at, at + num_queries) for at in range(0, length, num_queries))
            ]
            found.append(torch.cat(tiles, 2).transpose(1, 2).flatten(2))
        return torch.cat(found)


def _attend_tile(
    query_bHqK: Tensor, key_bHSK: Tensor, value_bHSK: Tensor, rows: DecodedRows, queries: slice, rate: float
) -> Tensor:
    """[b, H, q, K]."""
    seen_b1qS = rows.seen(queries, rate=rate)[:, None]
    return functional.scaled_dot_product_attention(query_bHqK, key_bHSK, value_bHSK, attn_mask=seen_b1qS)
