r"""Held-out loss over wall-clock: what users really wait for.

    python benchmarks/time_to_loss.py TEXT... --results FILE [--minutes 30] [--ours 0.75,3,10] [--seeds 0,1,2] \
        [--table PAGE] [--picture FILE]
    python benchmarks/time_to_loss.py TEXT... --results FILE --sweep 4

All systems train on the same rows of 128 positions of the same prepared text, with one WordPiece tokenizer of 8,192
words and a model of 4 layers of 256, and are evaluated on the same held-out rows with the same masks: 15 % of the
tokens, all shown as `[MASK]`. Each is a process of its own, they train in turn, each for its share of a minute (a
quarter of one at least), so that all end at about the same time, and only a system's own training time counts
(evaluations do not, for none of them; see turns.py).

    run_mlm  transformers' Trainer and BertForMaskedLM with the defaults of run_mlm: float32, 8 rows a step, AdamW with
             5e-5 falling in a line, dropout
    tuned    the same in bf16, without dropout, 5 % warm-up, with the number of rows and the learning rate chosen by
             `--sweep`: each candidate makes the first minutes of a 30-minute schedule
    ours-M   `unmask pretrain --minutes M` with the recipe `tiny`; a budget is a run of its own, since a schedule ends
             with its budget; its loops are compiled before

Transformers' schedules need a number of steps: as many as fit the budget, measured before. They run to their end, so a
slower machine gives them more time, not fewer steps. What is found lies in FILE, a JSON line a system, with a hash of
the text, and the day, the machine and the versions that it was measured with, which the table shows; what is there
already, of the same text and settings, is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import loss_curves
import torch
from peers import fast_tokenizer, features
from tables import circumstances, write_table
from train import prepare
from turns import Ended, System, Turn, alternate, own_output

LENGTH = 128
CPU = torch.device("cpu")  # of all systems
HELD_OUT_TOKENS = 100_000
ROUND = 60.0  # seconds of the longest budget's turn; others get their share, so that all end at about the same time
LEAST_TURN = 15.0  # shorter ones would measure how steps begin after a pause, when the memory is another's
SWEEP = (
    (2048, 2.5e-4), (2048, 5e-4), (2048, 1e-3), (4096, 5e-4), (4096, 1e-3), (4096, 2e-3), (8192, 1e-3), (8192, 2e-3)
)  # fmt: skip
TUNED = (2048, 5e-4)  # positions a step and learning rate; what SWEEP said stands in docs/experiments.md


class Work(NamedTuple):
    """What a system is told."""

    data: str
    system: str  # run_mlm, tuned or ours
    minutes: float
    batch_tokens: int = 8 * LENGTH
    learning_rate: float = 5e-5
    seed: int = 0
    recipe: str = "tiny"
    overrides: tuple[str, ...] = ()


def marks(minutes: float) -> list[float]:
    """Seconds at which losses are looked at: closer together at the beginning."""
    early = [10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 150.0, 180.0, 240.0]
    return [mark for mark in [*early, *range(300, 7200, 120)] if mark < minutes * 60.0 - 5.0]


def ours(work: Work, out: TextIO) -> None:
    from assembly import assemble

    from unmask.evaluation.held_out import HeldOutSet
    from unmask.pretraining.data import open_prepared
    from unmask.recipe.recipe import load_recipe

    data = open_prepared(Path(work.data))
    recipe = load_recipe(
        work.recipe,
        options={"training.minutes": work.minutes, "training.seed": work.seed},
        overrides=work.overrides,
    )
    held_out = HeldOutSet(data.validation, data.tokenizer, length=LENGTH, max_tokens=HELD_OUT_TOKENS)
    next(assemble(recipe, data, CPU).reports())  # has the loops compiled, once on a machine
    training = assemble(recipe, data, CPU)
    model = training.state.model

    def evaluate() -> tuple[float, float]:
        found = held_out.evaluate(model)
        return found.loss, found.accuracy

    turn = Turn(out, evaluate, marks(work.minutes))
    turn.begin(parameters=model.num_parameters, batch_tokens=recipe.training.batch_tokens)
    for _ in training.reports(turn.now):
        turn.step()
    turn.end()


def transformers_of(work: Work, out: TextIO) -> None:
    import transformers
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback

    transformers.logging.set_verbosity_error()
    tokenizer = fast_tokenizer(Path(work.data))
    tuned = work.system == "tuned"
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if tuned else {}
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager" if tuned else "sdpa",  # the faster of both, by benchmarks/train.py
        **dropout,
    )
    rows = _rows(work, tokenizer)

    def new_model() -> Any:
        transformers.set_seed(work.seed)
        return transformers.BertForMaskedLM(config)

    def trainer(model: Any, steps: int, callback: TrainerCallback) -> Trainer:
        options = transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=work.batch_tokens // LENGTH,
            max_steps=steps,
            learning_rate=work.learning_rate,
            warmup_steps=steps // 20 if tuned else 0,
            bf16=tuned,
            optim="adamw_torch_fused",  # the default
            remove_unused_columns=not tuned,  # run_mlm's default makes the collator look for special tokens itself
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=work.seed,
        )
        collator = DataCollatorForLanguageModeling(tokenizer)
        return Trainer(model, options, train_dataset=rows, data_collator=collator, callbacks=[callback])

    steps = _steps_that_fit(work, lambda *given: trainer(new_model(), *given))
    model = new_model()
    turn = Turn(out, _transformers_evaluation(work, model), marks(work.minutes))

    class Steps(TrainerCallback):
        def on_train_begin(self, *arguments: Any, **named: Any) -> None:
            turn.begin(parameters=model.num_parameters(), steps=steps)

        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            turn.step()

    trainer(model, steps, Steps()).train()
    turn.end()


def _steps_that_fit(work: Work, trainer: Any) -> int:
    """Steps of the budget: the median of some, without the first ones."""
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            times.append(time.perf_counter())

    trainer(16, Clock()).train()
    taken = [b - a for a, b in pairwise(times[4:])]
    return int(work.minutes * 60.0 / statistics.median(taken))


def _transformers_evaluation(work: Work, model: Any) -> Any:
    """Loss and accuracy on the held-out rows, in the training's precision, rows attended to as in the training."""
    from torch.nn import functional

    from unmask.evaluation.held_out import HeldOutSet
    from unmask.pretraining.data import open_prepared

    data = open_prepared(Path(work.data))
    batches = HeldOutSet(data.validation, data.tokenizer, length=LENGTH, max_tokens=HELD_OUT_TOKENS).batches

    @torch.no_grad()
    def evaluate() -> tuple[float, float]:
        model.eval()
        losses, right = [], 0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.system == "tuned"):
            for rows, masked in batches:
                attended = (rows.segment_ids >= 0).long()
                logits = model(input_ids=masked.input_ids, attention_mask=attended).logits
                chosen = masked.labels >= 0
                found, targets = logits[chosen].float(), masked.labels[chosen]
                losses.append(functional.cross_entropy(found, targets, reduction="none").double())
                right += int((found.argmax(-1) == targets).sum())
        model.train()
        joined = torch.cat(losses)
        return float(joined.mean()), right / len(joined)

    return evaluate


