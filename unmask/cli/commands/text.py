"""Text before training: shards, collocations, masks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import DryRunFlag, JsonFlag, Settings, TokenizerKind, TokenizerName, print_json


def prepare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[list[str], typer.Argument(help="Files, folders or patterns of text, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Folder of the shards.")] = ...,  # type: ignore[assignment]
    tokenizer: TokenizerName = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the trained tokenizer. [default: fits the text]")] = None,
    annotate: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="entities, pos, dependencies, chunks, with commas: the data's own, or spaCy's."
        ),
    ] = None,
    settings: Settings = None,
    workers: Annotated[int | None, typer.Option(help="Processes that tokenize. [default: one a core]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep shards that are there, whole or in part, if made as asked now.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace shards that are there.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Tokenize text into shards, once, for any number of runs. After a stop, the same command goes on.

    Example: unmask prepare corpus.txt --out data/mine
    """
    options = {
        "tokenizer.path": tokenizer,
        "tokenizer.kind": tokenizer_kind,
        "tokenizer.vocab_size": vocab_size,
        "annotation.columns": annotate and [name.strip() for name in annotate.split(",") if name.strip()],
    }
    if dry_run:
        from unmask.cli.dry_run import show_text_forecast
        from unmask.recipe.recipe import load_recipe

        result = show_text_forecast(paths, load_recipe(options=options, overrides=tuple(settings or ())))
    else:
        from unmask.cli.prepare import run_prepare

        result = run_prepare(
            paths,
            out,
            options=options,
            settings=tuple(settings or ()),
            workers=workers,
            resume=resume,
            overwrite=overwrite,
        )
    if as_json:
        print_json(result)


def lexicon(
    data: Annotated[Path, typer.Argument(help="Folder that unmask prepare has made.")],
    out: Annotated[Path, typer.Option(help="File of the lexicon, such as lexicon.safetensors.")] = ...,  # type: ignore[assignment]
    size: Annotated[
        int | None, typer.Option(help="Most collocations. [default: one for 256 words of text, at most 800,000]")
    ] = None,
    min_count: Annotated[int, typer.Option(help="Collocations stand in the text more often than this.")] = 10,
    max_words: Annotated[int, typer.Option(help="Words of the longest, up to 5.")] = 5,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the collocations of prepared text, for masking them as a whole (--strategy pmi).

    Example: unmask lexicon data/mine --out mine.lexicon
    """
    from unmask.cli.lexicon import run_lexicon

    options = {"size": size, "min_count": min_count, "max_words": max_words}
    result = run_lexicon(data, out, options=options, overwrite=overwrite)
    if as_json:
        print_json(result)


def masks(
    text: Annotated[str, typer.Argument(help="A text to mask.")],
    strategy: Annotated[str | None, typer.Option(help="Only this strategy. [default: all]")] = None,
    rate: Annotated[float, typer.Option(help="Expected share of masked tokens.")] = 0.15,
    tokenizer: Annotated[str | None, typer.Option(help="Folder with a tokenizer.json, or a name on the hub.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other masks.")] = 0,
    lexicon_file: Annotated[
        Path | None,
        typer.Option("--lexicon", help="For pmi, what unmask lexicon has made. [default: one of Tiny Shakespeare]"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what each strategy would mask, in colour.

    Example: unmask masks "The quick brown fox jumps over the lazy dog." --rate 0.3
    """
    from unmask.cli.masks import show_masks

    result = show_masks(text, strategy=strategy, rate=rate, tokenizer=tokenizer, seed=seed, lexicon=lexicon_file)
    if as_json:
        print_json(result)


def audit(
    data: Annotated[list[str], typer.Argument(help="A prepared folder, or files, folders or patterns of text.")],
    recipe: Annotated[str | None, typer.Option(help="Whose masking is audited. [default: every strategy]")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only this strategy. [default: every strategy]")] = None,
    settings: Settings = None,
    max_tokens: Annotated[int, typer.Option(help="At most about this many tokens are masked.")] = 500_000,
    out: Annotated[Path | None, typer.Option(help="An HTML file with plots.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Mask a text as a training would, and check rates, shares and special tokens. Exit code 1 where a promise breaks.

    A setting of masking.strategy, masking.units or masking.weights is a choice of one, too.

    Example: unmask audit data/mine --recipe tiny --out audit.html
    """
    from unmask.cli.audit import run_audit
    from unmask.recipe.recipe import DEFAULT, load_recipe

    overrides = tuple(settings or ())
    loaded = load_recipe(recipe or DEFAULT, options={"masking.strategy": strategy}, overrides=overrides)
    chosen = recipe is not None or strategy is not None or any(map(_chooses_masking, overrides))
    result = run_audit(data, loaded, every_strategy=not chosen, max_tokens=max_tokens, out=out)
    if as_json:
        print_json(result)
    if not result["passed"]:
        sys.exit(1)


def _chooses_masking(setting: str) -> bool:
    """Whether a setting says what the units or weights of the masking are, which every strategy says for itself."""
    return setting.startswith(("masking.strategy", "masking.units", "masking.weights"))
