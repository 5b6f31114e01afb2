"""What stands before every request: its host, who sends it, what it may do, how large it is.

host        the Host header names this server, so that no other site can point its name here
client      a request from another machine, or through a proxy, needs a token
actor       a Bearer token, the cookie of a session, or the application this is mounted in
actions     nothing is changed unless the server was started with actions allowed
origin      what a page of another site sends is refused; a page of ours proves itself
size, rate  bounded, with an answer that says when to try again
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import ipaddress
import re
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from millpond.server.refusals import Refused
from millpond.server.sessions import COOKIE, Sessions, Tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from millpond.server.limits import Limits
    from millpond.server.settings import Settings

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Inner = Callable[[Message, Receive, Send], Awaitable[None]]

ACTOR = "millpond.actor"
SESSION = "millpond.session"
"""Entries of a request's scope: who sends it, and the session it belongs to."""

API = "/api/"
SESSION_PATH = "/api/v1/session"
LIVE_PATH = "/api/v1/live"
CSRF_HEADER = "x-csrf-token"
READING = ("GET", "HEAD", "OPTIONS")
MAX_LOGIN = 4 << 10
"""Bytes of a request to log in, which needs no token."""

BODY_WITHIN = 20.0
"""Seconds that a body has to come in."""

BESIDE_PAYLOAD = 64 << 10
"""Bytes that a request may have beyond its payload: names, options, quotes."""

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_OWN_PAGES = ("same-origin", "none")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?")
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)

FIXED_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def content_policy(index: str = "") -> str:
    """Return the Content-Security-Policy: nothing from elsewhere, nothing inline.

    An import map has to stand in the page itself; its digest allows that one text and no other.
    """
    digests = [
        base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
        for found in _IMPORT_MAP.findall(index)
    ]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )


class Guard:
    """An ASGI app around another one, which sees only requests that may come through."""

    def __init__(
        self,
        inner: Inner,
        settings: Settings,
        limits: Limits,
        *,
        max_body: int,
        policy: str,
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._limits = limits
        self._max_body = settings.max_body or max_body + BESIDE_PAYLOAD
        self.tokens = Tokens(settings.tokens)
        self.sessions = Sessions()
        self._hosts = {host.lower() for host in settings.allow_hosts}
        self._headers = [
            (name.encode(), value.encode())
            for name, value in {**FIXED_HEADERS, "content-security-policy": policy}.items()
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with the reason why not."""
        guarded = self._with_headers(scope, send)
        try:
            await self._let_through(scope, receive, guarded)
        except Refused as refused:
            await refused.response()(scope, receive, guarded)

    async def _let_through(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        self._check_host(headers)
        self._limits.check_rate(client_of(scope))
        path = inner_path(scope)
        if not path.startswith(API) and path != "/openapi.json":
            # The pages themselves hold no data, and one of them asks for the token.
            await self._inner(scope, receive, send)
            return
        await self._identify(scope, headers, required=path != SESSION_PATH)
        if not _is_bearer(headers):
            self._check_origin(headers)
        if scope["method"] not in READING:
            self._check_change(scope, headers, path)
        most = MAX_LOGIN if path == SESSION_PATH else self._max_body
        # A slow body is read first, so that it takes up no place among the requests.
        received = await _read_body(headers, receive, most)
        if path == LIVE_PATH or path.endswith("/result"):
            # These wait for long, and have limits of their own.
            await self._inner(scope, received, send)
            return
        with await self._limits.request():
            await self._inner(scope, received, send)

    # Who asks

    def _check_host(self, headers: dict[str, str]) -> None:
        host = _without_port(headers.get("host", "")).lower()
        allowed = host in self._hosts or "*" in self._hosts
        # No other site can point a plain address here; who may use it, a token says.
        if not allowed and not (self.tokens and _is_address(host)):
            message = (
                "the Host header does not name this server; start it with --allow-host NAME, or "
                "give app(allow_hosts=[...]), for every name that it is reached by"
            )
            raise Refused(421, "host_not_allowed", message)

    async def _identify(self, scope: Message, headers: dict[str, str], *, required: bool) -> None:
        """Find out who sends a request; where one is `required`, refuse an unknown sender."""
        scope[SESSION] = None
        actor = await self._actor(scope, headers)
        scope[ACTOR] = actor
        if actor is None and required:
            raise Refused(
                401,
                "token_required",
                "a token is required: send Authorization: Bearer TOKEN, or log in",
                headers={"www-authenticate": 'Bearer realm="millpond"'},
            )

    async def _actor(self, scope: Message, headers: dict[str, str]) -> str | None:
        if self._settings.authenticate is not None:
            found = self._settings.authenticate(scope)
            name = await found if inspect.isawaitable(found) else found
            return None if name is None else f"http:{name}"
        client = client_of(scope)
        if not self.tokens:
            _check_is_local(scope, headers)
            return f"http:{client}"
        given = headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        if kind.lower() == "bearer":
            holder = self.tokens.holder(token.strip())
            return None if holder is None else f"http:{holder or client}"
        session = self.sessions.find(_cookie(headers.get("cookie", "")))
        if session is None:
            return None
        scope[SESSION] = session
        return f"http:{session.holder or client}"

    # What it may do

    def _check_change(self, scope: Message, headers: dict[str, str], path: str) -> None:
        """Object to a request that would change something and must not."""
        self._check_kind(headers, scope["method"])
        if path == SESSION_PATH:
            return
        if not self._settings.allow_actions:
            message = (
                "this server is read-only; start it with --allow-actions, or app(mp, "
                "allow_actions=True), to let requests change something"
            )
            raise Refused(403, "read_only", message)
        if from_a_browser(scope, headers) and not self.sessions.is_csrf(
            csrf_subject(scope), headers.get(CSRF_HEADER, "")
        ):
            message = f"the header {CSRF_HEADER} must hold what GET {SESSION_PATH} returns as csrf"
            raise Refused(403, "csrf_required", message)

    def _check_kind(self, headers: dict[str, str], method: str) -> None:
        """Object to a body that a form of another site could send."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if kind != "application/json" and (has_body or kind) and method != "DELETE":
            raise Refused(415, "not_json", "the body must be JSON, and content-type say so")
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "encoded", "the body must not be compressed")

    def _check_origin(self, headers: dict[str, str]) -> None:
        """Object to what a page of another site sends.

        It could read no answer, but take every place of those who listen.
        """
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        foreign = site is not None and site not in _OWN_PAGES
        if origin is not None and _netloc(origin) != headers.get("host", "").lower():
            foreign = True
        if foreign:
            raise Refused(403, "cross_site", "a page of another site gets no answer here")

    def _with_headers(self, scope: Message, send: Send) -> Send:
        """Return a way to answer that adds what every answer has."""
        fixed = list(self._headers)
        if inner_path(scope).startswith(API):
            fixed.append((b"cache-control", b"no-store"))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *fixed]
            await send(message)

        return guarded


