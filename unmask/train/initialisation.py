"""Initialisation from the corpus: token embeddings, and attention that starts local.

Embeddings factorise the table of which tokens occur near which:

    counts [V, C]     1 / distance, summed over the neighbours within a window; C are the most frequent tokens
    PPMI [V, C]       log of how much more often two tokens meet than by chance; 0 if less often, or never
    directions [V, K] the leading singular vectors, each times the root of its singular value
    rows [V, D]       long ones shortened, rotated at random, scaled to one standard deviation

A model initialised like this knows from its first step which words are alike, and leaves the plateau of word
frequencies in half the steps. New words of an existing model start from the words that they are like.

Source: Levy et al. 2015 (Improving distributional similarity with lessons learned from word embeddings): the window's
weights, positive PMI with smoothed contexts, the roots of singular values. Halko et al. 2011 (Finding structure with
randomness), algorithm 4.4: the randomised factorisation. Kim et al. 2024 (arXiv 2407.12514): pretrained vectors help a
masked language model if their spread is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.core.compiled import compiled
from unmask.core.hashing import mix_ints
from unmask.data.store import TokenChunk, TokenStore
from unmask.model.encoder import MaskedLM
from unmask.model.layers import Attention

WINDOW = 5  # tokens on either side
MOST_TOKENS = 1 << 24  # tokens that are counted; of a larger corpus, chunks spread over it
MOST_COUNTS = 1 << 26  # size of the table of counts
CONTEXTS = 2048  # the most frequent tokens
SMOOTHING = 0.75  # power of the contexts' frequencies
STD = 0.05  # root mean square of all rows
_LONGEST = 2.0  # longest row, as a multiple of the median length
COMMON = 0.5  # share of an embedding's length along the directions by which heads see positions
SCORE = 12.0  # initial attention score of a position with itself
_LOWEST_FREQUENCY = 0.01  # of learned positions: all are above it, and the highest is 1
_LEAST_HEAD = 8  # smallest head size: smaller heads have too few frequencies for scores to fall with the distance
_NEARBY = 29  # gives these draws another seed than `initialise`
_ROUNDING = 1e-5  # share of the first singular value, or of the largest square, below which values are noise
_FREQUENT = 50  # fewest occurrences of an old token in the corpus, for new words to start from it
_NEAREST, _TEMPERATURE = 10, 0.1
_MORE, _ROUNDS = 16, 2  # directions computed beyond those used, and passes over the table


@compiled
def count_neighbours(
    ids: NDArray[np.generic], lengths: NDArray[np.int64], column: NDArray[np.int32], counts: NDArray[np.float32]
) -> None:
    """Adds 1 / distance to counts [V, C] for each two tokens of a piece within the window. ids and lengths are a
    `TokenChunk`'s; column [V] is each token's index among the contexts, or -1."""
    begin = 0
    for length in lengths:
        end = begin + length
        for i in range(begin, end):
            row = counts[ids[i]]
            for j in range(max(begin, i - WINDOW), min(end, i + WINDOW + 1)):
                c = column[ids[j]]
                if j != i and c >= 0:
                    row[c] += np.float32(1.0) / np.float32(abs(i - j))
        begin = end


def corpus_embeddings(
    chunks: Iterable[TokenChunk], frequencies: NDArray[np.int64], *, size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The ids of tokens that have neighbours in a corpus, [N], and their embeddings, float32 [N, D].

    The corpus has no special tokens; frequencies [V] are those of its tokens; the seed determines the rotation.
    """
    num_contexts = min(CONTEXTS, max(1, MOST_COUNTS // len(frequencies)), np.count_nonzero(frequencies))
    contexts = np.argsort(-frequencies, kind="stable")[:num_contexts]
    column = np.full(len(frequencies), -1, dtype=np.int32)
    column[contexts] = np.arange(len(contexts), dtype=np.int32)
    counts: NDArray[np.float32] = np.zeros((len(frequencies), len(contexts)), dtype=np.float32)
    every = -(-int(frequencies.sum()) // MOST_TOKENS)  # n-th chunk is counted
    for number, chunk in enumerate(chunks):
        if number % every == 0:
            count_neighbours(chunk.input_ids, chunk.lengths, column, counts)

    # In float64, so that embeddings do not depend on the number of threads or the processor.
    table = torch.from_numpy(counts).double()
    del counts
    by_row, by_context = table.sum(1, keepdim=True), table.sum(0)
    chance = by_context.pow(SMOOTHING)
    chance /= chance.sum().clamp(min=1e-9)
    table.div_(by_row.clamp(min=1e-9)).div_(chance.clamp(min=1e-9)).clamp_(min=1.0).log_()
    token_ids = torch.nonzero(table.amax(1))[:, 0]
    if not len(token_ids):  # every piece has one token, or the same token throughout
        return token_ids, torch.zeros(0, size)
    directions = _leading_directions(table, min(size, len(contexts)), seed)

    rows = directions[token_ids]
    lengths = rows.norm(dim=1, keepdim=True)
    rows *= (_LONGEST * lengths.median() / lengths.clamp(min=1e-9)).clamp(max=1.0)
    # A rotation spreads the first directions, which are large, over all dimensions.
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=table.dtype)).Q
    rows = rows @ rotation[: rows.shape[1]]
    return token_ids, (rows * (STD / rows.square().mean().sqrt())).float()


def _leading_directions(table: Tensor, num_directions: int, seed: int) -> Tensor:
    """The leading left singular vectors of a table [V, C], each times the root of its singular value: [V, K]."""
    generator = torch.Generator().manual_seed(seed)
    size = min(num_directions + _MORE, table.shape[1])
    basis = torch.randn(table.shape[1], size, generator=generator, dtype=table.dtype)
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(table @ basis).Q
        basis = torch.linalg.qr(table.T @ basis).Q
    left, values, _ = torch.linalg.svd(table @ basis, full_matrices=False)
    # Signs are arbitrary: make the larger side positive, so that rounding does not decide them.
    left *= torch.where(left.amax(0) < -left.amin(0), -1.0, 1.0)
    values[values < _ROUNDING * values[0]] = 0.0  # their roots would be noise large enough to matter
    return left[:, :num_directions] * values[:num_directions].sqrt()


@torch.no_grad()
def words_from_corpus(
    model: MaskedLM, store: TokenStore, frequencies: NDArray[np.int64], new_ids: Sequence[int], *, seed: int
) -> None:
    """Sets the embeddings and biases of new tokens to means over old ones with similar neighbours in a corpus.

    A new token takes the ten nearest of the old tokens that are frequent in the corpus, by the cosine of their
    `corpus_embeddings`, weighted by the softmax of these cosines. A token without neighbours, or in a corpus without
    frequent old tokens, is left unchanged.

    Source: Dobler and de Melo 2023 (FOCUS: effective embedding initialization for monolingual specialization of
    multilingual models), section 3, whose similarities are fastText's and whose weights are a sparsemax over all.
    """
    chunks, size = store.chunks(), model.config.hidden_size
    token_ids, rows = corpus_embeddings(chunks, frequencies, size=size, seed=seed)
    is_new = torch.isin(token_ids, torch.tensor(new_ids))
    is_old = ~is_new & (torch.from_numpy(frequencies)[token_ids] >= _FREQUENT)
    if not is_old.any():
        return
    units = functional.normalize(rows - rows.mean(0), dim=1)  # centred, since the common part distinguishes nothing
    similarity = units[is_new] @ units[is_old].T
    nearest = similarity.topk(min(_NEAREST, similarity.shape[1]), dim=1)
    weights, near_ids = torch.softmax(nearest.values / _TEMPERATURE, dim=1), token_ids[is_old][nearest.indices]
    tokens, bias = model.encoder.tokens, model.head.bias
    tokens[token_ids[is_new]] = (weights[:, :, None] * tokens[near_ids]).sum(1)
    bias[token_ids[is_new]] = (weights * bias[near_ids]).sum(1)


@torch.no_grad()
def begin_from_corpus(model: MaskedLM, store: TokenStore, frequencies: NDArray[np.int64], *, seed: int) -> None:
    """Replaces the embeddings of a model's tokens by those of a corpus; tokens without neighbours keep theirs. Then
    heads that are not too small start by attending nearby.

    A small vocabulary, or a text with few patterns, does not fill all directions. In the empty ones the drawn
    embeddings stay, and distinguish tokens with the same neighbours.
    """
    chunks, size = store.chunks(), model.config.hidden_size
    token_ids, rows = corpus_embeddings(chunks, frequencies, size=size, seed=seed)
    squares, directions = torch.linalg.eigh(rows.T @ rows)
    empty = directions[:, squares <= _ROUNDING * squares.max()]
    model.encoder.tokens[token_ids] = rows + model.encoder.tokens[token_ids] @ empty @ empty.T
    if size // model.config.num_heads >= _LEAST_HEAD:
        attend_nearby(model, seed=seed)


@torch.no_grad()
def attend_nearby(model: MaskedLM, *, seed: int) -> None:
    """Makes every head of a model start by attending to near positions, whatever their tokens.

    Query and key matrices get an equal part that sees positions only. The score of two positions is then

        SCORE / P x the sum of cos(distance x frequency) over P frequencies

    which is largest at distance 0. [CLS] and [SEP] (with learned positions only [CLS]) attend to the whole text.

    Source: ours. Trockman and Kolter 2023 (Mimetic initialization of self-attention layers) make heads begin near
    what they become, by products of weights.
    """
    config = model.config
    generator = torch.Generator().manual_seed(mix_ints(seed, _NEARBY))  # `initialise` draws by the seed itself
    make = _rotated_direction if config.rotary is not None else _sinusoids
    query_KJ, directions_JD = make(model, generator, SCORE * math.sqrt(config.hidden_size // config.num_heads))
    part_KD = query_KJ @ (directions_JD / (COMMON * math.sqrt(config.hidden_size)))  # norms scale to sqrt(hidden_size)
    for attention in model.encoder.modules():
        if isinstance(attention, Attention):
            attention.qkv.weight.view(3, config.num_heads, *part_KD.shape)[:2].add_(part_KD)


def _rotated_direction(model: MaskedLM, generator: torch.Generator, product: float) -> tuple[Tensor, Tensor]:
    """Gives all tokens but [CLS] and [SEP] a common direction, as a share of their length. Returns the vector [K, 1]
    that query and key matrices map it to, which rotary positions turn, and the direction [1, D]. `product` is the
    vector's with itself.

    Norms keep the direction, so it reaches every layer. The frequencies are the P highest. The decoder is tied to the
    embeddings, so the direction also adds a number to logits; between tokens it differs only as much as the lengths of
    their embeddings do.
    """
    config, encoder = model.config, model.encoder
    width, head_dim = config.hidden_size, config.hidden_size // config.num_heads
    common = torch.randn(width, generator=generator)
    common = functional.normalize(common - common.mean(), dim=0)
    lengths = encoder.tokens.norm(dim=1, keepdim=True)
    others = functional.normalize(encoder.tokens - (encoder.tokens @ common)[:, None] * common, dim=1)
    with_it = lengths * (math.sqrt(1.0 - COMMON**2) * others + COMMON * common)
    around = [id_ for id_ in (config.cls_id, config.sep_id) if id_ is not None]
    with_it[around] = encoder.tokens[around]
    encoder.tokens.copy_(with_it)

    pairs = max(1, head_dim // 4)  # a head's first half is paired with its second
    query = torch.zeros(head_dim)
    query[:pairs] = math.sqrt(product / pairs)
    return query[:, None], common[None]


def _sinusoids(model: MaskedLM, generator: torch.Generator, product: float) -> tuple[Tensor, Tensor]:
    """Makes learned positions, but for that of [CLS], sinusoids along J = 2P directions, which tokens and their types
    leave to them. Returns the vectors [K, J] that query and key matrices map the directions to, and these [J, D].
    `product` is that of each vector with itself.

    Beside a token of the usual length, a position's share of the sum is `COMMON`.

    Source of sinusoids: Vaswani et al. 2017 (Attention is all you need), section 3.5; the wavelengths are shorter.
    """
    config, encoder = model.config, model.encoder
    assert encoder.positions is not None
    width, head_dim = config.hidden_size, config.hidden_size // config.num_heads
    pairs = min(max(4, head_dim // 8), width // 4)  # with fewer, scores rise again at a small distance
    drawn = torch.randn(width, 2 * pairs, generator=generator)
    directions_DP = torch.linalg.qr(drawn - drawn.mean(0)).Q
    for table in (encoder.tokens, encoder.token_types):
        if table is not None:
            table.sub_(table @ directions_DP @ directions_DP.T)
    begin = 0 if config.cls_id is None else 1
    places = torch.arange(begin, config.max_position_embeddings)
    angles = places[:, None] * _LOWEST_FREQUENCY ** (torch.arange(pairs) / pairs)
    waves = torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(pairs)
    length = COMMON / math.sqrt(1.0 - COMMON**2) * encoder.tokens.norm(dim=1).median()
    encoder.positions[config.first_position + begin :] = length * waves @ directions_DP.T
    return math.sqrt(product) * torch.eye(head_dim, 2 * pairs), directions_DP.T
