"""One pretraining run: its parts, put together, what is looked at as it trains, and what a finished run leaves.

Shape suffixes: T = all positions of a batch in a line, D = hidden size.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

import torch

from unmask.commands.masking_tables import masking_tables, score_board
from unmask.commands.recipe import Recipe, new_model
from unmask.commands.run_data import FACTS, START_ANEW, PreparedData, RunFolder, open_old_text, start_model
from unmask.core.compiled import is_compiled
from unmask.core.errors import DataError, DivergedError, TokenizerError
from unmask.core.files import read_object, whole_folder, write_atomically, writing
from unmask.core.interruption import Interruption
from unmask.core.results import Reporter, Styled, legible
from unmask.data.rows import Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import span_units
from unmask.measure.held_out import (
    HeldOut,
    HeldOutSet,
    ObjectiveSet,
    explain_plateau,
    fixed_masker,
    is_stuck,
    on_plateau,
    unigram_entropy,
)
from unmask.measure.uncertainty import few_draws, plain_interval
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.folder import save_model, write_checksums
from unmask.model.fused import predicted_positions
from unmask.model.loops import losses
from unmask.report.cards import write_card
from unmask.report.pages import write_report
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback, StepReport
from unmask.train.checkpoints import fit, place_model
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import works_on_its_own
from unmask.train.objectives import extra_objectives
from unmask.train.runner import evaluating, hidden_states, logits_at
from unmask.train.step import Best
from unmask.train.trackers import Tracker, read_metrics, service, tensorboard
from unmask.train.trainer import Trainer

NUM_LINES = 8  # of held-out text, predicted before training and after it
LONGEST_LINE = 48  # tokens


class TrainingRun:
    """From opened data to a finished folder, or to an interruption; rank 0 of the group writes into the folder."""

    def __init__(
        self, folder: RunFolder, recipe: Recipe, data: PreparedData, reporter: Reporter, group: Group = ALONE
    ) -> None:
        self.folder, self.recipe, self.data, self.reporter, self.group = folder, recipe, data, reporter, group
        training = recipe.training
        tables, lexicon = masking_tables(recipe.masking, data, own_lexicon=folder.lexicon, reporter=reporter)
        made_of = recipe.fingerprinted() + data.manifest.fingerprint + ("" if lexicon is None else lexicon.fingerprint)
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()

        labels = tuple(data.manifest.labels)
        if recipe.start is None:
            model = new_model(recipe, data.tokenizer, labels)
            initialise(model, seed=training.seed, method=recipe.model.initialisation)
        else:
            model, notes = start_model(recipe, folder.start, data.tokenizer, labels)
            for note in notes:
                reporter.note(note)
        self.model, self._uncompiled = model, place_model(model, training, folder.checkpoints)
        device = model.encoder.device

        pairs = recipe.objectives.pairs
        stream = RowStream(
            data.train,
            data.tokenizer,
            length=training.sequence_length,
            seed=training.seed,
            pairs=None if pairs is None else pairs.kind,
            with_labels=recipe.objectives.label is not None,
            ahead=works_on_its_own(device),
        )
        masker = Masker(
            recipe.masking,
            data.tokenizer,
            seed=training.seed,
            tables=tables,
            with_boundaries=recipe.objectives.span_boundary is not None,
        )
        self.trainer = Trainer(
            model,
            stream,
            training,
            masker=masker,
            objectives=extra_objectives(recipe.objectives),
            board=score_board(recipe.masking, data, device),
            fingerprint=self.fingerprint,
            group=group,
        )
        self.state = self.trainer.state
        self.watch = Watch(recipe, data, reporter)

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Trains from the last checkpoint on, writes everything, and returns the summary."""
        folder, recipe, trainer, watch = self.folder, self.recipe, self.trainer, self.watch
        self._announce()

        trackers: list[Tracker] = []

        def begin() -> None:
            watch.number = int(self.state.progress(recipe.training) * recipe.evaluation.times)
            if self.group.is_main:  # TensorBoard where it is installed, other trackers where the recipe names them
                config = recipe.model_dump(mode="json", exclude={"card"})
                names = recipe.evaluation.trackers
                trackers.extend(service(name, run=folder.root.name, config=config) for name in names)
                if find_spec("tensorboard") is not None:
                    trackers.append(tensorboard(folder.tensorboard, step=self.state.step))
                trainer.callbacks += trackers
            if self.state.step == 0:
                on_rank_zero(self.group, self._look_before)
                watch.evaluate(trainer, progress=0.0)

        try:
            metrics = fit(
                trainer, folder.root, watch, interruption, self.reporter, recipe.checkpoint, callbacks, begin=begin
            )
            self.reporter.note("evaluating and writing the model")
            last = [metrics, *trackers] if metrics is not None else []
            return on_rank_zero(self.group, lambda: self._write_result(last))
        finally:
            for tracker in trackers:
                tracker.close()

    def _announce(self) -> None:
        model, manifest, device = self.model, self.data.manifest, self.model.encoder.device
        self.reporter.note(
            f"{manifest.train.tokens:,} tokens to train on, {manifest.validation.tokens:,} held out, "
            f"vocabulary {manifest.vocab_size:,}; model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {device.type}"
        )
        if device.type != "cpu" and self._uncompiled is None:
            self.reporter.note("blocks are compiled in the first steps, which takes up to a minute")
        elif device.type != "cpu":
            self.reporter.note(f"blocks are not compiled: {self._uncompiled}")
        elif not is_compiled(losses):
            self.reporter.note("loops are compiled for this machine, once: some 20 seconds more")

    def _look_before(self) -> None:
        """Keeps what the untrained model makes of some lines and, of a checkpoint, its figures on new and old text."""
        write_atomically(self.folder.predictions, json.dumps({"before": self._predicted()}))
        if self.recipe.start is not None:
            self.reporter.note("evaluating the model before the training")
            figures = {"new": self._domain(self.data.validation), "old": self._domain(open_old_text(self.folder.old))}
            write_atomically(self.folder.before, json.dumps(figures, indent=1) + "\n")

    def _predicted(self) -> list[Line]:
        return predict_lines(self.model, self.data.tokenizer, *self.watch.held_out.masked.batches[0])[:NUM_LINES]

    def _domain(self, store: TokenStore | None) -> dict[str, Any] | None:
        """Figures on the text of a domain, where there is any."""
        if store is None:
            return None
        length, most = self.recipe.training.sequence_length, self.recipe.evaluation.final_max_tokens
        return _plain(HeldOutSet(store, self.data.tokenizer, length=length, max_tokens=most).evaluate(self.model))

    def _write_result(self, records: Sequence[Callback]) -> dict[str, Any]:
        """Evaluates on the large set, and writes the model, the predictions, the report and, last, the summary."""
        folder, recipe, data, state, watch = self.folder, self.recipe, self.data, self.state, self.watch
        held_out = HeldOutText(recipe, data, recipe.evaluation.final_max_tokens, self.reporter)
        result, entropy = held_out.evaluate(self.model), held_out.entropy
        for record in records:
            record.on_evaluation(self.trainer, figures_of(result, final=True))
        watch.say(state.step, result)

        config = self.model.config
        with writing(folder.model), whole_folder(folder.model) as partial:
            save_model(self.model, partial)
            data.tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
            write_checksums(partial)
        predictions = read_object(folder.predictions, START_ANEW) | {"after": self._predicted()}
        write_atomically(folder.predictions, json.dumps(predictions))

        summary = self._summary(result, entropy)
        shared: dict[str, Any] = {"recipe": recipe.model_dump(), "manifest": data.manifest, "summary": summary}
        shared["remark"] = None
        if summary["on_plateau"]:
            rate = recipe.training.learning_rate
            shared["remark"] = explain_plateau(result.loss, entropy, step=state.step, learning_rate=rate)
            self.reporter.note(shared["remark"])
        write_report(
            folder.report,
            metrics=read_metrics(folder.metrics),
            **shared,
            before=predictions["before"],
            after=predictions["after"],
        )
        write_card(folder.model, mask_token=data.tokenizer.token(data.tokenizer.special.mask), **shared)
        write_atomically(folder.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _summary(self, result: HeldOut, entropy: float) -> dict[str, Any]:
        state, manifest = self.state, self.data.manifest
        summary = {
            "model": str(self.folder.model),
            "num_parameters": self.model.num_parameters,
            "vocab_size": self.model.config.vocab_size,
            "steps": state.step,
            "tokens_seen": state.tokens_seen,
            "epochs": state.tokens_seen / manifest.train.tokens,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
            "validation_loss": result.loss,
            "validation_loss_stderr": result.loss_stderr,
            "validation_loss_interval": plain_interval(result.loss_interval),
            "validation_accuracy": result.accuracy,
            "validation_perplexity": result.perplexity,
            "predicted_tokens": result.predicted_tokens,
            "validation_documents": result.documents,
            "validation_unit": result.unit,
            "validation_warning": few_draws(result.documents, result.unit),
            "unigram_entropy": entropy,
            "on_plateau": on_plateau(result.loss, entropy),
            "bits_per_token_byte": result.bits_per_token_byte,
            "bits_per_token_byte_interval": plain_interval(result.bits_per_token_byte_interval),
            "objectives": {name: asdict(figures) for name, figures in result.objectives.items()},
            "best_step": None if state.best is None else state.best.step,
            "data_fingerprint": manifest.fingerprint,
            "near_duplicates": manifest.near_duplicates and manifest.near_duplicates.plain(),
            "torch": torch.__version__,
            "device": self.model.encoder.device.type,
        }
        if self.recipe.start is not None:  # measured before and after, on the new text and on the old, same masks
            before = read_object(self.folder.before, START_ANEW)
            after = {"new": _plain(result), "old": self._domain(open_old_text(self.folder.old))}
            summary["start"] = read_object(self.folder.start / FACTS, START_ANEW)
            summary["domains"] = {
                name: None if before[name] is None else {"before": before[name], "after": after[name]}
                for name in ("new", "old")
            }
        return summary


def _plain(result: HeldOut) -> dict[str, Any]:
    """Figures on the text of a domain, as JSON takes them."""
    names = ("loss", "loss_stderr", "accuracy", "perplexity", "bits_per_token_byte", "predicted_tokens", "documents")
    values = {name: getattr(result, name) for name in names}
    for name in ("loss_interval", "bits_per_token_byte_interval"):
        values[name] = plain_interval(getattr(result, name))
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


# ----------------------------------------
# What is looked at while a model pretrains.

Line = list[dict[str, Any]]
"""Tokens of a line: `token` is what the text says; `space_before`; `predicted` what the model says and `probability`
that it gives to the right token, where it was hidden, else None."""


def predict_lines(model: MaskedLM, tokenizer: Tokenizer, rows: Rows, masked: MaskedRows) -> list[Line]:
    """The segments of some rows in which something is hidden, with what the model predicts for it.

    Lines are without special tokens, and cut at `LONGEST_LINE` tokens.
    """
    positions = predicted_positions(masked.labels)
    with evaluating(model):
        hidden_TD = hidden_states(model, masked.input_ids, rows.segment_ids, rows.position_ids)
        logits = torch.cat([part.cpu() for part in logits_at(model, hidden_TD, positions)])
    probability = torch.softmax(logits, -1)
    targets = masked.labels.flatten()[positions]
    right = probability.gather(1, targets[:, None])[:, 0].tolist()
    guesses = dict(zip(positions.tolist(), zip(probability.argmax(-1).tolist(), right, strict=True), strict=True))

    lines: list[Line] = [[]]
    ids, segments = rows.input_ids.flatten().tolist(), rows.segment_ids.flatten().tolist()
    length = rows.shape[1]
    for place, (token_id, segment) in enumerate(zip(ids, segments, strict=True)):
        if place % length == 0 or segment != segments[place - 1]:
            lines.append([])
        if segment < 0 or token_id in tokenizer.special.around:
            continue
        predicted, chance = guesses.get(place, (None, None))
        text = tokenizer.text(token_id)
        token = {
            "token": text if predicted is None and text == " " else legible(text),
            "space_before": tokenizer.space_before(token_id),
            "predicted": None if predicted is None else legible(tokenizer.text(predicted)),
            "probability": chance,
        }
        lines[-1].append(token)
    lines = [line[:LONGEST_LINE] for line in lines]
    return [line for line in lines if any(token["predicted"] is not None for token in line)]


def figures_of(result: HeldOut, *, final: bool = False) -> dict[str, Any]:
    """An evaluation as `metrics.jsonl` has it; the final one is made on more tokens than the others."""
    return {
        "validation_loss": result.loss,
        "validation_loss_stderr": result.loss_stderr,
        "validation_loss_interval": result.loss_interval,
        "validation_accuracy": result.accuracy,
        "bits_per_token_byte": result.bits_per_token_byte,
        "predicted_tokens": result.predicted_tokens,
        "documents": result.documents,
        "final": final,
        **({"objectives": {n: asdict(f) for n, f in result.objectives.items()}} if result.objectives else {}),
    }


class HeldOutText:
    """At most some tokens of the validation split, in rows of the training's length, with masks that stay the same.

    Attributes:
        masked: Rows for masked tokens.
        objectives: Rows for the objectives beside them; None where the recipe has none, or the text nothing of them.
        entropy: Of the token frequencies of the training text, on the hidden tokens; in nats per token.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, max_tokens: int, reporter: Reporter) -> None:
        settings, store, length = recipe.objectives, data.validation, recipe.training.sequence_length
        self.masked = HeldOutSet(store, data.tokenizer, length=length, max_tokens=max_tokens)
        self.entropy = unigram_entropy(self.masked.targets(), data.frequencies, data.tokenizer.ordinary)
        self.objectives: ObjectiveSet | None = None
        if not (objectives := extra_objectives(settings)):
            return
        pairs = None if settings.pairs is None else settings.pairs.kind
        spans = span_units(recipe.masking) if settings.span_boundary else None
        try:
            self.objectives = ObjectiveSet(
                store, data.tokenizer, objectives=objectives, length=length, max_tokens=max_tokens, pairs=pairs,
                spans=spans,
            )  # fmt: skip
        except DataError as error:
            reporter.note(f"the other objectives are not evaluated on the held-out text: {error}")
        else:
            for name in self.objectives.without_targets():
                reporter.note(f"{name} is not evaluated on the held-out text: it has no targets there")

    def evaluate(self, model: MaskedLM, *, group: Group = ALONE) -> HeldOut:
        """Figures of a model; masked rows are shared out over the processes of a group."""
        result = self.masked.evaluate(model, group=group)
        return result if self.objectives is None else replace(result, objectives=self.objectives.evaluate(model))


class Watch(Callback):
    """Evaluates a model as it trains, asks for a checkpoint where it is the best so far, and reports what comes of it.

    The recipe says how often, on how much, and with which lines of its own.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, reporter: Reporter) -> None:
        self.settings, self.training = recipe.evaluation, recipe.training
        self.data, self.reporter = data, reporter
        self.held_out = HeldOutText(recipe, data, self.settings.max_tokens, reporter)
        self.lines: tuple[Rows, MaskedRows] | None = None  # the recipe's, under masks that stay the same
        if prompts := self.settings.prompts:
            tokenizer, room = data.tokenizer, self.training.sequence_length - len(data.tokenizer.special.around)
            try:
                ids = [line.input_ids.tolist()[:room] for line in tokenizer.encode_corpus(prompts)]
            except TokenizerError as error:  # lines of a recipe that is used on another text
                reporter.note(f"the recipe's lines (evaluation.prompts) are not shown: {error}")
            else:
                cls, sep = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
                rows = rows_from_ids([[*cls, *line, *sep] for line in ids], tokenizer)
                self.lines = rows, fixed_masker(tokenizer)(rows)
        self.number = 0  # of the evaluations that were due so far
        self._losses: list[float] = []
        self._is_stuck = False

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Evaluates where it is time; a budget in steps or tokens ends with an evaluation."""
        number = int(report.progress * self.settings.times)
        if number > self.number or report.progress >= 1.0:
            self.number = number
            self.evaluate(trainer, progress=report.progress)

    def evaluate(self, trainer: Trainer, *, progress: float) -> None:
        """Evaluates on the small set. A loss that is not finite is a DivergedError."""
        state, entropy = trainer.state, self.held_out.entropy
        result = self.held_out.evaluate(state.model, group=trainer.group)
        if not math.isfinite(result.loss):
            raise DivergedError(f"the held-out loss behind step {state.step} is {result.loss}")
        trainer.evaluated(figures_of(result))
        self.say(state.step, result)
        for line in predict_lines(state.model, self.data.tokenizer, *self.lines) if self.lines else ():
            self.reporter.note(("         ", *map(_styled, line)))

        self._losses.append(result.loss)
        if not self._is_stuck and is_stuck(self._losses, entropy, progress=progress, step=state.step):
            rate = self.training.learning_rate
            self.reporter.note(explain_plateau(result.loss, entropy, step=state.step, learning_rate=rate))
            self._is_stuck = True
        elif self._is_stuck and not on_plateau(result.loss, entropy):
            self.reporter.note(f"the plateau of token frequencies is left behind ({result.loss:.2f}, {entropy:.2f})")
            self._is_stuck = False
        if state.step and (state.best is None or result.loss < state.best.loss):
            state.best = Best(state.step, result.loss)
            trainer.request_save()

    def say(self, step: int, result: HeldOut) -> None:
        """An evaluation in a line."""
        self.reporter.note(
            f"  step {step:>6,}: held-out loss {result.loss:.3f}, accuracy {result.accuracy:.1%}, "
            f"{result.bits_per_token_byte:.3f} bits per token byte"
            + "".join(f"; {name} {figures.accuracy:.1%}" for name, figures in result.objectives.items())
        )


def _styled(token: dict[str, Any]) -> Styled:
    """A token as it is shown: what is predicted in brackets, green where it is right and red where it is wrong."""
    space = " " * token["space_before"]
    if token["predicted"] is None:
        return Styled(space + token["token"], "dim")
    style = "bold green" if token["predicted"] == token["token"] else "bold red"
    return Styled(f"{space}[{token['predicted']}]", style)
