"""`unmask masks`: what each strategy would mask."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.text import Text

from unmask.cli.progress import console
from unmask.corpus.reading import check_characters
from unmask.errors import DataError, SettingsError
from unmask.lexicon.build import build_lexicon
from unmask.lexicon.lexicon import load_lexicon
from unmask.lexicon.settings import LexiconSettings
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.masking.tables import Tables
from unmask.pretraining.annotated_text import ShownText
from unmask.pretraining.claim import packaged_corpus
from unmask.pretraining.lexicon import with_lexicon
from unmask.settings import validated
from unmask.tokens.loading import load_tokenizer
from unmask.tokens.shards import TokenChunk
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.wordpiece import train_wordpiece

SHOWN_VOCABULARY = 4096


def show_masks(
    text: str,
    *,
    strategy: str | None,
    rate: float,
    tokenizer: str | None,
    seed: int,
    lexicon: Path | None = None,
) -> dict[str, Any]:
    """Masks a text by one strategy or all, and prints it.

    Without a tokenizer, one is trained on the packaged corpus and the text; frequencies, and collocations where no
    lexicon is given, are those of the same. Annotations are spaCy's. Without a strategy, those that cannot be shown are
    left out and named.

    Raises:
        UnmaskError: The strategy or the rate is off, the text is empty or holds what is no character, the tokenizer
            cannot be used, or the strategy needs annotations that cannot be made.
    """
    if not text.strip():
        raise SettingsError("the text is empty")
    check_characters(text, f"the text {text[:60]!r}")
    out = console()
    corpus = [*packaged_corpus().read_text(encoding="utf-8").splitlines(), text]
    if tokenizer is None:
        ready = Tokenizer(train_wordpiece(lambda: corpus, vocab_size=SHOWN_VOCABULARY))
        out.print("no --tokenizer: one of 4,096 entries was trained on Tiny Shakespeare and this text\n", style="dim")
    else:
        ready = load_tokenizer(tokenizer)
    shown_text = ShownText.of(text, ready)
    ids = list(shown_text.ids)
    tables = _tables(ready, corpus if ready.special.unk is not None else [text], lexicon)
    names = [strategy] if strategy is not None else list(STRATEGIES)
    settings = {name: validated(MaskingSettings, {"strategy": name, "rate": rate}, where="masking") for name in names}
    shown, left_out = [], {}
    for name in names:
        try:
            rows, masker = shown_text.masker(settings[name], name, tables=tables, seed=seed)
            masked = masker(rows)
        except (SettingsError, DataError) as error:
            if strategy is not None:
                raise
            left_out[name] = str(error)
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
    for name, why in left_out.items():
        out.print(f"{name:>12}  not shown: {why}", style="dim", markup=False, soft_wrap=True)
    return {"strategies": shown, "left_out": left_out}


def _tables(tokenizer: Tokenizer, corpus: list[str], lexicon: Path | None) -> Tables:
    """What masking may know beside the text: frequencies, collocations, informativeness."""
    encoded, lengths = tokenizer.encode_joined(corpus)
    frequencies = np.bincount(encoded.input_ids, minlength=tokenizer.vocab_size)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(frequencies))
    if lexicon is not None:
        found = load_lexicon(lexicon)
        found.check_tokenizer(tokenizer, name=str(lexicon))
        return with_lexicon(tables, found)
    chunk = TokenChunk(encoded.input_ids, encoded.word_starts.view(np.uint8), lengths)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        made = build_lexicon(
            lambda: iter([chunk]),
            tokenizer,
            LexiconSettings(),
            frequencies=frequencies,
            data_sha256="",
            scratch=Path(scratch),
        )
    return with_lexicon(tables, made)


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
