"""Trains a run, from opened data to a finished folder, and evaluates it on held-out text."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from unmask.commands.masking_tables import masker_of, masking_tables, score_board
from unmask.commands.recipe import Recipe, load_recipe, new_model
from unmask.commands.recipe_files import DEFAULT
from unmask.commands.run_data import (
    START_ANEW,
    PreparedData,
    RunFolder,
    open_old_text,
    save_with_tokenizer,
    start_facts,
    start_model,
    stream_of,
)
from unmask.core.errors import DataError, DivergedError, SettingsError, TokenizerError
from unmask.core.files import read_object, whole_folder, write_atomically, write_object, writing
from unmask.core.interruption import Interruption
from unmask.core.results import Notify, Reporter, ShownText, Styled, ignore, parts_of
from unmask.data.data_folder import load_manifest
from unmask.data.rows import Cursor
from unmask.data.store import TokenStore
from unmask.masking.settings import span_units
from unmask.masking.tables import Scores, named_background
from unmask.measure.held_out import (
    FEW_STEPS,
    LEAST_PROGRESS,
    MARGIN,
    HeldOut,
    HeldOutSet,
    ObjectiveSet,
    explain_loss,
    on_plateau,
    predict_texts,
)
from unmask.measure.uncertainty import few_draws, plain_interval
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.folder import write_checksums
from unmask.report.cards import write_card
from unmask.report.pages import write_report
from unmask.train.callbacks import TRACKERS, Callback, EvaluationTimes, StepReport, read_metrics, tensorboard
from unmask.train.checkpoints import checkpoint_path, fit, list_checkpoints, load_checkpoint, place_model
from unmask.train.distributed import ALONE, Group, on_rank_zero
from unmask.train.hardware import choose_device, samples_softmax, works_on_its_own
from unmask.train.initialisation import begin_from_corpus
from unmask.train.objectives import extra_objectives
from unmask.train.step import Best
from unmask.train.trainer import Trainer

# Figures of a `HeldOut`, and their names in summary.json and metrics.jsonl.
FIGURES = {
    "loss": "validation_loss",
    "loss_stderr": "validation_loss_stderr",
    "loss_interval": "validation_loss_interval",
    "accuracy": "validation_accuracy",
    "perplexity": "validation_perplexity",
    "bits_per_token_byte": "bits_per_token_byte",
    "bits_per_token_byte_interval": "bits_per_token_byte_interval",
    "predicted_tokens": "predicted_tokens",
    "documents": "documents",
}


class TrainingRun(Callback):
    """Trains on opened data and writes the folder of the run; only rank 0 of the group writes.

    It is a callback of its own trainer: it evaluates on fixed text and masks, as often as the recipe says, requests a
    checkpoint if the model is the best so far, and reports the figures.
    """

    def __init__(
        self, folder: RunFolder, recipe: Recipe, data: PreparedData, reporter: Reporter, group: Group = ALONE
    ) -> None:
        self.folder, self.recipe, self.data, self.reporter, self.group = folder, recipe, data, reporter, group
        training, tokenizer = recipe.training, data.tokenizer
        stream = stream_of(recipe, data, ahead=works_on_its_own(choose_device()))  # first, since it may be refused
        tables, lexicon = masking_tables(recipe.masking, data, own_lexicon=folder.lexicon, reporter=reporter)
        background, _ = named_background(recipe.masking)
        read: list[Any] = [data.manifest, lexicon, None if background is None else load_manifest(background)]
        made_of = recipe.fingerprinted() + "".join(each.fingerprint for each in read if each is not None)
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()

        labels = tuple(data.manifest.labels)
        is_new = not list_checkpoints(folder.checkpoints)
        if recipe.start is None:
            model = new_model(recipe, tokenizer, labels)
            initialise(model, seed=training.seed, method=recipe.model.initialisation)
            if recipe.model.initialisation == "corpus" and is_new:
                begin_from_corpus(model, data.train, data.frequencies, seed=training.seed)
        else:
            model = start_model(
                recipe, folder.start, tokenizer, labels, data.frequencies, data.train if is_new else None
            )
        self.model, self._uncompiled = model, place_model(model, training, folder.checkpoints)
        device = model.encoder.device
        if samples_softmax(training, recipe.masking, device, tokenizer.vocab_size):
            model.head.sample_softmax(torch.from_numpy(data.frequencies))

        masker = masker_of(recipe, tokenizer, tables)
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
        if is_new:  # weights may not know the labels of this text: found while the prepared data can still be kept
            masker(stream.batch(Cursor(), 1).rows, scores=Scores(0, {}))

        # For evaluations during training: held-out text, and the recipe's own lines.
        self.held_out = HeldOutText(recipe, data, recipe.evaluation.max_tokens, reporter)
        self.prompts = recipe.evaluation.prompts
        try:
            tokenizer.encode_joined(self.prompts)
        except TokenizerError as error:  # the recipe's lines were meant for another text
            reporter.note(f"predictions for the recipe's evaluation.prompts are not shown: {error}")
            self.prompts = ()
        self._times = EvaluationTimes(recipe.evaluation.times)
        self._warnings: list[str | None] = []  # of each evaluation
        self._has_warned = False

    def run(self, interruption: Interruption, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        folder, recipe, trainer, reporter = self.folder, self.recipe, self.trainer, self.reporter
        model, manifest, device = self.model, self.data.manifest, self.model.encoder.device
        reporter.note(
            f"{manifest.train.tokens:,} tokens to train on, {manifest.validation.tokens:,} held out, "
            f"vocabulary {manifest.vocab_size:,}; model with {model.num_parameters:,} parameters, "
            f"{str(model.encoder.compute_dtype).removeprefix('torch.')} on {device.type}"
        )
        if device.type != "cpu" and self._uncompiled is not None:
            reporter.note(f"the model's blocks are not compiled: {self._uncompiled}")
        trackers: list[Callback] = []

        def look_before() -> None:
            """Stores the untrained model's predictions and, if it is a checkpoint, its figures on both texts."""
            write_atomically(folder.predictions, json.dumps({"before": self._predicted(manifest.examples)}))
            if recipe.start is not None:
                reporter.note("evaluating the model before training")
                figures = {"new": self._domain(self.data.validation), "old": self._domain(open_old_text(folder.old))}
                write_object(folder.before, figures)

        def begin() -> None:
            self._times.begin(trainer)
            if self.group.is_main:  # TensorBoard if it is installed, other trackers if the recipe names them
                config = recipe.model_dump(mode="json", exclude={"card"}) | {"fingerprint": self.fingerprint}
                for name in recipe.evaluation.trackers:
                    try:
                        trackers.append(TRACKERS[name](folder.root, config))
                    except Exception as error:  # each service has its own exceptions
                        reason = next(iter(str(error).splitlines()), type(error).__name__)
                        ways = f"correct that, or remove {name} from evaluation.trackers, and resume"
                        text = f"evaluation.trackers: {name} does not start ({reason}); {ways}"
                        raise SettingsError(text, options=["resume", "set"]) from error
                if find_spec("tensorboard") is not None:
                    trackers.append(tensorboard(folder.tensorboard, step=self.state.step))
                trainer.callbacks[-1:-1] = trackers  # before `Checkpoints`, which saves what they request
            if self.state.step == 0:
                on_rank_zero(self.group, look_before)
                self._evaluate(progress=0.0)

        try:
            metrics = fit(trainer, folder.root, self, interruption, reporter, recipe.checkpoint, callbacks, begin=begin)
            reporter.note("evaluating and writing the model")
            final_callbacks = [metrics, *trackers] if metrics is not None else []
            return on_rank_zero(self.group, lambda: self._write_result(final_callbacks))
        finally:
            for tracker in trackers:
                tracker.close()

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Evaluates when due; a budget in steps or tokens ends with an evaluation."""
        if self._times.is_due(trainer, report):
            self._evaluate(progress=report.progress)

    def _evaluate(self, *, progress: float) -> None:
        """Evaluates on the small set. A loss that is not finite is a DivergedError."""
        state, entropy, note = self.state, self.held_out.entropy, self.reporter.note
        with self._times.timed(self.trainer):
            result = self.held_out.evaluate(self.model, group=self.group)
        if not math.isfinite(result.loss):
            raise DivergedError(f"the held-out loss after step {state.step} is {result.loss}")
        lines = self._predicted(self.prompts)
        self.trainer.evaluated(metrics_of(result) | ({"lines": lines} if lines else {}))
        self._report(result, state.step)
        for line in lines:
            # Predictions are in brackets, green if right and red if wrong.
            shown: list[str | Styled] = ["         "]
            for text, token in parts_of(line):
                if token is None:
                    shown.append(Styled(text, "dim"))
                else:
                    shown.append(Styled(f"[{token['guesses'][0][0]}]", "bold green" if token["right"] else "bold red"))
            note(tuple(shown))

        self._warnings.append(self._warning(result, entropy, state.best))
        is_late = state.step >= FEW_STEPS and progress >= LEAST_PROGRESS and len(self._warnings) > 2
        if not self._has_warned and is_late and all(self._warnings[-2:]):
            self.reporter.warn(str(self._warnings[-1]))
            self._has_warned = True
        if state.step and (state.best is None or result.loss < state.best.loss):
            state.best = Best(state.step, result.loss)
            self.trainer.request_save()

    def _warning(self, result: HeldOut, entropy: float, best: Best | None = None) -> str | None:
        state, rate = self.state, self.recipe.training.learning_rate
        epochs = state.tokens_seen / self.data.manifest.train.tokens
        return explain_loss(result, entropy, best, step=state.step, epochs=epochs, learning_rate=rate)

    def _take_best(self) -> tuple[int, str | None]:
        """Loads the best checkpoint's weights if the last ones predict the same text clearly worse. Returns the step
        that the model is now of and, if it is not the last, why."""
        state, best, root = self.state, self.state.best, self.folder.checkpoints
        if best is None or best.step == state.step or checkpoint_path(root, best.step) not in list_checkpoints(root):
            return state.step, None
        last = self.held_out.masked.evaluate(self.model)
        if last.loss <= best.loss + MARGIN:
            return state.step, None
        load_checkpoint(checkpoint_path(root, best.step), replace(state), fingerprint=self.fingerprint)
        return best.step, f"{self._warning(last, self.held_out.entropy, best)}. The model is that of step {best.step:,}"

    def _report(self, result: HeldOut, step: int) -> None:
        self.reporter.note(
            f"  step {step:>6,}: held-out loss {result.loss:.3f}, accuracy {result.accuracy:.1%}, "
            f"{result.bits_per_token_byte:.3f} bits per byte of hidden tokens"
            + "".join(f"; {name} {figures['accuracy']:.1%}" for name, figures in result.objectives.items())
        )

    def _predicted(self, texts: Sequence[str]) -> list[ShownText]:
        longest = self.recipe.training.sequence_length
        return predict_texts(self.model, self.data.tokenizer, texts, longest=longest)

    def _domain(self, store: TokenStore | None) -> dict[str, Any] | None:
        if store is None:
            return None
        length, most = self.recipe.training.sequence_length, self.recipe.evaluation.final_max_tokens
        held_out = HeldOutSet(store, self.data.tokenizer, length=length, max_tokens=most)
        return figures_of(held_out.evaluate(self.model, notify=self.reporter.notify))

    def _write_result(self, records: Sequence[Callback]) -> dict[str, Any]:
        """Evaluates the last or the best weights on the large set, and writes the model, the predictions, the report
        and, last, the summary."""
        folder, recipe, data, state = self.folder, self.recipe, self.data, self.state
        manifest, config, tokenizer = data.manifest, self.model.config, data.tokenizer
        model_step, better = self._take_best()
        held_out = HeldOutText(recipe, data, recipe.evaluation.final_max_tokens, self.reporter)
        result, entropy = held_out.evaluate(self.model, notify=self.reporter.notify), held_out.entropy
        figures = metrics_of(result, final=True)
        # metrics.jsonl has no line of the best weights: curves would show their figures at the last step.
        for record in records[model_step != state.step :]:
            record.on_evaluation(self.trainer, figures)
        self._report(result, model_step)

        with writing(folder.model), whole_folder(folder.model) as partial:
            save_with_tokenizer(self.model, tokenizer, partial)
            write_checksums(partial)
        texts = self._predicted(manifest.examples)
        predictions = read_object(folder.predictions, START_ANEW) | {"after": texts}
        write_atomically(folder.predictions, json.dumps(predictions))

        summary = {
            "model": str(folder.model),
            "num_parameters": self.model.num_parameters,
            "vocab_size": config.vocab_size,
            "steps": state.step,
            "tokens_seen": state.tokens_seen,
            "epochs": state.tokens_seen / manifest.train.tokens,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
            **{name: value for name, value in figures.items() if name not in ("documents", "final")},
            "validation_documents": result.documents,
            "validation_unit": result.unit,
            "validation_within": manifest.held_within,
            "validation_warning": few_draws(result.documents, result.unit),
            "unigram_entropy": entropy,
            "on_plateau": on_plateau(result, entropy),
            "objectives": dict(result.objectives),
            "best_step": None if state.best is None else state.best.step,
            "model_step": model_step,
            "mask_token": tokenizer.token(tokenizer.special.mask),
            "data_fingerprint": manifest.fingerprint,
            "near_duplicates": manifest.near_duplicates.plain(),
            "torch": torch.__version__,
            "device": self.model.encoder.device.type,
        }
        if recipe.start is not None:  # measured before and after, on the new text and on the old, same masks
            before = read_object(folder.before, START_ANEW, is_sealed=True)
            after = {"new": figures_of(result), "old": self._domain(open_old_text(folder.old))}
            summary["start"] = start_facts(folder.start)
            summary["domains"] = {
                name: None if before[name] is None else {"before": before[name], "after": after[name]}
                for name in ("new", "old")
            }
            if after["old"] is not None and (warning := few_draws(after["old"]["documents"])) is not None:
                warnings = [summary["validation_warning"], f"of the old text, {warning}"]
                summary["validation_warning"] = "; ".join(filter(None, warnings))
        remarks = [] if better is None else [better]
        if better is None and (warning := self._warning(result, entropy)) is not None:
            remarks.append(warning)
        if state.board is not None and state.step <= (first := state.board.every_steps):
            never = f"masks never followed the model, whose first scores come after masking.refresh_steps = {first:,}"
            remarks.append(f"{never} steps, and the run made {state.step:,}; lower that, or train longer")
        for remark in remarks:
            self.reporter.warn(remark)
        shared: dict[str, Any] = {
            "recipe": recipe.model_dump(), "manifest": manifest, "summary": summary,
            "remark": "; ".join(remarks) or None,
        }  # fmt: skip
        usual = load_recipe(DEFAULT).model_dump()
        write_report(folder.report, metrics=read_metrics(folder.metrics), usual=usual, **shared, **predictions)
        write_card(folder.model, mask_token=summary["mask_token"], **shared)
        write_atomically(folder.summary, json.dumps(summary, indent=1) + "\n")
        return summary


# ----------------------------------------
# Figures on held-out text.


def figures_of(result: HeldOut) -> dict[str, Any]:
    """An evaluation for JSON, by the names of `HeldOut`; NaN becomes None."""
    values = {name: getattr(result, name) for name in FIGURES}
    values |= {name: plain_interval(value) for name, value in values.items() if isinstance(value, tuple)}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def metrics_of(result: HeldOut, *, final: bool = False) -> dict[str, Any]:
    """An evaluation for `metrics.jsonl`; the final one is made on more tokens than the others."""
    figures = {FIGURES[name]: value for name, value in figures_of(result).items()}
    return figures | {"final": final} | ({"objectives": dict(result.objectives)} if result.objectives else {})


class HeldOutText:
    """At most `max_tokens` of the validation split, in rows of the training's length, with fixed masks."""

    def __init__(self, recipe: Recipe, data: PreparedData, max_tokens: int, reporter: Reporter) -> None:
        settings, store, length = recipe.objectives, data.validation, recipe.training.sequence_length
        self.masked = HeldOutSet(
            store, data.tokenizer, length=length, max_tokens=max_tokens, frequencies=data.frequencies
        )
        # Loss of the training text's token frequencies on the hidden tokens, in nats per token.
        assert self.masked.unigram_N is not None, "frequencies are known"
        self.entropy = float(self.masked.unigram_N.mean())
        self.objectives: ObjectiveSet | None = None  # besides masked tokens; None: none, or the text has no targets
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
            for name in self.objectives.without_targets:
                reporter.note(f"{name} is not evaluated on the held-out text: it has no targets there")

    def evaluate(self, model: MaskedLM, *, group: Group = ALONE, notify: Notify = ignore) -> HeldOut:
        """Figures of a model; masked rows are divided among the ranks of a group."""
        result = self.masked.evaluate(model, group=group, notify=notify)
        return result if self.objectives is None else replace(result, objectives=self.objectives.evaluate(model))
