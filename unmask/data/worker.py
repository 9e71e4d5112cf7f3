"""A worker process, and the messages between it and the process that started it.

Messages are pickled values, each with its length before it. The worker takes, on its standard input, jobs after what
parts are made by and the plan of annotation (or None), or passes over tasks after all that is known of the work; and
answers on its standard output.

It is started as a command, not forked: a fork of a process that has threads may hang, and a script that calls unmask
needs no `if __name__ == "__main__"`. It must not import torch, which would double the time it takes to start; what
reads files comes with the first pass.

It ends when its standard input does. So it never outlives the process that started it, even one that was killed:
jobs are waited for in a thread of their own, which notices the end also in the middle of a job.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from unmask.core.errors import UnmaskError
from unmask.data.annotations import AnnotationPlan, Annotator
from unmask.data.jobs import Job, finish_job
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Sends a value.

    Raises:
        OSError: The other side is gone.
    """
    content = pickle.dumps(value, protocol=5)
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Receives a value.

    Raises:
        EOFError: The other side is gone, perhaps in the middle of a message.
    """
    (size,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    return pickle.loads(_read(stream, size))


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def main() -> None:
    """Answers each job or pass with ("bytes", number) now and then, and at the end ("done",) or ("error", what)."""
    root = Path(sys.argv[1])
    # Whatever a library prints must not get between the messages.
    answers = os.fdopen(os.dup(1), "wb")
    try:
        os.dup2(2, 1)
    except OSError:  # stderr was closed to the process that started this one
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, asked), daemon=True).start()
    tasks = _TaskTable(root, lambda n: write_frame(answers, ("bytes", n)))
    while True:
        kind, *what = asked.get()
        try:
            getattr(tasks, kind)(*what)
            if kind not in ("job", "task"):
                continue
            answer: tuple[Any, ...] = ("done",)
        except BrokenPipeError:  # nobody waits for the answer any more
            return
        except UnmaskError as error:
            answer = "error", type(error), str(error)
        except Exception:
            answer = "error", RuntimeError, f"in a worker process:\n{traceback.format_exc()}"
        with contextlib.suppress(BrokenPipeError):
            write_frame(answers, answer)


class _TaskTable:
    """What may be asked, by its name."""

    def __init__(self, root: Path, count: Callable[[int], None]) -> None:
        self._root, self._count = root, count
        self._made_by = ""
        self._tokenizer: Tokenizer | None = None
        self._annotator: Annotator | None = None
        self._doer: Any = None

    def jobs_of(self, made_by: str, plan: AnnotationPlan | None) -> None:
        """Of what the jobs are that follow."""
        self._made_by, self._tokenizer = made_by, None
        self._annotator = None if plan is None else Annotator(plan)

    def job(self, job: Job) -> None:
        self._tokenizer = self._tokenizer or load_tokenizer(self._root / "tokenizer")
        finish_job(
            job,
            self._tokenizer,
            self._root,
            made_by=self._made_by,
            annotator=self._annotator,
            count=self._count,
        )

    def tasks_of(self, work: Any) -> None:
        """Of what the tasks are that follow."""
        from unmask.data.passes import TaskDoer

        self._doer = TaskDoer(work)

    def task(self, kind: str, number: int) -> None:
        self._doer.do(kind, number, self._count)


def _receive(stream: IO[bytes], jobs: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            jobs.put(read_frame(stream))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