def csrf_subject(scope: Message) -> str:
    """Return what a CSRF token is bound to: the session, else who sends the request."""
    session = scope.get(SESSION)
    return f"session {session.id}" if session is not None else f"actor {scope.get(ACTOR)}"


def from_a_browser(scope: Message, headers: dict[str, str]) -> bool:
    """Return whether a page may have sent a request: then it has to prove that it is one of ours.

    A Bearer token is no such case: browsers do not add it by themselves.
    """
    if _is_bearer(headers):
        return False
    return scope.get(SESSION) is not None or any(
        name in headers for name in ("origin", "sec-fetch-site", "cookie")
    )


def client_of(scope: Message) -> str:
    """Return the address that a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def inner_path(scope: Message) -> str:
    """Return the path of a request below the place where the server is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


def headers_of(scope: Message) -> dict[str, str]:
    """Return the headers by name; of one that comes twice the values are joined."""
    found: dict[str, str] = {}
    for raw_name, raw in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw.decode("latin-1").strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _check_is_local(scope: Message, headers: dict[str, str]) -> None:
    """Object to a request from another machine while there is no token."""
    forwarded = any(name in headers for name in _FORWARDED)
    if forwarded or not is_loopback(client_of(scope)):
        message = (
            "without a token only this machine itself is answered, and no proxy: start the server "
            "with --token or MILLPOND_TOKEN, or give app(token=...)"
        )
        raise Refused(403, "token_not_set", message)


def _is_bearer(headers: dict[str, str]) -> bool:
    return headers.get("authorization", "").lower().startswith("bearer ")


def _without_port(host: str) -> str:
    """Return the name in a Host header; '' if what follows it is no port."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1]


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _cookie(header: str) -> str:
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(header)
    except CookieError:
        return ""
    found = cookies.get(COOKIE)
    return "" if found is None else found.value


async def _read_body(headers: dict[str, str], receive: Receive, most: int) -> Receive:
    """Read a body that is neither too large nor too slow; return a way to receive it at once."""
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "bad_length", "content-length is not a number")
    if len(length) > 18 or int(length) > most:
        raise _too_large(most)
    if length == "0" and "transfer-encoding" not in headers:
        return receive
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_WITHIN):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "body_incomplete", "the body came in only in part")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        reason = f"the body did not come in within {BODY_WITHIN:g} seconds"
        raise Refused(408, "slow_body", reason, headers={"connection": "close"}) from None
    read = False

    async def received() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return received


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"a request has at most {most:,} bytes")
