"""The training of an embedding model: the loop that pretraining uses, with pairs as what is learned first.

    settings.json            model, text and settings; a folder with it holds a training
    given/, pipes/, ...      text that was no file
    data/texts.safetensors   documents as tokens
    negatives.safetensors    wrong answers that the model has mined, where it was to do so
    checkpoints/             the latest states
    metrics.jsonl            a line every few steps and at every evaluation
    model/                   the result: a folder of sentence-transformers and of transformers
    summary.json             figures of the result, written last
    report.html              curves and figures for the eye

Hard negatives are wrong answers that a model itself takes for likely, without those that may well be right:

    similarity to the first text of a pair   its second text   0.80
                                             other parts       0.79  0.78 | 0.75  0.71  0.70  0.64 ...
    margin 0.95: below 0.76                  too alike: left out          | the next four

Shape suffixes: E = texts, P = pairs, C = candidates, D = hidden size, I = parts of documents, T = positions in a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from unmask.commands.embedder_pairs import CROPS, PairData, PairStream, TokenPairs
from unmask.commands.embedder_settings import EmbedderSettings, HardNegatives
from unmask.commands.embedder_texts import Ints
from unmask.core.errors import DivergedError, RunError
from unmask.core.files import ClaimedFolder, write_atomically
from unmask.core.hashing import mix_ints
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.rows import Cursor, Rows
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.masking.masker import Masker
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.train.callbacks import Callback, StepReport
from unmask.train.checkpoints import checkpoint_path, fit, load_checkpoint, place_model
from unmask.train.contrast import (
    TextTargets,
    VectorKind,
    compared,
    contrast_losses,
    dense,
    pair_objective,
    sparse,
    surplus,
)
from unmask.train.distributed import ALONE, Group, on_every_rank, on_rank_zero
from unmask.train.hardware import choose_device
from unmask.train.objectives import PREDICT_MASKED, map_tensors
from unmask.train.runner import evaluating, hidden_states
from unmask.train.settings import LinearDecay, TrainingSettings
from unmask.train.step import Best
from unmask.train.trainer import Trainer

_ON_CPU = 2 << 30  # bytes that a step keeps for its backward pass, about
_SPARSE_STAGES = 4  # largest logits, vectors, the gradient, and where numbers come from
_POSITIONS = 8192  # at once, where nothing is learned
_LOOK_ROWS = 32  # that tell how sparse vectors are
_MINE = 23  # sets these draws apart
_NUMBERS = 1 << 26  # at once: similarities of some parts to all, or vectors of some
_PARTS = 4096  # that are encoded at once at most


class EmbedderFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = root / "data" / "texts.safetensors"
        self.negatives = root / "negatives.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        files = self.negatives, self.checkpoints, self.metrics, self.model, self.summary, self.report
        ours = {"data", *(path.name for path in files), GIVEN, PIPES, STDIN_FILE}
        self.claimed = ClaimedFolder(root=root, marker="settings.json", what="an embedder", ours=ours)


def training_settings(
    settings: EmbedderSettings, minutes: float | None, steps: int | None, stream: PairStream, config: EncoderConfig
) -> TrainingSettings:
    """Settings of the loop and the optimizer.

    On a CPU as many positions are computed at once as take about 2 GB, by what a layer keeps of each in float32; where
    vectors are sparse, numbers of the whole vocabulary are kept of each text, in every stage of a vector's making.
    """
    length, special = stream.row_length, len(stream.tokenizer.special.around)
    mean_lengths = [(most - least) / math.log(most / least) if most > least else least
                    for least, most in (settings.first_lengths, settings.second_lengths)]  # fmt: skip
    positions = settings.batch_size * (sum(mean_lengths) + 2 * special)
    micro = settings.micro_batch_tokens
    if micro is None and choose_device().type == "cpu":
        bytes_each = config.num_layers * (10 * config.hidden_size + 3 * config.intermediate_size) * 4
        if settings.sparse is not None:
            bytes_each += _SPARSE_STAGES * config.vocab_size * 4 // (settings.shortest + special)
        micro = max(1024 if settings.sparse is None else 256, _ON_CPU // bytes_each)
    return TrainingSettings(
        steps=steps,
        minutes=minutes,
        sequence_length=length,
        batch_tokens=max(length, math.ceil(positions / length) * length),
        micro_batch_tokens=None if micro is None else max(micro, length),
        learning_rate=settings.learning_rate_for(config.hidden_size),
        schedule=LinearDecay(kind="linear", warmup=settings.warmup),
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        optimizer=settings.optimizer,
        precision=settings.precision,
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=settings.seed,
    )


class EmbedderRun(Callback):
    """From pairs to a trained model, or to an interruption.

    Of its own trainer it is the callback that mines hard negatives, evaluates, and ends a training whose held-out loss
    has not fallen for too long. The model is changed in place; the first process of the group writes into the folder.
    """

    def __init__(
        self,
        folder: EmbedderFolder,
        model: MaskedLM,
        data: PairData,
        settings: EmbedderSettings,
        training: TrainingSettings,
        *,
        fingerprint: str,
        reporter: Reporter,
        group: Group = ALONE,
    ) -> None:
        self.folder, self.data, self.stream, self.settings = folder, data, data.stream, settings
        self.training, self.fingerprint, self.reporter, self.group = training, fingerprint, reporter, group
        tokenizer, hidden_size = data.stream.tokenizer, model.config.hidden_size
        place_model(model, training, folder.checkpoints)
        self.kind, weights = dense(settings.pooling), None
        if settings.sparse is not None:
            self.kind, weights = sparse(), (settings.sparse.first_weight, settings.sparse.second_weight)
        self.masker = None
        if settings.mlm_weight > 0.0:
            self.masker = Masker.from_tokenizer(tokenizer, rate=settings.mask_rate, seed=settings.seed)
        self.trainer = Trainer(
            model,
            self.stream,
            training,
            masker=self.masker,
            objective=pair_objective(
                self.kind,
                temperature=settings.temperature_or_default,
                dimensions=settings.dimensions_for(hidden_size),
                sparse_weights=weights,
                progress=lambda: self.state.progress(training),
            ),
            objectives=() if self.masker is None else (replace(PREDICT_MASKED, weight=settings.mlm_weight),),
            fingerprint=fingerprint,
            group=group,
        )
        self.state = self.trainer.state
        self._evaluations = 0  # that were due so far

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        config = self.state.model.config
        return config.hidden_size if self.settings.sparse is None else config.vocab_size

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = (), *, is_sparse: bool = False) -> None:
        """Trains from the last checkpoint on; afterwards the state's model is the result.

        Callbacks of the user are called before evaluations and checkpoints. `is_sparse` is as for `begin_sparse`.
        """
        folder, settings, state = self.folder, self.settings, self.state
        self._announce()

        def begin() -> None:
            if state.step:
                self.stream.negatives = on_every_rank(self.group, lambda: load_negatives(folder.negatives, state.step))
            self._evaluations = int(state.progress(self.training) * settings.evaluations)
            if state.step == 0:
                self.begin_sparse(is_sparse=is_sparse)
                self._evaluate()

        ends_early = settings.patience is not None
        fit(
            self.trainer, folder.root, self, interruption, self.reporter, settings.checkpoint, callbacks,
            begin=begin, may_end_early=ends_early,
        )  # fmt: skip
        on_rank_zero(self.group, lambda: None)  # by now its checkpoints are whole
        best = state.best
        if settings.patience is not None and best is not None and best.step != state.step:
            spent = state.step, state.tokens_seen, state.seconds
            path = checkpoint_path(folder.checkpoints, best.step)
            on_every_rank(self.group, lambda: load_checkpoint(path, state, fingerprint=self.fingerprint))
            state.step, state.tokens_seen, state.seconds = spent
            self.reporter.note(f"the best model is that of step {best.step:,}")

    def begin_sparse(self, *, is_sparse: bool) -> None:
        """Makes vectors that are to be sparse begin sparse, where the model does not make such already (`is_sparse`).

        What a number that is added to all logits does, the loss of masked tokens does not see (`surplus`). It is seen
        in every n-th row of the first batch: rows are packed by length, and all lengths are to be among them.
        """
        if self.settings.sparse is None or is_sparse:
            return

        def look() -> float:
            rows = self.stream.batch(Cursor(), 0).rows
            every = -(-rows.shape[0] // _LOOK_ROWS)
            rows = rows.map(lambda tensor: tensor[::every])
            with evaluating(self.state.model):
                vectors_EV, _ = text_vectors(self.state.model, rows, self.kind)
            return surplus(vectors_EV, int((rows.segment_ids >= 0).sum()))

        less = on_rank_zero(self.group, look)
        if less > 0.0:
            with torch.no_grad():
                self.state.model.head.bias.sub_(less)
            self.reporter.note(f"all logits are less by {less:.2f}, so that vectors are sparse from the beginning")

    def _announce(self) -> None:
        model, settings, training = self.state.model, self.settings, self.training
        dimensions = settings.dimensions_for(model.config.hidden_size)
        beginnings = f", and their first {', '.join(map(str, dimensions))}" if dimensions else ""
        self.reporter.note(
            f"{self.stream.size:,} pairs an epoch, {self.stream.pairs_a_step:,} a step; "
            f"{'' if settings.sparse is None else 'sparse '}vectors of {self.dimension:,}{beginnings}; "
            f"model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {model.encoder.device.type}"
        )
        parts = training.micro_batch_tokens
        if parts is not None and parts < training.batch_tokens:
            self.reporter.note(
                f"steps are made in parts of about {parts:,} positions, by way of their vectors (the same result)"
            )

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Mines, evaluates and stops, each when it is time."""
        settings, stream, folder = self.settings, self.stream, self.folder
        mining = settings.hard_negatives
        if mining is not None and stream.negatives is None and mining.after <= report.progress < 1.0:

            def look() -> None:
                """Keeps them for a training that goes on."""
                content = {"parts": mine(self.state.model, stream, mining, self.kind), "step": np.array([report.step])}
                write_atomically(folder.negatives, save(content))

            on_rank_zero(self.group, look)
            negatives = on_every_rank(self.group, lambda: load_negatives(folder.negatives, report.step))
            assert negatives is not None, "they were mined by this step"
            stream.negatives = negatives
            have = int((negatives >= 0).any(1).sum())
            self.reporter.note(f"step {report.step:,}: hard negatives for {have:,} of {len(negatives):,} parts")
            trainer.request_save()
        due = int(report.progress * settings.evaluations)
        if due > self._evaluations or report.progress >= 1.0:
            self._evaluations = due
            self._evaluate()
        losses, patience = [line["loss"] for line in self.state.history if line["step"]], settings.patience
        if patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
            self.reporter.note(f"the held-out loss has not fallen for a while: ended at step {report.step:,}")
            trainer.request_stop()

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates: by the clock no step is known to be the last."""
        if trainer.error is None:
            self._evaluate()

    def _evaluate(self) -> None:
        """Measures the model on held-out pairs, unless that was done after this step."""
        state = self.state
        if not self.data.held or (state.history and state.history[-1]["step"] == state.step):
            return

        def measured() -> dict[str, Any]:
            figures = measure(
                state.model,
                self.stream,
                self.data.held,
                temperature=self.settings.temperature_or_default,
                masker=self.masker,
                kind=self.kind,
            )
            if not math.isfinite(figures["loss"]):
                raise DivergedError(f"the held-out loss behind step {state.step} is {figures['loss']}")
            return figures

        figures = on_rank_zero(self.group, measured)
        self.trainer.evaluated(figures)
        state.history.append({"step": state.step, **figures})
        facts = [f"{kind}: recall@10 {f['recall_at_10']:.1%} of {f['pairs']:,}" for kind, f in figures["kinds"].items()]
        facts += [] if self.masker is None else [f"masked tokens: loss {figures['mlm_loss']:.3f}"]
        self.reporter.note(f"step {state.step:>6,}: {'; '.join(facts)}")
        if state.step and (state.best is None or figures["loss"] < state.best.loss):
            state.best = Best(state.step, figures["loss"])
            if self.settings.patience is not None:
                self.trainer.request_save()


# ----------------------------------------
# What is measured and mined.


def text_vectors(model: MaskedLM, rows: Rows, kind: VectorKind) -> tuple[Tensor, TextTargets]:
    """Vectors [E, D] of the texts in rows, on the host and not yet of length 1; and what they are."""
    vectors, targets = [], []
    for part in _in_parts(rows):
        texts = TextTargets.of(part)
        hidden_TD = hidden_states(model, part.input_ids, part.segment_ids, part.position_ids)
        moved = map_tensors(texts, lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
        vectors.append(kind.vectors(model, hidden_TD, moved).cpu())
        targets.append(texts)
    return torch.cat(vectors), TextTargets.joined(targets)


def _in_parts(rows: Rows) -> list[Rows]:
    size = max(1, _POSITIONS // rows.shape[1])
    return [rows.part(begin, begin + size) for begin in range(0, rows.shape[0], size)]


def measure(
    model: MaskedLM,
    stream: PairStream,
    held: Mapping[str, TokenPairs],
    *,
    temperature: float,
    masker: Masker | None,
    kind: VectorKind,
) -> dict[str, Any]:
    """Evaluates a model, on the device that it is on: how well the first texts of pairs find the second ones.

    Returns:
        For JSON: the mean `loss` over the kinds; `mlm_loss`, in nats per hidden token; and by kind the number of
        `pairs`; their `loss` in nats, by whole vectors; the share of first texts whose partner is the nearest, or among
        the ten nearest, of all second texts (`recall_at_1`, `recall_at_10`), where texts of the same document do not
        count as nearer; and how many numbers of a vector are not 0 on average (`nonzero`; None of dense ones).
    """
    kinds: dict[str, dict[str, Any]] = {}
    total, count = 0.0, 0
    with evaluating(model):
        for name, pairs in held.items():
            rows, _ = stream.rows(pairs)
            vectors_ED, texts = text_vectors(model, rows, kind)
            losses = contrast_losses(vectors_ED, texts, temperature=temperature, unit=kind.unit)
            first_P, other_C, barred_PC = compared(texts)
            ready_ED = kind.ready(vectors_ED)
            scores_PP = ready_ED[first_P] @ ready_ED[other_C[: len(first_P)]].T
            right_P1 = scores_PP.diagonal()[:, None]
            before_P = ((scores_PP > right_P1) & ~barred_PC[:, : len(first_P)]).sum(1)
            kinds[name] = {
                "pairs": texts.num_pairs,
                "loss": float(losses.total) / texts.num_pairs,
                "recall_at_1": float((before_P < 1).float().mean()),
                "recall_at_10": float((before_P < 10).float().mean()),
                "nonzero": None if kind.unit else float((vectors_ED > 0).sum(1).float().mean()),
            }
            for part in _in_parts(rows):
                if masker is None:
                    break
                masked = masker(part)
                targets = PREDICT_MASKED.targets(part, masked)
                hidden_TD = hidden_states(model, masked.input_ids, part.segment_ids, part.position_ids)
                moved = map_tensors(targets, lambda tensor: tensor.to(hidden_TD.device))  # noqa: B023
                total += float(PREDICT_MASKED.losses(model, hidden_TD, moved, None).total)
                count += len(targets)
    loss = sum(figures["loss"] for figures in kinds.values()) / len(kinds)
    return {"loss": loss, "kinds": kinds, "mlm_loss": None if masker is None else total / max(count, 1)}


def mine(model: MaskedLM, stream: PairStream, settings: HardNegatives, kind: VectorKind) -> Ints:
    """Hard negatives [I, K] of all parts of documents that have two crops; -1 where there are fewer. Memory is two
    vectors for each part, or what is not 0 of sparse ones, and half a gigabyte.

    Source: Moreira et al. 2024 (NV-Retriever), section 3.2.
    """
    parts, config = stream.drawer.parts, model.config
    usable = np.flatnonzero(parts.can[:, CROPS])
    key = mix_ints(_MINE, stream.settings.seed)
    size = min(_PARTS, _NUMBERS // (2 * (config.hidden_size if kind.unit else config.vocab_size)))
    firsts: list[Tensor] = []  # vectors of the two texts of a pair of each part
    seconds: list[Tensor] = []
    with evaluating(model):
        for begin in range(0, len(usable), size):
            pairs = stream.drawer.draw(usable[begin : begin + size], key, kind=CROPS)
            vectors_ED, texts = text_vectors(model, stream.rows(pairs)[0], kind)
            both = kind.ready(vectors_ED)[texts.order_E].split(len(pairs))
            for into, some_ID in zip((firsts, seconds), both, strict=True):
                into.append(some_ID if kind.unit else some_ID.to_sparse())
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
    return negatives


def load_negatives(file: Path, step: int) -> Ints | None:
    """Those that were mined by a step; None where that was not done yet. A RunError says where it is damaged."""
    if not file.is_file():
        return None
    try:
        content = load_file(file)
        parts: Ints = content["parts"]
        return parts if int(content["step"][0]) <= step else None
    except (OSError, KeyError, SafetensorError) as error:
        raise RunError(f"{file}: damaged ({error}); remove it, and it is made again") from error
