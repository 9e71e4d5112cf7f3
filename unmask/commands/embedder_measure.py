"""How well held-out texts find their partners, how well hidden tokens are still predicted, and hard negatives.

Hard negatives are wrong answers that a model itself takes for likely, without those that may well be right:

    similarity to the first text of a pair   its second text   0.80
                                             other parts       0.79  0.78 | 0.75  0.71  0.70  0.64 ...
    margin 0.95: below 0.76                  too alike: left out          | the next four

Shape suffixes: E = texts, P = pairs, C = candidates, D = hidden size, I = parts of documents, N = predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from unmask.commands.embedder_settings import HardNegatives
from unmask.commands.embedder_stream import DrawnPairs, MinedNegatives, PairStream
from unmask.core.errors import RunError
from unmask.core.files import writing
from unmask.core.hashing import mix_ints
from unmask.data.rows import Cursor, Rows
from unmask.masking.masker import Masker
from unmask.model.encoder import MaskedLM
from unmask.train.contrast import DENSE, SPARSE, PairedTexts, TextTargets, VectorKind, contrast_losses, surplus
from unmask.train.objectives import PREDICT_MASKED
from unmask.train.runner import evaluating, hidden_states

_POSITIONS = 8192  # at once
_LOOK_ROWS = 32  # that tell how sparse vectors are
_MINE = 23  # sets these draws apart
_NUMBERS = 1 << 26  # at once: similarities of some parts to all, or vectors of some
_PARTS = 4096  # that are encoded at once at most


@dataclass(frozen=True)
class Retrieval:
    """How well the first texts of pairs find the second ones.

    Attributes:
        pairs: How many there are.
        loss: Of the pairs, in nats, by whole vectors and the temperature that is set.
        recall_at_1, recall_at_10: Share of the first texts whose partner is the nearest, or among the ten nearest, of
            all second texts; texts of the same document are not counted as found before it.
        nonzero: Numbers of a vector that are not 0, on average; None where vectors are dense.
    """

    pairs: int
    loss: float
    recall_at_1: float
    recall_at_10: float
    nonzero: float | None = None


@dataclass(frozen=True)
class EmbedderMeasured:
    """An evaluation.

    Attributes:
        kinds: By the kind of pairs.
        mlm_loss: Nats per hidden token; None where masked tokens are not learned.
    """

    kinds: Mapping[str, Retrieval]
    mlm_loss: float | None

    @property
    def loss(self) -> float:
        """The mean over the kinds."""
        return sum(figures.loss for figures in self.kinds.values()) / len(self.kinds)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"kinds": {kind: asdict(figures) for kind, figures in self.kinds.items()}, "mlm_loss": self.mlm_loss}

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> EmbedderMeasured:
        """The inverse of `plain`."""
        return cls({kind: Retrieval(**figures) for kind, figures in content["kinds"].items()}, content["mlm_loss"])

    def in_words(self) -> str:
        """One line for the log, such as `crops: recall@10 81.3 % of 512`."""
        facts = [f"{kind}: recall@10 {each.recall_at_10:.1%} of {each.pairs:,}" for kind, each in self.kinds.items()]
        return "; ".join(facts + ([] if self.mlm_loss is None else [f"masked tokens: loss {self.mlm_loss:.3f}"]))


def measure(
    model: MaskedLM,
    stream: PairStream,
    held: Mapping[str, DrawnPairs],
    *,
    temperature: float,
    masker: Masker | None,
    kind: VectorKind = DENSE,
) -> EmbedderMeasured:
    """Evaluates a model, on the device that it is on.

    Args:
        model: Any state of it.
        stream: Puts pairs into rows.
        held: The pairs by kind.
        temperature: Of the loss.
        masker: Hides tokens, the same ones each time; None: masked tokens are not learned.
        kind: Of vectors.
    """
    kinds = {}
    total, count = 0.0, 0
    with evaluating(model):
        for name, drawn in held.items():
            rows, _ = stream.rows(drawn)
            kinds[name] = _retrieval(model, rows, temperature, kind)
            if masker is None:
                continue
            for part in _in_parts(rows):
                masked = masker(part)
                targets = PREDICT_MASKED.targets(part, masked)
                hidden_TD = hidden_states(model, masked.input_ids, part.segment_ids, part.position_ids)
                moved = targets.map(lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
                total += float(PREDICT_MASKED.losses(model, hidden_TD, moved, None).total)
                count += len(targets)
    return EmbedderMeasured(kinds, None if masker is None else total / max(count, 1))


def _retrieval(model: MaskedLM, rows: Rows, temperature: float, kind: VectorKind) -> Retrieval:
    vectors_ED, texts = text_vectors(model, rows, kind)
    count = texts.num_pairs
    losses = contrast_losses(vectors_ED, texts, temperature=temperature, unit=kind.unit)
    pairs = PairedTexts.of(texts)
    ready_ED = kind.ready(vectors_ED)
    scores_PP = ready_ED[pairs.first_P] @ ready_ED[pairs.second_P].T
    right_P1 = scores_PP.diagonal()[:, None]
    before_P = ((scores_PP > right_P1) & ~pairs.forth_PC[:, :count]).sum(1)
    return Retrieval(
        count,
        float(losses.total) / count,
        float((before_P < 1).float().mean()),
        float((before_P < 10).float().mean()),
        None if kind.unit else float((vectors_ED > 0).sum(1).float().mean()),
    )


def _in_parts(rows: Rows) -> list[Rows]:
    size = max(1, _POSITIONS // rows.shape[1])
    return [rows.part(begin, begin + size) for begin in range(0, rows.shape[0], size)]


def text_vectors(model: MaskedLM, rows: Rows, kind: VectorKind = DENSE) -> tuple[Tensor, TextTargets]:
    """Vectors [E, D] of the texts in rows, on the host and not yet of length 1; and what they are."""
    vectors, targets = [], []
    for part in _in_parts(rows):
        texts = TextTargets.of(part)
        hidden_TD = hidden_states(model, part.input_ids, part.segment_ids, part.position_ids)
        moved = texts.map(lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
        vectors.append(kind.vectors(model, hidden_TD, moved).cpu())
        targets.append(texts)
    return torch.cat(vectors), TextTargets.joined(targets)


def surplus_of(model: MaskedLM, stream: PairStream) -> float:
    """What all logits are to be less by for sparse vectors to begin sparse (`unmask.train.contrast.surplus`).

    It is found by every n-th row of the first batch: rows are packed by length, and all lengths are to be among them.
    """
    rows = stream.batch(Cursor(), 0).rows
    every = -(-rows.shape[0] // _LOOK_ROWS)
    rows = rows.map(lambda tensor: tensor[::every])
    with evaluating(model):
        vectors_EV, _ = text_vectors(model, rows, SPARSE)
    return surplus(vectors_EV, int((rows.segment_ids >= 0).sum()))


def mine(model: MaskedLM, stream: PairStream, settings: HardNegatives, kind: VectorKind = DENSE) -> MinedNegatives:
    """Finds hard negatives for all parts of documents that have two crops. Memory is two vectors for each part, or what
    is not 0 of sparse ones, and half a gigabyte.

    Source: Moreira et al. 2024 (NV-Retriever), section 3.2.
    """
    parts, config = stream.parts, model.config
    usable = np.flatnonzero(parts.can[:, 0])
    key = mix_ints(_MINE, stream.settings.seed)
    size = min(_PARTS, _NUMBERS // (2 * (config.hidden_size if kind.unit else config.vocab_size)))
    firsts, seconds = [], []  # vectors of the two texts of a pair of each part
    with evaluating(model):
        for begin in range(0, len(usable), size):
            drawn = stream.drawer.draw(usable[begin : begin + size], key, kind=0)
            vectors_ED, texts = text_vectors(model, stream.rows(drawn)[0], kind)
            order_E = torch.argsort(texts.side_E * len(texts.pair_E) + texts.pair_E)
            one_ID, other_ID = kind.ready(vectors_ED)[order_E].split(len(drawn.document))
            firsts.append(one_ID if kind.unit else one_ID.to_sparse())
            seconds.append(other_ID if kind.unit else other_ID.to_sparse())
    first_ID, second_ID = torch.cat(firsts), torch.cat(seconds)
    key_I = torch.from_numpy(parts.key[usable])
    negatives = np.full((len(parts), settings.each), -1, dtype=np.int64)
    each, size = min(len(usable), settings.each), max(1, _NUMBERS // max(2 * len(usable), 1))
    for begin in range(0, len(usable), size):
        rows = slice(begin, begin + size)
        if first_ID.is_sparse:
            some_ID = first_ID.index_select(0, torch.arange(len(first_ID))[rows]).to_dense()
        else:
            some_ID = first_ID[rows]
        scores = (second_ID @ some_ID.T).T.contiguous()
        right = scores.diagonal(offset=begin)[:, None].clone()
        scores[(scores >= settings.margin * right) | (key_I[rows, None] == key_I)] = -torch.inf
        values, nearest = scores.topk(each)
        negatives[usable[rows], :each] = np.where((values > -torch.inf).numpy(), usable[nearest.numpy()], -1)
    return MinedNegatives(negatives)


def save_negatives(file: Path, negatives: MinedNegatives, step: int) -> None:
    """Keeps them for a training that goes on.

    Raises:
        WriteError: They cannot be written.
    """
    partial = file.with_name(file.name + ".partial")
    with writing(file, SafetensorError):
        save_file({"parts": np.ascontiguousarray(negatives.parts), "step": np.array([step])}, partial)
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
