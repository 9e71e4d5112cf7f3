"""Preparation as a verb: text to shards, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import Overrides, as_overrides
from unmask.commands.reporting import Reporter, usual_reporter
from unmask.commands.run_data import describe
from unmask.core.errors import SettingsError
from unmask.core.remote import address_of, output_folder, path_at
from unmask.core.results import Result, Shown
from unmask.data.data_folder import DataFolder, Manifest
from unmask.data.prepare import PreparationInput, join_parts, prepare_part
from unmask.data.prepare import prepare as prepare_shards
from unmask.data.sources import Texts, told_apart
from unmask.tokenizer.settings import TokenizerKind


class Prepared(Result):
    """Prepared text.

    Attributes:
        out: Its folder.
        documents, bytes, tokens: Of the text.
        skipped: What was left out, and how often.
        overlap: Held-out texts that are equal to a training text.
        near_duplicates: How much of the held-out text nearly stands in the training text; None: not measured.
        vocab_size: Of the tokenizer.
        train_tokens, validation_tokens, unknown_tokens: How many.
        fingerprint: Of all that the shards are made of.
        annotations: By column its labels, spans, and spans that were lost.
        labels: Names of classes of documents; empty where there are none.
        unlabelled: Documents without a class.
        complete: True.
    """

    out: str
    documents: int
    bytes: int
    tokens: int
    skipped: dict[str, int]
    overlap: int
    near_duplicates: dict[str, Any] | None
    vocab_size: int
    train_tokens: int
    validation_tokens: int
    unknown_tokens: int
    fingerprint: str
    annotations: dict[str, dict[str, Any]]
    complete: bool

    def shown(self) -> Iterator[Shown]:
        """Some lines."""
        yield f"training: {self.train_tokens:,} tokens; held out: {self.validation_tokens:,} tokens"
        yield (
            f"{self.documents:,} documents, {self.bytes:,} bytes, {self.bytes / self.tokens:.2f} bytes a token; "
            f"vocabulary {self.vocab_size:,}; {self.out}"
        )


class PreparedPart(Result):
    """A part of a preparation, or several put together, as far as it could be done by now.

    Attributes:
        out: Its folder.
        part: Which, such as `2/8`; None where parts were put together.
        complete: False.
        next: What is to be done next, in words.
    """

    out: str
    part: str | None
    complete: bool
    next: str

    def shown(self) -> Iterator[Shown]:
        """A line."""
        yield f"{self.out}: {self.next}"


def prepare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Texts,
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    tokenizer_kind: TokenizerKind | None = None,
    vocab_size: int | None = None,
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
    """Tokenizes text into shards, once, for any number of runs. After a stop, the same call goes on.

    Args:
        paths: Files, folders or patterns of text, or - for standard input; in Python also texts in memory (see
            `unmask.data.sources`).
        out: Folder of the shards, or an address (s3://bucket/data).
        tokenizer: tokenizer.json, vocab.txt, their folder, or a name on the hub. By default one is trained.
        tokenizer_kind: Of the trained tokenizer; bpe is byte-level. By default wordpiece.
        vocab_size: Of the trained tokenizer. By default it fits the text.
        annotate: Annotations beside the tokens: entities, pos, dependencies, chunks; the data's own, or spaCy's.
        settings: `section.key=value` overrides of the recipe, or a dict of them.
        workers: Processes that read and tokenize. By default one a core.
        ray: Address of a Ray cluster that does it; auto is the one that this machine belongs to.
        part: One of several parts, such as 2/8, each run where it suits.
        join: Put together what all parts have found so far; parts and join come in turns.
        resume: Keep shards that are there, whole or in part, if made with the same settings.
        overwrite: Replace shards that are there.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The text cannot be read, a setting is off, options exclude each other, or the folder holds
            prepared data already.
    """
    _check_sharing(part=part, join=join, others={"--ray": ray, "--resume": resume, "--overwrite": overwrite})
    shared = part is not None or join
    if path_at(out) is None:
        if shared or ray is not None:
            raise SettingsError(
                f"{out}: whoever shares a preparation out writes into one folder on a disk that all see; give that as "
                "--out"
            )
        again = partial(
            prepare,
            paths,
            tokenizer=tokenizer,
            tokenizer_kind=tokenizer_kind,
            vocab_size=vocab_size,
            annotate=annotate,
            settings=settings,
            workers=workers,
            resume=resume,
            reporter=reporter,
        )
        return _prepared_at(str(address_of(out)), again, resume=resume, overwrite=overwrite)
    options = {
        "tokenizer.path": None if tokenizer is None else str(tokenizer),
        "tokenizer.kind": tokenizer_kind,
        "tokenizer.vocab_size": vocab_size,
        "annotation.columns": None if annotate is None else list(annotate),
    }
    recipe = load_recipe(options=options, overrides=as_overrides(settings))
    root, reporter = Path(out), reporter or usual_reporter()
    if shared:
        return _shared(paths, root, recipe, part=part, workers=workers, reporter=reporter)
    return _whole(paths, root, recipe, workers=workers, ray=ray, resume=resume, overwrite=overwrite, reporter=reporter)


def _whole(
    paths: Texts,
    root: Path,
    recipe: Recipe,
    *,
    workers: int | None,
    ray: str | None,
    resume: bool,
    overwrite: bool,
    reporter: Reporter,
) -> Prepared:
    """A preparation in one piece."""
    folder = DataFolder(root)
    if folder.is_complete:
        folder.claimed.check(resume=resume, overwrite=overwrite)
    manifest = prepare_shards(
        told_apart(paths) or [],
        root,
        corpus=recipe.corpus,
        tokenizer=recipe.tokenizer,
        annotation=recipe.annotation,
        workers=workers,
        ray=ray,
        resume=resume,
        overwrite=overwrite,
        notify=reporter.notify,
        note=reporter.note,
    )
    return _told(manifest, root, reporter)


def _shared(
    paths: Texts, root: Path, recipe: Recipe, *, part: str | None, workers: int | None, reporter: Reporter
) -> Prepared | PreparedPart:
    """One of several parts; all that they have found so far, where none is named."""
    asked = PreparationInput(told_apart(paths) or [], recipe.corpus, recipe.tokenizer, recipe.annotation)
    found: Manifest | str
    if part is None:
        found = join_parts(asked, root, notify=reporter.notify, note=reporter.note)
    else:
        number = _part(part)
        found = prepare_part(asked, root, number, workers=workers, notify=reporter.notify, note=reporter.note)
    if isinstance(found, str):
        return PreparedPart({"out": str(root), "part": part, "complete": False, "next": found})
    return _told(found, root, reporter)


def _told(manifest: Manifest, root: Path, reporter: Reporter) -> Prepared:
    """The result, after its reporter has got the lines about it."""
    for text in describe(manifest):
        reporter.note(text)
    return Prepared(_figures(manifest, root))


def _check_sharing(*, part: str | None, join: bool, others: Mapping[str, object]) -> None:
    if part is not None and join:
        raise SettingsError("--part does one of the parts, --join puts all together; leave one out")
    if (part is not None or join) and (wrong := [name for name, value in others.items() if value]):
        raise SettingsError(
            f"{wrong[0]} is for a preparation in one piece; --part and --join go on with what they find in the folder"
        )


def _part(asked: str) -> tuple[int, int]:
    number, _, of = asked.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise SettingsError(f"--part {asked}: write the number of the part, counted from 1, and of how many, as in 2/8")
    return int(number), int(of)


def _prepared_at(address: str, work: Callable[..., Any], *, resume: bool, overwrite: bool) -> Prepared:
    """The same, in a folder whose files are sent to an address."""
    with output_folder(address, lambda root: DataFolder(root).claimed, resume=resume, overwrite=overwrite) as output:
        found = work(out=output.path)
    return Prepared({**found.to_dict(), "out": address})


def _figures(manifest: Manifest, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "documents": manifest.documents,
        "bytes": manifest.bytes,
        "tokens": manifest.tokens,
        "skipped": manifest.skipped,
        "overlap": manifest.overlap,
        "near_duplicates": manifest.near_duplicates and manifest.near_duplicates.plain(),
        "vocab_size": manifest.vocab_size,
        "train_tokens": manifest.train.tokens,
        "validation_tokens": manifest.validation.tokens,
        "unknown_tokens": manifest.train.unknown_tokens + manifest.validation.unknown_tokens,
        "fingerprint": manifest.fingerprint,
        "annotations": {
            column: {"labels": list(labels), "spans": manifest.spans[column][0], "lost": manifest.spans[column][1]}
            for column, labels in manifest.annotations.items()
        },
        "labels": manifest.labels,
        "unlabelled": manifest.unlabelled,
        "complete": True,
    }
