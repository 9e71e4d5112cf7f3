"""Tokens a second: our masker and collator against transformers' DataCollatorForLanguageModeling.

    python benchmarks/masking.py [--rounds 9] [--table PAGE]

Both mask the same rows, in alternation, in one process. A round is about half a second of calls, and the table shows
the median over rounds. Rows are English text (the packaged one) with a WordPiece tokenizer of 8,192 entries, joined to
rows of exactly the length, so that there is no padding and every position counts.

    training    the work of each tool's training loop for a batch: our `Masker` on the rows of prepared data;
                transformers' collator on the features of its data set
    ids         only a tensor of token ids: our `Masker` and transformers' `torch_mask_tokens`, which both find the
                special tokens themselves (for whole words, transformers gets the offsets as well)
    ready       the same with everything precomputed: `Rows`, with word starts and maskable tokens; for transformers
                the mask of special tokens
    collating   features from a data set, as lists of Python integers: our `MaskingCollator`, transformers' collator
                with `special_tokens_mask` (and `offset_mapping`) in the features

transformers' whole-word mode compares every pair of tokens, so it gets fewer rows at 2,048. It has no spans: ours are
compared with its whole words. Strategies without an equivalent there are measured in `training` alone. Tables, scores
and annotations that some of them need have made-up numbers.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import torch
from tables import head, parser_of, write_table
from trained import fast_tokenizer
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from unmask import MaskingCollator, count_tokens
from unmask.core.hashing import mix
from unmask.masking.draw_loops import hash_set
from unmask.masking.features import rows_from_features
from unmask.masking.settings import STRATEGIES, needed_annotations
from unmask.masking.tables import Scores, Tables
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_wordpiece
from unmask.train.scores import EMBEDDING_SIZE

ROWS = {128: 512, 2048: 32}
FEW_ROWS = {128: 512, 2048: 4}  # for transformers' whole words
COMPARED = ("random", "span", "whole_word")  # with transformers'


class Case(NamedTuple):
    """Two functions that take the number of the call, and the tokens that a call of each masks."""

    ours: Callable[[int], Any]
    theirs: Callable[[int], Any] | None
    our_tokens: int
    their_tokens: int


def make_rows(tokenizer: PreTrainedTokenizerFast, text: str, length: int, count: int) -> list[dict[str, list[Any]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets, inner = encoded["input_ids"], encoded["offset_mapping"], length - 2
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    features = []
    for row in range(count):
        begin = row * inner % (len(ids) - inner)
        part = slice(begin, begin + inner)
        features.append(
            {
                "input_ids": [cls, *ids[part], sep],
                "attention_mask": [1] * length,
                "special_tokens_mask": [1, *[0] * inner, 1],
                "offset_mapping": [(0, 0), *offsets[part], (0, 0)],
                **annotations(length),
            }
        )
    return features


def annotations(length: int) -> dict[str, list[int]]:
    """Made-up columns: every fourth to sixth word in an entity and a chunk of two tokens, tags, flat parses."""
    inner = range(1, length - 1)
    spans = [(2 + place % 2) if place % 5 < 2 else 0 for place in inner]
    columns = {"entities": spans, "chunks": spans, "pos": [1 + place % 3 for place in inner]}
    columns["dependencies"] = [(1 + place % 2) << 25 | (place % 2) for place in inner]
    return {name: [0, *values, 0] for name, values in columns.items()}


def cases(tokenizer: PreTrainedTokenizerFast, text: str, strategy: str, length: int) -> dict[str, Case]:
    features = make_rows(tokenizer, text, length, ROWS[length])
    collator = MaskingCollator(tokenizer, strategy=strategy, tables=tables_of(features, tokenizer))
    needs = needed_annotations(collator.masker.settings)
    ids = torch.tensor([feature["input_ids"] for feature in features])
    plain = [{name: feature[name] for name in ("input_ids", "attention_mask", *needs)} for feature in features]
    rows, _, _ = rows_from_features(plain, collator.masker.tokenizer)

    def collate(call: int) -> None:
        collator.set_epoch(call)
        collator(plain)

    def mask_ids(call: int) -> None:
        collator.masker(ids, epoch=call)

    def mask_rows(call: int) -> None:
        collator.masker(rows, epoch=call)

    tokens = ids.numel()
    if strategy not in COMPARED:
        return {"training": Case(mask_rows, None, tokens, 0)}
    whole = strategy != "random"
    theirs = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole)
    few = features[: FEW_ROWS[length]] if whole else features
    columns = ["input_ids", "attention_mask", "special_tokens_mask", *(["offset_mapping"] if whole else [])]
    columns_of_few = [{name: feature[name] for name in columns} for feature in few]
    their_ids = ids[: len(few)]
    special = torch.tensor([feature["special_tokens_mask"] for feature in few])
    offsets = torch.tensor([feature["offset_mapping"] for feature in few]) if whole else None

    def theirs_of_ids(known: torch.Tensor | None) -> Callable[[int], Any]:
        return lambda _: theirs.torch_mask_tokens(their_ids.clone(), special_tokens_mask=known, offset_mapping=offsets)

    count = their_ids.numel()
    collated = Case(collate, lambda _: theirs([dict(f) for f in columns_of_few]), tokens, count)
    return {
        "training": collated._replace(ours=mask_rows),
        "ids": Case(mask_ids, theirs_of_ids(None), tokens, count),
        "ready": Case(mask_rows, theirs_of_ids(special), tokens, count),
        "collating": collated,
    }


def tables_of(features: list[dict[str, list[Any]]], tokenizer: PreTrainedTokenizerFast) -> Tables:
    counts = torch.from_numpy(count_tokens(features, tokenizer))
    size = len(counts)
    scores = {"loss": torch.rand(size) + 0.1, "embedding": torch.randn(size, EMBEDDING_SIZE)}
    return Tables(
        size,
        counts,
        documents_V=counts.clamp(max=len(features)),
        num_documents=len(features),
        scores=Scores(1, scores),
        collocations_P=torch.from_numpy(hash_set(mix(torch.arange(50_000)).numpy())),
        labels={
            "entities": ("PER",),
            "chunks": ("NP",),
            "pos": ("DET", "NOUN", "VERB"),
            "dependencies": ("det", "obj"),
        },
    )


def speed(call: Callable[[int], Any], tokens: int, seconds: float) -> float:
    """Millions of tokens a second, measured over about `seconds`."""
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        call(calls)
        calls += 1
    return calls * tokens / spent / 1e6


def main() -> None:
    parser = parser_of(__doc__, table="masking")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    logging.disable()
    text = (resources.files("unmask") / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    backend = Tokenizer(train_wordpiece(lambda: text.split("\n\n"), vocab_size=8192)).backend
    tokenizer = fast_tokenizer(tokenizer_object=backend)
    lines = head("strategy | length | what | ours, M tokens/s | transformers | ratio")
    print(*lines, sep="\n", flush=True)
    for strategy in sorted(STRATEGIES, key=lambda name: (name not in COMPARED, name)):
        for length in ROWS:
            for what, case in cases(tokenizer, text, strategy, length).items():
                ours, theirs = [], []
                for turn in range(-1, options.rounds):  # the first round is a warm-up
                    mine = speed(case.ours, case.our_tokens, options.seconds)
                    other = speed(case.theirs, case.their_tokens, options.seconds) if case.theirs else math.nan
                    if turn >= 0:
                        ours.append(mine)
                        theirs.append(other)
                compared = "- | -"
                if case.theirs:
                    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
                    compared = f"{statistics.median(theirs):.2f} | {ratio:.1f}x"
                median = statistics.median(ours)
                lines.append(f"| `{strategy}` | {length:,} | {what} | {median:.1f} | {compared} |")
                print(lines[-1], f" load {os.getloadavg()[0]:.2f}", flush=True)
    if options.table:
        write_table(options.table, "masking", lines)


if __name__ == "__main__":
    main()
