"""The command line: which commands there are, and what their errors become."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from unmask.cli.commands.embedding import embed
from unmask.cli.commands.finetuning import finetune, predict
from unmask.cli.commands.leaving import export, verify
from unmask.cli.commands.measuring import compare, score
from unmask.cli.commands.models import evaluate, fill
from unmask.cli.commands.pretraining import pretrain, recipes
from unmask.cli.commands.text import audit, lexicon, masks, prepare

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Pretrain masked language models on your own text, and use them in transformers.",
)


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


COMMANDS = (  # in the order of --help
    pretrain, prepare, lexicon, masks, audit,
    fill, embed, evaluate, score, compare,
    finetune, predict, export, verify, recipes,
)  # fmt: skip

for command in COMMANDS:
    app.command()(command)


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