def _rows(work: Work, tokenizer: Any) -> list[dict[str, list[int]]]:
    """All rows of the training text: texts one after another, as run_mlm groups them."""
    from unmask.packing.stream import Cursor, RowStream
    from unmask.pretraining.data import open_prepared

    data = open_prepared(Path(work.data))
    rows: list[dict[str, list[int]]] = []
    for batch in RowStream(data.train, data.tokenizer, length=LENGTH, seed=work.seed).batches(Cursor(), 64):
        if batch.epoch:
            return rows
        rows += features(batch.rows.input_ids, batch.rows.segment_ids >= 0, tokenizer)
    raise AssertionError("the stream never ends")


def start(work: Work) -> System:
    return System([sys.executable, __file__, "--serve", json.dumps(work._asdict())])


def sweep(data: str, minutes: float, results: Path) -> None:
    """The first minutes of the tuned system's schedule, for each candidate."""
    works = {f"sweep-{tokens}-{rate:g}": Work(data, "tuned", 30.0, tokens, rate) for tokens, rate in SWEEP}
    run(works, results, until=minutes * 60.0 + 1.0)


def run(works: dict[str, Work], results: Path, *, until: float | None = None) -> None:
    """Runs what the results lack, all in turn: whatever the machine does beside falls on all of them."""
    there = loss_curves.load(results)
    for name, work in works.items():
        if name in there and _identity(there[name]) != _identity(_entry(name, work)):
            sys.exit(f"{results} holds {name} of another text or with other settings; give another --results")
    missing = {name: work for name, work in works.items() if name not in there}
    systems = {name: start(work) for name, work in missing.items()}
    longest = max((work.minutes for work in missing.values()), default=1.0)
    slices = {name: max(LEAST_TURN, ROUND * work.minutes / longest) for name, work in missing.items()}
    for name in alternate(systems, slices, until=until):
        _write(results, name, missing[name], systems[name])
        systems[name].close()


