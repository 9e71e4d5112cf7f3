"""How well held-out texts find their partners, and how well hidden tokens are still predicted.

Shape suffixes: E = texts, P = pairs, C = candidates, D = hidden size, N = predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.embedding.pair_stream import DrawnPairs, PairStream
from unmask.masking.masker import Masker
from unmask.network.encoder import MaskedLM
from unmask.rows.rows import Rows
from unmask.rows.stream import Cursor
from unmask.runner import evaluating, hidden_states
from unmask.training.contrast import DENSE, PairedTexts, TextTargets, VectorKind, contrast_losses
from unmask.training.objectives import PREDICT_MASKED
from unmask.training.splade import SPARSE, surplus

_POSITIONS = 8192  # at once
_LOOK_ROWS = 32  # that tell how sparse vectors are


@dataclass(frozen=True)
class Retrieval:
    """What came of looking for the second text of each pair with its first.

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

    def in_words(self) -> str:
        """`recall@10 81.3 % of 512`."""
        return f"recall@10 {self.recall_at_10:.1%} of {self.pairs:,}"


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
        return sum(found.loss for found in self.kinds.values()) / len(self.kinds)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"kinds": {kind: asdict(found) for kind, found in self.kinds.items()}, "mlm_loss": self.mlm_loss}

    @classmethod
    def of_plain(cls, found: Mapping[str, Any]) -> EmbedderMeasured:
        """What `plain` was of."""
        return cls({kind: Retrieval(**figures) for kind, figures in found["kinds"].items()}, found["mlm_loss"])

    def in_words(self) -> str:
        """One line for the log."""
        found = "; ".join(f"{kind}: {found.in_words()}" for kind, found in self.kinds.items())
        return found if self.mlm_loss is None else f"{found}; masked tokens: loss {self.mlm_loss:.3f}"


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
    totals = [0.0, 0]
    with evaluating(model):
        for name, drawn in held.items():
            rows, _ = stream.rows(drawn)
            kinds[name] = _retrieval(model, rows, temperature, kind)
            if masker is not None:
                loss, count = _mlm(model, rows, masker)
                totals = [totals[0] + loss, totals[1] + count]
    return EmbedderMeasured(kinds, None if masker is None else totals[0] / max(totals[1], 1))


def _parts(rows: Rows) -> list[Rows]:
    size = max(1, _POSITIONS // rows.shape[1])
    return [rows.part(begin, begin + size) for begin in range(0, rows.shape[0], size)]


def text_vectors(model: MaskedLM, rows: Rows, kind: VectorKind = DENSE) -> tuple[Tensor, TextTargets]:
    """Vectors [E, D] of the texts in rows, on the host and not yet of length 1; and what they are."""
    vectors, targets = [], []
    for part in _parts(rows):
        texts = TextTargets.of(part)
        hidden_TD = hidden_states(model, part.input_ids, part.segment_ids, part.position_ids)
        moved = texts.map(lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
        vectors.append(kind.vectors(model, hidden_TD, moved).cpu())
        targets.append(texts)
    return torch.cat(vectors), TextTargets.joined(targets)


def surplus_of(model: MaskedLM, stream: PairStream) -> float:
    """What all logits are to be less by for sparse vectors to begin sparse (`unmask.training.splade.surplus`).

    It is found by every n-th row of the first batch: rows are packed by length, and all lengths are to be among them.
    """
    rows = stream.batch(Cursor(), 0).rows
    every = -(-rows.shape[0] // _LOOK_ROWS)
    rows = rows.map(lambda tensor: tensor[::every])
    with evaluating(model):
        vectors_EV, _ = text_vectors(model, rows, SPARSE)
    return surplus(vectors_EV, int((rows.segment_ids >= 0).sum()))


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


def _mlm(model: MaskedLM, rows: Rows, masker: Masker) -> tuple[float, int]:
    """The summed loss at hidden tokens, and how many they are."""
    total, count = 0.0, 0
    for part in _parts(rows):
        masked = masker(part)
        targets = PREDICT_MASKED.targets(part, masked)
        hidden_TD = hidden_states(model, masked.input_ids, part.segment_ids, part.position_ids)
        moved = targets.map(lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
        total += float(PREDICT_MASKED.losses(model, hidden_TD, moved, None).total)
        count += len(targets)
    return total, count
