"""Measures a model: on text, with hidden tokens, hidden words and tokens hidden one at a time; and on minimal pairs."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.errors import DataError, SettingsError
from unmask.core.public import public
from unmask.core.results import Notify, Result, Sheet, Shown, Styled, counted, margin, over, usual_reporter
from unmask.core.settings import validated
from unmask.data.columns import ColumnNames
from unmask.data.corpus import Corpus
from unmask.data.data_folder import is_prepared, load_manifest, open_split
from unmask.data.settings import CorpusSettings, DocumentUnit
from unmask.data.sources import TextColumn, Texts, keep_as_files, paths_or_texts, readable
from unmask.measure.held_out import DOCUMENTS, RATE, unit_of
from unmask.measure.questions import (
    Form,
    Pair,
    ask,
    check_lengths,
    checked_form,
    pseudo_log_likelihoods,
    read_pairs,
    tally,
)
from unmask.measure.text import (
    FREQUENCY_NAMES,
    LENGTH_NAMES,
    PIECE_NAMES,
    MeasuredPassages,
    Passage,
    kinds_of,
    measure_pseudo,
    measure_tokens,
    measure_words,
    passages_of_store,
    passages_of_text,
    plain,
    share_of_text,
)
from unmask.measure.uncertainty import few_draws, plain_interval
from unmask.search.known_items import held_out_rule
from unmask.tasks.loaded_model import Model, as_predictor


class Evaluation(Result):
    """A model's figures on a text at the first rate; `by_rate` has those at all rates.

    Intervals, such as `loss_interval`, are of 95 %, over source documents, by Student's t; None if there is none. See
    `unmask.measure.uncertainty`.
    """

    loss: float  # nats per predicted token
    loss_stderr: float | None
    loss_interval: list[float] | None
    accuracy: float  # share of the hidden tokens that are predicted right
    accuracy_top5: float  # that are among the five likeliest
    perplexity: float  # exp(loss)
    bits_per_byte: float | None  # over hidden words of raw text, comparable between tokenizers; None: no such word
    predicted_tokens: int  # that these figures are computed from
    predicted_documents: int
    by_rate: dict[str, dict[str, Any]]
    # By `word_frequency`, `word_pieces`, `piece` and, if the text is annotated, `part_of_speech`.
    breakdown: dict[str, dict[str, dict[str, Any]]]
    warning: str | None  # if there are few documents
    # `documents`, or `groups` if the text was prepared with `corpus.holdout_groups`: groups are then counted instead.
    unit: str
    tokens: int  # evaluated
    documents: int
    share: float  # of the text that was evaluated, about
    columns: dict[str, TextColumn]  # of the text in tables, by path
    document: str | None  # what one is, in words; None: as the prepared data has it
    masks: int  # per passage
    length: int  # most positions that the model saw at once
    # `text`, or `tokenizer` for prepared data: bits per byte then compare only models with the same tokenizer.
    words: str
    crossing_tokens: float  # share of the tokens that span several words of the text
    # Only if tokens were hidden one at a time.
    pseudo_perplexity: float | None
    pseudo_log_loss: float | None
    pseudo_log_loss_stderr: float | None
    pseudo_log_loss_interval: list[float] | None
    pseudo_tokens: int

    def shown(self) -> Iterator[Shown]:
        if self.document is not None:
            yield Styled(f"a document is {self.document}", "dim")
        whole = "all of the text" if self.share == 1.0 else f"about {self.share:.2g} of the text (--max-tokens)"
        unit = self.unit.removesuffix("s") if self.documents == 1 else self.unit
        yield Styled(f"{self.tokens:,} tokens of {self.documents:,} {unit}, {whole}\n", "dim")
        rows: list[tuple[str, ...]] = []
        for rate, figures in self.by_rate.items():
            bits = figures["bits_per_byte"]
            row = (
                f"{float(rate):.0%}",
                f"{figures['loss']:.3f}{margin(figures['loss_interval'])}",
                f"{figures['accuracy']:.1%}",
                f"{figures['accuracy_top5']:.1%}",
                f"{figures['perplexity']:.1f}",
                "" if bits is None else f"{bits:.3f}{margin(figures['bits_per_byte_interval'])}",
                f"{figures['predicted_tokens']:,}",
            )
            rows.append(row)
        heads = (">hidden", ">loss ± 95 %", ">accuracy", ">top 5", ">perplexity", ">bits/byte ± 95 %", ">tokens")
        yield Sheet(heads, rows, over(self.unit))
        yield ""
        rows = [
            (
                "" if number else name.replace("_", " "),
                kind,
                f"{figures['loss']:.3f}",
                f"{figures['accuracy']:.1%}",
                f"{figures['predicted_tokens']:,}",
            )
            for name, kinds in self.breakdown.items()
            for number, (kind, figures) in enumerate(kinds.items())
        ]
        first = next(iter(self.by_rate))
        yield Sheet(("", "", ">loss", ">accuracy", ">hidden tokens"), rows, f"{float(first):.0%} hidden, by group")
        if self.to_dict().get("pseudo_perplexity") is not None:
            yield f"\npseudo-perplexity {self.pseudo_perplexity:.1f} ({self.pseudo_tokens:,} tokens, one at a time)"
        if self.warning is not None:
            yield Styled(f"\n{self.warning}", "yellow")


@public
def evaluate(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: Model | str | Path,
    paths: Texts,
    *,
    rates: float | Sequence[float] = (RATE,),
    masks: int = 2,
    max_tokens: int = 200_000,
    length: int | None = None,
    pseudo_tokens: int = 1_000,
    column: ColumnNames = None,
    documents: DocumentUnit | str | None = None,
    encoding: str | None = None,
    strict: bool = False,
    notify: Notify | None = None,
) -> Evaluation:
    """Measures any masked language model on text. Figures are loss, accuracy, perplexity, bits per byte and
    pseudo-perplexity.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        paths: Files, folders or patterns of text, read whole (of a folder with a validation split, only this split), or
            the held-out split of a folder prepared with the model's tokenizer, such as RUN/data; in Python also texts
            in memory (see `unmask.data.sources`).
        rates: Shares of hidden tokens (and words), each evaluated separately.
        masks: Masks per passage; they do not overlap as long as masks x rate is at most 1.
        max_tokens: Use at most about this many tokens, spread over the whole text. A token counts as four bytes of raw
            text, so all tokenizers get the same text.
        length: Positions the model sees at once, by default its limit, at most 512; longer passages are cut into
            several. Passages have at most 2,000 characters (480 tokens of prepared data).
        pseudo_tokens: Tokens to hide one at a time for the pseudo-perplexity; 0 skips it.
        column: Text column of a table: a name, a path within a column (doc.text), or several (a,b). By default it is
            detected.
        documents: What counts as a document in text files: line, block, file, or auto. By default as in the model's
            run. No passage is longer than a document, and intervals are over documents.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        strict: Refuse a model whose files differ from its checksums.json.
        notify: Called with the progress.

    Raises:
        UnmaskError: The text cannot be read, is too short, was prepared with another tokenizer, or an option is out of
            range; or a loss of the model is not finite.
    """
    rates = checked_rates(rates)
    for name, value, least in (("masks", masks, 1), ("max_tokens", max_tokens, 1), ("pseudo_tokens", pseudo_tokens, 0)):
        if value < least:
            raise SettingsError(f"{name} must be at least {least}, not {value}", options=[name])
    loaded = as_predictor(model, strict=strict)
    longest, least = loaded.predictor.config.max_position_embeddings, len(loaded.tokenizer.special.around) + 1
    size = min(longest, 512) if length is None else length
    if not least <= size <= longest:
        reason = f"length: {loaded.folder} takes {least} to {longest} positions, not {size}"
        raise SettingsError(reason, options=["length"])
    reading: dict[str, Any] = {"column": column, "documents": documents, "encoding": encoding}
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        files = list(keep_as_files(paths_or_texts(paths), Path(scratch)))
        passages, labels, facts = _read(loaded, files, max_tokens, reading)
    facts["columns"] = {path.removeprefix(f"{scratch}{os.sep}"): name for path, name in facts["columns"].items()}
    tokens = sum(len(passage.input_ids) for passage in passages)

    notify = notify or usual_reporter().notify

    def measured(what: str, total: int) -> MeasuredPassages:
        count = counted(notify, what, total)
        return MeasuredPassages(partial(ask, loaded.predictor), loaded.tokenizer, size, masks, count)

    names = {"word_frequency": FREQUENCY_NAMES, "word_pieces": LENGTH_NAMES, "piece": PIECE_NAMES}
    names |= {"part_of_speech": labels} if labels else {}
    kinds = kinds_of(passages, with_pos=bool(labels))
    by_rate = {}
    for rate in rates:
        figures = measure_tokens(
            measured(f"hiding {rate:.0%} of the tokens", masks * tokens), passages, kinds, names, rate
        )
        if not figures.loss.denominator:
            raise DataError(f"the {tokens} tokens are too few to hide any of them at the rate {rate:g}; give more text")
        words = measure_words(measured(f"hiding {rate:.0%} of the words", masks * tokens), passages, rate)
        by_rate[f"{rate:g}"] = plain(figures, words)
    pseudo: dict[str, Any] = {}
    if pseudo_tokens:
        losses = measure_pseudo(measured("hiding one token at a time", pseudo_tokens), passages, pseudo_tokens)
        loss, is_known = losses.result, losses.denominator > 0
        pseudo = {
            "pseudo_perplexity": math.exp(min(loss.value, 700.0)) if is_known else None,
            "pseudo_log_loss": loss.value if is_known else None,
            "pseudo_log_loss_stderr": loss.stderr,
            "pseudo_log_loss_interval": plain_interval(loss.interval),
            "pseudo_tokens": int(losses.denominator),
        }
    first = next(iter(by_rate.values()))
    return Evaluation(
        {
            **first,
            "by_rate": by_rate,
            "warning": few_draws(first["predicted_documents"], facts["unit"]),
            **pseudo,
            **facts,
            "tokens": tokens,
            "documents": len({passage.document for passage in passages}),
            "masks": masks,
            "length": min(size, max(len(passage.input_ids) for passage in passages) + least - 1),
            "crossing_tokens": sum(passage.standing.num_crossing for passage in passages) / tokens,
        }
    )


def checked_rates(rates: float | Sequence[float]) -> tuple[float, ...]:
    rates = tuple(np.ravel(rates).tolist())  # of a number, a list or an array
    if not rates:
        raise SettingsError("give at least one rate, such as 0.15")
    for rate in rates:
        if not 0.0 < rate < 1.0:
            raise SettingsError(f"a rate is between 0 and 1, not {rate}")
    return rates


def _read(
    loaded: Model, paths: Sequence[str | Path], max_tokens: int, reading: dict[str, Any]
) -> tuple[list[Passage], tuple[str, ...], dict[str, Any]]:
    """The text, the names of its parts of speech (empty if it is not annotated), and `words`, `share`, `columns`,
    `document` and `unit` of the result. `reading` holds the corpus settings that are options of this command."""
    if is_prepared(paths):
        root = Path(paths[0])
        if unused := [name for name in ("column", "documents") if reading[name] is not None]:
            what = "prepared data has no columns, and its documents are fixed; leave this out, or give the text itself"
            raise SettingsError(f"{root}: {what}", options=unused)
        manifest = load_manifest(root)
        if manifest.tokenizer_sha256 != loaded.tokenizer.fingerprint:
            raise SettingsError(
                f"{root} was prepared with another tokenizer than {loaded.folder}; give the text itself"
            )
        store = open_split(root, manifest, manifest.validation)
        share = min(1.0, max_tokens / max(store.num_tokens, 1))
        passages = list(passages_of_store(store, loaded.tokenizer, share=share))
        labels = list(manifest.annotations.get("pos", ()))
        facts = {"words": "tokenizer", "share": share, "columns": {}, "document": None, "unit": unit_of(store)}
    else:
        run: Path | None = None
        if reading["documents"] is None:
            run, rule = held_out_rule(loaded.folder)
            reading = {**reading, "documents": rule.documents}
        settings = validated(CorpusSettings, reading, where="evaluate")
        corpus, labels = Corpus(paths, settings, hold_out=False, way_out=None), []
        if all(source.kind == "conllu" for source in corpus.sources):
            corpus.fields = {"pos": "pos"}
        share = share_of_text(corpus, max_tokens)
        all_passages = passages_of_text(corpus, loaded.tokenizer, share=share, labels=labels)
        passages = [passage for passage in all_passages if len(passage.input_ids)]
        columns = {str(source.path): source.column for source in corpus.sources if source.column is not None}
        document = corpus.plan.reason if run is None else corpus.plan.reason.replace("(as set)", f"(as in {run})")
        facts = {"words": "text", "share": share, "columns": columns, "document": document, "unit": DOCUMENTS}
    if not passages:
        where = ", ".join(map(str, paths))
        raise DataError(f"{where}: contains no text, or too little for max_tokens = {max_tokens}; give more")
    return passages, tuple(labels), facts


# ----------------------------------------
# Minimal pairs.


class Scored(Result):
    """The share of minimal pairs in which a model prefers the right sentence."""

    accuracy: float  # of all pairs, ties one half
    interval: list[float]  # 95 %
    interval_over: str  # `paradigms`, or `pairs` if there is one paradigm or all have the same accuracy
    pairs: int
    num_paradigms: int
    ties: int
    phenomena: dict[str, float]  # accuracy of each
    by_phenomenon: dict[str, dict[str, Any]]  # the first six of these fields, for each
    paradigms: dict[str, dict[str, Any]]  # likewise
    warning: str | None  # if there are few paradigms
    form: str  # of the pseudo-log-likelihood

    def shown(self) -> Iterator[Shown]:
        rows: list[tuple[str | Styled, ...]] = []
        for name, figures in [*self.by_phenomenon.items(), ("all", self.to_dict())]:
            low, high = figures["interval"]
            unit = figures["interval_over"]
            number = figures["num_paradigms" if unit == "paradigms" else "pairs"]
            rows.append((name, f"{figures['accuracy']:.1%}", f"{low:.1%} to {high:.1%}", f"{number:,} {unit}"))
        rows[-1] = tuple(Styled(str(cell), "bold") for cell in rows[-1])
        yield Sheet(("phenomenon", ">accuracy", ">95 % interval", "over"), rows)
        yield Styled(f"{self.pairs:,} pairs, {self.ties:,} ties (one half each); 50 % is chance", "dim")
        if self.warning is not None:
            yield Styled(self.warning, "yellow")


@public
def score(
    model: Model | str | Path,
    pairs: str | Path,
    *,
    form: Form = "plain",
    pairs_per_paradigm: int | None = None,
    strict: bool = False,
    notify: Notify | None = None,
) -> Scored:
    """Tests a model on minimal pairs (BLiMP, EWoK). Accuracy is by phenomenon, and ties count one half.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        pairs: A JSONL file, or a folder or tar of them; also a pipe, or -. EWoK's targets are compared in each context.
        form: Kind of pseudo-log-likelihood: plain, or word_l2r, which also hides later pieces of the same word.
        pairs_per_paradigm: Use only this many pairs of each paradigm, the first ones. By default all.
        strict: Refuse a model whose files differ from its checksums.json.
        notify: Called with the progress.

    Raises:
        UnmaskError: The pairs cannot be read, a sentence is longer than the model, a loss is not finite, or an option
            is out of range.
    """
    known = checked_form(form)
    if pairs_per_paradigm is not None and pairs_per_paradigm < 1:
        raise SettingsError(f"pairs_per_paradigm must be at least 1, not {pairs_per_paradigm}")
    with readable(pairs) as file:
        read = read_pairs(file)
    if pairs_per_paradigm is not None:
        by_paradigm: dict[str, list[Pair]] = {}
        for pair in read:
            by_paradigm.setdefault(pair.paradigm, []).append(pair)
        read = [pair for alike in by_paradigm.values() for pair in alike[:pairs_per_paradigm]]
    loaded = as_predictor(model, strict=strict)
    check_lengths(read, loaded.tokenizer, longest=loaded.predictor.config.max_position_embeddings)
    sentences = [sentence for pair in read for sentence in (pair.good, pair.bad)]
    contexts = [pair.context for pair in read for _ in range(2)]
    scores = pseudo_log_likelihoods(
        loaded.predictor, loaded.tokenizer, sentences, form=known,
        contexts=contexts if any(contexts) else None, notify=notify or usual_reporter().notify,
    )  # fmt: skip
    return Scored({**tally(read, scores[0::2] - scores[1::2]), "form": known})
