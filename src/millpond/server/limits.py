"""How much the server takes on at a time: bulkheads, and a rate for each client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millpond.bulkhead.bulkhead import Bulkhead
from millpond.bulkhead.permit import Permit
from millpond.core import rate as gcra
from millpond.core.rate import Rate
from millpond.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.server.settings import Settings

CLIENTS_KNOWN = 4096
"""How many clients' rates the server remembers. One more, and it forgets all of them."""

PATIENCE = 2.0
"""Seconds that a request waits for its turn."""

LOGINS = Rate(10, per=60.0)
"""Attempts to log in, of all clients together."""


class Limits:
    """The limits of one server."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        most = settings.max_requests
        self._requests = Bulkhead("http-requests", most, max_queue=4 * most)
        self._listeners = Bulkhead("live-clients", settings.max_clients)
        self._waiters = Bulkhead("long-polls", settings.max_clients)
        self._rate = Rate(settings.max_rate, per=1.0, burst=2 * settings.max_rate)
        self._clients: dict[str, int] = {}
        self._logins = 0

    def check_rate(self, client: str) -> None:
        """Object to a client that sends requests faster than it may."""
        now = self._clock()
        spent = self._clients.get(client, 0)
        ready = gcra.ready_at(self._rate, spent, 1, now)
        if ready > now:
            message = f"more than {self._rate.n} requests a second; try again later"
            raise Refused(429, "too_many_requests", message, retry_after=ready - now)
        if client not in self._clients and len(self._clients) >= CLIENTS_KNOWN:
            self._clients.clear()
        self._clients[client] = gcra.take(self._rate, spent, 1, now)

    def check_login(self) -> None:
        """Object to too many attempts to guess a token."""
        now = self._clock()
        ready = gcra.ready_at(LOGINS, self._logins, 1, now)
        if ready > now:
            message = "too many attempts to log in; try again later"
            raise Refused(429, "too_many_logins", message, retry_after=ready - now)
        self._logins = gcra.take(LOGINS, self._logins, 1, now)

    async def request(self) -> Permit:
        """Return the permit of a request; it waits in line for a moment."""
        permit = await self._requests.acquire(timeout=PATIENCE)
        if isinstance(permit, Permit):
            return permit
        message = "the server is answering as many requests as it may; try again later"
        raise Refused(503, "overloaded", message, fields={"reason": permit.reason}, retry_after=1.0)

    def listener(self) -> Permit:
        """Return the permit of a client that listens to live events."""
        return self._at_once(self._listeners, "too_many_clients", "listen to live events")

    def waiter(self) -> Permit:
        """Return the permit of a client that waits for a result."""
        return self._at_once(self._waiters, "too_many_waiters", "wait for results")

    def _at_once(self, bulkhead: Bulkhead, code: str, what: str) -> Permit:
        permit = bulkhead.try_acquire()
        if isinstance(permit, Permit):
            return permit
        message = f"as many clients {what} as may; try again later"
        raise Refused(503, code, message, fields={"reason": permit.reason}, retry_after=5.0)
