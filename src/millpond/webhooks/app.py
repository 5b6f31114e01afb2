"""The ASGI app: verify the signature of a request, store it as an event, then answer.

202  it is stored: the receipt names the event. Sent again, it is the same event
400  the body is not JSON, or lacks the id or name
401  it is not signed, or not by one of the secrets; 403: it is, but too long ago
404, 405, 408, 413, 415  no such endpoint; not POST; too slow; too large; not JSON
409  the same id was used for another body
429  too much is under way, or waits, already; 503: the store cannot be reached. Both say when
     to try again
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import validation as check
from millpond.core.bounds import MAX_EVENT_ID
from millpond.core.escape import plain
from millpond.core.event import EVENTS, Event, text_at
from millpond.core.log_fields import about
from millpond.errors import (
    BadPayload,
    ConfigError,
    DuplicateName,
    IdempotencyConflict,
    MillpondError,
    NoCapacity,
    NotOpen,
    PayloadTooLarge,
    PoolFull,
    StoreError,
)
from millpond.pool.internals import internals_of
from millpond.webhooks.refusal import Refused
from millpond.webhooks.signatures import digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from millpond.core.validation import Seconds
    from millpond.pool.millpond import Millpond
    from millpond.webhooks.signatures import Scheme

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("millpond.webhooks")

LARGEST = 1 << 20
HEADER = "header:"
"""Prefix of a `name_from` that refers to a header instead of the body."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One path, its signature scheme, and the event it emits."""

    path: str
    emits: str
    verify: Any
    id_from: str | None
    name_from: str | None
    max_body: int
    first_wins: bool


