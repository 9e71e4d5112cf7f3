"""Texts as features, and tokenizers as transformers has them."""

from __future__ import annotations

from typing import Any

from tests.tokenizer.families import TEXT, trained
from unmask.masking.settings import STRATEGIES, needed_annotations

FAMILIES = ("wordpiece", "bpe", "unigram")
# Those that need no column of annotation.
ALL = sorted(name for name, pair in STRATEGIES.items() if not needed_annotations(pair))


def wrapped(family: str) -> Any:
    """A transformers fast tokenizer."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = trained(family)
    names = {f"{role}_token": tokenizer.token(id_) for role, id_ in vars(tokenizer.special).items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **names)


def features_of(family: str, count: int = 24) -> list[dict[str, Any]]:
    """Features of different texts and lengths."""
    lines = [line for line in dict.fromkeys(TEXT.split("\n")) if 30 < len(line) < 110]
    texts = [" ".join(lines[n : n + 1 + n % 3]) for n in range(count)]
    return [dict(wrapped(family)(text, truncation=True, max_length=48, return_token_type_ids=True)) for text in texts]
