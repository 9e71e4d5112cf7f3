"""Preparation: text to shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.commands.recipe_files import OPTIONS, LightRecipe, Overrides, light_recipe, section_values
from unmask.core.errors import SettingsError, without_secrets
from unmask.core.public import public
from unmask.core.remote import address_of, output_at, path_at
from unmask.core.results import Result, Shown, usual_reporter
from unmask.data.data_folder import Manifest, data_folder
from unmask.data.prepare import Unfinished
from unmask.data.prepare import prepare as prepare_shards
from unmask.data.sources import Texts, paths_or_texts
from unmask.tokenizer.loading import with_commit
from unmask.tokenizer.tokenizer import WARN_UNKNOWN
from unmask.tokenizer.trainers import TokenizerKind

if TYPE_CHECKING:
    from unmask.core.results import Reporter

SHOWN_CLASSES = 8


class Prepared(Result):
    """Prepared text."""

    out: str  # its folder
    documents: int
    bytes: int
    tokens: int
    skipped: dict[str, int]  # what was left out, and how often
    near_duplicates: dict[str, Any]  # how much held-out text has near-duplicates in training text
    vocab_size: int
    train_tokens: int
    validation_tokens: int
    unknown_tokens: int
    letters: int  # of the text, without white space and control characters
    unknown_letters: int  # those of them that became `[UNK]`
    fingerprint: str  # of all that the shards are made from
    annotations: dict[str, dict[str, Any]]  # by column: labels, spans, and lost spans
    labels: dict[str, int]  # number of documents by class
    unlabelled: int  # documents without a class, if there are classes
    complete: bool  # True

    def shown(self) -> Iterator[Shown]:
        yield f"training: {self.train_tokens:,} tokens; held out: {self.validation_tokens:,} tokens"
        yield (
            f"{self.documents:,} documents, {self.bytes:,} bytes, {self.bytes / self.tokens:.2f} bytes a token; "
            f"vocabulary {self.vocab_size:,}; {self.out}"
        )


class PreparedPart(Result):
    """One part of a preparation, or the joined parts of one that is not complete yet."""

    out: str  # its folder
    part: str | None  # such as `2/8`; None if parts were joined
    complete: bool  # False
    next: str  # what to do next, in words

    def shown(self) -> Iterator[Shown]:
        yield f"{self.out}: {self.next}"


@public
def prepare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Texts,
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    tokenizer_kind: TokenizerKind | None = None,
    vocab_size: int | None = None,
    encoding: str | None = None,
    annotate: Sequence[str] | None = None,
    settings: Overrides = (),
    workers: int | None = None,
    ray: str | None = None,
    part: str | None = None,
    join: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Prepared | PreparedPart:
    """Tokenizes text into shards, once for any number of runs. If interrupted, the same call resumes.

    Args:
        paths: Files, folders or patterns of text, or - for standard input; in Python also texts in memory (see
            `unmask.data.sources`).
        out: Folder of the shards, or an address (s3://bucket/data).
        tokenizer: tokenizer.json, vocab.txt, their folder, or a name on the hub. By default one is trained.
        tokenizer_kind: Kind of tokenizer to train; bpe is byte-level. By default wordpiece.
        vocab_size: Entries of the trained tokenizer. By default chosen to fit the text.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        annotate: Annotations to store with the tokens: entities, pos, dependencies, chunks; the data's own, or made by
            spaCy.
        settings: `corpus.key=value`, `tokenizer.key=value` and `annotation.key=value` overrides, or a dict of them.
        workers: Processes that read and tokenize. By default one per core.
        ray: Address of a Ray cluster to use; auto is the one this machine belongs to.
        part: Do one of several parts, such as 2/8; each can run on its own machine.
        join: Assemble what all parts have done so far; run parts and join in turns.
        resume: Keep existing shards, complete or not, that were made with the same settings.
        overwrite: Replace existing shards. Continues an unfinished replacement with the same text and settings; to
            begin anew, remove OUT/parts.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The text cannot be read, a setting is invalid, options exclude each other, or the folder already
            holds prepared data.
    """
    shared, place = part is not None or join, None  # number of the part, and of parts
    exclusive = {"part": part is not None, "join": join, "resume": resume, "overwrite": overwrite, "ray": ray}
    chosen = [name for name, value in exclusive.items() if value]
    if shared and len(chosen) > 1:
        reason = f"{chosen[0]} works on a preparation in parts, where {chosen[1]} has no meaning; leave {chosen[1]} out"
        raise SettingsError(reason, options=chosen)
    if part is not None:
        number, _, num_parts = part.partition("/")
        if not (number.isdecimal() and num_parts.isdecimal()):
            raise SettingsError(
                f"part {part}: give its number, counted from 1, and the number of parts, as in 2/8", options=["part"]
            )
        place = int(number), int(num_parts)
    reporter = reporter or usual_reporter()
    recipe = requested_preparation(
        tokenizer=tokenizer, tokenizer_kind=tokenizer_kind, vocab_size=vocab_size, encoding=encoding,
        annotate=annotate, settings=settings,
    )  # fmt: skip
    if path_at(out) is None and (shared or ray is not None):
        raise SettingsError(
            f"{out}: a shared preparation needs a folder on a disk that all machines share", options=["out"]
        )
    with output_at(out, data_folder, resume=resume, overwrite=overwrite) as output:
        root, texts = output.path, paths_or_texts(paths)
        if not shared:
            data_folder(root).check(resume=resume, overwrite=overwrite)
        try:
            manifest = prepare_shards(
                texts, root, corpus=recipe.corpus, tokenizer=recipe.tokenizer, annotation=recipe.annotation,
                workers=workers, ray=ray, part=place, join=join, resume=resume, notify=reporter.notify,
                note=reporter.note,
            )  # fmt: skip
        except Unfinished as unfinished:
            return PreparedPart({"out": str(root), "part": part, "complete": False, "next": str(unfinished)})
    report_facts(manifest, reporter)
    same = "documents", "bytes", "tokens", "skipped", "vocab_size", "fingerprint", "labels", "unlabelled"
    return Prepared(
        {
            "out": without_secrets(address_of(out) or str(out)),
            **{name: getattr(manifest, name) for name in same},
            "near_duplicates": manifest.near_duplicates.plain(),
            "train_tokens": manifest.train.tokens,
            "validation_tokens": manifest.validation.tokens,
            "unknown_tokens": manifest.train.unknown_tokens + manifest.validation.unknown_tokens,
            "letters": manifest.unknown.letters,
            "unknown_letters": manifest.unknown.unknown,
            "annotations": {
                column: {"labels": list(labels), "spans": manifest.spans[column][0], "lost": manifest.spans[column][1]}
                for column, labels in manifest.annotations.items()
            },
            "complete": True,
        }
    )


def requested_preparation(*, settings: Overrides = (), **options: Any) -> LightRecipe:
    """The recipe for these options of `prepare`; None: not set."""
    section_values(settings, "corpus", "tokenizer", "annotation")  # refuses others, which would have no effect
    values = {OPTIONS[name]: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    recipe = light_recipe(options=values, overrides=settings)
    return recipe.model_copy(update={"tokenizer": with_commit(recipe.tokenizer)})


def report_facts(manifest: Manifest, reporter: Reporter) -> None:
    """Facts about the data, one per line; those that put figures in doubt are warnings."""
    lines = [manifest.plan]
    if manifest.held_within is not None:
        lines.append(
            f"held-out text: {manifest.held_within}; to measure on unseen files, name some in corpus.validation"
        )
    lines += [f"left out: {number:,} {reason}" for reason, number in manifest.skipped.items()]
    for column, (spans, lost) in manifest.spans.items():
        without = f", {lost:,} of them without a token" if lost else ""
        lines.append(f"{column}: {spans:,} spans{without}; {len(manifest.annotations[column]):,} labels")
    if manifest.labels:  # the most frequent classes first
        ranked = sorted(manifest.labels.items(), key=lambda entry: -entry[1])
        names = ", ".join(f"{name} {number:,}" for name, number in ranked[:SHOWN_CLASSES])
        more = f" and {len(ranked) - SHOWN_CLASSES:,} more" if len(ranked) > SHOWN_CLASSES else ""
        without = f"; {manifest.unlabelled:,} documents without a class" if manifest.unlabelled else ""
        lines.append(f"label: {len(ranked):,} classes ({names}{more}){without}")
    for line in lines:
        reporter.note(line)
    if manifest.unknown.share > WARN_UNKNOWN:
        reporter.warn(manifest.unknown.describe())
    near = manifest.near_duplicates
    (reporter.warn if near.spoil_figures else reporter.note)(near.describe())
