"""The standard streams as a command finds them: closed, full, or a pipe that nobody reads any more.

    stdin     closed: whoever reads `-` says so
    stdout    closed: an error before anything is begun, since results would be lost
              cannot be written: exit code 2 and one line, behind the work, of which files stay
              a pipe that was closed (`| head -1`): exit code 141, quietly, as of programs that the signal SIGPIPE ends
    stderr    closed, full or such a pipe: nothing is said any more, and the work goes on

Python itself would end the command wherever it prints, with a traceback, or with "Exception ignored in ..." behind all
else. So nothing that prints ever fails: the stream remembers that it did, and `main` asks for it once.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from collections.abc import Sequence
from typing import Any, TextIO, cast

from unmask.core.errors import RunError

PIPE_CLOSED = 141  # 128 + SIGPIPE
_PLAIN = "unmask-escapes"


class Outlet(io.RawIOBase):
    """Bytes to a stream, as long as it takes them. What comes behind the first failure is lost.

    Args:
        under: The stream, without a buffer.

    Attributes:
        failure: Why it takes nothing any more.
    """

    def __init__(self, under: io.RawIOBase) -> None:
        self._under = under
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._under.isatty()

    def fileno(self) -> int:
        """The number that the system knows it by."""
        return self._under.fileno()

    def write(self, content: Any, /) -> int:
        """Writes as much as the stream takes at once; all, where it takes nothing any more."""
        while self.failure is None:
            try:
                written = self._under.write(content)
            except OSError as error:
                self.failure = error
            else:
                if written is not None:
                    return written
                select.select([], [self.fileno()], [])  # another process has made the stream one that does not wait
        return len(memoryview(content).cast("B"))


class StandardStreams:
    """The standard streams of this process, which never fail from now on.

    It does nothing where stdout and stderr are not those that the process was started with, as in a notebook.

    Attributes:
        closed: Whether stdout was closed when the process was started.
    """

    def __init__(self) -> None:
        self.closed = sys.stdout is None
        codecs.register_error(_PLAIN, _escaped)
        _take_numbers()
        self._out: Outlet | None = None
        if self.closed or sys.stdout is sys.__stdout__:
            sys.stdout, self._out = _guarded(sys.stdout, 1)
        if sys.stderr is None or sys.stderr is sys.__stderr__:
            sys.stderr, _ = _guarded(sys.stderr, 2)

    def check(self) -> None:
        """Raises: RunError: Results cannot be printed, since stdout is closed."""
        if self.closed:
            raise RunError(
                "standard output is closed, and results are printed there; leave it open, or send it to a file "
                "(> results.txt) or away (> /dev/null)"
            )

    def ended(self, code: int, said: str) -> tuple[int, str]:
        """The exit code and what is said at the end, where something may not have been printed.

        Args:
            code: Of the command.
            said: By the command.
        """
        sys.stdout.flush()
        failure = None if self._out is None else self._out.failure
        if failure is None or code not in (0, 1):
            return code, said
        if isinstance(failure, BrokenPipeError):
            return (code or PIPE_CLOSED), said
        return 2, f"standard output cannot be written ({failure.strerror}): results were not printed, files are written"


def _take_numbers() -> None:
    """Sees to it that no file that is opened later becomes a standard stream, since its number was free."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def _guarded(stream: TextIO | None, number: int) -> tuple[TextIO, Outlet]:
    """A stream like one of Python's, and what it writes to; of one that was closed what is written is lost."""
    if stream is None:
        outlet = Outlet(io.FileIO(number, "wb", closefd=False))
        return io.TextIOWrapper(io.BufferedWriter(outlet), "utf-8", _PLAIN), outlet
    outlet = Outlet(cast(io.RawIOBase, getattr(stream.buffer, "raw", stream.buffer)))
    guarded = io.TextIOWrapper(
        io.BufferedWriter(outlet),
        stream.encoding,
        _PLAIN,
        line_buffering=bool(stream.line_buffering),
        write_through=getattr(stream, "write_through", False),
    )
    return guarded, outlet


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What a stream's encoding lacks, as Python and JSON both spell it: `\\u00e9`, `\\ud83d\\ude00`."""
    assert isinstance(error, UnicodeEncodeError), "streams are written"
    found: Sequence[int] = memoryview(error.object[error.start : error.end].encode("utf-16-le", "surrogatepass")).cast(
        "H"
    )
    return "".join(f"\\u{unit:04x}" for unit in found), error.end
