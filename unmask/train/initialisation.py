"""What begins otherwise than at random: token embeddings from the corpus, and attention near each place.

Embeddings are which tokens stand near which, factorised:

    counts [V, C]     1 / distance, summed over the neighbours within a window; C are the most frequent tokens
    PPMI [V, C]       log of how much more often two tokens meet than by chance; 0 where less often, or never
    directions [V, K] the leading singular vectors, each times the root of its singular value
    rows [V, D]       long ones cut, rotated at random, scaled to one standard deviation

A model that begins so knows from its first step which words are alike, and leaves the plateau of word frequencies in
half the steps. Words that a model is given later begin as what they are like.

Source: Levy et al. 2015 (Improving distributional similarity with lessons learned from word embeddings): the window's
weights, positive PMI with smoothed contexts, the roots of singular values. Halko et al. 2011 (Finding structure with
randomness), algorithm 4.4: how they are computed. That pretrained vectors help a masked language model where their
spread is right: Kim et al. 2024 (arXiv 2407.12514).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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

WINDOW = 5  # tokens to either side
MOST_TOKENS = 1 << 24  # that are counted: of a larger corpus, chunks spread over it
MOST_COUNTS = 1 << 26  # numbers of the table
CONTEXTS = 2048  # the most frequent tokens
SMOOTHING = 0.75  # power of the contexts' frequencies
STD = 0.05  # of all numbers together: the root of their mean square
_LONGEST = 2.0  # row, in medians
COMMON = 0.5  # of the length of a token's embedding is a direction that all have but [CLS] and [SEP]
SCORE = 12.0  # of a place with itself, at the beginning
_LEAST_HEAD = 8  # numbers; with fewer, frequencies are too few for scores to fall with the distance
_NEARBY = 29  # sets these draws apart
_ROUNDING = 1e-5  # of the first singular value, or of the largest square
_FREQUENT = 50  # times that an old token stands in the corpus at least, for new words to be like it
_NEAREST, _TEMPERATURE = 10, 0.1
_MORE, _ROUNDS = 16, 2  # directions beyond those that are used, and passes over the table


@compiled
def count_neighbours(
    ids: NDArray[np.generic], lengths: NDArray[np.int64], column: NDArray[np.int32], counts: NDArray[np.float32]
) -> None:
    """Adds 1 / distance to counts [V, C] for each two tokens of a piece within the window. ids and lengths are a
    `TokenChunk`'s; column [V] is the number of each token as a context, -1 for none."""
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
    """The ids of the tokens that have neighbours in a corpus, [N], and embeddings by these, float32 [N, D].

    The corpus is without special tokens; frequencies [V] are those of its tokens; the seed is of the rotation.
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

    # In float64, so that neither the number of threads nor the processor is seen in what is made of it.
    table = torch.from_numpy(counts).double()
    del counts
    by_row, by_context = table.sum(1, keepdim=True), table.sum(0)
    chance = by_context.pow(SMOOTHING)
    chance /= chance.sum().clamp(min=1e-9)
    table.div_(by_row.clamp(min=1e-9)).div_(chance.clamp(min=1e-9)).clamp_(min=1.0).log_()
    token_ids = torch.nonzero(table.amax(1))[:, 0]
    if not len(token_ids):  # one token a piece, or the same one all over
        return token_ids, torch.zeros(0, size)
    directions = _leading_directions(table, min(size, len(contexts)), seed)

    rows = directions[token_ids]
    lengths = rows.norm(dim=1, keepdim=True)
    rows *= (_LONGEST * lengths.median() / lengths.clamp(min=1e-9)).clamp(max=1.0)
    # A rotation spreads the first directions, which are large, over all numbers.
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
    # Either sign would do: the larger side is positive, so that rounding decides nothing.
    left *= torch.where(left.amax(0) < -left.amin(0), -1.0, 1.0)
    values[values < _ROUNDING * values[0]] = 0.0  # whose roots would be noise that is seen
    return left[:, :num_directions] * values[:num_directions].sqrt()


@torch.no_grad()
def words_from_corpus(
    model: MaskedLM, store: TokenStore, frequencies: NDArray[np.int64], new_ids: range, *, seed: int
) -> None:
    """Gives new words the mean of the embeddings and biases of what stands near the same others in a corpus.

    A new word takes the ten nearest of the old tokens that are frequent in the corpus, by the cosine of their
    `corpus_embeddings`, weighted by its softmax. One without neighbours, or in a corpus without frequent tokens, stays
    as it is.

    Source: Dobler and de Melo 2023 (FOCUS: effective embedding initialization for monolingual specialization of
    multilingual models), section 3, whose similarities are fastText's and whose weights are a sparsemax over all.
    """
    chunks, size = store.chunks(), model.config.hidden_size
    token_ids, rows = corpus_embeddings(chunks, frequencies, size=size, seed=seed)
    is_new = (token_ids >= new_ids.start) & (token_ids < new_ids.stop)
    is_old = ~is_new & (torch.from_numpy(frequencies)[token_ids] >= _FREQUENT)
    if not is_old.any():
        return
    units = functional.normalize(rows - rows.mean(0), dim=1)  # what all have in common tells none apart
    similarity = units[is_new] @ units[is_old].T
    nearest = similarity.topk(min(_NEAREST, similarity.shape[1]), dim=1)
    weights, near_ids = torch.softmax(nearest.values / _TEMPERATURE, dim=1), token_ids[is_old][nearest.indices]
    tokens, bias = model.encoder.tokens, model.head.bias
    tokens[token_ids[is_new]] = (weights[:, :, None] * tokens[near_ids]).sum(1)
    bias[token_ids[is_new]] = (weights * bias[near_ids]).sum(1)


@torch.no_grad()
def begin_from_corpus(model: MaskedLM, store: TokenStore, frequencies: NDArray[np.int64], *, seed: int) -> None:
    """Replaces the embeddings of a model's tokens by those of a corpus; tokens without neighbours keep theirs. Where
    positions are rotary, `attend_nearby` then gives nearly all a direction in common.

    A small vocabulary, or a text of few patterns, does not fill all directions: in the others what was drawn stays, and
    tells tokens apart whose neighbours are the same.
    """
    chunks, size = store.chunks(), model.config.hidden_size
    token_ids, rows = corpus_embeddings(chunks, frequencies, size=size, seed=seed)
    squares, directions = torch.linalg.eigh(rows.T @ rows)
    empty = directions[:, squares <= _ROUNDING * squares.max()]
    model.encoder.tokens[token_ids] = rows + model.encoder.tokens[token_ids] @ empty @ empty.T
    if model.config.rotary is not None and size // model.config.num_heads >= _LEAST_HEAD:
        attend_nearby(model, seed=seed)


@torch.no_grad()
def attend_nearby(model: MaskedLM, *, seed: int) -> None:
    """Makes every head of a model with rotary positions begin by attending to what stands near, whatever it is.

    All tokens but [CLS] and [SEP], which go on seeing all of a text, get a direction in common, a share of their
    length; norms keep it, so it reaches every layer. Query and key matrices map it to one vector q. Of two places a
    distance apart, rotated, their score is then

        q . R(distance) q = SCORE / P x the sum of cos(distance x frequency) over the P highest frequencies

    which is largest at distance 0. To the logits of the decoder, which is tied to the embeddings, the direction adds a
    number that differs between tokens only as much as the lengths of their embeddings do.

    Source: ours. Trockman and Kolter 2023 (Mimetic initialization of self-attention layers) make heads begin near
    what they become, by products of weights.
    """
    config, encoder = model.config, model.encoder
    width, head_dim = config.hidden_size, config.hidden_size // config.num_heads
    generator = torch.Generator().manual_seed(mix_ints(seed, _NEARBY))  # `initialise` draws by the seed itself
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
    query[:pairs] = math.sqrt(SCORE * math.sqrt(head_dim) / pairs)
    rank_one = torch.outer(query, common / (COMMON * math.sqrt(width)))
    for attention in encoder.modules():
        if isinstance(attention, Attention):
            attention.qkv.weight.view(3, config.num_heads, head_dim, width)[:2].add_(rank_one)
