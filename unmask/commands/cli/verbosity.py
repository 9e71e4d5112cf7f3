"""How much is said on stderr: `--quiet` and `--verbose`, which every command takes. Results on stdout stay."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from unmask.core.errors import SettingsError, printable

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but warnings and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what is done, with the time.")]


class Spoken:
    """What the command that runs says. A process runs one at a time.

    Attributes:
        is_quiet: Whether notes, bars and lines of progress are left out.
    """

    is_quiet = False


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """A command with both options behind its own."""

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet and verbose:
            raise SettingsError("--quiet and --verbose exclude each other")
        Spoken.is_quiet = quiet
        handler = _log_all() if verbose else None
        try:
            command(**options)
        finally:
            Spoken.is_quiet = False
            if handler is not None:
                logging.getLogger("unmask").removeHandler(handler)

    signature = inspect.signature(command)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]
    hints = get_type_hints(command, include_extras=True)
    own = [each.replace(kind=keyword, annotation=hints[name]) for name, each in signature.parameters.items()]
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = hints | {"quiet": Quiet, "verbose": Verbose}
    return run


class _PrintableFormatter(logging.Formatter):
    """Lines of a log with whatever a terminal would obey spelled out."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def escape_logs() -> None:
    """Lets warnings that are logged do nothing to a terminal."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


def _log_all() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("unmask")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return handler
