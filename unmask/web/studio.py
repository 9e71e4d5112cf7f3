"""The command `unmask studio`: a server on this machine, and a browser that shows its page."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from unmask.core.errors import RunError
from unmask.core.files import absence
from unmask.core.public import public
from unmask.core.results import Notify, Progress, Result, Shown, ignore

PORT = 8642
_print_at_once = partial(print, flush=True)  # into a pipe, too


class StudioVisit(Result):
    """A studio that was closed: its `address`, without the token, and its `paths`."""

    address: str
    paths: list[str]

    def shown(self) -> Iterator[Shown]:
        yield f"the studio at {self.address} is closed; runs that it started continue"


@public
def studio(
    paths: str | Path | Sequence[str | Path] = (),
    *,
    port: int | None = None,
    no_browser: bool = False,
    note: Callable[[str], None] = _print_at_once,
    notify: Notify | None = None,
) -> StudioVisit:
    """Shows masks, runs, models and searches in the browser. Ctrl-C stops it.

    The page is served to this machine alone, and fetches nothing from elsewhere.

    Args:
        paths: Folders of runs, models, prepared data and indexes, or folders that contain them; nothing else is read
            or written. By default the folder runs if there is one, else the current folder.
        port: Port of the server. By default 8642, or any free one.
        no_browser: Only print the address.
        note: Called with the address; by default it is printed.
        notify: Called when the page can be opened.

    Raises:
        RunError: A path is not there, the port is taken, or Starlette and uvicorn are not installed.
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise RunError(f"the studio needs {' and '.join(missing)}: pip install 'unmask[studio]'")
    named = [paths] if isinstance(paths, str | Path) else paths
    folders = [Path(path) for path in named] or [Path("runs") if Path("runs").is_dir() else Path()]
    for folder in folders:
        if not folder.exists():
            raise RunError(f"{folder}: {absence(folder, 'folder')}; name folders of runs, models, data or indexes")
    listening = _listening(port)
    number = listening.getsockname()[1]

    import uvicorn

    from unmask.web.server import make_app
    from unmask.web.things import Library

    token, address = secrets.token_urlsafe(24), f"http://127.0.0.1:{number}/"
    library = Library(folders)
    app = make_app(library, token=token, port=number)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    server = uvicorn.Server(config)
    # The server runs in a thread, so that Ctrl-C arrives here and ends the studio.
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="unmask-studio", daemon=True)
    serving.start()
    note(f"{address}open/{token}")
    (notify or ignore)(Progress("the studio is open; Ctrl-C closes it", facts=""))
    if not no_browser:
        webbrowser.open(f"{address}open/{token}")
    with suppress(KeyboardInterrupt):
        while serving.is_alive():
            serving.join(0.5)
    server.should_exit = True
    serving.join(5.0)
    return StudioVisit({"address": address, "paths": list(map(str, folders))})


def _listening(port: int | None) -> socket.socket:
    """A socket on 127.0.0.1; without a port, on the usual one or any free one."""
    if port is not None and not 0 <= port < 1 << 16:
        raise RunError(f"port {port}: expected 0 to 65535", options=("port",))
    for number in (PORT, 0) if port is None else (port,):
        try:  # it listens from now on, before the server's thread does, so no early request is refused
            return socket.create_server(("127.0.0.1", number))
        except OSError as error:
            reason = error
    raise RunError(f"port {port} cannot be used ({reason}); give another", options=("port",)) from reason
