"""A small encoder on disk, and labelled files that it can learn."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

import unmask
from tests.commands.checkpoints import released
from tests.data.corpora import write_jsonl
from tests.model.helpers import MakeModel
from unmask.report.cards import PLACE
from unmask.tokenizer.tokenizer import Tokenizer

FAST = ("finetune.learning_rate=0.003", "finetune.batch_size=16", "finetune.precision=float32", "finetune.warmup=0.05")


def save_encoder(make_model: MakeModel, tokenizer: Tokenizer, folder: Path, **changes: Any) -> Path:
    """A model with its tokenizer, as a run leaves them."""
    return released(make_model(**{"initializer_range": 0.05, "num_layers": 2, **changes}), tokenizer, folder)


def texts(number: int, seed: int) -> list[tuple[str, str]]:
    """Texts about the sea or a garden, with this label."""
    rng = random.Random(seed)
    made = []
    for _ in range(number):
        label = rng.choice(["sea", "garden"])
        noun, verb = rng.choice(["cat", "dog", "king", "queen"]), rng.choice(["sees", "follows", "loves"])
        made.append((f"The {noun} {verb} the ship {'at sea' if label == 'sea' else 'in the garden'}.", label))
    return made


def write_classes(path: Path, number: int, seed: int) -> Path:
    return write_jsonl(path, [{"text": text, "label": label} for text, label in texts(number, seed)])


def write_conll(path: Path, number: int, seed: int) -> Path:
    """Sentences whose places are entities, of one word or two."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(number):
        noun = rng.choice(["cat", "king", "philosopher"])
        place = rng.choice(["Constantinople\tB-place", "the\tB-place\ngarden\tI-place"])
        blocks.append(f"The\tO\n{noun}\tO\nsleeps\tO\nin\tO\n{place}\n.\tO")
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def write_squad(path: Path, number: int, seed: int, *, missing: bool = False) -> Path:
    """Questions after the noun, which stands before `sleeps`."""
    rng = random.Random(seed)
    paragraphs = []
    for n in range(number):
        noun = rng.choice(["cat", "dog", "king", "queen", "ship"])
        context = f"The winter is here. The {noun} sleeps in the garden."
        answers = [{"text": noun, "answer_start": context.index(f"{noun} sleeps")}]
        entry: dict[str, Any] = {"id": f"q{n}", "question": "Who sleeps?", "answers": answers}
        if missing and n % 2:
            entry |= {"question": "Who loves?", "answers": [], "is_impossible": True}
        paragraphs.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def finetune(encoder: Path, task: str, train: Path, dev: Path, out: Path, *more: str) -> unmask.FineTuned:
    return unmask.finetune(encoder, task=task, train=train, validation=dev, out=out, settings=(*FAST, *more))


def run_snippets(result: unmask.FineTuned, *swaps: tuple[str, str]) -> str:
    """Runs the two snippets of a card, with texts replaced by `swaps`; returns what the one for transformers prints."""
    card = ModelCard.load(result.folder / "model" / "README.md")
    assert str(result.folder.parent) not in card.content
    printed = []
    for snippet in re.findall(r"```python\n(.*?)```", card.text, re.DOTALL):
        code = snippet
        for old, new in ((PLACE, str(result.folder / "model")), *swaps):
            assert old in code
            code = code.replace(old, new)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "README.md", "exec"), {})
        printed.append(out.getvalue())
    assert len(printed) == 2
    return printed[0]
