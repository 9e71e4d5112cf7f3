"""The systems whose throughput is compared, each a separate process: our step, and transformers' Trainer.

`train.py` starts and describes them; a system computes only in its turns.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from turns import own_output

SYSTEMS = ("ours", "bert", "bert-bf16", "bert-best", "modernbert-bf16")
TURN_SECONDS = 4.0  # counted seconds of a turn
WARM_SHARE = 0.5  # uncounted seconds before them, as a share
WARM_STEPS = {"cpu": 1, "cuda": 5}  # fewest uncounted steps; on a GPU a new Trainer compiles, and fills its caches
EPOCH_STEPS = {"cpu": 8, "cuda": 64}  # of a Trainer; on a GPU a few hundred MB of rows, read in seconds
# On a GPU the next batches are made meanwhile, as in ours; on CPUs no core is free for that.
LOADING: dict[str, dict[str, Any]] = {
    "cpu": {"dataloader_pin_memory": False},
    "cuda": {"dataloader_num_workers": 4, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 4},
}


class Work(NamedTuple):
    """The settings of all systems of a cell."""

    data: str
    size: str  # layers x hidden size
    length: int
    batch_tokens: int
    optimizer: str = "muon"
    compiled: str = "no"
    device: str = "cpu"
    turn_seconds: float = TURN_SECONDS

    @property
    def layers(self) -> int:
        return int(self.size.split("x")[0])

    @property
    def hidden(self) -> int:
        return int(self.size.split("x")[1])

    @property
    def rows(self) -> int:
        return max(1, self.batch_tokens // self.length)


class Stopwatch:
    """Times the steps of a turn: after `warm_seconds`, at least `least_steps` steps for at least `seconds` count.

    On a GPU the time runs from an idle device to an idle device and is divided among the steps, since single steps only
    tell when the host was done with them.
    """

    def __init__(
        self, device: str, seconds: float, least_steps: int = 1, *, warm_seconds: float = WARM_SHARE * TURN_SECONDS
    ) -> None:
        self._device, self._warm_seconds = device, warm_seconds
        self._warm_steps, self._seconds, self._least_steps = WARM_STEPS[device], seconds, least_steps

    def begin(self) -> None:
        self._ends: list[float] = []  # ends of steps, from the last that does not count
        self.tokens: list[int] = []  # of the steps that count
        self._steps, self._began = 0, time.perf_counter()

    def tick(self, tokens: int) -> bool:
        """Records the end of a step, with its number of text tokens. Returns whether the turn is over."""
        self._steps += 1
        if self._ends:
            self._ends.append(time.perf_counter())
            self.tokens.append(tokens)
        elif self._steps >= self._warm_steps and time.perf_counter() - self._began >= self._warm_seconds:
            synchronize(self._device)
            self._ends.append(time.perf_counter())
        enough = len(self._ends) > self._least_steps and self._ends[-1] - self._ends[0] >= self._seconds
        if enough:
            synchronize(self._device)
            self._over = time.perf_counter()  # cleaning up after the turn does not count
        return enough

    def taken(self) -> list[float]:
        """Seconds of the steps that count."""
        if self._device == "cpu":
            return [b - a for a, b in pairwise(self._ends)]
        count = len(self.tokens)
        return [(self._over - self._ends[0]) / count] * count


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


Turn = Callable[[Stopwatch], None]  # trains until the stopwatch ends the turn


def ours(work: Work) -> tuple[Turn, dict[str, Any]]:
    from ours import assemble

    from unmask.commands.recipe import load_recipe
    from unmask.commands.run_data import open_prepared

    options = {
        "model.num_layers": work.layers, "model.hidden_size": work.hidden, "model.num_heads": work.hidden // 64,
        "model.max_position_embeddings": max(work.length, 128),
        "training.steps": 1_000_000, "training.sequence_length": work.length,
        "training.batch_tokens": work.rows * work.length, "training.optimizer.kind": work.optimizer,
        "training.learning_rate": 1e-3, "masking.strategy": "random", "masking.rate": 0.15,
    }  # fmt: skip
    data = open_prepared(Path(work.data))
    training = assemble(load_recipe("tiny", options=options), data, torch.device(work.device))
    reports, model = training.reports(), training.state.model
    next(reports)

    def turn(watch: Stopwatch) -> None:
        watch.begin()
        while not watch.tick(next(reports).tokens):
            pass

    # For the share of the peak: parameters that are multiplied, and how far a token attends.
    multiplied = sum(p.numel() for p in model.encoder.blocks.parameters() if p.ndim == 2)
    head = model.head.dense.weight.numel() + model.encoder.tokens.numel()
    config = model.encoder.config
    sizes = np.minimum(data.train.column("lengths") + 2, work.length).astype(float)
    segment = float((sizes**2).sum() / sizes.sum())  # mean size of a token's segment
    window = config.rotary.local_window + 1 if config.rotary is not None else work.length
    reach = sum(segment if config.is_global(i) else min(segment, window) for i in range(work.layers))
    return turn, {"multiplied": multiplied, "head": head, "reach": reach}


def fast_tokenizer(data: Path | None = None, **source: Any) -> Any:
    """A transformers tokenizer from prepared text, or from a `tokenizer_object`."""
    from transformers import PreTrainedTokenizerFast

    if data is not None:
        source["tokenizer_file"] = str(data / "tokenizer" / "tokenizer.json")
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(**source, **names)


def sizes_of(tokenizer: Any, size: tuple[int, int], length: int, attention: str) -> dict[str, Any]:
    """Fields that BERT's and ModernBERT's configurations share; `size` is layers and width."""
    return {
        "vocab_size": len(tokenizer), "num_hidden_layers": size[0], "hidden_size": size[1],
        "num_attention_heads": size[1] // 64, "max_position_embeddings": length,
        "pad_token_id": tokenizer.pad_token_id, "attn_implementation": attention,
    }  # fmt: skip


def modernbert(tokenizer: Any, size: tuple[int, int], length: int, attention: str, *, global_every: int = 1) -> Any:
    """transformers' ModernBERT, with the inner width of ours."""
    import transformers

    from unmask.model.config import PARTS, default_intermediate_size

    config = transformers.ModernBertConfig(
        **sizes_of(tokenizer, size, length, attention),
        cls_token_id=tokenizer.cls_token_id, sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
        intermediate_size=default_intermediate_size(size[1], PARTS["modernbert"].intermediate_ratio),
        global_attn_every_n_layers=global_every,
        sparse_prediction=True,  # logits at the masked positions only
    )  # fmt: skip
    return transformers.ModernBertForMaskedLM(config)


