"""What a run would do, without doing it: counted where that is quick, measured on a sample where not.

The corpus is read for some seconds, a sample of it is prepared in a temporary folder, and some steps are made on it
with the real model. Nothing is written elsewhere.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unmask.commands.from_checkpoint import check_tokenizer, tokenizer_and_notes
from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import Overrides, as_overrides
from unmask.commands.run_data import (
    PreparedData,
    check_annotations,
    check_labels,
    check_preparation,
    is_prepared,
    open_prepared,
)
from unmask.commands.run_folder import RunFolder, RunRequest, packaged_corpus
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import RunError
from unmask.core.remote import with_local_copies
from unmask.core.results import Readable, Reporter, Result, Shown, Styled, duration
from unmask.data.documents import Document
from unmask.data.prepare import open_annotated, prepare
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import is_stream
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.spans import written_fields
from unmask.tokenizer.trainers import default_vocab_size
from unmask.train.distributed import ALONE, Group, join_group, on_every_rank, on_rank_zero
from unmask.train.hardware import peak_memory
from unmask.train.optimizer import state_tensors
from unmask.train.trainer import Trainer, step_cost

READ_SECONDS = 20.0
SAMPLE_BYTES = 4 << 20
SLOW_SAMPLE_BYTES = 1 << 18  # where a pipeline annotates
CLASS_CHARS = 1000  # of a document that is in the sample for its class
NUM_STEPS = 4
STEPS_SECONDS = 60.0


@dataclass(frozen=True, repr=False)
class TextForecast(Readable):
    """What a corpus holds.

    Attributes:
        documents, bytes, tokens: Counts; of what was read, where `complete` is false.
        complete: Whether all of the corpus was read.
        vocab_size: Of the tokenizer; of one trained on the sample, where it was not given.
        seconds: That preparing takes, at the pace of the sample.
        plan: What a document is and what is held out, in words.
        skipped: What is left out, of what was read: reason to number.
    """

    documents: int
    bytes: int
    tokens: int
    complete: bool
    vocab_size: int
    seconds: float
    plan: str
    skipped: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self)

    def shown(self) -> Iterator[Shown]:
        """What a preparation would do."""
        yield from fact_lines(
            [
                *_text_lines(self.to_dict()),
                ("vocabulary", f"{self.vocab_size:,}"),
                ("preparation", f"about {duration(self.seconds)}"),
                ("disk", f"about {self.tokens * 3 / 2**20:,.1f} MiB"),
            ]
        )


class RunForecast(Result):
    """What a run would do.

    Attributes:
        documents, bytes, tokens: Of training and held-out text; at least so many where `complete` is false.
        complete: Whether all of the corpus was read.
        plan, skipped: As in `TextForecast`.
        vocab_size, num_parameters: Of the model.
        steps, seconds, tokens_seen, epochs, tokens_per_second: Of the training.
        prepare_seconds: Of the preparation.
        memory_bytes: The most that a process held; None where the system does not say.
        processes: That train together.
        disk_bytes: At most.
        device: `cpu` or `cuda`.
        start: Lines on the checkpoint that it begins with.
        by_clock: Whether the budget is one of minutes.
    """

    def shown(self) -> Iterator[Shown]:
        """A fact a line."""
        yield from fact_lines(
            [
                *(("start" if number == 0 else "", line) for number, line in enumerate(self.start)),
                *_text_lines(self.to_dict()),
                ("preparation", f"about {duration(self.prepare_seconds)}"),
                ("model", f"{self.num_parameters:,} parameters, vocabulary {self.vocab_size:,}"),
                training_fact(self.to_dict(), by_clock=self.by_clock),
                ("", f"{self.tokens_seen:,} tokens seen, {self.epochs:.1f} times the text"),
                memory_fact(self.memory_bytes, self.processes),
                ("disk", f"{self.disk_bytes / 2**30:.2f} GiB at most, data and checkpoints"),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {name: value for name, value in super().to_dict().items() if name != "by_clock"}


class Forecast(Result):
    """What a command would do.

    Args:
        figures: What `--json` prints.
        facts: What is shown: names and facts, a line each.
    """

    def __init__(self, figures: Mapping[str, Any], facts: Sequence[tuple[str, str]]) -> None:
        super().__init__(figures)
        object.__setattr__(self, "_facts", facts)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(), self.__dict__["_facts"])

    def shown(self) -> Iterator[Shown]:
        """A fact a line."""
        yield from fact_lines(self.__dict__["_facts"])


@dataclass(frozen=True)
class MeasuredSteps:
    """What the first steps of a training took, of which the rest is calculated.

    Attributes:
        steps: Of the whole training.
        step_seconds, step_tokens: Of a step: the median without the first one's, and the mean.
        memory_bytes: The most that a process held; None where the system does not say.
        processes: That train together.
        device: `cpu`, `cuda` or `mps`.
    """

    steps: int
    step_seconds: float
    step_tokens: float
    memory_bytes: int | None
    processes: int
    device: str

    @property
    def seconds(self) -> float:
        """Of the whole training, without evaluations."""
        return self.steps * self.step_seconds

    def figures(self) -> dict[str, Any]:
        """As forecasts have them."""
        return {
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "seconds": self.seconds,
            "tokens_per_second": self.step_tokens / self.step_seconds,
            "memory_bytes": self.memory_bytes,
            "processes": self.processes,
            "device": self.device,
        }


def measure_steps(trainer: Trainer, num_steps: int = NUM_STEPS) -> MeasuredSteps:
    """Makes some steps with the real model, and says what all of the training would take."""
    settings, device = trainer.settings, trainer.model.encoder.device
    seconds, tokens = step_cost(trainer.steps(), num_steps, within=STEPS_SECONDS)
    if settings.steps is not None:
        steps = settings.steps
    elif settings.tokens is not None:
        steps = math.ceil(settings.tokens / tokens)
    else:
        steps = max(1, round((settings.minutes or 0.0) * 60.0 / seconds))
    memory = max(int(most) for (most,) in trainer.group.all_gather([peak_memory(device) or 0]))
    return MeasuredSteps(steps, seconds, tokens, memory or None, trainer.group.world_size, device.type)


def fact_lines(facts: Iterable[tuple[str, str]]) -> Iterator[Shown]:
    """What would happen, a name and a fact a line."""
    yield from (f"{name:<12} {value}" for name, value in facts)
    yield Styled("nothing was written (--dry-run)", "dim")


def training_fact(forecast: Mapping[str, Any], *, by_clock: bool) -> tuple[str, str]:
    """Steps, time and speed of the training; by the clock the time is known and the steps are not."""
    steps_are, time_is = ("about ", "") if by_clock else ("", "about ")
    return (
        "training",
        f"{steps_are}{forecast['steps']:,} steps in {time_is}{duration(forecast['seconds'])}, "
        f"{forecast['tokens_per_second']:,.0f} tokens a second on {forecast['device']}",
    )


def memory_fact(num_bytes: int | None, processes: int = 1) -> tuple[str, str]:
    """What memory the first steps took in each of some processes; None where the system does not say."""
    if num_bytes is None:
        return "memory", "not known: this system does not say what a process takes"
    each = f" in each of {processes} processes" if processes > 1 else ""
    return "memory", f"{num_bytes / 2**30:.1f} GiB{each}, measured in the first steps"


def _text_lines(text: dict[str, Any]) -> Iterator[tuple[str, str]]:
    at_least = "" if text["complete"] else "at least "
    counts = f"{text['documents']:,} documents, {text['bytes']:,} bytes, about {text['tokens']:,} tokens"
    yield "text", f"{at_least}{counts}"
    yield "", text["plan"]
    yield from (("", f"left out: {number:,} {reason}") for reason, number in text["skipped"].items())


def forecast_preparation(
    paths: Sequence[str | Path],
    *,
    tokenizer: str | None = None,
    tokenizer_kind: str | None = None,
    vocab_size: int | None = None,
    annotate: Sequence[str] | None = None,
    settings: Overrides = (),
) -> TextForecast:
    """What `unmask.prepare` would do with the same arguments.

    Raises:
        UnmaskError: As the real preparation; or standard input or a pipe is among the paths.
    """
    options = {
        "tokenizer.path": tokenizer,
        "tokenizer.kind": tokenizer_kind,
        "tokenizer.vocab_size": vocab_size,
        "annotation.columns": annotate,
    }
    recipe = load_recipe(options=options, overrides=as_overrides(settings))
    paths = with_local_copies(paths)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        return forecast_text(paths, recipe.corpus, recipe.tokenizer, Path(scratch), recipe.annotation)


def forecast_text(
    paths: Sequence[str | Path],
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    scratch: Path,
    annotation: AnnotationSettings | None = None,
) -> TextForecast:
    """Reads a corpus for some seconds, and prepares a sample of it in a temporary folder.

    Args:
        paths: Files, folders or patterns.
        corpus: How they are read.
        tokenizer: Which tokenizer is used or trained.
        scratch: An empty folder; the sample is prepared in `scratch/data`.
        annotation: What is said of the text beside its tokens.

    Raises:
        UnmaskError: As the real preparation; or standard input or a pipe is among the paths.
    """
    if any(map(is_stream, paths)):
        raise RunError("--dry-run would use standard input or a pipe up; give a file")
    opened, plan = open_annotated(paths, corpus, annotation or AnnotationSettings())
    sample = scratch / "sample.jsonl"
    sample_bytes = SAMPLE_BYTES if plan is None or plan.pipeline is None else SLOW_SAMPLE_BYTES
    # Groups to hold out are chosen by a pass over all of the text, which is not for now.
    pieces = opened.pieces() if corpus.holdout_groups is None else ((piece, False) for piece in opened.unsplit())
    documents, num_bytes, complete = _read(pieces, sample, sample_bytes)
    if tokenizer.path is None and tokenizer.vocab_size is None and tokenizer.kind != "char":
        tokenizer = tokenizer.model_copy(update={"vocab_size": default_vocab_size(opened.num_bytes or num_bytes)})
    begin = time.monotonic()
    reading = CorpusSettings(
        column="text",
        label=None if corpus.label is None else "label",
        holdout=corpus.holdout,
        holdout_from=corpus.holdout_from,
    )
    if annotation is not None:
        annotation = annotation.model_copy(update={"fields": {}, "source": "auto"})  # as the sample writes them
    manifest = prepare([sample], scratch / "data", corpus=reading, tokenizer=tokenizer, annotation=annotation)
    scale = num_bytes / manifest.bytes
    return TextForecast(
        documents, num_bytes, round(manifest.tokens * scale), complete, manifest.vocab_size,
        (time.monotonic() - begin) * scale, opened.plan.describe(), dict(opened.skipped),
    )  # fmt: skip


def _read(pieces: Iterator[tuple[Document, bool]], sample: Path, sample_bytes: int) -> tuple[int, int, bool]:
    """Counts documents and bytes until the time is over, and writes down the first, and a bit of each further class."""
    begin, documents, num_bytes = time.monotonic(), 0, 0
    classes: set[str | None] = {None}
    with sample.open("w", encoding="utf-8") as out:
        for piece, _ in pieces:
            documents += piece.offset == 0
            if num_bytes < sample_bytes:
                out.write(json.dumps(_row(piece)) + "\n")
            elif piece.label not in classes:
                out.write(json.dumps(_row(piece.part(0, CLASS_CHARS))) + "\n")
            classes.add(piece.label)
            num_bytes += len(piece.text.encode())
            if num_bytes >= sample_bytes and time.monotonic() - begin > READ_SECONDS:
                return documents, num_bytes, False
    return documents, num_bytes, True


def _row(piece: Document) -> dict[str, Any]:
    """A piece as a document of the sample."""
    return {"text": piece.text, **({"label": piece.label} if piece.label else {}), **written_fields(piece.spans or {})}


def forecast_pretrain(paths: Sequence[str | Path] | None = None, **asked: Any) -> RunForecast:
    """What `pretrain` would do with the same arguments.

    Raises:
        UnmaskError: As `pretrain`.
    """
    group = join_group()
    request = RunRequest(**asked)
    return forecast_run(paths, on_every_rank(group, request.load), group)


def forecast_run(paths: Sequence[str | Path] | None, recipe: Recipe, group: Group = ALONE) -> RunForecast:
    """What `pretrain` would do with these files and this recipe.

    Args:
        paths: As for `pretrain`.
        recipe: Of the run.
        group: The processes that would train together, on one machine.

    Raises:
        UnmaskError: As the real run.
    """
    sources = on_every_rank(group, lambda: with_local_copies(paths or [packaged_corpus()]))
    with ExitStack() as held:
        said = on_rank_zero(group, lambda: _sample(sources, recipe, held))
        scratch, text = Path(said["scratch"]), TextForecast(**said["text"])
        data = on_every_rank(
            group, lambda: open_prepared(Path(sources[0]) if is_prepared(sources) else scratch / "data")
        )
        by_clock = recipe.training.minutes is not None
        measured = _measured(data, text, recipe, scratch, group)
        return RunForecast({**measured, "start": said["notes"], "by_clock": by_clock})


def _sample(sources: Sequence[str | Path], recipe: Recipe, held: ExitStack) -> dict[str, Any]:
    """Reads the text, and prepares a sample of it, or takes what is prepared.

    Args:
        sources: Of the text.
        recipe: Of the run.
        held: Keeps what is written.

    Returns:
        `scratch`: a temporary folder with `run/start` and `data`; `text`: the fields of a `TextForecast`; `notes`: on
        where the run would start.
    """
    scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="unmask-")))
    tokenizer, notes = tokenizer_and_notes(sources, recipe, scratch / "run" / "start", sample_bytes=SAMPLE_BYTES)
    if is_prepared(sources):
        root = Path(sources[0])
        m = open_prepared(root).manifest
        check_preparation(root, m, recipe)
        check_annotations(recipe, m)
        check_labels(recipe, m)
        text = TextForecast(
            m.documents,
            m.bytes,
            m.tokens,
            complete=True,
            vocab_size=m.vocab_size,
            seconds=0.0,
            plan=m.plan,
            skipped=m.skipped,
        )
    else:
        root = scratch / "data"
        check_annotations(recipe, None)
        check_labels(recipe, None)
        text = forecast_text(sources, recipe.corpus, tokenizer, scratch, recipe.annotation)
        m = open_prepared(root).manifest
    if recipe.start is not None:
        check_tokenizer(root, m, scratch / "run" / "start", recipe.start.checkpoint)
    return {"scratch": str(scratch), "text": text.to_dict(), "notes": notes}


def _measured(data: PreparedData, text: TextForecast, recipe: Recipe, scratch: Path, group: Group) -> dict[str, Any]:
    longest = recipe.training.model_copy(update={"length_schedule": None})  # the longest rows take the most memory
    recipe = recipe.model_copy(update={"training": longest})
    run = on_every_rank(group, partial(TrainingRun, RunFolder(scratch / "run"), recipe, data, Reporter(), group))
    measured = measure_steps(run.trainer)
    states = sum(tensor.nbytes for tensor in state_tensors(run.state.optimizer, run.model).values())
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    tokens_seen = measured.steps * measured.step_tokens
    result = {
        "documents": text.documents,
        "bytes": text.bytes,
        "tokens": text.tokens,
        "complete": text.complete,
        "plan": text.plan,
        "skipped": text.skipped,
        "vocab_size": text.vocab_size,
        "num_parameters": run.model.num_parameters,
        "steps": measured.steps,
        "seconds": measured.seconds,
        "tokens_seen": round(tokens_seen),
        "epochs": tokens_seen / max(text.tokens * (1.0 - recipe.corpus.holdout), 1.0),
        "tokens_per_second": measured.step_tokens / measured.step_seconds,
        "prepare_seconds": text.seconds,
        "memory_bytes": measured.memory_bytes,
        "processes": measured.processes,
        "disk_bytes": text.tokens * 3 + (weights + states) * (recipe.checkpoint.keep + 2) + weights,
        "device": measured.device,
    }
    del data, run  # unmaps the shards before their folder goes
    return result
