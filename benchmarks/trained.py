"""The systems whose throughput is compared, each a process of its own: our step, and transformers' Trainer.

`train.py` starts them and says what they are; a system computes only when it is its turn.
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

import torch
from turns import own_output

from unmask.training.hardware import peak_memory

SYSTEMS = ("ours", "bert", "bert-bf16", "bert-best", "modernbert-bf16")
WARM_SECONDS = 2.0  # of a turn, that do not count
WARM_STEPS = {"cpu": 1, "cuda": 5}  # at least; on a GPU a new Trainer compiles, and fills its caches
EPOCH_STEPS = {"cpu": 8, "cuda": 64}  # of a Trainer; on a GPU some hundred MB of rows, gone through in seconds
# On a GPU the next batches are made meanwhile, as ours are; on CPUs there is no core to spare.
LOADING: dict[str, dict[str, Any]] = {
    "cpu": {"dataloader_pin_memory": False},
    "cuda": {
        "dataloader_pin_memory": True,
        "dataloader_num_workers": 4,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": 4,  # batches of each worker
    },
}


class Work(NamedTuple):
    """What every system is told."""

    data: str
    size: str
    length: int
    batch_tokens: int
    layout: str
    optimizer: str
    compiled: str
    device: str

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
    """The steps of one turn.

    Args:
        device: Where the work is done: times on a GPU run from a device that has nothing to do to one that has nothing
            to do, shared out over the steps, since single ones only say when the host was done with them.
        seconds: How long steps count; at least one does.
    """

    def __init__(self, device: str, seconds: float) -> None:
        self._on_gpu = device == "cuda"
        self._warm_steps, self._seconds = WARM_STEPS[device], seconds

    def begin(self) -> None:
        self._ends: list[float] = []  # of steps, from the last that does not count
        self.tokens: list[int] = []  # of the steps that count
        self._steps, self._began = 0, time.perf_counter()

    def tick(self, tokens: int) -> bool:
        """A step has ended, which read so many tokens of text. Whether that is enough."""
        self._steps += 1
        if self._ends:
            self._ends.append(time.perf_counter())
            self.tokens.append(tokens)
        elif self._steps >= self._warm_steps and time.perf_counter() - self._began >= WARM_SECONDS:
            self._settle()
            self._ends.append(time.perf_counter())
        enough = len(self._ends) > 1 and self._ends[-1] - self._ends[0] >= self._seconds
        if enough:
            self._settle()
            self._over = time.perf_counter()  # what a turn leaves is cleared away later
        return enough

    def taken(self) -> list[float]:
        """Seconds of the steps that count."""
        if not self._on_gpu:
            return [b - a for a, b in pairwise(self._ends)]
        count = len(self.tokens)
        return [(self._over - self._ends[0]) / count] * count

    def _settle(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


Turn = Callable[[Stopwatch], None]  # trains until it has been long enough


def ours(work: Work) -> tuple[Turn, dict[str, Any]]:
    from assembly import assemble

    from unmask.pretraining.data import open_prepared
    from unmask.recipe.recipe import Recipe

    recipe = Recipe.model_validate(
        {
            "model": {
                "layout": work.layout,
                "num_layers": work.layers,
                "hidden_size": work.hidden,
                "num_heads": work.hidden // 64,
                "max_position_embeddings": max(work.length, 128),
            },
            "training": {
                "steps": 1_000_000,
                "sequence_length": work.length,
                "batch_tokens": work.rows * work.length,
                "optimizer": {"kind": work.optimizer},
                "learning_rate": 1e-3,
            },
            "masking": {"strategy": "random", "rate": 0.15},
        }
    )
    training = assemble(recipe, open_prepared(Path(work.data)), torch.device(work.device))
    loop, model = training.reports(), training.state.model
    next(loop)

    def turn(watch: Stopwatch) -> None:
        watch.begin()
        while not watch.tick(next(loop).tokens):
            pass

    multiplied = sum(p.numel() for name, p in model.encoder.blocks.named_parameters() if p.ndim == 2)
    head = model.head.dense.weight.numel() + model.encoder.tokens.numel()
    config = model.encoder.config
    window = config.rotary.local_window + 1 if config.rotary is not None else work.length
    reach = sum(work.length if config.is_global(i) else min(work.length, window) for i in range(work.layers))
    return turn, {"multiplied": multiplied, "head": head, "reach": reach}


def ways(system: str, work: Work) -> tuple[str, ...]:
    """How a system may compute attention: of several ways the fastest is taken. Ours has one, run_mlm the default."""
    if system == "ours":
        return ("own",)
    return ("sdpa", "eager") if system != "bert" and work.device == "cpu" else ("sdpa",)


def transformers_of(system: str, work: Work, attention: str) -> Turn:
    """A turn is a Trainer of its own, with the same model."""
    import transformers
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback

    transformers.logging.set_verbosity_error()
    tokenizer = fast_tokenizer(Path(work.data))
    model = _model(system, work, attention, tokenizer)
    options = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=work.rows,
        max_steps=1_000_000,
        bf16=system != "bert",
        optim="adamw_torch_fused",  # the default
        remove_unused_columns=system == "bert",  # run_mlm's default makes the collator look for special tokens itself
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=work.device == "cpu",
        torch_compile=work.compiled == "yes" and system != "bert",
        **LOADING[work.device],
    )
    (rows, tokens), collator = _rows(work, tokenizer), DataCollatorForLanguageModeling(tokenizer)

    class Told(TrainerCallback):
        def __init__(self, watch: Stopwatch) -> None:
            self.watch = watch

        def on_train_begin(self, *given: Any, **named: Any) -> None:
            self.watch.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            control.should_training_stop = self.watch.tick(tokens)

    def turn(watch: Stopwatch) -> None:
        Trainer(model, options, train_dataset=rows, data_collator=collator, callbacks=[Told(watch)]).train()

    return turn


def fast_tokenizer(data: Path) -> Any:
    """The tokenizer of prepared text, for transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(data / "tokenizer" / "tokenizer.json"),
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )


