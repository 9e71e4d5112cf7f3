"""transformers' Trainer on the rows that ours trains on, with the settings that a careful user finds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from timed import Stopwatch, Turn, Work

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
    from unmask.model.config import PARTS, default_intermediate_size

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
    from unmask.commands.run_data import open_prepared
    from unmask.data.rows import Cursor, RowStream

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
