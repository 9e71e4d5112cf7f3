"""Dry runs: what a command would do, counted if that is quick, otherwise measured on a sample.

The corpus is read for about 20 seconds, a sample of it is prepared in a temporary folder, and a few steps are trained
on it with the real model. Text at addresses is first fetched into the cache; nothing is written elsewhere.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unmask.commands.prepare import requested_preparation
from unmask.commands.pretrain import check_inputs
from unmask.commands.recipe import Recipe, requested_recipe
from unmask.commands.recipe_files import LightRecipe
from unmask.commands.run_data import (
    RunFolder,
    begin_from_checkpoint,
    begin_with_tokenizer,
    check_data,
    check_tokenizer,
    open_prepared,
    packaged_corpus,
)
from unmask.commands.sizing import fit_to_budget, with_sizes
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import RunError
from unmask.core.remote import local_copies
from unmask.core.results import Facts, Reporter, Result, Shown, Styled, duration
from unmask.data.data_folder import is_prepared
from unmask.data.prepare import open_annotated, prepare
from unmask.data.settings import CorpusSettings
from unmask.data.sources import is_stream
from unmask.tokenizer.spans import written_fields
from unmask.tokenizer.trainers import TokenizerSettings, default_vocab_size
from unmask.train.distributed import ALONE, Group, join_group, on_every_rank, on_rank_zero, rank_zero_first
from unmask.train.hardware import first_micro_tokens, peak_memory
from unmask.train.optimizer import state_tensors
from unmask.train.trainer import Trainer, timed_steps

READ_SECONDS = 20.0
SAMPLE_BYTES = 4 << 20
SLOW_SAMPLE_BYTES = 1 << 18  # if a pipeline annotates it
CLASS_CHARS = 1000  # of a document that is sampled only for its class
NUM_STEPS = 4
STEPS_SECONDS = 60.0

# ----------------------------------------
# What all dry runs share: real steps, and facts in lines.


def measure_steps(trainer: Trainer, num_steps: int = NUM_STEPS, *, num_parts: float = 1.0) -> dict[str, Any]:
    """Trains a few steps with the real model, and extrapolates to the whole training, in which each step is
    `num_parts` times as large.

    Returns:
        `steps`, `seconds` and `tokens_seen` of the whole training, without evaluations; `step_seconds`, the median
        without the first step; `tokens_per_second`; `memory_bytes`, the peak of any process, None if the system does
        not report it; `processes`, how many train together; `device`; `by_clock`, whether the budget is in minutes.
    """
    settings, device = trainer.settings, trainer.model.encoder.device
    durations, total_tokens = list[float](), 0
    times: list[float] = []  # of the updates: minus their beginnings, plus their ends
    if num_parts > 1.0:  # an update is made once in a step
        trainer.state.optimizer.register_step_pre_hook(lambda *_: times.append(-time.monotonic()))
        trainer.state.optimizer.register_step_post_hook(lambda *_: times.append(time.monotonic()))
    if device.type == "cuda":  # the peak so far may be that of the trials of sizes
        torch.cuda.reset_peak_memory_stats()
    for step, num_tokens in timed_steps(trainer, num_steps):
        durations.append(step)
        total_tokens += num_tokens
        (spent,), *_ = trainer.group.all_gather([sum(durations)])
        if len(durations) > 1 and spent > STEPS_SECONDS:  # the first step may have compiled loops
            break
    of_update, tokens = sum(times[-2:]), num_parts * total_tokens / len(durations)
    seconds = of_update + num_parts * (statistics.median(durations[1:] or durations) - of_update)
    if settings.steps is not None:
        steps = settings.steps
    elif settings.tokens is not None:
        steps = math.ceil(settings.tokens / tokens)
    else:
        steps = max(1, round((settings.minutes or 0.0) * 60.0 / seconds))
    memory = max(int(most) for (most,) in trainer.group.all_gather([peak_memory(device) or 0]))
    return {
        "steps": steps,
        "seconds": steps * seconds,
        "tokens_seen": round(steps * tokens),
        "step_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "memory_bytes": memory or None,
        "processes": trainer.group.world_size,
        "device": device.type,
        "by_clock": settings.minutes is not None,
    }


class Forecast(Result):
    """What a command would do: figures for `--json`, and facts to show, each a name and a sentence."""

    _facts: Sequence[tuple[str, str]]

    def __init__(self, figures: Mapping[str, Any], facts: Sequence[tuple[str, str]]) -> None:
        super().__init__({**figures, "_facts": facts})

    def shown(self) -> Iterator[Shown]:
        yield Facts(self._facts)
        yield Styled("nothing was written (--dry-run)", "dim")


def training_fact(figures: Mapping[str, Any]) -> tuple[str, str]:
    """Steps, time and speed of the training; with a budget in minutes, the time is exact and the steps estimated."""
    steps_are, time_is = ("about ", "") if figures["by_clock"] else ("", "about ")
    return (
        "training",
        f"{steps_are}{figures['steps']:,} steps in {time_is}{duration(figures['seconds'])}, "
        f"{figures['tokens_per_second']:,.0f} tokens a second on {figures['device']}",
    )


def memory_fact(figures: Mapping[str, Any]) -> tuple[str, str]:
    num_bytes, processes = figures["memory_bytes"], figures["processes"]
    if num_bytes is None:
        return "memory", "unknown: this system does not report the memory of a process"
    each = f" in each of {processes} processes" if processes > 1 else ""
    return "memory", f"{num_bytes / 2**30:.1f} GiB{each}, measured in the first steps"


# ----------------------------------------
# Text.


def _text_facts(text: Mapping[str, Any]) -> list[tuple[str, str]]:
    at_least = "" if text["complete"] else "at least "
    counts = f"{text['documents']:,} documents, {text['bytes']:,} bytes, about {text['tokens']:,} tokens"
    left_out = [("", f"left out: {number:,} {reason}") for reason, number in text["skipped"].items()]
    return [("text", f"{at_least}{counts}"), ("", text["plan"]), *left_out]


def forecast_preparation(paths: Sequence[str | Path], **options: Any) -> Forecast:
    """What `unmask.prepare` would do with the same arguments."""
    recipe = requested_preparation(**options)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        text = _prepare_sample(local_copies(*paths), recipe, recipe.tokenizer, Path(scratch))
    about = "about" if text["complete"] else "at least"
    facts = [
        *_text_facts(text),
        ("vocabulary", f"{text['vocab_size']:,}"),
        ("preparation", f"{about} {duration(text['seconds'])}"),
        ("disk", f"{about} {text['tokens'] * 3 / 2**20:,.1f} MiB"),
    ]
    return Forecast(text, facts)


def _prepare_sample(
    paths: Sequence[str | Path], recipe: LightRecipe, tokenizer: TokenizerSettings, scratch: Path
) -> dict[str, Any]:
    """Reads a corpus for about 20 seconds, prepares a sample of it in `scratch/data`, and extrapolates to all."""
    refuse_streams(paths)
    corpus, annotation = recipe.corpus, recipe.annotation
    opened, plan = open_annotated(paths, corpus, annotation)
    sample_bytes = SAMPLE_BYTES if plan is None or plan.pipeline is None else SLOW_SAMPLE_BYTES
    opened.check_held()

    # Documents and bytes are counted until the time is up. The sample has the first, and a bit of each further class.
    begin, documents, num_bytes, complete = time.monotonic(), 0, 0, True
    classes: set[str | None] = {None}
    with (scratch / "sample.jsonl").open("w", encoding="utf-8") as sample:
        for piece in opened.unsplit():
            documents += piece.offset == 0
            if num_bytes < sample_bytes or piece.label not in classes:
                part = piece if num_bytes < sample_bytes else piece.part(0, CLASS_CHARS)
                label = {"label": part.label} if part.label else {}
                row = {"text": part.text, **label, **written_fields(part.spans or {})}
                sample.write(json.dumps(row) + "\n")
            classes.add(piece.label)
            num_bytes += len(piece.text.encode())
            if num_bytes >= sample_bytes and time.monotonic() - begin > READ_SECONDS:
                complete = False
                break

    # The sample is read by the columns written above. The size of its vocabulary is that of the whole text.
    unset = tokenizer.path is None and tokenizer.vocab_size is None and tokenizer.kind != "char"
    if unset and num_bytes > sample_bytes:
        tokenizer = tokenizer.model_copy(update={"vocab_size": default_vocab_size(opened.num_bytes or num_bytes)})
    begin = time.monotonic()
    reading = CorpusSettings(
        column="text",
        label=None if corpus.label is None else "label",
        holdout=corpus.holdout,
        holdout_from=corpus.holdout_from,
        max_unknown=corpus.max_unknown,
    )
    annotation = annotation.model_copy(update={"fields": {}, "source": "auto"})
    manifest = prepare(
        [Path(sample.name)], scratch / "data", corpus=reading, tokenizer=tokenizer, annotation=annotation
    )
    scale, share = num_bytes / manifest.bytes, manifest.train.tokens / manifest.tokens
    # The sample mixes held-out files with the others.
    if held := sum(task.num_bytes for task in opened.tasks if task.is_held):
        share = 1.0 - held / sum(task.num_bytes for task in opened.tasks)
    return {
        "documents": documents,
        "bytes": num_bytes,
        "tokens": round(manifest.tokens * scale),
        "train_tokens": round(manifest.tokens * scale * share),
        "complete": complete,
        "vocab_size": manifest.vocab_size,
        "seconds": (time.monotonic() - begin) * scale,
        "plan": opened.plan.describe(),
        "skipped": dict(opened.skipped),
    }


def refuse_streams(texts: Iterable[object]) -> None:
    if any(map(is_stream, texts)):
        raise RunError("a dry run would consume standard input or a pipe; give a file", options=["dry_run"])


# ----------------------------------------
# Pretraining.


def forecast_pretrain(paths: Sequence[str | Path] | None = None, **options: Any) -> Forecast:
    """What `pretrain` would do with the same arguments."""
    group = join_group()
    return forecast_run(paths, on_every_rank(group, lambda: requested_recipe(**options)), group)


def forecast_run(paths: Sequence[str | Path] | None, recipe: Recipe, group: Group = ALONE) -> Forecast:
    """What `pretrain` would do with these files and this recipe, in processes that train together on one machine."""
    sources = on_every_rank(group, lambda: local_copies(*(paths or [packaged_corpus()])))
    with ExitStack() as stack:
        # Rank 0 reads the text and prepares a sample of it, or uses prepared data.
        sample = on_rank_zero(group, lambda: _make_scratch(sources, recipe, stack))
        scratch, text, is_whole = Path(sample["scratch"]), sample["text"], sample["text"]["complete"]
        root = Path(sources[0]) if is_prepared(sources) else scratch / "data"
        data = on_every_rank(group, lambda: open_prepared(root))
        train_tokens, outlook = max(text["train_tokens"], 1), list[str]()
        if recipe.sizing is not None:
            fitting = partial(fit_to_budget, recipe, data, train_tokens=train_tokens, processes=group.world_size)
            sizes, outlook = on_rank_zero(group, fitting)
            outlook += [] if is_whole else ["chosen for the text read so far; the run may choose another for all of it"]
            recipe = with_sizes(recipe, sizes)

        # All ranks train a few steps, with the longest rows, which take the most memory.
        training = recipe.training.model_copy(update={"length_schedule": None})
        longest = recipe.model_copy(update={"training": training})
        folder = RunFolder(scratch / "run")
        run = rank_zero_first(group, partial(TrainingRun, folder, longest, data, Reporter(), group))
        measured = measure_steps(run.trainer, num_parts=_train_on_parts(run.trainer, train_tokens))
        states = sum(tensor.nbytes for tensor in state_tensors(run.state.optimizer, run.model).values())
        weights = sum(parameter.nbytes for parameter in run.model.parameters())
        parameters, tokens_seen = run.model.num_parameters, measured["tokens_seen"]
        epochs = tokens_seen / train_tokens
        disk = text["tokens"] * 3 + (weights + states) * (recipe.checkpoint.keep + 2) + weights  # at most
        del data, run  # unmaps the shards before their folder is removed
    facts = [
        *(("start" if number == 0 else "", line) for number, line in enumerate(sample["notes"])),
        *_text_facts(text),
        ("preparation", f"{'about' if is_whole else 'at least'} {duration(text['seconds'])}"),
        *(("size" if number == 0 else "", line) for number, line in enumerate(outlook)),
        ("model", f"{parameters:,} parameters, vocabulary {text['vocab_size']:,}"),
        training_fact(measured),
        *([("", "timed with the longest rows; shorter ones are faster")] if recipe.training.length_schedule else []),
        ("", f"{tokens_seen:,} tokens seen, {'' if is_whole else 'at most '}{epochs:.1f} times the text"),
        memory_fact(measured),
        ("disk", f"{disk / 2**30:.2f} GiB at {'most' if is_whole else 'least'}, data and checkpoints"),
    ]
    figures = {
        **text,
        **measured,
        "num_parameters": parameters,
        "epochs": epochs,
        "prepare_seconds": text["seconds"],
        "disk_bytes": disk,
        "start": sample["notes"],
    }
    return Forecast(figures, facts)


def _train_on_parts(trainer: Trainer, train_tokens: float) -> float:
    """On a CPU, makes each step as large as the parts that it is computed in, and returns their number: a whole step
    of a recipe for GPUs takes minutes to hours there."""
    settings, model = trainer.settings, trainer.model
    most = first_micro_tokens(model, settings, model.encoder.device, rate=0.0)
    whole = min(settings.batch_tokens, train_tokens)
    positions = (most or 0) // settings.sequence_length * settings.sequence_length * trainer.group.world_size
    if model.encoder.device.type != "cpu" or not 0 < positions < whole:
        return 1.0
    trainer.settings = settings.model_copy(update={"batch_tokens": positions})
    return whole / positions


def _make_scratch(sources: Sequence[str | Path], recipe: Recipe, stack: ExitStack) -> dict[str, Any]:
    """Makes `scratch`, a folder with `run/start` and `data`; returns it, figures of the `text`, and `notes`."""
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unmask-")))
    start, root, notes = scratch / "run" / "start", scratch / "data", list[str]()
    refuse_streams(sources)
    check_inputs(sources, recipe, is_new=True)
    tokenizer = recipe.tokenizer
    if recipe.start is not None:
        start.parent.mkdir()
        names = list(map(str, sources))
        if not recipe.start.new_tokenizer:
            preparing = begin_from_checkpoint(names, start, recipe, note=notes.append, sample_bytes=SAMPLE_BYTES)
            tokenizer = preparing.tokenizer
        if recipe.start.extend_vocab is not None:
            size = f"{SAMPLE_BYTES / 2**20:.0f} MiB"
            notes.append(f"new words were chosen from the first {size} only; the run uses all of the text")
    if is_prepared(sources):
        root = Path(sources[0])
        manifest = open_prepared(root).manifest
        check_data(recipe, manifest, root)
        counted = {name: getattr(manifest, name) for name in ("documents", "bytes", "tokens", "vocab_size", "plan")}
        trained = {"train_tokens": manifest.train.tokens, "skipped": manifest.skipped}
        text = {**counted, **trained, "complete": True, "seconds": 0.0}
    else:
        text = _prepare_sample(sources, recipe, tokenizer, scratch)
        manifest = open_prepared(root).manifest
    if recipe.start is not None:
        if recipe.start.new_tokenizer:
            begin_with_tokenizer(open_prepared(root).tokenizer, start, recipe, note=notes.append)
        check_tokenizer(root, manifest, start, recipe.start.checkpoint)
    return {"scratch": str(scratch), "text": text, "notes": notes}
