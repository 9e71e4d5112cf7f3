"""Sparse embeddings of texts, as sentence-transformers' `SparseEncoder` makes them of a folder with SPLADE.

Shape suffixes: T = positions of a batch in a line, E = its texts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.runner import Predictor, TextRows, logits_at, run
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.using.embedding import Embedded, LongTexts, count_tokens, windows_of
from unmask.using.sparse_vectors import SparseVectors

_TEXTS_AT_ONCE = 256  # whose vectors are dense for a while


@torch.inference_mode()
def sparse_texts(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    long_texts: LongTexts,
    *,
    unit: bool = False,
    names: Sequence[str] = (),
) -> Embedded[SparseVectors]:
    """log(1 + relu(the largest logit over a text's tokens, special tokens included)), of each text.

    Args:
        model: In evaluation mode, with its head for masked tokens.
        tokenizer: Its tokenizer.
        texts, names: As for `embed_texts`.
        long_texts: What becomes of texts longer than the model; `split`: the maximum is over all windows.
        unit: Whether each is divided by its Euclidean length; what is all 0 stays so.

    Raises:
        SettingsError: As `embed_texts`.

    Source: Formal et al. 2021 (SPLADE v2), section 3.1; in training `unmask.training.splade`.
    """
    found = [SparseVectors.of(np.zeros((0, model.config.vocab_size), dtype=np.float32))]
    num_tokens = num_long = 0
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[begin : begin + _TEXTS_AT_ONCE]
        called = [names[begin + n] if names else f"text {begin + n}" for n in range(len(part))]
        sequences, owners, long = windows_of(model, tokenizer, part, long_texts, called)
        of_windows: list[SparseVectors | None] = [None] * len(sequences)
        for rows, hidden_TD in run(model, sequences):
            largest_EV = _largest(model, hidden_TD, rows).relu_().log1p_().cpu().numpy()
            made = SparseVectors.of(largest_EV)
            for place, number in enumerate(rows.numbers.tolist()):
                of_windows[number] = made[place : place + 1]
        windows = [each for each in of_windows if each is not None]
        if len(windows) > len(part):
            windows = _over_windows(windows, owners.tolist(), len(part))
        found += windows
        num_tokens += count_tokens(tokenizer, sequences)
        num_long += long
    vectors = SparseVectors.joined(found)
    return Embedded(vectors.unit() if unit else vectors, num_tokens, num_long)


def _largest(model: Predictor, hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """[E, V], float32: the largest logits over the positions of each text; a bounded number of logits at a time."""
    lengths = rows.lengths.tolist()
    places = zip(rows.begins.tolist(), lengths, strict=True)
    places_N = torch.from_numpy(np.concatenate([np.arange(begin, begin + length) for begin, length in places]))
    largest_EV = torch.full((len(lengths), model.config.vocab_size), -torch.inf, device=hidden_TD.device)
    text, left = 0, lengths[0]
    for logits_NV in logits_at(model, hidden_TD, places_N):
        begin = 0
        while begin < len(logits_NV):
            end = min(begin + left, len(logits_NV))
            torch.maximum(largest_EV[text], logits_NV[begin:end].amax(0), out=largest_EV[text])
            left -= end - begin
            if left == 0 and text + 1 < len(lengths):
                text += 1
                left = lengths[text]
            begin = end
    return largest_EV


def _over_windows(windows: Sequence[SparseVectors], owners: Sequence[int], num_texts: int) -> list[SparseVectors]:
    """The maximum over the windows of each text."""
    of_text: list[list[SparseVectors]] = [[] for _ in range(num_texts)]
    for owner, window in zip(owners, windows, strict=True):
        of_text[owner].append(window)
    return [each[0] if len(each) == 1 else _largest_of(SparseVectors.joined(each)) for each in of_text]


def _largest_of(windows: SparseVectors) -> SparseVectors:
    largest_1V = np.zeros((1, windows.width), dtype=np.float32)
    np.maximum.at(largest_1V[0], windows.tokens, windows.values)
    return SparseVectors.of(largest_1V)
