"""transformers' ModernBERT in the plain loop that a careful user writes, and in `Trainer`: peers of time_to_loss.py.

The loop uses what is known to be good: bf16 by autocast if the hardware computes in it, torch.compile, the faster
attention, logits at hidden tokens only, fused AdamW, clipped gradients, and a learning rate that rises for a twentieth
of the budget and then falls linearly to 0. It masks as the collator does by default, 15 % of the tokens 80/10/10: with
`[MASK]` alone, as in the evaluation, AdamW learns less (docs/explanation/benchmarks.md).
It trains on our rows, whose documents see each other. Padding, two of a hundred positions, gets no attention mask in
training or evaluation, since that would cost a seventh of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import _muon
from trained import fast_tokenizer, modernbert, trainer_arguments
from turns import Turn

from unmask.commands.run_data import PreparedData, open_prepared
from unmask.data.rows import Cursor, RowStream
from unmask.measure.held_out import HeldOutSet
from unmask.train.hardware import choose_dtype

PEERS = ("modernbert-adamw", "modernbert-muon")
TRAINER = "trainer"
# Time of a step of 4,096 positions on one thread, median of 15 in alternation: eager 387 ms, compiled 244; sdpa 472
# and 392.
ATTENTION = "eager"
RATE = 0.15
WARM_UP = 0.05  # share of the budget
BEGINNING = 1e-3  # progress of the first step, so that its learning rate is not 0
CLIP = 1.0
WEIGHT_DECAY = {"modernbert-adamw": 0.01, "modernbert-muon": 0.1}  # torch's defaults
WARM_STEPS = 2  # steps of a discarded model, to compile

Look = Callable[[Any], Sequence[float]]  # evaluates a model
LookOf = Callable[[PreparedData], Look]


def has_bf16(device: str) -> bool:
    return choose_dtype("auto", torch.device(device)) == torch.bfloat16


def in_bf16(device: str) -> torch.autocast:
    """Autocast to bf16 if the hardware computes in it; else float32, like ours."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=has_bf16(device))


