"""An fsspec file system in memory, in place of a server from which files are fetched and to which they are sent."""

from __future__ import annotations

from typing import Any

from fsspec.implementations.memory import MemoryFileSystem


class Elsewhere(MemoryFileSystem):  # type: ignore[misc]
    """A server that sometimes does not answer."""

    protocol = "elsewhere"
    store: dict[str, Any] = {}  # noqa: RUF012  (as its base has it)
    pseudo_dirs = [""]  # noqa: RUF012
    fetched: list[str] = []  # noqa: RUF012
    failing: dict[str, list[BaseException]] = {}  # noqa: RUF012
    sent: list[str] = []  # noqa: RUF012
    before_put = staticmethod(lambda: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("elsewhere://", "memory://")))

    def get_file(self, rpath: str, lpath: str, **named: Any) -> None:
        if self.failing.get(rpath):
            raise self.failing[rpath].pop()
        self.fetched.append(rpath)
        super().get_file(rpath, lpath, **named)

    def put_file(self, lpath: str, rpath: str, **named: Any) -> None:
        self.before_put()
        self.sent.append(rpath)
        super().put_file(lpath, rpath, **named)