def _entry(name: str, work: Work) -> dict[str, Any]:
    """What a line of the results says of a run before it has begun."""
    manifest = json.loads((Path(work.data) / "manifest.json").read_text(encoding="utf-8"))
    return {"name": name, "work": {**work._asdict(), "data": None}, "text": manifest["fingerprint"]}


def _identity(entry: Mapping[str, Any]) -> tuple[str, Any]:
    """What two runs of a name must have in common to be the same."""
    return entry["text"], json.loads(json.dumps(entry["work"]))


def _write(results: Path, name: str, work: Work, system: System) -> None:
    entry = _entry(name, work) | {
        **circumstances(),
        "facts": system.facts,
        "seconds": system.seconds,
        "steps": system.steps,
        "points": system.points,
    }
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as out:
        out.write(json.dumps(entry) + "\n")


def measure(data: str, asked: argparse.Namespace) -> None:
    """The systems that were asked for, transformers' and ours."""
    works = {
        "run_mlm": Work(data, "run_mlm", asked.minutes),
        "tuned": Work(data, "tuned", asked.minutes, *TUNED),
        **{
            f"ours-{minutes:g}-seed{seed}": Work(
                data, "ours", minutes, seed=seed, recipe=asked.recipe, overrides=tuple(asked.set or ())
            )
            for minutes in map(float, asked.ours.split(","))
            for seed in map(int, asked.seeds.split(","))
        },
    }
    systems = asked.systems.split(",")
    run({name: work for name, work in works.items() if work.system in systems}, asked.results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*", help="text, or one prepared folder")
    parser.add_argument("--results", type=Path, help="where runs are kept, and found again")
    parser.add_argument("--minutes", type=float, default=30.0, help="of transformers' systems")
    parser.add_argument("--ours", default="0.75,3,10", help="budgets of ours, in minutes")
    parser.add_argument("--seeds", default="0", help="of ours")
    parser.add_argument("--systems", default="run_mlm,tuned,ours", help="those that run now")
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--set", action="append", metavar="SECTION.KEY=VALUE", help="a setting of ours")
    parser.add_argument("--sweep", type=float, metavar="MINUTES", help="only the candidates for `tuned`")
    parser.add_argument("--table", type=Path, help="page whose table `time-to-loss` is rewritten")
    parser.add_argument("--picture", type=Path, help="SVG of the curves")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        values = json.loads(asked.serve)
        work = Work(**{**values, "overrides": tuple(values["overrides"])})
        with suppress(Ended):
            (ours if work.system == "ours" else transformers_of)(work, own_output())
        return
    with tempfile.TemporaryDirectory() as folder:
        data = str(asked.texts[0])
        if not (asked.texts[0] / "manifest.json").is_file():
            data = f"{folder}/data"
            prepare(asked.texts, Path(data), 8192)
        if asked.sweep is not None:
            sweep(data, asked.sweep, asked.results)
        else:
            measure(data, asked)
    is_sweep = asked.sweep is not None
    found = loss_curves.load(asked.results)
    results = {name: entry for name, entry in found.items() if name.startswith("sweep-") == is_sweep}
    lines = loss_curves.table(results)
    print(*lines, sep="\n")
    if asked.picture:
        loss_curves.draw(results, asked.picture)
    if asked.table:
        write_table(asked.table, "time-to-loss", lines, made=loss_curves.made(results))


if __name__ == "__main__":
    main()
