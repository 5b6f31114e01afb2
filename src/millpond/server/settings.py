"""The options of the server, checked where they are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.validation import Seconds
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from typing import Self

Scope: TypeAlias = Mapping[str, Any]
Authenticate: TypeAlias = Callable[[Scope], "str | Awaitable[str | None] | None"]
"""Given the ASGI scope of a request, returns the name of the user, or None to refuse it."""

SHORTEST_TOKEN = 16
"""Characters of a token: a shorter one can be guessed."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Options(TypedDict, total=False):
    """What `millpond.server.app` takes by name."""

    allow_actions: bool
    token: str | Mapping[str, str] | None
    authenticate: Authenticate | None
    allow_hosts: Sequence[str]
    redact: Sequence[str]
    trace_url: str | None
    max_clients: int
    max_requests: int
    max_rate: int
    max_body: int | None
    interval: Seconds


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options, checked."""

    allow_actions: bool = False
    """Whether requests may change anything."""
    tokens: dict[str, str] = {}
    """Tokens by the name of who holds each; the name '' stands for a token without one."""
    authenticate: Authenticate | None = None
    """Asks the application that it is mounted in who sends a request."""
    allow_hosts: tuple[str, ...] = LOOPBACK_NAMES
    """Values of the Host header that are accepted, without their ports; `*` = any."""
    redact: tuple[str, ...] = ()
    """Further words; a payload's entry whose name holds one of them is not shown."""
    trace_url: str | None = None
    """Where a trace is shown: `{trace_id}` in it is replaced."""
    max_clients: int = 100
    """How many may listen to live events at a time, and how many may wait for results."""
    max_requests: int = 32
    """How many requests are answered at a time."""
    max_rate: int = 100
    """How many requests a second one client may send."""
    max_body: int | None = None
    """Bytes of a request; None = what a payload may have, and a little more."""
    interval: float = 1.0
    """Seconds between two samples of the pools while a client listens."""

    @classmethod
    def of(cls, options: Options) -> Self:
        """Check options and return them."""
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"app() got an unexpected option {min(unknown)!r}; it knows {known}")
        hosts = options.get("allow_hosts", ())
        if isinstance(hosts, str):
            raise ConfigError("allow_hosts", hosts, "must be a list of host names")
        body = options.get("max_body")
        trace_url = options.get("trace_url")
        return cls(
            allow_actions=bool(options.get("allow_actions", False)),
            tokens=_tokens(options.get("token")),
            authenticate=options.get("authenticate"),
            allow_hosts=(*LOOPBACK_NAMES, *(check.text("allow_hosts", one) for one in hosts)),
            redact=tuple(check.text("redact", one) for one in options.get("redact", ())),
            trace_url=None if trace_url is None else check.text("trace_url", trace_url),
            max_clients=check.integer("max_clients", options.get("max_clients", 100), least=1),
            max_requests=check.integer("max_requests", options.get("max_requests", 32), least=1),
            max_rate=check.integer("max_rate", options.get("max_rate", 100), least=1),
            max_body=None
            if body is None
            else check.integer("max_body", body, least=1, most=bounds.MAX_BODY),
            interval=check.seconds("interval", options.get("interval", 1.0), least=0.05),
        )


def _tokens(given: str | Mapping[str, str] | None) -> dict[str, str]:
    if given is None:
        return {}
    tokens = {"": given} if isinstance(given, str) else dict(given)
    for name, token in tokens.items():
        if name:
            check.name("token", name)
        if len(check.text("token", token)) < SHORTEST_TOKEN or not token.isascii():
            message = (
                f"must have at least {SHORTEST_TOKEN} characters, all of them ASCII; "
                'python -c "import secrets; print(secrets.token_urlsafe(32))" makes one'
            )
            raise ConfigError("token", "(hidden)", message)
    return tokens
