"""`unmask masks`: what each strategy would mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from unmask.cli.progress import console
from unmask.errors import DataError, SettingsError
from unmask.masking.engine import Masker
from unmask.masking.settings import STRATEGIES
from unmask.pretraining.claim import packaged_corpus
from unmask.tokens.tokenizer import Tokenizer, load_tokenizer
from unmask.tokens.wordpiece import train_wordpiece

SHOWN_VOCABULARY = 4096


def show_masks(text: str, *, strategy: str | None, rate: float, tokenizer: Path | None, seed: int) -> dict[str, Any]:
    """Masks a text by one strategy or all, and prints it.

    Without a tokenizer, one is trained on the packaged corpus and the text; frequencies are those of the same.

    Raises:
        UnmaskError: The strategy or the rate is off, the text is empty, or the tokenizer cannot be used.
    """
    if not text.strip():
        raise SettingsError("the text is empty")
    out = console()
    corpus = [*packaged_corpus().read_text(encoding="utf-8").splitlines(), text]
    if tokenizer is None:
        ready = Tokenizer(train_wordpiece(lambda: corpus, vocab_size=SHOWN_VOCABULARY))
        out.print("no --tokenizer: one of 4,096 entries was trained on Tiny Shakespeare and this text\n", style="dim")
    else:
        ready = load_tokenizer(tokenizer)
    cls, sep = ([] if id_ is None else [id_] for id_ in (ready.special.cls, ready.special.sep))
    ids = [*cls, *ready.encode_corpus([text])[0].input_ids.tolist(), *sep]
    frequencies = _frequencies(ready, corpus if ready.special.unk is not None else [text])
    shown = []
    for name in [strategy] if strategy is not None else list(STRATEGIES):
        masker = Masker.from_tokenizer(ready, strategy=name, rate=rate, seed=seed, frequencies=frequencies)
        try:
            masked = masker([ids])
        except (SettingsError, DataError) as error:
            if strategy is not None:
                raise
            out.print(f"{name:>12}  not shown: {error}", style="dim", markup=False, soft_wrap=True)
            continue
        seen, targets = masked.input_ids[0].tolist(), (masked.labels[0] >= 0).nonzero()[:, 0].tolist()
        out.print(_coloured(name, ready, ids, seen, set(targets)), soft_wrap=not out.is_terminal)
        shown.append(
            {
                "name": name,
                "tokens": [ready.token(i) for i in ids],
                "targets": targets,
                "input_tokens": [ready.token(i) for i in seen],
            }
        )
    out.print(
        Text.assemble("\n", ("[MASK]", "bold red"), "  ", ("random", "bold yellow"), "  ", ("kept", "bold green")),
    )
    return {"strategies": shown}


def _frequencies(tokenizer: Tokenizer, corpus: list[str]) -> NDArray[np.int64]:
    ids = np.concatenate([encoded.input_ids for encoded in tokenizer.encode_corpus(corpus)])
    return np.bincount(ids, minlength=tokenizer.vocab_size)


def _coloured(name: str, tokenizer: Tokenizer, ids: list[int], seen: list[int], targets: set[int]) -> Text:
    line = Text(f"{name:>12}  ", style="dim")
    for place, (true, shown) in enumerate(zip(ids, seen, strict=True)):
        style = ""
        if place in targets:
            mask = shown == tokenizer.special.mask
            style = "bold red" if mask else "bold green" if shown == true else "bold yellow"
        line.append(tokenizer.token(shown), style=style or "not dim")
        line.append(" ")
    return line
