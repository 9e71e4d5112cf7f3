"""Passes over tasks on the nodes of a Ray cluster, a task of ours a task of Ray's.

No text travels: whoever carries a task out reads its files and writes into the data folder, so all nodes must see both.
What a node that dies was at, another one does again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from unmask.errors import DataError, SettingsError, UnmaskError
from unmask.shards.pass_files import Pass, Work
from unmask.shards.passes import TaskDoer
from unmask.text.read_plan import ReadTask

LOOK_SECONDS = 0.5
_REACHED_SECONDS, _CANCELLED_SECONDS = 10.0, 30.0
RETRIES = 5  # of a task whose node dies
AUTO = "auto"
_ONE = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class OnRay:
    """Shares passes out to a Ray cluster.

    Args:
        address: Of the cluster (`ray://host:10001`, `host:6379`); `auto` takes the one that this machine belongs to, or
            starts one here.

    Raises:
        SettingsError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str = AUTO) -> None:
        try:
            import ray
        except ImportError as error:
            raise SettingsError("--ray needs Ray: pip install 'unmask[ray]'") from error
        self._ray: Any = ray
        if not ray.is_initialized():
            self._join(address)

    def _join(self, address: str) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == AUTO:
            try:
                self._ray.init(address=AUTO, **options)
            except ConnectionError:  # there is none that this machine belongs to
                self._ray.init(include_dashboard=False, **options)
            return
        try:
            _reach(address)  # Ray itself tries for minutes
            self._ray.init(address=address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SettingsError(
                f"--ray {address}: there is no Ray cluster ({reason}); start it with ray start, and name host:port"
            ) from error

    @property
    def num_cores(self) -> int:
        """Of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def do(self, work: Work, kind: Pass, tasks: Sequence[ReadTask], count: Callable[[int], None]) -> None:
        """See `unmask.shards.sharing.Sharing`.

        Raises:
            UnmaskError: What a task raised.
            DataError: Nodes died again and again, or do not see the files.
        """
        ray = self._ray
        shared = ray.put(work)
        carry_out = ray.remote(num_cpus=1, max_retries=RETRIES)(_carry_out)
        waiting = {carry_out.remote(shared, kind, task.number, os.getcwd()): task for task in tasks}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
                for reference in done:
                    task = waiting.pop(reference)
                    self._get(reference)
                    count(task.num_bytes)
        finally:  # nobody writes into the folder afterwards
            for reference in waiting:
                ray.cancel(reference, force=True)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCELLED_SECONDS)

    def _get(self, reference: Any) -> None:
        exceptions = self._ray.exceptions
        try:
            self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise _of_task(error) from error
        except exceptions.RayError as error:
            raise DataError(
                f"Ray could not carry a task out ({type(error).__name__}); what is done is kept: run the same command "
                "again"
            ) from error


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is no host:port")
    socket.create_connection((host, int(port)), timeout=_REACHED_SECONDS).close()


def _of_task(error: Any) -> Exception:
    """What went wrong in a task of Ray's."""
    return error.cause if isinstance(error.cause, UnmaskError) else RuntimeError(f"on a node of the cluster:\n{error}")


def _carry_out(work: Work, kind: Pass, number: int, folder: str) -> None:
    if os.path.isdir(folder):  # paths may be relative to where the command was started
        os.chdir(folder)
    source = work.corpus.tasks[number].sources[0].path
    os.environ.update({**_ONE, "TOKENIZERS_PARALLELISM": "false"})
    for path in (work.root, source):
        if not path.exists():
            raise DataError(f"{path}: a node of the cluster does not see it; data and text must lie on a disk of all")
    TaskDoer(work).do(kind, number, lambda num_bytes: None)
