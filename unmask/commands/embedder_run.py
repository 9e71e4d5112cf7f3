"""Trains an embedding model: the loop of pretraining, with contrasting pairs as its main objective.

    settings.json            model, text and settings; marks the folder as an embedder
    given/, pipes/, ...      text that did not come from files
    texts.safetensors        documents as tokens
    checkpoints/             the latest states
    metrics.jsonl            a line every few steps and at every evaluation
    model/                   the result: a folder of sentence-transformers and of transformers
    summary.json             figures of the result, written last
    report.html              curves and figures, for reading

Shape suffixes: E = texts, P = pairs, C = candidates, D = hidden size, T = positions, flattened.
"""

from __future__ import annotations

import hashlib
import json
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.commands.embedder_pairs import PairData, PairStream, TokenPairs, pair_data
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_texts import TokenTexts, read_pairs, read_texts
from unmask.commands.run_data import save_with_tokenizer
from unmask.core.errors import DivergedError
from unmask.core.files import ClaimedFolder, file_sha256, read_object, whole_folder, write_atomically, writing
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter
from unmask.data.rows import Cursor, Rows, moved
from unmask.data.settings import CorpusSettings, Reading
from unmask.data.sources import InMemory, Named, has_match, is_stream, keep_as_files
from unmask.masking.masker import Masker
from unmask.measure.held_out import fixed_masker
from unmask.model.card_head import Origin
from unmask.model.encoder import MaskedLM
from unmask.model.folder import files_checked, load_model, write_checksums
from unmask.model.pooling import SPLADE, write_sentence_files
from unmask.report.cards import write_embedder_card
from unmask.report.pages import write_embedder_report
from unmask.search.known_items import HELD_OUT
from unmask.tasks.files import ExampleFiles
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback, EvaluationTimes, StepReport, read_metrics
from unmask.train.checkpoints import fit, place_model
from unmask.train.contrast import (
    SPARSE,
    TextTargets,
    VectorKind,
    compared,
    contrast_losses,
    dense,
    pair_objective,
    surplus,
)
from unmask.train.distributed import OF_RUN, Group, check_same, on_rank_zero, rank_zero_first
from unmask.train.hardware import choose_device, positions_on_cpu
from unmask.train.objectives import PREDICT_MASKED, token_losses
from unmask.train.runner import evaluating, hidden_states
from unmask.train.settings import AdamWSettings, LinearDecay, TrainingSettings
from unmask.train.step import Best
from unmask.train.trainer import Trainer

# What may differ when a training resumes; files may have moved.
MAY_DIFFER = {"embedder.micro_batch_tokens", "model", "corpus_files", "pairs_file"}
_SPARSE_STAGES = 4  # largest logits, their positions, vectors, the gradient
_POSITIONS = 8192  # computed at once without gradients
_LOOK_ROWS = 32  # at most, to estimate how sparse vectors are


@dataclass(frozen=True)
class EmbedderPlan:
    """A training, checked before anything is read or written."""

    model: Path  # folder of the masked language model that training starts from
    tokenizer: Tokenizer
    has_head: bool
    makes_sparse: bool  # the model makes sparse vectors already
    origin: Origin  # what the model is, for the card
    texts: Sequence[Named]  # to learn from, besides pairs
    files: Sequence[Path]  # those of them that are files
    pairs: ExampleFiles | None  # the user's own
    settings: EmbedderSettings  # with crops that fit the model
    corpus: CorpusSettings  # how text is read and held out
    minutes: float | None  # the budget, or
    steps: int | None
    maker: Path | None  # run or embedder whose rule says what is held out; None: the default rule
    column_of: Path | None  # run or embedder whose rule may name the column of text; None: the user names it

    def content(self) -> dict[str, Any]:
        """The content of settings.json, except the hash of the tokens."""
        return {
            "model": self.origin.checkpoint,
            "model_sha256": self.origin.sha256,
            "corpus_files": [str(path.absolute()) for path in self.files],
            "pairs_file": None if self.pairs is None else str(self.pairs.path.absolute()),
            "pairs_sha256": None if self.pairs is None else self.pairs.sha256,
            HELD_OUT: self.corpus.model_dump(mode="json") if self.texts else None,  # pairs may be of any documents
            "embedder": self.settings.model_dump(),
            "minutes": self.minutes,
            "steps": self.steps,
        }


