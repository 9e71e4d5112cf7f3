"""The command line: which commands there are, and what their errors become."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from unmask.commands.cli.audit import audit
from unmask.commands.cli.compare import compare
from unmask.commands.cli.embed import embed
from unmask.commands.cli.embedder import embedder
from unmask.commands.cli.evaluate import evaluate
from unmask.commands.cli.evaluate_search import evaluate_search
from unmask.commands.cli.export import export
from unmask.commands.cli.fill import fill
from unmask.commands.cli.finetune import finetune
from unmask.commands.cli.lexicon import lexicon
from unmask.commands.cli.masks import masks
from unmask.commands.cli.predict import predict
from unmask.commands.cli.prepare import PrepareCommand, prepare
from unmask.commands.cli.pretrain import pretrain
from unmask.commands.cli.recipes import recipes
from unmask.commands.cli.score import score
from unmask.commands.cli.search import search_index, search_query
from unmask.commands.cli.streams import StandardStreams
from unmask.commands.cli.verbosity import escape_logs, with_verbosity
from unmask.commands.cli.verify import verify
from unmask.core.errors import EndedElsewhereError, UnmaskError, on_command_line, printable

STOPPED = 130  # by Ctrl-C, where nothing is kept of what was begun

app = typer.Typer(
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
    finetune, predict, embedder, evaluate_search, export, verify, recipes,
)  # fmt: skip

CLASSES: dict[Any, Any] = {prepare: PrepareCommand}  # where typer's own does not do

for command in COMMANDS:
    app.command(cls=CLASSES.get(command))(with_verbosity(command))

search = typer.Typer(help="Search your own documents with a model: make an index, and ask it.")
search.command("index")(with_verbosity(search_index))
search.command("query")(with_verbosity(search_query))
app.add_typer(search, name="search")


def main() -> None:
    """Runs the command line and leaves.

    The exit code is 0; 1 where a check has found something; 2 for a user's mistake; 128 + the signal when stopped, or
    when whoever read the results has gone.
    """
    streams = StandardStreams()
    escape_logs()
    with on_command_line():
        code, said = streams.ended(*_run(streams))
    if said:
        sys.stderr.write(f"unmask: {printable(' '.join(said.splitlines()))}\n")
    sys.exit(code)


def _run(streams: StandardStreams) -> tuple[int, str]:
    """The exit code, and what is said at the end."""
    try:
        streams.check()
        code = app(args=None if sys.argv[1:] else ["--help"], prog_name="unmask", standalone_mode=False) or 0
    except EndedElsewhereError:
        return 2, ""
    except UnmaskError as error:
        return 2, str(error)
    except OSError as error:
        if error.filename is None or isinstance(error, FileNotFoundError | FileExistsError):
            raise  # a defect of ours
        return 2, f"{error.filename}: {error.strerror}; mind its name, and the rights and room that there are"
    except Exception as error:
        if (signum := getattr(error, "signum", None)) is not None:
            return 128 + signum, str(error)
        if hasattr(error, "format_message"):  # a usage error, click's or typer's, as typer's version has it
            return 2, _usage_error(error)
        raise
    return code, "stopped" if code == STOPPED else ""


def _usage_error(error: Any) -> str:
    """What is wrong with the options, on one line, with where they are told."""
    context = getattr(error, "ctx", None)
    command = "unmask" if context is None else context.command_path
    return f"{' '.join(error.format_message().split()).rstrip('.')}; see {command} --help"
