"""Scores of vocabulary entries and parts of speech, from the model in training, for masking that follows them.

Observations of tokens go into moving averages for each class: a vocabulary entry or a part of speech. Scores are
recomputed every few steps, and are part of the checkpoint, so that a resumed training draws the same masks.

Shape suffixes: C = classes, N = predicted positions, V = vocabulary, D = dimensions, A = anchors, B = rows,
S = positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.data.rows import Rows
from unmask.masking.tables import Scores
from unmask.model.encoder import MaskedLM, attention_received
from unmask.train.runner import evaluating

NEW = 0.8  # weight of the mean since the last fold, in the moving average
EMBEDDING_SIZE = 32  # main directions of the embedding that are kept
SAMPLE_POSITIONS = 4096  # for the attention received


class MovingMeans:
    """Gathers values by class; `fold` merges their means into moving averages. `state` has all that a resumed training
    needs, by name."""

    def __init__(self, names: Sequence[str], num_classes: int, *, device: torch.device) -> None:
        self.names = names
        keys = ("gathered.count", *(f"{kind}.{name}" for kind in ("gathered", "average") for name in names))
        self.state = {key: torch.zeros(num_classes, device=device) for key in keys}
        self.state["seen"] = torch.zeros(num_classes, dtype=torch.bool, device=device)

    def add(self, class_N: Tensor, **values_N: Tensor) -> None:
        """Gathers float32 values of tokens, by their classes (int64). It does not wait for the device."""
        ones_N = torch.ones_like(class_N, dtype=torch.float32)
        for name, value_N in {"count": ones_N, **values_N}.items():
            self.state[f"gathered.{name}"].index_add_(0, class_N, value_N)

    def fold(self) -> None:
        """Merges the values gathered since the last fold into the averages; classes without values keep theirs."""
        count_C, seen_C = self.state["gathered.count"], self.state["seen"]
        met_C = count_C > 0
        for name in self.names:
            gathered_C, average_C = self.state[f"gathered.{name}"], self.state[f"average.{name}"]
            now_C = gathered_C / count_C.clamp(min=1.0)
            mixed_C = torch.where(seen_C, (1.0 - NEW) * average_C + NEW * now_C, now_C)
            average_C.copy_(torch.where(met_C, mixed_C, average_C))
            gathered_C.zero_()
        seen_C |= met_C
        count_C.zero_()

    def filled(self, name: str) -> Tensor:
        """The averages: float32 [C]. Classes never seen get the mean over those seen."""
        average_C, seen_C = self.state[f"average.{name}"], self.state["seen"]
        mean = average_C.sum() / seen_C.sum().clamp(min=1)
        return torch.where(seen_C, average_C, mean)


class ScoreBoard:
    """Gathers the predictions of steps, and computes scores from them: `loss`, `accuracy`, `attention`, `embedding`,
    `anchors` (with the ids `anchors_A`), and `pos_loss` (for the data's `num_pos` parts of speech)."""

    def __init__(
        self,
        names: set[str],
        *,
        vocab_size: int,
        every_steps: int,
        device: torch.device,
        anchors_A: Tensor | None = None,
        num_pos: int | None = None,
    ) -> None:
        self.names, self.every_steps, self.anchors_A = names, every_steps, anchors_A
        self.needs_steps = bool(names & {"loss", "accuracy", "pos_loss"})  # whether `observe` must be called
        self.scores = Scores(0, {})  # the latest; without tables before the first refresh
        self._device = device
        self._of_token = MovingMeans(("loss", "wrong"), vocab_size, device=device)
        self._of_pos = None if num_pos is None else MovingMeans(("loss",), num_pos + 1, device=device)

    def observe(self, targets_N: Tensor, losses_N: Tensor, wrong_N: Tensor, pos_N: Tensor | None = None) -> None:
        """Adds the predictions of a step. It does not wait for the device.

        Tensors are the right ids (int64), their cross-entropies (float32), whether another id was the most likely
        (bool), and the numbers of their parts of speech (int64, 0 for none; None if the rows have none).
        """
        self._of_token.add(targets_N, loss=losses_N, wrong=wrong_N.float())
        if self._of_pos is not None:
            assert pos_N is not None, "masking by parts of speech refuses rows without them"
            self._of_pos.add(pos_N, loss=losses_N)

    def refresh(self, step: int, model: MaskedLM, sample: Rows | None) -> None:
        """Recomputes the scores; their version is the step. The score `attention` needs a sample of rows."""
        self._of_token.fold()
        tables = {}
        if "loss" in self.names:
            tables["loss"] = self._of_token.filled("loss")
        if "accuracy" in self.names:
            tables["accuracy"] = self._of_token.filled("wrong")
        if self._of_pos is not None:
            self._of_pos.fold()
            tables["pos_loss"] = self._of_pos.filled("loss")
        if "attention" in self.names:
            # The attention that each id receives on average; ids that are not in the sample get an even share.
            assert sample is not None, "the attention is that in a sample of rows"
            with evaluating(model):
                received_BS = attention_received(
                    model.encoder,
                    sample.input_ids,
                    segment_ids_BS=sample.segment_ids,
                    position_ids_BS=sample.position_ids,
                    token_type_ids_BS=sample.token_type_ids,
                )
            ids, size = sample.input_ids[sample.maskable], len(model.encoder.tokens)
            total_V = torch.zeros(size, device=ids.device).index_add_(0, ids, received_BS[sample.maskable])
            count_V = torch.bincount(ids, minlength=size)
            tables["attention"] = torch.where(count_V > 0, total_V / count_V.clamp(min=1), 1.0)
        if self.names & {"embedding", "anchors"}:
            embedding_VD = main_directions(model.encoder.tokens.detach())
            if "embedding" in self.names:
                tables["embedding"] = embedding_VD
            if self.anchors_A is not None:
                unit_VD = torch.nn.functional.normalize(embedding_VD, dim=1)
                closest_V = (unit_VD @ unit_VD[self.anchors_A].T).max(1).values
                tables["anchors"] = (0.5 + 0.5 * closest_V).clamp(min=1e-3)
        self.scores = Scores(step, tables)

    def state(self) -> dict[str, Tensor]:
        """All that a resumed training needs, by name; the scores' version is a tensor with one number."""
        state = dict(self._of_token.state)
        if self._of_pos is not None:
            state |= {f"pos.{name}": value for name, value in self._of_pos.state.items()}
        state |= {f"scores.{name}": value for name, value in self.scores.tables.items()}
        return {**state, "version": torch.tensor([self.scores.version], dtype=torch.int64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for prefix, means in (("", self._of_token), ("pos.", self._of_pos)):
            for name, tensor in () if means is None else means.state.items():
                tensor.copy_(state[prefix + name])
        tables = {n.removeprefix("scores."): t for n, t in state.items() if n.startswith("scores.")}
        self.scores = Scores(int(state["version"]), {name: t.to(self._device) for name, t in tables.items()})


def main_directions(table_VD: Tensor) -> Tensor:
    """The centred embedding, projected to its directions of largest variance: [V, at most 32], float32."""
    centred = table_VD.float() - table_VD.float().mean(0)
    _, directions = torch.linalg.eigh((centred.T @ centred).cpu())  # Apple's GPUs have no eigh
    return centred @ directions[:, -EMBEDDING_SIZE:].to(centred.device)
