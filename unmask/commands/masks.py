"""What strategies would mask: shown in a single text, or counted and checked in a whole corpus."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.masking_tables import masker_of, masking_tables
from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import DEFAULT, Overrides, as_overrides, section_values
from unmask.commands.run_data import (
    PreparedData,
    check_annotations,
    check_tokenizer,
    open_prepared,
    packaged_corpus,
    prepare_by,
    stream_of,
)
from unmask.core.errors import DataError, SettingsError, TokenizerError
from unmask.core.files import check_file, output_file
from unmask.core.public import public
from unmask.core.remote import local_copies, refused
from unmask.core.results import NORMAL, Reporter, Result, Sheet, Shown, Styled, counted, usual_note, usual_reporter
from unmask.core.settings import validated
from unmask.data.annotations import PIPELINES, SpacyPipeline
from unmask.data.data_folder import is_prepared
from unmask.data.lexicon import LexiconSettings, build_lexicon
from unmask.data.reading import check_characters
from unmask.data.rows import Cursor, Rows
from unmask.data.store import TokenChunk, document_frequencies
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import MaskedRows, Masker, WeighedRows
from unmask.masking.settings import STRATEGIES, MaskingSettings, Strategy, followed_scores, needed_annotations
from unmask.masking.tables import Scores, Tables, lexicon_of, named_lexicon, the_only, with_lexicon
from unmask.measure.masking import GROUPS, Audit
from unmask.measure.masking import audit as count_masks
from unmask.measure.questions import with_special
from unmask.report.pages import write_audit
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.spans import align
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_wordpiece

SHOWN_VOCABULARY = 4096
CHOICES = ("strategy", "units", "weights")  # masking settings that choose a strategy; without any, all are used
_CHOOSING = tuple(f"masking.{name}" for name in CHOICES)
_opened_pipeline = lru_cache(maxsize=4)(SpacyPipeline)  # the studio masks a text again after every change


# Kinds of replacements at a target: the mark, for output without colours, and the style.
_MASKED, _RANDOM, _UNCHANGED = ("", "bold red"), ("~", "bold yellow"), ("=", "bold green")


class ShownMasks(Result):
    """What strategies would mask."""

    # Each has a `name`, the `tokens` of the text, `targets` (positions to predict), and `input_tokens`, what a model
    # would see.
    strategies: list[dict[str, Any]]
    left_out: dict[str, str]  # strategies that cannot be shown, and why
    mask_token: str  # how the tokenizer spells its mask

    def shown(self) -> Iterator[Shown]:
        for strategy in self.strategies:
            line: list[Styled | str] = [Styled(f"{strategy['name']:>12}  ", "dim")]
            targets = set(strategy["targets"])
            for place, (true, seen) in enumerate(zip(strategy["tokens"], strategy["input_tokens"], strict=True)):
                mark, style = _MASKED if seen == self.mask_token else _UNCHANGED if seen == true else _RANDOM
                line += [Styled(f"{mark}{seen}", style) if place in targets else seen, " "]
            yield tuple(line)
        legend = ((self.mask_token, _MASKED), ("random", _RANDOM), ("unchanged", _UNCHANGED))
        masked, unlike, same = (Styled(f"{mark}{name}", style) for name, (mark, style) in legend)
        yield "\n", masked, "  ", unlike, "  ", same
        for name, why in self.left_out.items():
            yield Styled(f"{name:>12}  not shown: {why}", "dim")


@public
def masks(
    text: str,
    *,
    strategy: Strategy | str | None = None,
    rate: float = 0.15,
    tokenizer: str | Path | None = None,
    seed: int = 0,
    lexicon: str | Path | None = None,
    settings: Overrides = (),
    note: Callable[[str], None] = usual_note,
) -> ShownMasks:
    """Shows what each strategy would mask in a text.

    Frequencies are those of Tiny Shakespeare and the text; so are collocations unless a lexicon is given. Annotations
    are spaCy's. If no strategy is named, those that cannot be shown are skipped and named.

    Args:
        text: A text to mask; - reads standard input.
        strategy: Only this strategy. By default all.
        rate: Expected share of tokens to mask.
        tokenizer: Folder with a tokenizer.json, or a name on the hub. By default one with 4,096 entries is trained on
            Tiny Shakespeare and the text.
        seed: Seed of the masks.
        lexicon: Lexicon for pmi, made by unmask lexicon. By default that of the settings, or one of Tiny Shakespeare.
        settings: `masking.key=value` overrides, or a dict of them. Setting masking.strategy, masking.units or
            masking.weights also chooses a masking.
        note: Called with a line on each decision.

    Raises:
        UnmaskError: The strategy or the rate is invalid, the text is empty or not Unicode, the tokenizer cannot be
            used, or the strategy needs annotations that cannot be made.
    """
    if not text.strip():
        raise SettingsError("the text is empty")
    check_characters(text, f"the text {text[:60]!r}")
    values = {"rate": rate, **section_values(settings, "masking")["masking"]}
    if strategy is not None:
        values["strategy"] = strategy
    masking = validated(MaskingSettings, values, where="masking")
    chosen = any(name in values for name in CHOICES)
    corpus = [*packaged_corpus().read_text(encoding="utf-8").splitlines(), text]
    if tokenizer is None:
        note("training a tokenizer of 4,096 entries on Tiny Shakespeare and this text")
        ready = Tokenizer(train_wordpiece(lambda: corpus, vocab_size=SHOWN_VOCABULARY))
    else:
        ready = load_tokenizer(tokenizer)
    paths = (lexicon, named_lexicon(masking))
    lexicon = the_only("lexicon", [str(Path(path)) for path in paths if path is not None])
    try:
        tables = tables_of(ready, corpus, lexicon)
    except TokenizerError:
        note("the tokenizer cannot spell Tiny Shakespeare, so counts are those of this text alone")
        tables = tables_of(ready, [text], lexicon)
    masked_texts, left_out = [], dict[str, str]()
    for name, each in _maskings(masking, left_out, chosen=chosen):
        try:
            rows, masker = row_and_masker(text, ready, each, name, tables=tables, seed=seed)
            masked = masker(rows)
        except (SettingsError, DataError) as error:
            if chosen:
                raise
            left_out[name] = str(error)
            continue
        tokens, seen = ([ready.token(id_) for id_ in ids[0].tolist()] for ids in (rows.input_ids, masked.input_ids))
        targets = (masked.labels[0] >= 0).nonzero()[:, 0].tolist()
        masked_texts.append({"name": name, "tokens": tokens, "targets": targets, "input_tokens": seen})
    return ShownMasks({"strategies": masked_texts, "left_out": left_out, "mask_token": ready.token(ready.special.mask)})


def _maskings(
    masking: MaskingSettings, left_out: dict[str, str], *, chosen: bool
) -> Iterator[tuple[str, MaskingSettings]]:
    """Maskings with their names: the chosen one, otherwise every strategy at the same rate and shares. Strategies of
    plug-ins that cannot be used are added to `left_out`."""
    if chosen:
        yield masking.strategy or f"{masking.units.kind} x {masking.weights.kind}", masking
        return
    for name in STRATEGIES:
        try:
            pair = STRATEGIES[name]
        except SettingsError as error:
            left_out[name] = str(error)
        else:
            yield name, masking.model_copy(update={"strategy": name, **pair})


def row_and_masker(
    text: str, tokenizer: Tokenizer, settings: MaskingSettings, name: str, *, tables: Tables, seed: int
) -> tuple[Rows, Masker]:
    """A text as a row with all annotations that the strategy `name` needs, and a masker for it.

    Annotations are made by the first usual English pipeline that is installed; a SettingsError if none is.
    """
    annotations: dict[str, NDArray[np.int64]] = {}
    labels: Mapping[str, Sequence[str]] = {}
    if columns := needed_annotations(settings):
        reason: SettingsError | None = None
        for pipeline_name in PIPELINES:
            try:
                pipeline = _opened_pipeline(pipeline_name, columns)
                break
            except SettingsError as error:
                reason = error
        else:
            raise SettingsError(f"{name} needs the text annotated with {', '.join(columns)}: {reason}") from reason
        labels = {column: pipeline.labels(column) for column in columns}
        _, places = tokenizer.encode_placed([text])
        aligned = align([text], places, list(pipeline.annotate([text])), labels)
        annotations = {column: spans.values for column, spans in aligned.items()}
    row = row_of(tokenizer.encode_corpus([text])[0].input_ids, annotations, tokenizer)
    return row, Masker(settings, tokenizer, seed=seed, tables=replace(tables, labels=labels))


def row_of(input_ids: NDArray[Any], annotations: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Rows:
    """A row of one text, with annotations of its tokens by column."""
    rows = rows_from_ids([with_special(input_ids, tokenizer).tolist()], tokenizer)
    begin, placed = int(tokenizer.special.cls is not None), dict[str, torch.Tensor]()
    for column, values in annotations.items():
        placed[column] = torch.zeros_like(rows.input_ids)
        placed[column][0, begin : begin + len(values)] = torch.from_numpy(values.astype(np.int64))
    return replace(rows, annotations=placed)


def tables_of(tokenizer: Tokenizer, corpus: list[str], lexicon: str | Path | None = None) -> Tables:
    """Token and document frequencies of some texts, and their collocations."""
    encoded, lengths = tokenizer.encode_joined(corpus)
    frequencies = np.bincount(encoded.input_ids, minlength=tokenizer.vocab_size)
    chunk = TokenChunk(encoded.input_ids, encoded.word_starts.view(np.uint8), lengths)
    documents = torch.from_numpy(document_frequencies([chunk], tokenizer.vocab_size))
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(frequencies), documents, int(np.count_nonzero(lengths)))
    if lexicon is not None:
        return with_lexicon(tables, lexicon_of(Path(lexicon), tokenizer))
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        options: dict[str, Any] = {"frequencies": frequencies, "data_sha256": "", "scratch": Path(scratch)}
        made = build_lexicon(lambda: iter([chunk]), tokenizer, LexiconSettings(), **options)
    return with_lexicon(tables, made)


# ----------------------------------------
# The audit.

BATCH_POSITIONS = 1 << 14


class MaskingAudit(Result):
    """What strategies did to a text."""

    documents: int
    bytes: int
    tokens: int
    skipped: dict[str, int]  # what was left out, and how often
    strategies: dict[str, dict[str, Any]]  # by strategy, the figures of `unmask.measure.masking.Audit`
    not_audited: dict[str, str]  # strategies that could not be audited, and why
    followers: list[str]  # strategies that follow a model in training, and were audited with equal weights
    passed: bool  # whether every promise holds
    page: str | None  # the file with plots, if one was written

    def shown(self) -> Iterator[Shown]:
        shares = ">mask/random/unchanged %"
        heads = ("", ">expected", ">predicted ± 95 %, over pieces", shares, ">no target", "promises")
        rows: list[tuple[str | Styled, ...]] = [
            (
                name,
                f"{entry['expected_rate']:.2%}",
                f"{entry['rate']:.2%} ± {NORMAL * entry['rate_stderr']:.2%}",
                "/".join(f"{100 * share:.1f}" for share in entry["shares"]),
                f"{entry['rows_without_target'] / max(entry['rows'], 1):.1%}",
                Styled("broken", "red") if entry["broken"] else Styled("hold", "green"),
            )
            for name, entry in self.strategies.items()
        ]
        yield Sheet(heads, rows)
        by_pos = {name: entry["by_pos"] for name, entry in self.strategies.items() if entry["by_pos"]}
        if by_pos:
            yield "\nPredicted, in % of the tokens of each part of speech:"
            rows = []
            for tag in dict.fromkeys(tag for counts in by_pos.values() for tag in counts):
                cells = (counts.get(tag, (0, 0)) for counts in by_pos.values())
                rows.append((tag, *(f"{100 * targets / tokens:.1f}" if tokens else "" for tokens, targets in cells)))
            yield Sheet(("", *(f">{name}" for name in by_pos)), rows)
        if len(self.strategies) == 1:
            yield ""
            yield from map(unit_groups, self.strategies.values())
        for name, entry in self.strategies.items():
            yield from (Styled(f"{name}: {text}", "red") for text in entry["broken"])
            if (rate := entry["raised_from"]) is not None:
                yield Styled(
                    f"{name}: least_one raises the rate from {rate:.2%} to {entry['expected_rate']:.2%}", "dim"
                )
        if self.followers:
            names = " and ".join(self.followers)
            without_model = "audited with equal weights, as before its first scores"
            yield Styled(f"{names} depend on a model in training: {without_model}", "dim")
        yield from (Styled(f"{name}: not audited: {why}", "dim") for name, why in self.not_audited.items())
        if self.page is not None:
            yield f"\n{self.page}"


def unit_groups(entry: Mapping[str, Any]) -> Sheet:
    """How often each group of units is predicted, and how often it should be."""
    rows, before = [], None
    for kind, groups in entry["inclusion"].items():
        for name, group in groups.items():
            row = ("" if kind == before else GROUPS[kind][0], name, f"{group['units']:,}", f"{group['asked']:.2%}",
                   f"{group['realised']:.2%}")  # fmt: skip
            rows.append(tuple(Styled(cell, "red" if group["broken"] else "") for cell in row))
            before = kind
    return Sheet(("units by", "", ">units", ">expected", ">predicted"), rows)


@public
def audit(
    data: str | Path | Sequence[str | Path],
    *,
    recipe: str | Path | None = None,
    strategy: Strategy | str | None = None,
    settings: Overrides = (),
    max_tokens: int = 500_000,
    out: str | Path | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> MaskingAudit:
    """Checks the masking of a text before training. It masks as training would, and checks rates, shares and special
    tokens.

    Args:
        data: A prepared folder; or files, folders or patterns of text.
        recipe: Audit this recipe's masking. By default every strategy.
        strategy: Only this strategy. By default every strategy.
        settings: `section.key=value` overrides of the recipe, or a dict of them. Setting masking.strategy,
            masking.units or masking.weights also chooses a masking.
        max_tokens: Mask at most about this many tokens; text that is not prepared is prepared whole first.
        out: An HTML file with plots.
        overwrite: Replace an existing file.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The data cannot be read, the recipe cannot mask it, or `out` exists.
    """
    if out is not None:
        refused(out, "a page")
        check_file(Path(out), overwrite=overwrite)
    reporter = reporter or usual_reporter()
    overrides = as_overrides(settings)
    chosen = recipe is not None or strategy is not None or any(key.startswith(_CHOOSING) for key, _ in overrides)
    options = {"training.minutes": 1.0, "masking.strategy": strategy}  # no budget is used, but a recipe has one
    loaded = load_recipe(str(recipe or DEFAULT), options=options, overrides=overrides)
    paths = [str(path) for path in local_copies(*([data] if isinstance(data, str | Path) else data))]
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        is_made = is_prepared(paths)
        root = Path(paths[0] if is_made else scratch)
        if not is_made:
            if chosen:
                check_annotations(loaded)
            prepare_by(loaded, paths, root, reporter)
        opened = open_prepared(root)
        if (start := loaded.start) is not None and start.extend_vocab is None and not start.new_tokenizer:
            check_tokenizer(root, opened.manifest, start.checkpoint, start.checkpoint)
        elif start is not None and start.extend_vocab is not None and not is_made:
            reporter.note("the text is masked without the new words that start.extend_vocab would add")
        if chosen:
            check_annotations(loaded, opened.manifest)
        strategies, not_audited, followers = dict[str, Any](), dict[str, str](), list[str]()
        for name, masking in _maskings(loaded.masking, not_audited, chosen=chosen):
            count = counted(reporter.notify, f"masking by {name}", min(max_tokens, opened.manifest.train.tokens))
            try:
                strategies[name] = asdict(_audit_one(masking, loaded, opened, max_tokens, Path(scratch), count))
            except (SettingsError, DataError) as error:
                if chosen:
                    raise
                not_audited[name] = str(error)
                continue
            if followed_scores(masking):
                followers.append(name)
        manifest = opened.manifest
        del opened  # unmaps the shards before their folder is removed
    figures = {
        **{name: getattr(manifest, name) for name in ("documents", "bytes", "tokens", "skipped")},
        "strategies": strategies,
        "not_audited": not_audited,
        "followers": followers,
        "passed": not any(entry["broken"] for entry in strategies.values()),
        "page": None,
    }
    if out is not None:
        what = f"{manifest.documents:,} documents, {manifest.tokens:,} tokens; vocabulary {manifest.vocab_size:,}"
        groups = {name: unit_groups(entry) for name, entry in strategies.items() if len(strategies) > 1}
        shown = MaskingAudit(figures).shown()
        with output_file(Path(out), overwrite=overwrite):
            write_audit(Path(out), f"{', '.join(paths)}: {what}", shown=shown, strategies=strategies, groups=groups)
        figures["page"] = str(out)
    return MaskingAudit(figures)


def _audit_one(
    masking: MaskingSettings,
    recipe: Recipe,
    data: PreparedData,
    max_tokens: int,
    scratch: Path,
    count: Callable[[int], None],
) -> Audit:
    recipe, length = recipe.model_copy(update={"masking": masking}), recipe.training.sequence_length
    tables, _ = masking_tables(masking, data, own_lexicon=scratch / "lexicon", reporter=Reporter())
    masker, stream = masker_of(recipe, data.tokenizer, tables), stream_of(recipe, data)

    def batches() -> Iterator[tuple[Rows, MaskedRows, WeighedRows]]:
        tokens = 0
        size = max(1, BATCH_POSITIONS // length)
        for step, batch in enumerate(stream.batches(Cursor(), size)):
            # Without a model, strategies that follow one have equal weights, as at the start of training.
            no_scores = Scores(0, {})
            masked = masker(batch.rows, step=step, scores=no_scores)
            yield batch.rows, masked, masker.weighed(batch.rows, step=step, scores=no_scores)
            tokens += batch.num_tokens
            count(batch.num_tokens)
            if tokens >= max_tokens or batch.cursor.epoch:
                return

    return count_masks(batches(), masker, data.frequencies)
