"""The training of an embedding model: the loop that pretraining uses, with pairs as what is learned first."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.commands.embedder_measure import (
    EmbedderMeasured,
    load_negatives,
    measure,
    mine,
    save_negatives,
    surplus_of,
)
from unmask.commands.embedder_pairs import PairData
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_stream import PairStream
from unmask.core.errors import DivergedError, RunError
from unmask.core.files import ClaimedFolder, read_object
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.masking.masker import Masker
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM, compile_model
from unmask.model.heads import ContrastHead
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback, ShowProgress, StepReport, StopAtSignal
from unmask.train.checkpoints import (
    Best,
    Checkpoints,
    begun_dtype,
    checkpoint_path,
    last_checkpoint,
    load_checkpoint,
    progress_of,
)
from unmask.train.contrast import (
    SPARSE,
    contrast_objective,
    dense,
    lower_logits,
    splade_objective,
)
from unmask.train.distributed import ALONE, Group, on_every_rank, on_rank_zero
from unmask.train.hardware import choose_device, choose_dtype, why_not_compiled
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import LinearDecay, TrainingSettings
from unmask.train.trackers import MetricsFile
from unmask.train.trainer import Trainer

# ----------------------------------------
# The folder of an embedding model's training.
#
# settings.json            model, text and settings; a folder with it holds a training
# given/, pipes/, ...      text that was no file
# data/texts.safetensors   documents as tokens
# negatives.safetensors    wrong answers that the model has found, where it was to look for them
# checkpoints/             the latest states
# metrics.jsonl            a line every few steps and at every evaluation
# model/                   the result: a folder of sentence-transformers and of transformers
# summary.json             figures of the result, written last
# report.html              curves and figures for the eye

START_ANEW = "start anew with --overwrite"
MAY_DIFFER = {"embedder.card", "model", "corpus_files", "pairs_file"}  # the last three may have moved


class EmbedderFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = root / "settings.json"
        self.data = root / "data"
        self.texts = self.data / "texts.safetensors"
        self.negatives = root / "negatives.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        ours = {
            self.data.name, self.negatives.name, self.checkpoints.name, self.metrics.name, self.model.name,
            self.summary.name, self.report.name, GIVEN, PIPES, STDIN_FILE,
        }  # fmt: skip
        self._ours = ours
        self.claimed = ClaimedFolder(root=root, marker=self.settings.name, what="an embedder", ours=ours)

    def begin(self, content: dict[str, Any]) -> None:
        """Makes the folder one that holds a training.

        Raises:
            WriteError: It cannot be written.
        """
        self.claimed.claim(json.dumps(content, indent=1) + "\n")

    def clear(self) -> None:
        """Removes the training that is here.

        Raises:
            RunError: A file cannot be removed.
        """
        self.claimed.clear(self._ours)

    def check_same(self, content: dict[str, Any]) -> None:
        """Makes sure that the training that goes on is the one that was begun.

        Raises:
            RunError: It is another one, or what was written of it is damaged.
        """
        begun = read_object(self.settings, START_ANEW)
        self.claimed.check_same(begun, json.loads(json.dumps(content)), but_for=MAY_DIFFER)

    def read_summary(self) -> dict[str, Any]:
        """What a training that is over came to.

        Raises:
            RunError: It is damaged.
        """
        summary = read_object(self.summary, "take it away, and the model is measured again")
        if "model" not in summary:
            raise RunError(
                f"{self.summary}: damaged (it names no model); take it away, and the model is measured again"
            )
        return summary


_ON_CPU = 2 << 30  # bytes that a step keeps for its backward pass, about
_SPARSE_STAGES = 4  # largest logits, vectors, the gradient, and where numbers come from
_TEMPERATURE_RATE = 10.0  # of the learning rate, for the temperature: it is one number, and has far to go


@dataclass(frozen=True)
class EmbedderBudget:
    """How long is trained; one of the two is given."""

    minutes: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class EmbedderPlan:
    """What a training does.

    Attributes:
        settings: As given, with crops that fit the model.
        budget: How long.
        fingerprint: Of model, text and settings; checkpoints belong to it.
        goes_on_sparse: Whether the model makes sparse vectors already.
    """

    settings: EmbedderSettings
    budget: EmbedderBudget
    fingerprint: str
    goes_on_sparse: bool = False


def training_settings(
    settings: EmbedderSettings, budget: EmbedderBudget, stream: PairStream, config: EncoderConfig
) -> TrainingSettings:
    """What the loop and the optimizer are told.

    Args:
        settings: As given.
        budget: Of the training.
        stream: Whose rows they are.
        config: Of the model.
    """
    length = stream.row_length
    mean_lengths = [(most - least) / math.log(most / least) if most > least else least
                    for least, most in (settings.first_lengths, settings.second_lengths)]  # fmt: skip
    positions = settings.batch_size * (sum(mean_lengths) + 2 * len(stream.tokenizer.special.around))
    micro = settings.micro_batch_tokens
    if micro is None and choose_device().type == "cpu":
        shortest = None if settings.sparse is None else settings.shortest + len(stream.tokenizer.special.around)
        micro = positions_on_cpu(config, sparse_tokens=shortest)
    return TrainingSettings(
        steps=budget.steps,
        minutes=budget.minutes,
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


def positions_on_cpu(config: EncoderConfig, *, sparse_tokens: int | None = None) -> int:
    """How many positions are computed at once in memory of about 2 GB, by what a layer keeps of each, in float32.

    Args:
        config: Of the model.
        sparse_tokens: Tokens of the shortest text where vectors are sparse: of each text numbers of the whole
            vocabulary are kept, in every stage of a vector's making. None: they are dense.
    """
    kept = config.num_layers * (10 * config.hidden_size + 3 * config.intermediate_size) * 4
    if sparse_tokens is not None:
        kept += _SPARSE_STAGES * config.vocab_size * 4 // sparse_tokens
    return max(1024 if sparse_tokens is None else 256, _ON_CPU // kept)


class EmbedderRun:
    """From pairs to a trained model, or to an interruption.

    Args:
        folder: Of the training.
        model: The masked language model that it begins with; changed in place.
        tokenizer: Its tokenizer.
        data: Pairs.
        plan: How.
        reporter: Called with the progress.
        group: The processes that train together; the first writes into the folder.
    """

    def __init__(
        self,
        folder: EmbedderFolder,
        model: MaskedLM,
        tokenizer: Tokenizer,
        data: PairData,
        plan: EmbedderPlan,
        reporter: Reporter,
        group: Group = ALONE,
    ) -> None:
        settings, budget = plan.settings, plan.budget
        self.group = group
        self.folder, self.settings, self.data = folder, settings, data
        self.reporter = reporter
        self.fingerprint, self.goes_on_sparse = plan.fingerprint, plan.goes_on_sparse
        device = choose_device()
        self.stream = PairStream(
            data.tokens,
            data.parts,
            data.given,
            tokenizer,
            settings,
            most_positions=model.config.max_position_embeddings,
        )
        self.training = training_settings(settings, budget, self.stream, model.config)
        dtype = begun_dtype(folder.checkpoints) or choose_dtype(settings.precision, device)
        if settings.learn_temperature:
            model.add_module(ContrastHead.name, ContrastHead(settings.heat))
        model = model.to(device)
        model.encoder.compute_dtype = dtype
        model.encoder.gradient_checkpointing = settings.gradient_checkpointing
        steps = self.training.known_steps
        if why_not_compiled("auto", device, minutes=budget.minutes, steps=steps) is None:
            compile_model(model)
        self.kind = dense(settings.pooling) if settings.sparse is None else SPARSE
        with_mlm = settings.mlm_weight > 0.0
        self.masker = (
            Masker.from_tokenizer(tokenizer, rate=settings.mask_rate, seed=settings.seed) if with_mlm else None
        )
        self.trainer = Trainer(
            model,
            self.stream,
            self.training,
            masker=self.masker,
            objective=self._objective(model.config.hidden_size),
            objectives=(replace(PREDICT_MASKED, weight=settings.mlm_weight),) if with_mlm else (),
            optimizer=lambda model: build_optimizer(model, self.training, factor_of=_factor_of),
            fingerprint=plan.fingerprint,
            group=group,
        )
        self.state = self.trainer.state
        self.history = self.state.history

    def _objective(self, hidden_size: int) -> Objective:
        heat, sparse = self.settings.heat, self.settings.sparse
        if sparse is None:
            dimensions = self.settings.dimensions_for(hidden_size)
            return contrast_objective(temperature=heat, dimensions=dimensions, kind=self.kind)
        weights = sparse.first_weight, sparse.second_weight
        return splade_objective(
            temperature=heat, weights=weights, progress=lambda: progress_of(self.training, self.state.spent)
        )

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        config = self.state.model.config
        return config.hidden_size if self.settings.sparse is None else config.vocab_size

    @property
    def temperature(self) -> float:
        """As it is set, or as far as it is learned."""
        head = self.state.model.find_head(ContrastHead)
        return self.settings.heat if head is None else head.temperature.item()

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = ()) -> None:
        """Trains from the last checkpoint on; afterwards the state's model is the result.

        Args:
            interruption: Notes signals, at which the training saves and leaves.
            callbacks: Of the user, called before evaluations and checkpoints.

        Raises:
            DivergedError: The loss is not finite; the text says what to do.
            Interrupted: A signal came; the state was saved.
            RunError: A checkpoint cannot be written or read.
            MemoryFullError: Not even one row fits into memory.
        """
        folder, trainer = self.folder, self.trainer
        self._announce()
        if (name := on_rank_zero(self.group, lambda: last_checkpoint(folder.checkpoints))) is not None:

            def load() -> None:
                load_checkpoint(folder.checkpoints / name, self.state, fingerprint=self.fingerprint)
                self.stream.negatives = load_negatives(folder.negatives, self.state.step)

            on_every_rank(self.group, load)
            self.reporter.note(f"going on from step {self.state.step:,} ({name})")
        self.history = self.state.history
        metrics = MetricsFile(folder.metrics, step=self.state.step) if self.group.is_main else None
        if metrics is not None:
            may_end_early = self.settings.patience is not None
            trainer.callbacks += [metrics, ShowProgress(self.reporter, may_end_early=may_end_early)]
        trainer.callbacks += [*callbacks, EmbedderWatch(self), StopAtSignal(interruption, folder.root)]
        if metrics is not None:
            settings = self.settings.checkpoint
            trainer.callbacks.append(
                Checkpoints(folder.checkpoints, settings, fingerprint=self.fingerprint, sync=metrics.sync)
            )
        if self.state.step == 0:
            self.make_ready()
            self.evaluate()
        try:
            with interruption.patience():
                trainer.fit()
        except DivergedError as error:
            rate = self.training.learning_rate / 3
            raise DivergedError(
                f"{error}; start anew with a lower learning rate: --set embedder.learning_rate={rate:.2g} --overwrite"
            ) from error
        on_rank_zero(self.group, lambda: None)  # by now its checkpoints are whole
        on_every_rank(self.group, self._take_best)

    def make_ready(self) -> None:
        """What is done to a model that has learned nothing of this training: sparse vectors begin sparse."""
        if self.settings.sparse is None or self.goes_on_sparse:
            return
        less = on_rank_zero(self.group, lambda: surplus_of(self.state.model, self.stream))
        if less > 0.0:
            lower_logits(self.state.model, less)
            self.reporter.note(f"all logits are less by {less:.2f}, so that vectors are sparse from the beginning")

    def _announce(self) -> None:
        model, settings = self.state.model, self.settings
        dimensions = settings.dimensions_for(model.config.hidden_size)
        beginnings = f", and their first {', '.join(map(str, dimensions))}" if dimensions else ""
        kind = "" if settings.sparse is None else "sparse "
        self.reporter.note(
            f"{self.stream.size:,} pairs an epoch, {self.stream.pairs_a_step:,} a step; "
            f"{kind}vectors of {self.width:,}{beginnings}; "
            f"model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {model.encoder.device.type}"
        )
        parts = self.training.micro_batch_tokens
        if parts is not None and parts < self.training.batch_tokens:
            self.reporter.note(
                f"steps are made in parts of about {parts:,} positions, by way of their vectors (the same result)"
            )

    def mine_negatives(self, report: StepReport) -> bool:
        """Looks for hard negatives when it is time; whether that was done."""
        settings = self.settings.hard_negatives
        if settings is None or self.stream.negatives is not None or not settings.after <= report.progress < 1.0:
            return False

        def look() -> None:
            negatives = mine(self.state.model, self.stream, settings, self.kind)
            save_negatives(self.folder.negatives, negatives, report.step)

        on_rank_zero(self.group, look)
        found = on_every_rank(self.group, lambda: load_negatives(self.folder.negatives, report.step))
        assert found is not None, "they were found by this step"
        self.stream.negatives = found
        have = int((found.parts >= 0).any(1).sum())
        self.reporter.note(f"step {report.step:,}: hard negatives for {have:,} of {len(found.parts):,} parts")
        return True

    def evaluate(self) -> None:
        """Measures the model on held-out pairs, unless that was done after this step.

        Raises:
            DivergedError: The held-out loss is not finite.
        """
        state = self.state
        if not self.data.held or (self.history and self.history[-1]["step"] == state.step):
            return

        def measured() -> dict[str, Any]:
            figures = measure(
                state.model,
                self.stream,
                self.data.held,
                temperature=self.settings.heat,
                masker=self.masker,
                kind=self.kind,
            )
            if not math.isfinite(figures.loss):
                raise DivergedError(f"the held-out loss behind step {state.step} is {figures.loss}")
            return figures.plain()

        figures = EmbedderMeasured.of_plain(on_rank_zero(self.group, measured))
        line = {"loss": figures.loss, **figures.plain()}
        self.trainer.evaluated(line)
        self.history.append({"step": state.step, **line})
        self.reporter.note(f"step {state.step:>6,}: {figures.in_words()}")
        if state.step and (state.best is None or figures.loss < state.best.loss):
            state.best = Best(state.step, figures.loss)
            if self.settings.patience is not None:
                self.trainer.request_save()

    def has_waited(self) -> bool:
        """Whether the held-out loss has not fallen for too long."""
        patience = self.settings.patience
        losses = [line["loss"] for line in self.history if line["step"]]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def _take_best(self) -> None:
        """Goes back to the best weights where the training was to end with them."""
        best, state = self.state.best, self.state
        if self.settings.patience is None or best is None or best.step == state.step:
            return
        spent = state.step, state.tokens_seen, state.seconds
        load_checkpoint(checkpoint_path(self.folder.checkpoints, best.step), state, fingerprint=self.fingerprint)
        state.step, state.tokens_seen, state.seconds = spent
        self.reporter.note(f"the best model is that of step {best.step:,}")


class EmbedderWatch(Callback):
    """Looks for hard negatives, evaluates, and ends a training whose held-out loss has not fallen for too long."""

    def __init__(self, run: EmbedderRun) -> None:
        self._run = run
        self._done = int(progress_of(run.training, run.state.spent) * run.settings.evaluations)

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Does what it is time for."""
        run = self._run
        if run.mine_negatives(report):
            trainer.request_save()
        number = int(report.progress * run.settings.evaluations)
        if number > self._done or report.progress >= 1.0:
            self._done = number
            run.evaluate()
        if run.has_waited():
            run.reporter.note(f"the held-out loss has not fallen for a while: ended at step {report.step:,}")
            trainer.request_stop()

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates: by the clock no step is known to be the last."""
        if trainer.error is None:
            self._run.evaluate()


def _factor_of(name: str) -> float:
    return _TEMPERATURE_RATE if name.startswith(f"{ContrastHead.name}.") else 1.0


def without_temperature(model: MaskedLM) -> MaskedLM:
    """The model without what only its training needed; in float32."""
    if model.find_head(ContrastHead) is not None:
        delattr(model, ContrastHead.name)
    model.encoder.compute_dtype = torch.float32
    return model.eval()