def _model(system: str, work: Work, attention: str, tokenizer: Any) -> Any:
    import transformers

    sizes = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": work.layers,
        "hidden_size": work.hidden,
        "num_attention_heads": work.hidden // 64,
        "max_position_embeddings": max(work.length, 128),
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": attention,
    }
    if not system.startswith("modernbert"):
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if system == "bert-best" else {}
        config = transformers.BertConfig(**sizes, **dropout, intermediate_size=4 * work.hidden)
        return transformers.BertForMaskedLM(config)
    from unmask.model.config import default_intermediate_size
    from unmask.model.layouts import PARTS

    width = default_intermediate_size(work.hidden, PARTS["modernbert"].intermediate_ratio)
    ids = {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    # On GPUs the layers attend as far as ours do; on CPUs it is faster without the masks of local ones.
    every = 3 if work.device == "cuda" else 1
    return transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **sizes,
            **ids,
            intermediate_size=width,
            global_attn_every_n_layers=every,
            sparse_prediction=True,  # logits at the masked positions only
        )
    )


def _rows(work: Work, tokenizer: Any) -> tuple[list[dict[str, list[int]]], int]:
    """Rows for whole steps, the first that ours trains on; and the tokens of text in a step, on average."""
    from unmask.packing.stream import Cursor, RowStream
    from unmask.pretraining.data import open_prepared

    data = open_prepared(Path(work.data))
    stream = RowStream(data.train, data.tokenizer, length=work.length, seed=0)
    rows: list[dict[str, list[int]]] = []
    num_tokens, wanted = 0, work.rows * EPOCH_STEPS[work.device]
    for batch in stream.batches(Cursor(), wanted):  # fewer than wanted where the text is short
        input_ids_BS = batch.rows.input_ids
        rows += features(input_ids_BS, torch.ones_like(input_ids_BS), tokenizer)
        num_tokens += batch.num_tokens
        if len(rows) >= wanted:
            return rows[:wanted], round(num_tokens / len(rows) * work.rows)
    raise AssertionError("the stream never ends")


def features(input_ids_BS: torch.Tensor, attended_BS: torch.Tensor, tokenizer: Any) -> list[dict[str, list[int]]]:
    """Rows as transformers' collator takes them, with what their tokenizer says of special tokens."""
    special = torch.tensor(tokenizer.all_special_ids)
    columns = {
        "input_ids": input_ids_BS,
        "attention_mask": attended_BS,
        "special_tokens_mask": torch.isin(input_ids_BS, special),
    }
    lists = {name: column.long().tolist() for name, column in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def serve(system: str, attention: str, work: Work) -> None:
    """A system's process: says that its libraries are loaded; then the first line on standard input has it built, and
    another one is a turn of so many seconds, of which it says what its steps took and read."""
    out = own_output()
    importlib.import_module("assembly" if system == "ours" else "transformers.trainer")
    print("{}", file=out, flush=True)
    sys.stdin.readline()
    if system == "ours":
        turn, facts = ours(work)
    else:
        turn, facts = transformers_of(system, work, attention), {"attention": attention}
    let_go()
    print(json.dumps(facts), file=out, flush=True)
    for line in sys.stdin:
        watch = Stopwatch(work.device, float(line))
        turn(watch)
        let_go()
        memory = peak_memory(torch.device(work.device))
        answer = {"seconds": watch.taken(), "tokens": watch.tokens, "memory": memory}
        print(json.dumps(answer), file=out, flush=True)


def let_go() -> None:
    """Frees what a turn leaves: a Trainer that is done with holds gigabytes in cycles, and systems wait in memory."""
    gc.collect()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Work(**json.loads(sys.argv[3])))
