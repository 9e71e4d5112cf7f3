"""The training of an embedding model: the loop that pretraining uses, with pairs as what is learned first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from unmask.commands.embedder_pairs import PairData
from unmask.commands.embedder_settings import EmbedderSettings, HardNegatives
from unmask.commands.embedder_stream import DrawnPairs, MinedNegatives, PairStream
from unmask.commands.reporting import MetricsFile, NoMetrics, Reporter, read_metrics
from unmask.commands.training_run import CHECKPOINT_SECONDS
from unmask.core.errors import DivergedError, EndedElsewhereError, RunError
from unmask.core.files import ClaimedFolder, read_object, typed, writing
from unmask.core.hashing import mix_ints
from unmask.core.interruption import Interrupted, Interruption
from unmask.data.rows import Cursor, Rows
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
    DENSE,
    SPARSE,
    PairedTexts,
    TextTargets,
    VectorKind,
    contrast_losses,
    contrast_objective,
    dense,
    lower_logits,
    splade_objective,
    surplus,
)
from unmask.train.distributed import ALONE, Group, alike, by_first
from unmask.train.hardware import choose_device, choose_dtype, why_not_compiled
from unmask.train.loop import StepReport, begin_with_parts, train
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.optimizer import Optimizer
from unmask.train.runner import evaluating, hidden_states
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


# ----------------------------------------
# How well held-out texts find their partners, and how well hidden tokens are still predicted.
#
# Shape suffixes: E = texts, P = pairs, C = candidates, D = hidden size, N = predicted tokens.

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
    """What all logits are to be less by for sparse vectors to begin sparse (`unmask.train.contrast.surplus`).

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


# ----------------------------------------
# Wrong answers that a model itself takes for likely, without those that may well be right.
#
#     similarity to the first text of a pair   its second text   0.80
#                                              other parts       0.79  0.78 | 0.75  0.71  0.70  0.64 ...
#     margin 0.95: below 0.76                  too alike: left out    kept: the next four
#
# Shape suffixes: I = parts of documents, D = hidden size.

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
