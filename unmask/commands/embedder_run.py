"""The training of an embedding model: the loop that pretraining uses, with pairs as what is learned first."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

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
from unmask.commands.reporting import MetricsFile, NoMetrics, Reporter, read_metrics
from unmask.commands.training_run import CHECKPOINT_SECONDS
from unmask.core.errors import DivergedError, EndedElsewhereError, RunError
from unmask.core.files import ClaimedFolder, read_object, typed
from unmask.core.interruption import Interrupted, Interruption
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE
from unmask.masking.masker import Masker
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM, compile_model
from unmask.model.heads import ContrastHead
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.checkpoints import (
    Best,
    Budget,
    CheckpointWriter,
    TrainState,
    checkpoint_path,
    clear_parts,
    list_checkpoints,
    load_checkpoint,
)
from unmask.train.contrast import (
    SPARSE,
    contrast_objective,
    dense,
    lower_logits,
    splade_objective,
)
from unmask.train.distributed import ALONE, Group, alike, by_first
from unmask.train.hardware import choose_device, choose_dtype, why_not_compiled
from unmask.train.loop import StepReport, begin_with_parts, train
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.optimizer import Optimizer
from unmask.train.settings import LinearDecay, TrainingSettings
from unmask.train.step import in_smaller_parts

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


EVALUATION = "evaluation"
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
        interruption: Asked after every step.
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
        interruption: Interruption,
        group: Group = ALONE,
    ) -> None:
        settings, budget = plan.settings, plan.budget
        self.group = group
        self.folder, self.settings, self.data = folder, settings, data
        self.reporter, self.interruption = reporter, interruption
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
        dtype = choose_dtype(settings.precision, device)
        if settings.learn_temperature:
            model.add_module(ContrastHead.name, ContrastHead(settings.heat))
        model = model.to(device)
        model.encoder.compute_dtype = dtype
        model.encoder.gradient_checkpointing = settings.gradient_checkpointing
        steps = self.training.known_steps
        if why_not_compiled("auto", device, minutes=budget.minutes, steps=steps) is None:
            compile_model(model, tuned=False)
        optimizer = Optimizer(model, self.training, dtype=dtype, factor_of=_factor_of, group=group)
        self.state = TrainState(model, optimizer)
        self.progress = 0.0
        self.kind = dense(settings.pooling) if settings.sparse is None else SPARSE
        self.leading = self._leading(model.config.hidden_size)
        with_mlm = settings.mlm_weight > 0.0
        self.others = (replace(PREDICT_MASKED, weight=settings.mlm_weight),) if with_mlm else ()
        self.masker = (
            Masker.from_tokenizer(tokenizer, rate=settings.mask_rate, seed=settings.seed) if with_mlm else None
        )
        self.history: list[dict[str, Any]] = []

    def _leading(self, hidden_size: int) -> Objective:
        heat, sparse = self.settings.heat, self.settings.sparse
        if sparse is None:
            dimensions = self.settings.dimensions_for(hidden_size)
            return contrast_objective(temperature=heat, dimensions=dimensions, kind=self.kind)
        weights = sparse.first_weight, sparse.second_weight
        return splade_objective(temperature=heat, weights=weights, progress=lambda: self.progress)

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

    def run(self) -> None:
        """Trains from the last checkpoint on; afterwards the state's model is the result.

        Raises:
            DivergedError: The loss is not finite; the text says what to do.
            Interrupted: A signal came; the state was saved.
            RunError: A checkpoint cannot be written or read.
            MemoryFullError: Not even one row fits into memory.
        """
        self._announce()
        self._resume()
        self.metrics: MetricsFile | NoMetrics = NoMetrics()
        if self.group.is_first:
            self.metrics = MetricsFile(self.folder.metrics, step=self.state.step)
        self.history = by_first(self.group, self._evaluations)
        if self.state.step == 0:
            self.make_ready()
            self._evaluate()
        with (
            self.interruption.patience(),
            CheckpointWriter(
                self.folder.checkpoints, fingerprint=self.fingerprint, keep=self.settings.checkpoint.keep
            ) as self.checkpoints,
        ):
            self._consume()
            self._evaluate()  # by the clock nobody knows which step is the last
            self._save()
        self.group.told([0.0], patient=True)  # by now the first one's thread has all files
        alike(self.group, self._take_best)

    def make_ready(self) -> None:
        """What is done to a model that has learned nothing of this training: sparse vectors begin sparse."""
        if self.settings.sparse is None or self.goes_on_sparse:
            return
        less = by_first(self.group, lambda: surplus_of(self.state.model, self.stream))
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

    def _resume(self) -> None:
        name = by_first(self.group, self._last_checkpoint)
        if name is None:
            return

        def load() -> None:
            load_checkpoint(self.folder.checkpoints / name, self.state, fingerprint=self.fingerprint)
            self.stream.negatives = load_negatives(self.folder.negatives, self.state.step)

        alike(self.group, load)
        self.reporter.note(f"going on from step {self.state.step:,} ({name})")

    def _last_checkpoint(self) -> str | None:
        clear_parts(self.folder.checkpoints)
        checkpoints = list_checkpoints(self.folder.checkpoints)
        return checkpoints[-1].name if checkpoints else None

    def _evaluations(self) -> list[dict[str, Any]]:
        return [line for line in read_metrics(self.folder.metrics) if line.get("kind") == EVALUATION]

    def _consume(self) -> None:
        """Takes the loop's reports."""
        self.progress = Budget.of(self.training).progress(self.state.spent)
        done, saved = int(self.progress * self.settings.evaluations), self.state.seconds
        begin_with_parts(self.state, self.masker, self.training)
        micro_tokens = self.state.micro_tokens
        loop = train(self.state, self.stream, self.masker, self.training, objectives=self.others, leading=self.leading)
        try:
            for report in loop:
                self.progress = report.progress
                self.metrics.step(report)
                self.reporter.step(report)
                if self.state.micro_tokens != micro_tokens:
                    micro_tokens = self.state.micro_tokens
                    self.reporter.note(in_smaller_parts(micro_tokens))
                due = self._mine(report) or self._checkpoint_due(report, saved)
                number = int(report.progress * self.settings.evaluations)
                if number > done or report.progress >= 1.0:
                    done = number
                    due = self._evaluate() or due
                signum = max(int(said) for (said,) in self.group.told([self.interruption.signum or 0]))
                if due or signum:
                    self._save()
                    saved = report.seconds
                if signum:
                    self._stop(signum, report.step)
                if self._has_waited():
                    self.reporter.note(f"the held-out loss has not fallen for a while: ended at step {report.step:,}")
                    break
        except DivergedError as error:
            if not self.group.is_first:
                raise EndedElsewhereError(f"{error}; the first process says what to do") from error
            rate = self.training.learning_rate / 3
            raise DivergedError(
                f"{error}; start anew with a lower learning rate: --set embedder.learning_rate={rate:.2g} --overwrite"
            ) from error

    def _mine(self, report: StepReport) -> bool:
        """Looks for hard negatives when it is time; whether that was done."""
        wanted = self.settings.hard_negatives
        if wanted is None or self.stream.negatives is not None or not wanted.after <= report.progress < 1.0:
            return False

        def look() -> None:
            save_negatives(self.folder.negatives, mine(self.state.model, self.stream, wanted, self.kind), report.step)

        by_first(self.group, look)
        found = alike(self.group, lambda: load_negatives(self.folder.negatives, report.step))
        assert found is not None, "they were found by this step"
        self.stream.negatives = found
        have = int((found.parts >= 0).any(1).sum())
        self.reporter.note(f"step {report.step:,}: hard negatives for {have:,} of {len(found.parts):,} parts")
        return True

    def _evaluate(self) -> bool:
        """Measures the model; whether it is the best so far.

        Raises:
            DivergedError: The held-out loss is not finite.
        """
        if not self.data.held or (self.history and self.history[-1]["step"] == self.state.step):
            return False
        found = EmbedderMeasured.of_plain(by_first(self.group, self._measured))
        self._record(found)
        if self.state.step == 0 or (self.state.best is not None and found.loss >= self.state.best.loss):
            return False
        self.state.best = Best(self.state.step, found.loss)
        return self.settings.patience is not None

    def _measured(self) -> dict[str, Any]:
        found = measure(
            self.state.model,
            self.stream,
            self.data.held,
            temperature=self.settings.heat,
            masker=self.masker,
            kind=self.kind,
        )
        if not math.isfinite(found.loss):
            raise DivergedError(f"the held-out loss behind step {self.state.step} is {found.loss}")
        return found.plain()

    def _record(self, found: EmbedderMeasured) -> None:
        state = self.state
        line = {
            "kind": EVALUATION,
            "step": state.step,
            "seconds": round(state.seconds, 3),
            "loss": found.loss,
            **found.plain(),
        }
        self.metrics.other(line)
        self.history.append(line)
        self.reporter.note(f"step {state.step:>6,}: {found.in_words()}")

    def _has_waited(self) -> bool:
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

    def _checkpoint_due(self, report: StepReport, saved_seconds: float) -> bool:
        every_steps = self.settings.checkpoint.every_steps
        if every_steps is not None:
            return report.step % every_steps == 0
        return report.seconds - saved_seconds >= CHECKPOINT_SECONDS

    def _save(self) -> None:
        self.metrics.sync()
        self.checkpoints.save(self.state)

    def _stop(self, signum: int, step: int) -> NoReturn:
        """Ends in all processes, whichever was sent the signal; the first says so."""
        self.checkpoints.wait()
        self.group.told([0.0], patient=True)
        way_on = f"go on with --out {typed(self.folder.root)} --resume"
        raise Interrupted(signum, f"stopped and saved at step {step:,}; {way_on}" if self.group.is_first else "")


def _factor_of(name: str) -> float:
    return _TEMPERATURE_RATE if name.startswith(f"{ContrastHead.name}.") else 1.0


def without_temperature(model: MaskedLM) -> MaskedLM:
    """The model without what only its training needed; in float32."""
    if model.find_head(ContrastHead) is not None:
        delattr(model, ContrastHead.name)
    model.encoder.compute_dtype = torch.float32
    return model.eval()
