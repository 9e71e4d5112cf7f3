"""The server: which requests it accepts, what it answers, and live updates.

    browser ──token, Host, Origin──▶ Guard ──▶ a function of a part ──▶ JSON
                                        └────▶ live: server-sent events with the new metrics of runs

It is for one person on one machine. It listens on 127.0.0.1, requires the token of its address, answers only its own
page, and touches no file outside of the studio's folders.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import secrets
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from pydantic import ConfigDict, ValidationError, validate_call
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from unmask.core.errors import UnmaskError, says_out_of_memory
from unmask.report.pages import STATIC as SHARED
from unmask.web import collections, runs, text
from unmask.web.things import MOST_THINGS, Library

log = logging.getLogger("unmask")
STATIC = Path(__file__).parent / "static"
OPEN = "/open/"  # the token follows in the path, since values of queries are removed from all printed text
MOST_BYTES = 4 << 20  # of a request
MOST_RUNS = 100  # whose curves are followed at once; uvicorn takes addresses of 16 KiB
LOOK_SECONDS = 0.5
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# Functions that the page may call. Those in `COMPUTED` work on a model or much text, and run one at a time.
COMPUTED: dict[str, Callable[..., dict[str, Any]]] = {
    "masks": text.masks,
    "predict": text.predict,
    "surprise": text.surprise,
    "grammar": text.grammar,
    "corpus": collections.corpus,
    "tokens": collections.tokens,
    "search": collections.search,
}
READ: dict[str, Callable[..., dict[str, Any]]] = {
    "recipes": runs.recipes,
    "comparison": runs.comparison,
    "finetuning": runs.finetuning,
    "why": collections.why,
    "space": collections.space,
    "choices": runs.choices,
    "begin": runs.begin,
    "log": runs.log,
    "stop": runs.stop,
}


class Guard:
    """Refuses requests without the token, to another host or from another page, and adds headers of security.

    The token is in the address of the first page, and in a cookie from then on. The cookie's name has the port, since
    all ports of a host share their cookies.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app, self.token, self.cookie = app, token, f"unmask-{port}"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request, Headers(scope=scope))
        opens = request.url.path.startswith(OPEN)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if opens and refusal is None:
                    cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append((b"set-cookie", cookie.encode()))
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await (self.app if refusal is None else refusal)(scope, receive, guarded)

    def _refusal(self, request: Request, headers: Headers) -> Response | None:
        if headers.get("host", "") not in self.hosts:
            only = " or ".join(sorted(self.hosts))
            way_out = "through a tunnel, use the same port on both sides"
            return PlainTextResponse(f"this server answers only as {only}; {way_out}", 421)
        origin = headers.get("origin")
        is_own = origin is None or origin.removeprefix("http://") in self.hosts
        is_own &= headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        path = request.url.path
        # A link from elsewhere may open the page, with its token; nothing else may come from there.
        if not is_own and not (request.method == "GET" and path.startswith(OPEN)):
            return PlainTextResponse("this server answers only its own page", 403)
        token = path.removeprefix(OPEN) if path.startswith(OPEN) else request.cookies.get(self.cookie, "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return PlainTextResponse("open the address that `unmask studio` has printed, with its token", 401)
        return None


def make_app(library: Library, *, token: str, port: int) -> ASGIApp:
    """The app of the page and its functions; requests must carry the token and name the port."""
    checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    functions = {name: (checked(each), name in COMPUTED) for name, each in (COMPUTED | READ).items()}
    computing = anyio.Lock()
    # Windows' registry may call scripts plain text, which browsers do not run because of the header `nosniff`.
    mimetypes.add_type("text/javascript", ".js")
    mimetypes.add_type("text/css", ".css")

    async def call(request: Request) -> Response:
        function, computes = functions.get(request.path_params["name"], (None, False))
        if function is None:
            return _problem(404, "there is no such part")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return _problem(413, f"the request is longer than {MOST_BYTES >> 20} MiB; use less text")
        answer = partial(_answer, library, function, bytes(body), computes=computes)
        if not computes:
            return await run_sync(answer)
        async with computing:  # waiting here takes no thread
            if await request.is_disconnected():  # the page needs another answer by now
                return Response()
            return await run_sync(answer)

    async def things(request: Request) -> Response:
        listed, roots = await run_sync(library.list), [str(root) for root in library.roots]
        return JSONResponse({"things": listed, "roots": roots, "is_cut": len(listed) >= MOST_THINGS})

    async def live(request: Request) -> Response:
        tails, outside = list[runs.Tail](), list[dict[str, Any]]()
        for name in request.query_params.getlist("run")[:MOST_RUNS]:
            try:
                tails.append(runs.Tail(library.within(name)))
            except UnmaskError:
                # A tab may remember runs of an earlier studio with other folders. The others are followed nonetheless.
                outside.append({"run": name, "state": "gone", "anew": True, "points": []})
        return StreamingResponse(_events(request, tails, outside), media_type="text/event-stream")

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    app = Starlette(
        routes=[
            Route("/", page),
            Route(f"{OPEN}{{token}}", page),
            Route("/api/things", things),
            Route("/api/live", live),
            Route("/api/{name}", call, methods=["POST"]),
            Mount("/static/shared", StaticFiles(directory=SHARED)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
    return Guard(app, token=token, port=port)


def _problem(status: int, what: str) -> JSONResponse:
    return JSONResponse({"error": what}, status)


def _answer(library: Library, function: Callable[..., Any], body: bytes, *, computes: bool) -> Response:  # noqa: PLR0911
    """Calls a function of a part. Any error becomes a sentence that the page shows."""
    try:
        arguments = json.loads(body)
        if not isinstance(arguments, dict) or "library" in arguments:
            return _problem(400, "the request is not a JSON object of arguments")
        with library.computing if computes else nullcontext():
            return JSONResponse(function(library, **arguments))
    except ValidationError as error:
        first = error.errors()[0]
        return _problem(400, f"{'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}")
    except UnmaskError as error:
        return _problem(400, str(error))
    except FileNotFoundError as error:
        return _problem(404, f"{error.filename}: no longer exists")
    except (ValueError, RecursionError) as error:
        log.exception("the studio could not answer")
        return _problem(400, f"{error}")
    except Exception as error:
        if says_out_of_memory(error):
            return _problem(507, "not enough memory for this model or text; free some, or use a smaller one")
        log.exception("the studio could not answer")
        return _problem(500, f"this is a bug in the studio ({type(error).__name__}); see its terminal")


async def _events(request: Request, tails: list[runs.Tail], first: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The first events, and new metrics of runs; a comment now and then detects that a page no longer listens."""
    quiet = 0
    while not await request.is_disconnected():
        news = first + [await run_sync(tail.news) for tail in tails]
        for each in filter(None, news):
            yield f"data: {json.dumps(each)}\n\n"
        quiet = 0 if any(news) else quiet + 1
        if quiet % 20 == 0:
            yield ": \n\n"
        await anyio.sleep(LOOK_SECONDS)
        first = []
