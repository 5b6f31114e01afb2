"""Who sends a request: tokens, compared in constant time, and the sessions of browsers."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SESSION_LASTS = 12 * 3600.0
MOST_SESSIONS = 1000
COOKIE = "millpond_session"


class Session(msgspec.Struct, frozen=True):
    """A browser that has shown a token."""

    id: str
    holder: str
    """The name of the token; '' = it has none."""
    expires_at: float


class Tokens:
    """The tokens that open the server, as digests."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._digests = [(name, _digest(token)) for name, token in tokens.items()]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holder(self, given: str) -> str | None:
        """Return the name of the token that was given; None = it is none of ours.

        It compares the digests of all tokens, so that an attacker learns nothing from the time
        that takes.
        """
        digest, found = _digest(given), None
        for name, ours in self._digests:
            if hmac.compare_digest(digest, ours):
                found = name
        return found


class Sessions:
    """The sessions of browsers, in memory: a restart ends them all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._open: dict[str, Session] = {}

    def begin(self, holder: str) -> Session:
        """Open a session; where there are too many, the oldest ends."""
        now = self._clock()
        self._open = {name: one for name, one in self._open.items() if one.expires_at > now}
        while len(self._open) >= MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        session = Session(secrets.token_urlsafe(32), holder, now + SESSION_LASTS)
        self._open[_name(session.id)] = session
        return session

    def find(self, identifier: str) -> Session | None:
        """Return the session of a cookie, or None.

        Sessions are kept under digests of their ids, so that the time of a lookup reveals no id.
        """
        found = self._open.get(_name(identifier))
        return found if found is not None and found.expires_at > self._clock() else None

    def end(self, session: Session) -> None:
        """End a session."""
        self._open.pop(_name(session.id), None)

    def csrf(self, subject: str) -> str:
        """Return the token that a page must send with whatever changes something."""
        return hmac.new(self._secret, subject.encode(), hashlib.sha256).hexdigest()

    def is_csrf(self, subject: str, given: str) -> bool:
        """Return whether a page has sent the right one."""
        return hmac.compare_digest(
            self.csrf(subject).encode(), given.encode("utf-8", "surrogateescape")
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _name(identifier: str) -> str:
    return _digest(identifier).hex()