class Webhooks:
    """Endpoints as one ASGI app: serve it, or mount it in another.

    Served by itself it opens the Millpond as the server starts, unless that is open already, and
    closes it then. Mounted, or with an open Millpond, it only uses it.
    """

    def __init__(
        self,
        mp: Millpond,
        *,
        max_concurrent: int = 100,
        max_backlog: int | None = None,
        patience: Seconds = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._mp = mp
        self._endpoints: dict[str, Endpoint] = {}
        self._most = check.integer("max_concurrent", max_concurrent, least=1)
        self._backlog = (
            None if max_backlog is None else check.integer("max_backlog", max_backlog, least=1)
        )
        self._patience = check.seconds("patience", patience, above=0.0)
        self._clock = clock
        self._under_way = 0

    def __repr__(self) -> str:
        return f"<webhooks: {', '.join(self._endpoints) or 'no endpoints'}>"

    def add(
        self,
        path: str,
        *,
        emits: str,
        verify: Scheme,
        id_from: str | None = None,
        name_from: str | None = None,
        max_body: int = LARGEST,
        first_wins: bool = False,
    ) -> None:
        """Emit an event for each request to a path whose signature `verify` accepts.

        `id_from` is a path into the body, such as `data.id`, to the id of the event; else it is the
        one that was signed, or a digest of the body. `name_from` is a path to what is appended to
        the name, `stripe.` and `type`; or a header, `header:X-GitHub-Event`, which is not signed.
        An id that comes again with another body is refused, or is the first event with
        `first_wins`, for senders that change something from one try to the next.
        """
        if not check.text("path", path).startswith("/"):
            raise ConfigError("path", path, "must begin with /")
        if path in self._endpoints:
            message = f"an endpoint {path!r} exists already; a path has one secret and one event"
            raise DuplicateName(message, kind="endpoint", name=path)
        if not callable(getattr(verify, "verify", None)):
            raise ConfigError("verify", type(verify).__name__, "must be standard(secret), or such")
        self._endpoints[path] = Endpoint(
            path=path,
            emits=check.name("emits", emits),
            verify=verify,
            id_from=None if id_from is None else check.text("id_from", id_from),
            name_from=None if name_from is None else check.text("name_from", name_from),
            max_body=check.integer(
                "max_body", max_body, least=1, most=internals_of(self._mp).owner.max_payload
            ),
            first_wins=first_wins,
        )

    # As a server calls it

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or the server's own start and stop."""
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise NotImplementedError(f"webhooks do not support {other!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the Millpond while the server runs, unless the application has opened it."""
        opened = False
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    if not self._mp.is_open:
                        await self._mp.__aenter__()
                        opened = True
                except Exception as error:
                    log.exception(
                        "could not open the Millpond of the webhooks",
                        extra=about("webhooks.open_failed"),
                    )
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if opened:
                    await self._mp.__aexit__(None, None, None)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            value = await self._accept(scope, receive)
        except Refused as refused:
            log.info(
                "refused a request to %s with %d %s: %s",
                ascii(_path(scope)),
                refused.status,
                refused.code,
                plain(refused.message),
                extra=about("webhook.refused", reason=refused.code, status=refused.status),
            )
            document = {"error": refused.code, "message": refused.message}
            await _respond(send, refused.status, document, refused.headers)
        except _GoneAway:
            return
        else:
            await _respond(send, 202, value, {})

    async def _accept(self, scope: Message, receive: Receive) -> dict[str, Any]:
        """Verify and store a request; return its receipt."""
        endpoint = self._endpoint(scope)
        headers = _headers(scope)
        _check_headers(headers, endpoint)
        if self._under_way >= self._most:
            raise _busy("too many concurrent requests; try again in a moment")
        self._under_way += 1
        try:
            body = await self._body(receive, endpoint)
            signed = endpoint.verify.verify(headers, body, self._clock())
            name, identity, payload = _event(endpoint, headers, body, signed)
            return await self._store_event(endpoint, name, identity, payload)
        finally:
            self._under_way -= 1

    def _endpoint(self, scope: Message) -> Endpoint:
        path = _path(scope)
        inner = path.removeprefix(scope.get("root_path", ""))
        endpoint = self._endpoints.get(path) or self._endpoints.get(inner)
        if endpoint is None:
            raise Refused(404, "not_found", "there is no endpoint at this path")
        if scope["method"] != "POST":
            raise Refused(405, "not_post", "webhooks are posted", allow="POST")
        return endpoint

    async def _body(self, receive: Receive, endpoint: Endpoint) -> bytes:
        """Read the body, up to the allowed size and time."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneAway
                    part = message.get("body", b"")
                    size += len(part)
                    if size > endpoint.max_body:
                        raise _too_large(endpoint.max_body)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "too_slow", "the body did not come in time") from None

    async def _store_event(
        self, endpoint: Endpoint, name: str, identity: str, payload: object
    ) -> dict[str, Any]:
        """Store the event; turn errors into HTTP refusals."""
        try:
            self._check_loop()
            await self._check_backlog()
            value = await self._mp.emit(name, payload, event_id=identity)
            return _receipt(name, identity, value.task_id, duplicate=value.duplicate)
        except IdempotencyConflict as conflict:
            if endpoint.first_wins:
                return _receipt(name, identity, conflict.task_id, duplicate=True)
            message = f"the id {identity!r} was already used with another body"
            raise Refused(409, "conflict", message) from None
        except (PoolFull, NoCapacity):
            raise _busy("no more events are accepted for now; try again in a moment") from None
        except PayloadTooLarge as error:
            raise _too_large(error.limit) from None
        except (BadPayload, ConfigError) as error:
            raise Refused(400, "bad_event", error.message) from None
        except (StoreError, NotOpen, OSError) as error:
            _log_not_stored(name, error)
            message = "the event could not be stored; try again later"
            raise Refused(503, "store_away", message, **{"retry-after": "5"}) from None
        except MillpondError as error:
            _log_not_stored(name, error)
            raise Refused(500, "not_stored", "the event could not be stored") from None

    def _check_loop(self) -> None:
        """Refuse a Millpond that is open on another event loop."""
        if internals_of(self._mp).runtime.loop is not asyncio.get_running_loop():
            raise NotOpen("the Millpond is open on another event loop than the server's")

    async def _check_backlog(self) -> None:
        """Refuse while more than `max_backlog` events wait for their triggers."""
        if self._backlog is None:
            return
        view = await internals_of(self._mp).runtime.view.pool(EVENTS, measured=False)
        if view is not None and view.queued >= self._backlog:
            raise _busy("too many events are waiting; try again later")


class _GoneAway(Exception):
    """The client has closed the connection."""


def _path(scope: Message) -> str:
    path: str = scope["path"]
    return path


def _headers(scope: Message) -> dict[str, list[str]]:
    """Return the headers by name; bytes that are not UTF-8 are kept distinct."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        text = value.decode("utf-8", "surrogateescape").strip()
        found.setdefault(name.decode("latin-1").lower(), []).append(text)
    return found


def _check_headers(headers: dict[str, list[str]], endpoint: Endpoint) -> None:
    """Refuse a request by its headers, before its body is read."""
    kinds = headers.get("content-type", [])
    kind = kinds[0].partition(";")[0].strip().lower() if len(kinds) == 1 else ""
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise Refused(415, "not_json", "the content-type must be JSON")
    if headers.get("content-encoding", ["identity"]) != ["identity"]:
        raise Refused(415, "encoded", "the body must not be compressed")
    length = headers.get("content-length", ["0"])[0]
    if length.isascii() and length.isdecimal() and int(length[:20]) > endpoint.max_body:
        raise _too_large(endpoint.max_body)


def _event(
    endpoint: Endpoint, headers: dict[str, list[str]], body: bytes, signed: str | None
) -> tuple[str, str, object]:
    """Return the name, the id and the payload of the event."""
    try:
        payload = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(400, "bad_json", f"the body is not JSON: {error}") from None
    event = Event(endpoint.emits, "", payload)
    identity = signed or digest(body)
    if endpoint.id_from is not None:
        value = text_at(event, _in_body(endpoint.id_from))
        if value is None:
            raise Refused(400, "no_id", f"the body has no event id at {endpoint.id_from}")
        identity = value
    if not check.fits(identity, MAX_EVENT_ID):
        message = f"the id of an event has 1 to {MAX_EVENT_ID} bytes of UTF-8, none of them NUL"
        raise Refused(400, "bad_id", message)
    return _name(endpoint, headers, event), identity, payload


def _name(endpoint: Endpoint, headers: dict[str, list[str]], event: Event) -> str:
    """Return the name of an event, with the kind that the request names."""
    source = endpoint.name_from
    if source is None:
        return endpoint.emits
    if source.startswith(HEADER):
        value = "".join(headers.get(source.removeprefix(HEADER).lower(), [])) or None
    else:
        value = text_at(event, _in_body(source))
    try:
        return check.name("name", f"{endpoint.emits}.{value}" if value else "")
    except ConfigError:
        message = f"the value at {source} cannot be part of an event name"
        raise Refused(400, "bad_name", message) from None


def _log_not_stored(name: str, error: Exception) -> None:
    reason = plain(str(error))
    log.warning(
        "could not store an event: %s",
        reason,
        extra=about("webhook.store_failed", reason=reason, webhook_event=name),
    )


def _receipt(name: str, identity: str, task: int, *, duplicate: bool) -> dict[str, Any]:
    # A task id has more bits than many JSON parsers keep.
    return {"event": name, "event_id": identity, "task_id": str(task), "duplicate": duplicate}


def _in_body(path: str) -> str:
    """Return a path as triggers write it: into an event, whose payload is the body."""
    return path if path.startswith("payload.") else f"payload.{path}"


def _busy(message: str) -> Refused:
    return Refused(429, "busy", message, **{"retry-after": "1"})


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body may have at most {limit} bytes")


async def _respond(
    send: Send, status: int, document: dict[str, Any], headers: dict[str, str]
) -> None:
    body = msgspec.json.encode(document)
    value = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **headers,
    }
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in value.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
