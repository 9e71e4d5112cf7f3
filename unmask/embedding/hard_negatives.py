"""Wrong answers that a model itself takes for likely, without those that may well be right.

    similarity to the first text of a pair   its second text   0.80
                                             other parts       0.79  0.78 | 0.75  0.71  0.70  0.64 ...
    margin 0.95: below 0.76                  too alike: left out    kept: the next four

Shape suffixes: I = parts of documents, D = hidden size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from unmask.embedding.pair_stream import MinedNegatives, PairStream
from unmask.embedding.retrieval import text_vectors
from unmask.embedding.settings import HardNegatives
from unmask.errors import RunError
from unmask.files import writing
from unmask.hashing import mix_ints
from unmask.network.encoder import MaskedLM
from unmask.runner import evaluating
from unmask.training.contrast import DENSE, VectorKind

_MINE = 23  # sets these draws apart
_NUMBERS = 1 << 26  # at once: similarities of some parts to all, or vectors of some
_PART = 4096  # that are encoded at once at most


def mine(model: MaskedLM, stream: PairStream, settings: HardNegatives, kind: VectorKind = DENSE) -> MinedNegatives:
    """Finds them for all parts of documents that have two crops. Memory is two vectors for each part, or what is not 0
    of sparse ones, and half a gigabyte.

    Args:
        model: As far as it is trained.
        stream: Of the training.
        settings: How many, and what counts as too alike.
        kind: Of vectors.

    Source: Moreira et al. 2024 (NV-Retriever), section 3.2.
    """
    parts = stream.parts
    usable = np.flatnonzero(parts.can[:, 0])
    first_ID, second_ID = _vectors(model, stream, usable, kind)
    key_I = torch.from_numpy(parts.key[usable])
    found = np.full((len(parts), settings.each), -1, dtype=np.int64)
    each, block = min(len(usable), settings.each), max(1, _NUMBERS // max(2 * len(usable), 1))
    for begin in range(0, len(usable), block):
        rows = slice(begin, begin + block)
        scores = (second_ID @ _some(first_ID, rows).T).T.contiguous()
        right = scores.diagonal(offset=begin)[:, None].clone()
        scores[(scores >= settings.margin * right) | (key_I[rows, None] == key_I)] = -torch.inf
        values, nearest = scores.topk(each)
        is_one = (values > -torch.inf).numpy()
        found[usable[rows], :each] = np.where(is_one, usable[nearest.numpy()], -1)
    return MinedNegatives(found)


def _some(vectors_ID: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some rows of vectors that may be stored sparsely, as they are computed with."""
    if not vectors_ID.is_sparse:
        return vectors_ID[rows]
    return vectors_ID.index_select(0, torch.arange(len(vectors_ID))[rows]).to_dense()


def _vectors(
    model: MaskedLM, stream: PairStream, parts: np.ndarray, kind: VectorKind
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors, ready to be compared, of the two texts of a pair of each part."""
    key = mix_ints(_MINE, stream.settings.seed)
    config = model.config
    part = min(_PART, _NUMBERS // (2 * (config.hidden_size if kind.unit else config.vocab_size)))
    firsts, seconds = [], []
    with evaluating(model):
        for begin in range(0, len(parts), part):
            drawn = stream.drawer.draw(parts[begin : begin + part], key, kind=0)
            rows, _ = stream.rows(drawn)
            vectors_ED, texts = text_vectors(model, rows, kind)
            order_E = torch.argsort(texts.side_E * len(texts.pair_E) + texts.pair_E)
            one_ID, other_ID = kind.ready(vectors_ED)[order_E].split(len(drawn.document))
            firsts.append(one_ID if kind.unit else one_ID.to_sparse())
            seconds.append(other_ID if kind.unit else other_ID.to_sparse())
    return torch.cat(firsts), torch.cat(seconds)


def save_negatives(file: Path, found: MinedNegatives, step: int) -> None:
    """Keeps them for a training that goes on.

    Raises:
        WriteError: They cannot be written.
    """
    partial = file.with_name(file.name + ".partial")
    with writing(file, SafetensorError):
        save_file({"parts": np.ascontiguousarray(found.parts), "step": np.array([step])}, partial)
        partial.replace(file)


def load_negatives(file: Path, step: int) -> MinedNegatives | None:
    """Those that were found by a step; None where that was not done yet.

    Raises:
        RunError: The file is damaged.
    """
    if not file.is_file():
        return None
    try:
        content = load_file(file)
        return MinedNegatives(content["parts"]) if int(content["step"][0]) <= step else None
    except (OSError, KeyError, SafetensorError) as error:
        raise RunError(f"{file}: damaged ({error}); remove it, and it is made again") from error