def trainer_arguments(rows: int, device: str, **more: Any) -> Any:
    """Arguments of a `Trainer` that saves and prints nothing, and runs until a callback stops it."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=tempfile.gettempdir(), per_device_train_batch_size=rows, max_steps=1_000_000, save_strategy="no",
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=device == "cpu", **LOADING[device], **more,
    )  # fmt: skip


def transformers_of(system: str, work: Work, attention: str) -> Turn:
    """Each turn is a new Trainer, with the same model and the settings that a careful user finds."""
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = fast_tokenizer(Path(work.data))
    size, length = (work.layers, work.hidden), max(work.length, 128)
    model: Any
    if system.startswith("modernbert"):
        # On GPUs the layers attend as far as ours; on CPUs it is faster without the masks of local layers.
        model = modernbert(tokenizer, size, length, attention, global_every=3 if work.device == "cuda" else 1)
    else:
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if system == "bert-best" else {}
        config = transformers.BertConfig(
            **sizes_of(tokenizer, size, length, attention), **dropout, intermediate_size=4 * work.hidden
        )
        model = transformers.BertForMaskedLM(config)
    options = trainer_arguments(
        work.rows,
        work.device,
        bf16=system != "bert",
        optim="adamw_torch_fused",  # the default
        remove_unused_columns=system == "bert",  # run_mlm's default makes the collator look for special tokens itself
        torch_compile=work.compiled == "yes" and system != "bert",
    )
    rows, tokens = trainer_rows(work, tokenizer.all_special_ids)
    collator = transformers.DataCollatorForLanguageModeling(tokenizer)

    class Watched(transformers.TrainerCallback):
        def __init__(self, watch: Stopwatch) -> None:
            self.watch = watch

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.watch.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = self.watch.tick(tokens)

    def turn(watch: Stopwatch) -> None:
        callbacks = [Watched(watch)]
        transformers.Trainer(model, options, train_dataset=rows, data_collator=collator, callbacks=callbacks).train()

    return turn


def trainer_rows(work: Work, special_ids: list[int]) -> tuple[list[dict[str, list[int]]], int]:
    """Rows for whole steps, the first ones of our training; and the mean number of text tokens in a step."""
    from unmask.commands.run_data import open_prepared
    from unmask.data.rows import Cursor, RowStream

    data = open_prepared(Path(work.data))
    stream = RowStream(data.train, data.tokenizer, length=work.length, seed=0)
    rows: list[dict[str, list[int]]] = []
    num_tokens, count = 0, work.rows * EPOCH_STEPS[work.device]
    for batch in stream.batches(Cursor(), count):  # fewer rows if the text is short
        ids_BS = batch.rows.input_ids
        special_BS = torch.isin(ids_BS, torch.tensor(special_ids)).long()
        columns = {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS), "special_tokens_mask": special_BS}
        lists = [column.long().tolist() for column in columns.values()]
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
        num_tokens += batch.num_tokens
        if len(rows) >= count:
            break
    return rows[:count], round(num_tokens / len(rows) * work.rows)


def ways(system: str, work: Work) -> tuple[str, ...]:
    """The attention implementations of a system, of which the fastest is used. Ours has one, run_mlm the default."""
    if system == "ours":
        return ("own",)
    return ("sdpa", "eager") if system != "bert" and work.device == "cpu" else ("sdpa",)


def serve(system: str, attention: str, work: Work) -> None:
    """A system's process: the first line on standard input makes it build the system, each further one is a turn."""
    from unmask.train.hardware import peak_memory

    out = own_output()
    importlib.import_module("ours" if system == "ours" else "transformers.trainer")
    print("{}", file=out, flush=True)
    sys.stdin.readline()
    if system == "ours":
        turn, facts = ours(work)
    else:
        turn, facts = transformers_of(system, work, attention), {"attention": attention}
    free_memory()
    print(json.dumps(facts), file=out, flush=True)
    for line in sys.stdin:
        seconds, least_steps = line.split()
        warm_seconds = WARM_SHARE * work.turn_seconds
        watch = Stopwatch(work.device, float(seconds), int(least_steps), warm_seconds=warm_seconds)
        turn(watch)
        free_memory()
        answer = {"seconds": watch.taken(), "tokens": watch.tokens, "memory": peak_memory(torch.device(work.device))}
        print(json.dumps(answer), file=out, flush=True)


def free_memory() -> None:
    """Frees the memory of a turn: a finished Trainer holds gigabytes in reference cycles while others train, and torch
    keeps what is freed on a GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Work(**json.loads(sys.argv[3])))
