"""The server: routes, the guard before them, the pages, and the life of the Millpond it shows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from millpond.core.log_fields import about
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of
from millpond.server import openapi
from millpond.server.api import (
    actions,
    audit,
    dead,
    events,
    live,
    pools,
    runs,
    schedules,
    session,
    submit,
    tasks,
    workers,
)
from millpond.server.limits import Limits
from millpond.server.live import Live
from millpond.server.refusals import Refused, refusal_of
from millpond.server.security import Guard, content_policy
from millpond.server.site import Site, answer

if TYPE_CHECKING:
    from millpond.pool.millpond import Millpond
    from millpond.server.security import Message, Receive, Send
    from millpond.server.settings import Settings

log = logging.getLogger("millpond.server")

STATIC = Path(__file__).parent / "static"
# Paths with a fixed end come before those that take everything: a pool's name may have a slash.
ROUTERS = (
    session,
    submit,
    actions,
    pools,
    tasks,
    dead,
    runs,
    workers,
    schedules,
    events,
    audit,
    live,
)


class Server:
    """The HTTP API and the dashboard as one ASGI app: serve it, or mount it in another."""

    def __init__(self, mp: Millpond, settings: Settings) -> None:
        limits = Limits(settings)
        self.site = Site(mp, settings, limits)
        self.site.live = Live(self.site)
        self.api = _routes(self.site)
        index = STATIC / "index.html"
        page = index.read_text("utf-8") if index.exists() else ""
        self.site.guard = Guard(
            self.api,
            settings,
            limits,
            max_body=internals_of(mp).owner.max_payload,
            policy=content_policy(page),
        )

    def __repr__(self) -> str:
        return f"<server of {self.site.mp!r}>"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or the start and stop of the server."""
        match scope["type"]:
            case "http":
                await self.site.guard(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise NotImplementedError(f"the server does not know {other!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the Millpond while the server runs, unless the application already has."""
        mp, opened = self.site.mp, False
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.site.live.reopen()
                    if not mp.is_open:
                        await mp.__aenter__()
                        opened = True
                except Exception as error:
                    log.exception(
                        "could not open the Millpond that the server shows",
                        extra=about("server.start_failed"),
                    )
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                if opened:
                    await mp.__aexit__(None, None, None)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def close(self) -> None:
        """End every stream of live events, and the poller."""
        await self.site.live.close()


def _routes(site: Site) -> FastAPI:
    """Return the routes, each with the errors that it may answer with."""
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    api.state.site = site
    for module in ROUTERS:
        api.include_router(
            module.router, prefix="/api/v1", dependencies=[Depends(_refuse_unknown_parameters)]
        )
    api.add_route("/openapi.json", _document, include_in_schema=False)
    if (STATIC / "index.html").exists():
        api.add_route("/", _index, include_in_schema=False)
        api.mount("/", StaticFiles(directory=STATIC), name="pages")
    for kind in (Refused, MillpondError, RequestValidationError, HTTPException, Exception):
        api.add_exception_handler(kind, _answer_error)
    return api


async def _refuse_unknown_parameters(request: Request) -> None:
    """Object to a parameter that the route does not know: a condition left out shows too much."""
    route = request.scope["route"].dependant
    known = {field.alias for one in (route, *route.dependencies) for field in one.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        fields = dict.fromkeys(unknown, "is not a parameter of this path")
        message = f"unknown parameter {unknown[0]!r}; there are: {', '.join(sorted(known))}"
        raise Refused(422, "invalid_request", message, fields=fields)


async def _document(request: Request) -> Response:
    from millpond import __version__  # noqa: PLC0415 - the package imports much of itself

    return answer(openapi.document(request.app, __version__))


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})


async def _answer_error(request: Request, error: Exception) -> Response:
    return _refusal_for(error, request).response()


def _refusal_for(error: Exception, request: Request) -> Refused:
    """Return the refusal that answers a request for which an error was raised."""
    match error:
        case Refused():
            return error
        case MillpondError():
            refused = refusal_of(error)
            if refused.status >= 500:
                log.warning(
                    "a request failed: %s",
                    error,
                    extra=about("server.request_failed", reason=error.code),
                )
            return refused
        case RequestValidationError():
            fields = {".".join(map(str, one["loc"][1:])): one["msg"] for one in error.errors()}
            name, message = next(iter(fields.items()), ("", "the request is invalid"))
            return Refused(422, "invalid_request", f"{name}: {message}", fields=fields)
        case HTTPException():
            codes = {404: "not_found", 405: "method_not_allowed"}
            code = codes.get(error.status_code, "bad_request")
            return Refused(error.status_code, code, error.detail, headers=error.headers)
        case _:
            log.error(
                "a request broke: %s %s",
                request.method,
                request.url.path,
                exc_info=error,
                extra=about("server.request_broke", reason=type(error).__name__),
            )
            return Refused(500, "internal_error", "this is a bug; the server's log has more")