def check_resumed(claimed: ClaimedFolder, content: Mapping[str, Any]) -> None:
    """Checks that the training in a folder began with this content of settings.json. Tokens whose hash is not in the
    content are not compared: a finished training no longer needs them."""
    before = read_object(claimed.root / "settings.json", "start over with overwrite")
    # Moved text may have a new path. Other text would be ignored, since the stored tokens are used.
    is_here = all(map(has_match, map(str, before.get("corpus_files") or ())))
    may_differ = MAY_DIFFER - {"corpus_files"} if is_here else MAY_DIFFER
    now = {"texts_sha256": before.get("texts_sha256"), **json.loads(json.dumps(content))}
    claimed.check_same(before, now, but_for=may_differ)


class EmbedderRun(Callback):
    """Trains a model by a plan, and writes it into a folder.

    It is a callback of its own trainer: it evaluates, and stops early if the held-out loss no longer falls. Only rank 0
    reads the text and writes into the folder; the other ranks load the tokens from there. If a training `goes_on`, its
    text is not read again.
    """

    def __init__(
        self, claimed: ClaimedFolder, plan: EmbedderPlan, reporter: Reporter, group: Group, *, goes_on: bool
    ) -> None:
        self.root, self.plan, self.reporter, self.group = claimed.root, plan, reporter, group
        settings = self.settings = plan.settings
        with files_checked(plan.model):
            model = load_model(plan.model, mask_id=plan.tokenizer.special.mask)
        config = model.config

        opened = partial(self._open, claimed, config.max_position_embeddings, goes_on=goes_on)
        self.data, self.fingerprint = rank_zero_first(group, opened)
        check_same(group, {OF_RUN: self.fingerprint})
        stream = self.stream = self.data.stream

        length, special = stream.row_length, len(plan.tokenizer.special.around)
        mean_lengths = [(most - least) / math.log(most / least) if most > least else least
                        for least, most in (settings.first_lengths, settings.second_lengths)]  # fmt: skip
        positions = settings.batch_size * (sum(mean_lengths) + 2 * special)
        micro = settings.micro_batch_tokens
        if micro is None and settings.sparse is not None and choose_device().type == "cpu":
            # A text keeps a number per vocabulary entry at every stage of its vector.
            more = _SPARSE_STAGES * config.vocab_size * 4 // (settings.shortest + special)
            micro = positions_on_cpu(config, more_bytes=more)
        same = "weight_decay", "clip_norm", "precision", "seed"
        self.training = TrainingSettings(
            steps=plan.steps,
            minutes=plan.minutes,
            sequence_length=length,
            batch_tokens=max(length, math.ceil(positions / length) * length),
            micro_batch_tokens=None if micro is None else max(micro, length),
            learning_rate=settings.learning_rate_for(config.hidden_size),
            schedule=LinearDecay(kind="linear", warmup=settings.warmup),
            optimizer=AdamWSettings(kind="adamw", betas=(0.9, 0.99)),
            **{name: getattr(settings, name) for name in same},
        )
        place_model(model, self.training, self.root / "checkpoints")

        # The main objective contrasts pairs; predicting masked tokens is an extra one.
        self.kind, weights = dense(settings.pooling), None
        if settings.sparse is not None:
            self.kind, weights = SPARSE, (settings.sparse.first_weight, settings.sparse.second_weight)
        self.masker = None
        if settings.mlm_weight > 0.0:
            self.masker = Masker.from_tokenizer(plan.tokenizer, rate=0.15, seed=settings.seed)
        own = weakref.proxy(self)  # a cycle would keep the model in memory after the training
        self.trainer = Trainer(
            model,
            stream,
            self.training,
            masker=self.masker,
            objective=pair_objective(
                self.kind,
                temperature=settings.temperature_or_default,
                dimensions=settings.dimensions_for(config.hidden_size),
                sparse_weights=weights,
                progress=lambda: own.state.progress(own.training),
            ),
            objectives=() if self.masker is None else (replace(PREDICT_MASKED, weight=settings.mlm_weight),),
            fingerprint=self.fingerprint,
            group=group,
        )
        self.state = self.trainer.state
        self.dimension = config.hidden_size if settings.sparse is None else config.vocab_size
        self._times = EvaluationTimes(settings.evaluations)

    def _open(self, claimed: ClaimedFolder, max_positions: int, *, goes_on: bool) -> tuple[PairData, str]:
        """Reads or loads the pairs; also returns a fingerprint of all that determines the weights."""
        plan, settings, note, notify = self.plan, self.settings, self.reporter.note, self.reporter.notify
        holds, file = goes_on or not self.group.is_main, self.root / "texts.safetensors"
        pairs = None
        if plan.pairs is not None:
            columns = settings.columns.model_dump(exclude_none=True, exclude=set(Reading.model_fields))
            pairs = read_pairs(plan.pairs, columns, note, settings.columns)
        texts = None
        if plan.texts and holds and file.is_file():
            texts = TokenTexts.load(file)
            if len(plan.files) < len(plan.texts):
                note("resuming with the text that the training was started with; what is passed now is ignored")
        elif plan.texts:
            paths = list(keep_as_files(plan.texts, self.root, reuse=holds, notify=notify))
            texts = read_texts(paths, plan.tokenizer, plan.corpus, column_of=plan.column_of, note=note, notify=notify)
            texts.save(file)
        # The content of settings.json. The fingerprint covers what determines the weights, but no paths of files.
        content = plan.content() | {"texts_sha256": None if texts is None else file_sha256(file)}
        deciding = {key: value for key, value in content.items() if key not in MAY_DIFFER}
        deciding["embedder"] = settings.model_dump(mode="json", exclude={"card", "micro_batch_tokens"})
        if holds:
            check_resumed(claimed, content)
        data = pair_data(texts, pairs, plan.tokenizer, settings, max_positions=max_positions, note=note)
        if self.group.is_main:
            claimed.claim(json.dumps(content, indent=1) + "\n")
        return data, hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Trains from the last checkpoint, writes everything, and returns the summary. The user's callbacks are called
        before evaluations and checkpoints."""
        settings, training, state, note = self.settings, self.training, self.state, self.reporter.note
        model = state.model
        dimensions = settings.dimensions_for(model.config.hidden_size)
        beginnings = f", also truncated to {', '.join(map(str, dimensions))}" if dimensions else ""
        note(
            f"{self.stream.size:,} pairs per epoch, {self.stream.pairs_a_step:,} per step; "
            f"{'' if settings.sparse is None else 'sparse '}vectors of {self.dimension:,} dimensions{beginnings}; "
            f"model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {model.encoder.device.type}"
        )
        if (parts := training.micro_batch_tokens or training.batch_tokens) < training.batch_tokens:
            note(f"each step is computed in parts of about {parts:,} positions (gradient caching, same result)")

        def begin() -> None:
            self._times.begin(self.trainer)
            self._stop_early()  # if the last evaluation before a kill was to stop training
            if state.step == 0:
                self.begin_sparse()
                self._evaluate()

        fit(
            self.trainer, self.root, self, interruption, self.reporter, settings.checkpoint, callbacks,
            begin=begin, section="embedder", may_end_early=settings.patience is not None,
        )  # fmt: skip
        best = state.best
        if state.best_weights is not None and best is not None and best.step != state.step:
            model.load_state_dict(state.best_weights)
            note(f"keeping the model of step {best.step:,}, which has the lowest held-out loss")
        note("writing the model")
        return on_rank_zero(self.group, self._write)

    def begin_sparse(self) -> None:
        """Lowers all logits so that sparse vectors start out sparse, unless the model makes sparse vectors already.

        A number added to all logits does not change the loss of masked tokens. It is estimated (`surplus`) from every
        n-th row of the first batch, so that all lengths are included: rows are packed by length.
        """
        if self.settings.sparse is None or self.plan.makes_sparse:
            return

        def estimate_surplus() -> float:
            rows = self.stream.batch(Cursor(), 0).rows
            stride = -(-rows.shape[0] // _LOOK_ROWS)
            rows = rows.map(lambda tensor: tensor[::stride])
            with evaluating(self.state.model):
                vectors_EV, _ = text_vectors(self.state.model, rows, self.kind)
            return surplus(vectors_EV, int((rows.segment_ids >= 0).sum()))

        shift = on_rank_zero(self.group, estimate_surplus)
        if shift > 0.0:
            with torch.no_grad():
                self.state.model.head.bias.sub_(shift)
            self.reporter.note(f"lowered all logits by {shift:.2f}, so that vectors are sparse from the start")

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if self._times.is_due(trainer, report):
            self._evaluate()
        self._stop_early()

    def _stop_early(self) -> None:
        losses, patience = [line["loss"] for line in self.state.history if line["step"]], self.settings.patience
        if patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
            self.reporter.note(f"stopping early at step {self.state.step:,}: the held-out loss no longer falls")
            self.trainer.request_stop()

    def on_end(self, trainer: Trainer) -> None:
        """Evaluates: with a budget in minutes, no step is known to be the last."""
        if trainer.error is None:
            self._evaluate()

    def _evaluate(self) -> None:
        """Measures the model on held-out pairs, unless already done at this step."""
        state = self.state
        if not self.data.held or (state.history and state.history[-1]["step"] == state.step):
            return

        def measured() -> dict[str, Any]:
            temperature = self.settings.temperature_or_default
            # Fixed masks, as in all held-out figures of masked tokens.
            masker = None if self.masker is None else fixed_masker(self.plan.tokenizer)
            figures = measure(state.model, self.stream, self.data.held, self.kind, temperature, masker)
            if not math.isfinite(figures["loss"]):
                raise DivergedError(f"the held-out loss after step {state.step} is {figures['loss']}")
            return figures

        with self._times.timed(self.trainer):
            figures = on_rank_zero(self.group, measured)
        self.trainer.evaluated(figures)
        state.history.append({"step": state.step, **figures})
        facts = [f"{kind}: recall@10 {f['recall_at_10']:.1%} of {f['pairs']:,}" for kind, f in figures["kinds"].items()]
        facts += [] if figures["mlm_loss"] is None else [f"masked tokens: loss {figures['mlm_loss']:.3f}"]
        self.reporter.note(f"step {state.step:>6,}: {'; '.join(facts)}")
        if state.step and (state.best is None or figures["loss"] < state.best.loss):
            state.best = Best(state.step, figures["loss"])
            if self.settings.patience is not None:
                state.keep_weights()

    def _write(self) -> dict[str, Any]:
        plan, settings, state, history = self.plan, self.settings, self.state, self.state.history
        model, config, length = state.model, state.model.config, state.model.config.max_position_embeddings
        folder = self.root / "model"
        model.encoder.compute_dtype = torch.float32
        model.eval()
        with writing(folder), whole_folder(folder) as partial:
            save_with_tokenizer(model, plan.tokenizer, partial, with_head=plan.has_head)
            pooling = settings.pooling if settings.sparse is None else SPLADE
            write_sentence_files(partial, max_length=length, width=self.dimension, pooling=pooling)
            write_checksums(partial)
        before, after = (history[0], history[-1]) if history else (None, None)
        model_step = state.step
        if state.best is not None and settings.patience is not None:
            model_step = state.best.step
            after = next((line for line in history if line["step"] == state.best.step), after)
        summary: dict[str, Any] = {
            "model": str(folder),
            "num_parameters": model.num_parameters,
            "dimension": self.dimension,
            "sparse": settings.sparse is not None,
            "dimensions": list(settings.dimensions_for(config.hidden_size)),
            "max_length": length,
            "steps": state.step,
            "tokens_seen": state.tokens_seen,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
            "pairs_seen": self.stream.pairs_before(state.cursor),
            "temperature": settings.temperature_or_default,
            "before": before and {name: before[name] for name in ("kinds", "mlm_loss")},
            "after": after and {name: after[name] for name in ("kinds", "mlm_loss")},
            "recall_at_10": after and {kind: figures["recall_at_10"] for kind, figures in after["kinds"].items()},
            "nonzero": None,
            "best_step": None if state.best is None else state.best.step,
            "model_step": model_step,
            "data": self.data.facts,
            "device": model.encoder.device.type,
        }
        if settings.sparse is not None and before and after:  # on average over all held-out texts
            summary["nonzero"] = {
                name: sum(each["nonzero"] * each["pairs"] for each in kinds) / sum(each["pairs"] for each in kinds)
                for name, kinds in (("before", before["kinds"].values()), ("after", after["kinds"].values()))
            }
        plain = settings.model_dump(mode="json", exclude={"card"})
        files = [path.name for path in (*plan.files, *([] if plan.pairs is None else [plan.pairs.path]))]
        files += ["texts in memory"] * any(isinstance(each, InMemory) for each in plan.texts)
        files += ["standard input or a pipe"] * any(map(is_stream, plan.texts))
        write_embedder_card(
            folder, summary=summary, settings=plain, card=settings.card, files=files, origin=plan.origin
        )
        write_embedder_report(
            self.root / "report.html",
            summary=summary,
            settings=plain,
            metrics=read_metrics(self.root / "metrics.jsonl"),
        )
        write_atomically(self.root / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
        return summary


# ----------------------------------------
# Evaluation.


def text_vectors(model: MaskedLM, rows: Rows, kind: VectorKind) -> tuple[Tensor, TextTargets]:
    """Vectors [E, D] of the texts in rows, on the host and not normalized; and their targets."""
    vectors, targets = [], []
    for part in _in_parts(rows):
        texts = TextTargets.of(part)
        hidden_TD = hidden_states(model, part, part.input_ids)
        vectors.append(kind.vectors(model, hidden_TD, moved(texts, hidden_TD.device)).cpu())
        targets.append(texts)
    return torch.cat(vectors), TextTargets.joined(targets)


def _in_parts(rows: Rows) -> list[Rows]:
    size = max(1, _POSITIONS // rows.shape[1])
    return [rows.part(begin, begin + size) for begin in range(0, rows.shape[0], size)]


def measure(
    model: MaskedLM,
    stream: PairStream,
    held: Mapping[str, TokenPairs],
    kind: VectorKind,
    temperature: float,
    masker: Masker | None,
) -> dict[str, Any]:
    """Evaluates a model on its own device: how well the first texts of pairs find the second ones.

    Returns:
        For JSON: the mean `loss` over the kinds; `mlm_loss`, in nats per hidden token (None if none are hidden); and
        `kinds`, for each the number of `pairs`; their `loss` in nats, by whole vectors; the share of first texts whose
        partner is the nearest, or among the ten nearest, of all second texts (`recall_at_1`, `recall_at_10`; texts of
        the same document do not count as nearer, and ties count against the partner); and the mean number of nonzero
        numbers of a vector (`nonzero`; None for dense vectors).
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
            before_P = ((scores_PP >= right_P1) & ~barred_PC[:, : len(first_P)]).sum(1) - 1  # without the partner
            found_P = (right_P1[:, 0] > 0.0) | kind.unit  # a sparse search returns no text without a common token
            kinds[name] = {
                "pairs": texts.num_pairs,
                "loss": float(losses.total) / texts.num_pairs,
                "recall_at_1": float((found_P & (before_P < 1)).float().mean()),
                "recall_at_10": float((found_P & (before_P < 10)).float().mean()),
                "nonzero": None if kind.unit else float((vectors_ED > 0).sum(1).float().mean()),
            }
            for part in _in_parts(rows):
                if masker is None:
                    break
                masked = masker(part)
                targets = PREDICT_MASKED.targets(part, masked)
                hidden_TD = hidden_states(model, part, masked.input_ids)
                there: Any = moved(targets, hidden_TD.device)
                total += float(token_losses(model, hidden_TD, there).total)
                count += len(targets)
    loss = sum(figures["loss"] for figures in kinds.values()) / len(kinds)
    return {"loss": loss, "kinds": kinds, "mlm_loss": total / count if count else None}