def orthogonal(grad: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The orthogonalisation of torch's Muon for a gradient [M, N], in float32. torch uses bf16 on any hardware, which
    takes twelve seconds a step if bf16 is emulated."""
    (a, b, c), is_tall = coefficients, grad.size(0) > grad.size(1)
    x = grad.T if is_tall else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def scale_at(progress: float) -> float:
    return min(progress / WARM_UP, (1.0 - progress) / (1.0 - WARM_UP))


def new_model(tokenizer: Any, length: int, *, compiled: bool, size: Sequence[int] = (4, 256)) -> Any:
    """A new model, in which all layers attend globally: on CPUs this is faster than the masks of local layers."""
    model = modernbert(tokenizer, (size[0], size[1]), length, ATTENTION)
    if compiled:
        model.model.compile()
    return model


def new_optimizers(system: str, model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon for the matrices of the blocks and the head, and AdamW for the rest.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, section 2.2), so that both use one learning rate.
    """
    decay, rest = WEIGHT_DECAY[system], dict(model.named_parameters())
    optimizers: list[torch.optim.Optimizer] = []
    if system == "modernbert-muon":
        names = [name for name, weight in rest.items() if weight.ndim == 2 and "embeddings" not in name]
        matrices = [rest.pop(name) for name in names]
        if not has_bf16(matrices[0].device.type):
            _muon._zeropower_via_newtonschulz = orthogonal
        optimizers.append(
            torch.optim.Muon(matrices, lr=learning_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        )
    groups = [
        {"params": [weight for weight in rest.values() if weight.ndim == 2], "weight_decay": decay},
        {"params": [weight for weight in rest.values() if weight.ndim != 2], "weight_decay": 0.0},
    ]
    return [*optimizers, torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=True)]


def batches(input_ids_NS: Tensor, rows: int, seed: int) -> Iterator[Tensor]:
    """Yields indices of rows, in random order in each epoch; the rest that does not fill a batch is dropped."""
    generator = torch.Generator().manual_seed(seed)
    rows = min(rows, len(input_ids_NS))
    while True:
        order = torch.randperm(len(input_ids_NS), generator=generator)
        yield from order[: len(order) // rows * rows].split(rows)


def read_text(work: Any) -> tuple[PreparedData, Any, Tensor, Tensor, Tensor]:
    """The prepared data, its tokenizer, and the ids, special tokens and numbers of text tokens of all training rows."""
    import transformers

    transformers.logging.set_verbosity_error()
    data = open_prepared(Path(work.data))
    tokenizer = fast_tokenizer(Path(work.data))
    rows: list[Tensor] = []
    for batch in RowStream(data.train, data.tokenizer, length=work.length, seed=work.seed).batches(Cursor(), 512):
        if batch.epoch:
            break
        rows.append(batch.rows.input_ids)
    input_ids_NS = torch.cat(rows)
    special_NS = torch.isin(input_ids_NS, torch.tensor(tokenizer.all_special_ids))
    return data, tokenizer, input_ids_NS, special_NS, (~special_NS).sum(1)


def train_peer(work: Any, out: TextIO, marks: list[float], look_of: LookOf) -> None:
    """Trains a peer in this process; it is evaluated at `marks` (seconds)."""
    import transformers

    data, tokenizer, input_ids_NS, special_NS, tokens_N = read_text(work)
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=RATE)

    def begin() -> tuple[Any, Callable[[float], int]]:
        """A new model, and a function that makes a step at a progress and returns its number of text tokens."""
        transformers.set_seed(work.seed)
        model = new_model(tokenizer, work.length, compiled=work.compiled, size=work.size).to(work.device)
        optimizers = new_optimizers(work.system, model, work.learning_rate)
        chosen = batches(input_ids_NS, max(1, work.batch_tokens // work.length), work.seed)

        def step(progress: float) -> int:
            at = next(chosen)
            ids, labels = collator.torch_mask_tokens(input_ids_NS[at], special_tokens_mask=special_NS[at])
            with in_bf16(work.device):
                loss = model(input_ids=ids.to(work.device), labels=labels.to(work.device)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = work.learning_rate * scale_at(progress)
                optimizer.step()
                optimizer.zero_grad()
            return int(tokens_N[at].sum())

        return model, step

    _, step = begin()
    for _ in range(WARM_STEPS):
        step(0.5)
    model, step = begin()
    turn = Turn(out, partial(look_of(data), model), marks, work.device)
    turn.begin(parameters=model.num_parameters(), compiled=work.compiled, attention=ATTENTION, masks="80/10/10")
    while (progress := turn.now() / (work.minutes * 60.0)) < 1.0:
        turn.step(step(max(progress, BEGINNING)))
    turn.end()


@torch.no_grad()
def held_out_figures(evaluated: HeldOutSet, model: Any) -> tuple[float, float]:
    """Loss and accuracy of a peer, with the precision and attention of its training."""
    model.eval()
    losses, right = [], 0
    # The compiled code is for the shape of a training step.
    with torch.compiler.set_stance("force_eager"), in_bf16("cpu"):
        for _, masked in evaluated.batches:
            labels = masked.labels.where(masked.labels >= 0, -100)
            logits = model(input_ids=masked.input_ids, labels=labels).logits.float()  # at hidden tokens
            targets = masked.labels[masked.labels >= 0]
            losses.append(functional.cross_entropy(logits, targets, reduction="none").double())
            right += int((logits.argmax(-1) == targets).sum())
    model.train()
    joined = torch.cat(losses)
    return float(joined.mean()), right / len(joined)


def train_by_trainer(work: Any, out: TextIO, marks: list[float], look_of: LookOf) -> None:
    """Trains by `Trainer` with its own collator and optimizer, in bf16 if the hardware computes in it, with the plain
    loop's learning rate."""
    import transformers

    data, tokenizer, input_ids_NS, special_NS, tokens_N = read_text(work)
    transformers.set_seed(work.seed)
    model = new_model(tokenizer, work.length, compiled=False, size=work.size)
    rows, budget = max(1, work.batch_tokens // work.length), work.minutes * 60.0
    tokens = round(float(tokens_N.float().mean()) * rows)
    turn = Turn(out, partial(look_of(data), model), marks, work.device)

    class Timed(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turn.begin(parameters=model.num_parameters())

        def on_step_begin(self, *_: Any, **of_trainer: Any) -> None:
            for group in of_trainer["optimizer"].param_groups:
                group["lr"] = work.learning_rate * scale_at(min(max(turn.now() / budget, BEGINNING), 1.0))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turn.step(tokens)
            control.should_training_stop = turn.now() >= budget

        def on_train_end(self, *_: Any, **__: Any) -> None:
            turn.end()

    options = trainer_arguments(
        rows, work.device, seed=work.seed, bf16=has_bf16(work.device), lr_scheduler_type="constant",
        remove_unused_columns=False,
    )  # fmt: skip
    columns = zip(input_ids_NS.long(), special_NS.long(), strict=True)
    dataset = [{"input_ids": ids, "special_tokens_mask": special} for ids, special in columns]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=RATE)
    transformers.Trainer(model, options, train_dataset=dataset, data_collator=collator, callbacks=[Timed()]).train()
