"""What each strategy would mask in a single text, annotated by a pipeline where the strategy needs it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.commands.run_folder import packaged_corpus
from unmask.core.errors import DataError, SettingsError
from unmask.core.results import Line, Result, Shown, Styled
from unmask.core.settings import validated
from unmask.data.annotations import PIPELINES, AnnotationPlan, Annotator, SpacyPipeline
from unmask.data.lexicon import LexiconSettings, build_lexicon, load_lexicon
from unmask.data.reading import check_characters
from unmask.data.rows import Rows
from unmask.data.shards import annotated_tokens
from unmask.data.store import TokenChunk
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings, Strategy, needed_annotations
from unmask.masking.stored_tables import with_lexicon
from unmask.masking.tables import Tables
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_wordpiece

log = logging.getLogger("unmask")


@dataclass(frozen=True)
class ShownText:
    """A text that is masked to be looked at: by `unmask masks`, and in the pictures of the documentation.

    Attributes:
        text: The text.
        tokenizer: Of the text.
        ids: Its tokens, with the special tokens around them.
    """

    text: str
    tokenizer: Tokenizer
    ids: Sequence[int]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> ShownText:
        """Tokenizes a text."""
        before, behind = ([] if id_ is None else [id_] for id_ in (tokenizer.special.cls, tokenizer.special.sep))
        ids = [*before, *tokenizer.encode_corpus([text])[0].input_ids.tolist(), *behind]
        return cls(text, tokenizer, ids)

    def masker(self, settings: MaskingSettings, name: str, *, tables: Tables, seed: int) -> tuple[Rows, Masker]:
        """The text as a row with all annotations that a strategy needs, and a masker for it.

        Annotations are made by the first of some usual English pipelines that is installed.

        Args:
            settings: Of the strategy.
            name: Of the strategy, for the error.
            tables: What masking may know beside the text.
            seed: Of the masker.

        Raises:
            SettingsError: No pipeline is installed that makes the annotations.
        """
        rows = rows_from_ids([self.ids], self.tokenizer)
        labels: Mapping[str, Sequence[str]] = {}
        if columns := needed_annotations(settings):
            plan = _plan(columns, name)
            _, _, aligned = annotated_tokens(self.tokenizer, Annotator(plan), [self.text], [None])
            begin = int(self.tokenizer.special.cls is not None)
            annotations = {}
            for column, spans in aligned.items():
                annotations[column] = torch.zeros_like(rows.input_ids)
                annotations[column][0, begin : begin + len(spans.values)] = torch.from_numpy(spans.values)
            rows, labels = replace(rows, annotations=annotations), plan.labels
        return rows, Masker(settings, self.tokenizer, seed=seed, tables=replace(tables, labels=labels))


def _plan(columns: Sequence[str], wanted_by: str) -> AnnotationPlan:
    for name in PIPELINES:
        try:
            pipeline = SpacyPipeline(name, columns)
        except SettingsError as error:
            why = error
            continue
        labels = {column: pipeline.labels(column) for column in columns}
        return AnnotationPlan(dict.fromkeys(columns, "pipeline"), labels, pipeline=name, version=pipeline.version)
    raise SettingsError(f"{wanted_by} needs the annotation {', '.join(columns)} of the text: {why}") from why


SHOWN_VOCABULARY = 4096


class ShownMasks(Result):
    """What strategies would mask.

    Attributes:
        strategies: Of each its `name`, the `tokens` of the text, `targets` (positions that are to be predicted), and
            `input_tokens`, what a model would see.
        left_out: Strategies that cannot be shown, and why.
        mask_token: How the tokenizer spells its mask.
    """

    strategies: list[dict[str, Any]]
    left_out: dict[str, str]
    mask_token: str

    def shown(self) -> Iterator[Shown]:
        """A line a strategy, with what is masked in it."""
        for strategy in self.strategies:
            yield self._line(**strategy)
        yield "\n", Styled(self.mask_token, "bold red"), "  ", Styled("random", "bold yellow"), "  ", _KEPT
        for name, why in self.left_out.items():
            yield Styled(f"{name:>12}  not shown: {why}", "dim")

    def _line(self, *, name: str, tokens: list[str], targets: list[int], input_tokens: list[str]) -> Line:
        line: list[Styled | str] = [Styled(f"{name:>12}  ", "dim")]
        chosen = set(targets)
        for place, (true, seen) in enumerate(zip(tokens, input_tokens, strict=True)):
            style = ""
            if place in chosen:
                style = "bold red" if seen == self.mask_token else "bold green" if seen == true else "bold yellow"
            line += [Styled(seen, style), " "]
        return tuple(line)


_KEPT = Styled("kept", "bold green")


def masks(
    text: str,
    *,
    strategy: Strategy | None = None,
    rate: float = 0.15,
    tokenizer: str | Path | None = None,
    seed: int = 0,
    lexicon: str | Path | None = None,
    note: Callable[[str], None] = log.info,
) -> ShownMasks:
    """Shows what each strategy would mask in a text.

    Without a tokenizer, one of 4,096 entries is trained on the packaged corpus and the text; frequencies, and
    collocations where no lexicon is given, are those of the same. Annotations are spaCy's. Without a strategy, those
    that cannot be shown are left out and named.

    Args:
        text: A text to mask; - reads standard input.
        strategy: Only this strategy. By default all.
        rate: Expected share of masked tokens.
        tokenizer: Folder with a tokenizer.json, or a name on the hub. By default one of 4,096 entries is trained on
            Tiny Shakespeare and the text.
        seed: Another seed, other masks.
        lexicon: For pmi: what unmask lexicon has made. By default one of Tiny Shakespeare.
        note: Called with each decision, a line.

    Raises:
        UnmaskError: The strategy or the rate is off, the text is empty or holds what is no character, the tokenizer
            cannot be used, or the strategy needs annotations that cannot be made.
    """
    if not text.strip():
        raise SettingsError("the text is empty")
    check_characters(text, f"the text {text[:60]!r}")
    corpus = [*packaged_corpus().read_text(encoding="utf-8").splitlines(), text]
    if tokenizer is None:
        note("a tokenizer of 4,096 entries is trained on Tiny Shakespeare and this text, since none is given")
        ready = Tokenizer(train_wordpiece(lambda: corpus, vocab_size=SHOWN_VOCABULARY))
    else:
        ready = load_tokenizer(tokenizer)
    shown_text = ShownText.of(text, ready)
    tokens = [ready.token(id_) for id_ in shown_text.ids]
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
        targets = (masked.labels[0] >= 0).nonzero()[:, 0].tolist()
        seen = [ready.token(id_) for id_ in masked.input_ids[0].tolist()]
        shown.append({"name": name, "tokens": tokens, "targets": targets, "input_tokens": seen})
    return ShownMasks({"strategies": shown, "left_out": left_out, "mask_token": ready.token(ready.special.mask)})


def _tables(tokenizer: Tokenizer, corpus: list[str], lexicon: str | Path | None) -> Tables:
    """What masking may know beside the text: frequencies, collocations, informativeness."""
    encoded, lengths = tokenizer.encode_joined(corpus)
    frequencies = np.bincount(encoded.input_ids, minlength=tokenizer.vocab_size)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(frequencies))
    if lexicon is not None:
        collocations = load_lexicon(Path(lexicon))
        collocations.check_tokenizer(tokenizer, name=str(lexicon))
        return with_lexicon(tables, collocations)
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
