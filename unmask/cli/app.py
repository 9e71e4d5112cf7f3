"""The commands and their options. Heavy modules are imported within a command, so that `--help` answers at once."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Pretrain masked language models on your own text, and use them in transformers.",
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the recipe; may be repeated."),
]
TokenizerKind = Annotated[
    str | None,
    typer.Option(help="What is trained: wordpiece, bpe (byte-level), unigram or char. [default: wordpiece]"),
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would happen: text, parameters, memory, time.")
]


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"unmask {metadata.version('unmask')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Pretrain masked language models on your own text, and use them in transformers."""


def print_json(content: Any) -> None:
    """Prints exactly one JSON object on stdout."""
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")


@app.command()
def pretrain(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders or patterns of text, - for stdin, or a prepared folder. [default: Tiny Shakespeare]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = ...,  # type: ignore[assignment]
    minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training, instead of minutes.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to train on, instead of minutes.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name of a recipe (see unmask recipes), or a .toml file. [default: tiny]")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Masking, such as whole_word or span (see unmask masks).")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, vocab.txt or their folder. [default: trains one]")
    ] = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the trained tokenizer. [default: fits the text]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and masks.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the run in --out and start anew.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a model on raw text or prepared shards.

    Example: unmask pretrain corpus.txt --minutes 10 --out runs/mine
    """
    from unmask.cli.progress import ConsoleReporter, show_summary
    from unmask.pretraining.pretrain import pretrain as run_pretraining
    from unmask.pretraining.request import Request

    request = Request(
        recipe=recipe,
        minutes=minutes,
        steps=steps,
        tokens=tokens,
        strategy=strategy,
        tokenizer=tokenizer,
        tokenizer_kind=tokenizer_kind,
        vocab_size=vocab_size,
        seed=seed,
        settings=tuple(settings or ()),
    )
    if dry_run:
        from unmask.cli.dry_run import show_run_forecast

        forecast = show_run_forecast(paths or None, request.load())
        if as_json:
            print_json(forecast)
        return
    with ConsoleReporter() as reporter:
        run = run_pretraining(
            paths or None, out=out, **vars(request), resume=resume, overwrite=overwrite, reporter=reporter
        )
    show_summary(run)
    if as_json:
        print_json(run.summary)


@app.command()
def prepare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[list[str], typer.Argument(help="Files, folders or patterns of text, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Folder of the shards.")] = ...,  # type: ignore[assignment]
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, vocab.txt or their folder. [default: trains one]")
    ] = None,
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
        "tokenizer.path": tokenizer and str(tokenizer),
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


@app.command()
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


@app.command()
def masks(
    text: Annotated[str, typer.Argument(help="A text to mask.")],
    strategy: Annotated[str | None, typer.Option(help="Only this strategy. [default: all]")] = None,
    rate: Annotated[float, typer.Option(help="Expected share of masked tokens.")] = 0.15,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with a tokenizer.json.")] = None,
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


@app.command()
def fill(
    model: Annotated[Path, typer.Argument(help="Folder of a model, such as RUN/model.")],
    text: Annotated[str, typer.Argument(help="A text with one or several [MASK].")],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    as_json: JsonFlag = False,
) -> None:
    """Predict what stands at every [MASK].

    Example: unmask fill runs/mine/model "The capital of France is [MASK]."
    """
    from unmask.cli.fill import run_fill

    result = run_fill(model, text, top_k=top_k)
    if as_json:
        print_json(result)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a model, such as RUN/model.")],
    data: Annotated[list[str], typer.Argument(help="Files, folders or patterns of text, or a prepared folder.")],
    rates: Annotated[str, typer.Option(help="Shares of hidden tokens, with commas between them.")] = "0.15",
    max_tokens: Annotated[int, typer.Option(help="At most about this many tokens are used.")] = 200_000,
    as_json: JsonFlag = False,
) -> None:
    """Measure a model on text: held-out loss, accuracy, perplexity, bits per byte.

    Example: unmask evaluate runs/mine/model other.txt --rates 0.15,0.3
    """
    from unmask.cli.evaluate import run_evaluate

    result = run_evaluate(model, data, rates, max_tokens=max_tokens)
    if as_json:
        print_json(result)


@app.command()
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

    Example: unmask audit data/mine --recipe tiny --out audit.html
    """
    from unmask.cli.audit import run_audit
    from unmask.recipe.recipe import DEFAULT, load_recipe

    loaded = load_recipe(recipe or DEFAULT, options={"masking.strategy": strategy}, overrides=tuple(settings or ()))
    result = run_audit(data, loaded, every_strategy=recipe is None and strategy is None, max_tokens=max_tokens, out=out)
    if as_json:
        print_json(result)
    if not result["passed"]:
        sys.exit(1)


@app.command()
def recipes(as_json: JsonFlag = False) -> None:
    """List the packaged recipes.

    Example: unmask recipes
    """
    from unmask.cli.recipes import show_recipes

    result = show_recipes()
    if as_json:
        print_json(result)


def main() -> None:
    """Runs the command line: exit code 0, 2 for a user's mistake, 128 + signal when stopped."""
    from unmask.errors import UnmaskError

    try:
        app()
    except UnmaskError as error:
        sys.stderr.write(f"unmask: {error}\n")
        sys.exit(2)
    except Exception as error:
        signum = getattr(error, "signum", None)
        if signum is None:
            raise
        sys.stderr.write(f"unmask: {error}\n")
        sys.exit(128 + signum)
