"""Hints between the processes of one server, by LISTEN and NOTIFY.

A NOTIFY follows the commit that it announces, on the connection that wrote, and covers all commits
since the last one. It is not part of that commit: the server lets transactions with a NOTIFY commit
one at a time, and each would wait for the disk under that lock. A NOTIFY alone writes nothing that
has to reach the disk. Only a submit after a pause carries its own: such submits come one at a time,
and the workers hear of the task sooner.

Every role that can connect to the database may send and read messages, so they are never trusted:
see runtime/fleet/hint_listener.py. A hint may be lost: a process that hears nothing polls. What a
process sends comes back to it, too, and that is how it knows that it would hear the others
(`hears`): a pooler takes a LISTEN and then says nothing.

A message is a text: the name of who sent it, a space, and the hint as JSON.
"""

from __future__ import annotations

import hashlib
import logging
import time
from math import inf
from typing import TYPE_CHECKING

import msgspec
import psycopg

from millpond.core.log_fields import about
from millpond.core.plan import Wake
from millpond.errors import MillpondError
from millpond.store.hints import PendingHint, without_bad_moments
from millpond.store.postgres.encoding import array, sent
from millpond.store.postgres.flush import Flush
from millpond.store.postgres.listen import Listener
from millpond.store.postgres.lock import of_waiters
from millpond.store.postgres.quoting import LONGEST
from millpond.store.postgres.server_call import PreparedCall
from millpond.store.protocol import Hint

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.url import Address

log = logging.getLogger("millpond.postgres")

PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two messages; hints in between are merged into the second."""

BULK_PAUSE = 0.02
"""How much longer the pause is before a message with only the ends of many tasks."""

SHARE = 0.2
"""The part of its time that a writer may spend on messages."""

TRY_AGAIN = 1.0
"""Seconds before a failed message is sent again."""

ECHO_WITHIN = 5.0
"""Seconds within which a sent message must come back."""

NOTIFY = (
    b"SELECT count(pg_catalog.pg_notify(%s, part)) FROM unnest(%s::text[]) part "
    b"WHERE pg_catalog.pg_notification_queue_usage() < 0.5"
)
"""Send messages to a channel; inside a transaction the server sends them with the commit.

A full queue would make the commit fail: better no hint.
"""

POST = (
    "SELECT count(pg_catalog.pg_notify($1, part)) FROM unnest($2::text[]) part "
    "WHERE pg_catalog.pg_notification_queue_usage() < 0.5"
)
"""The same, as a server call."""

_LARGEST = 7999
"""The most bytes of one notification."""

_MOST_HEARD = 1000
"""How many messages are read at once."""

_MOST_MESSAGES = 4
"""How many messages one hint has at most; beyond, it says that there is more."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hint).decode


def channel_of(schema: str) -> str:
    """Return the channel of a store; one whose name would be too long is named by its hash."""
    channel = f"millpond:{schema}"
    if len(channel.encode()) <= LONGEST:
        return channel
    return f"millpond:{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def messages(hint: Hint, sender: str = "-", most: int = _MOST_MESSAGES) -> list[str]:
    """Return a hint as messages; if it does not fit, the last one says that there is more."""
    fields = {name: value for name in Hint.__struct_fields__ if (value := getattr(hint, name))}
    message = f"{sender} {_encode(fields).decode()}"
    if len(message.encode()) <= _LARGEST:
        return [message]
    if most < 2:
        return messages(Hint(more=True), sender)
    halves = [half for half in _halves(hint) if half != Hint()]
    return [part for half in halves for part in messages(half, sender, most // 2)]


def _halves(hint: Hint) -> tuple[Hint, Hint]:
    def part(*, second: bool) -> Hint:
        def of(items: tuple[object, ...]) -> tuple[object, ...]:
            middle = len(items) // 2
            return items[middle:] if second else items[:middle]

        lists = {
            name: of(value)
            for name in Hint.__struct_fields__
            if isinstance(value := getattr(hint, name), tuple)
        }
        return msgspec.structs.replace(hint, **lists)

    return part(second=False), part(second=True)


class PostgresHintChannel:
    """Sends and receives the hints of one open store. `send` is for the writer thread.

    `connection` gives the writer's connection, outside of any transaction; it is asked in the
    writer's thread only.
    """

    def __init__(
        self, address: Address, owner: str, connection: Callable[[], Connection | None]
    ) -> None:
        self._address = address
        self._name = hashlib.sha256(owner.encode()).hexdigest()[:16]
        self._connection = connection
        self._channel = channel_of(address.schema)
        self._pending = PendingHint()
        self._send_after = -inf
        self._on_hint: Callable[[Hint], object] | None = None
        self._listener: Listener | None = None
        self._waiters = of_waiters(address.schema)
        self._awaits_ends = False
        """Whether code of this process waits for the end of a task."""
        self._closed = False
        self._proven = False
        """Whether a sent message came back."""
        self._awaited_since: float | None = None
        """When the oldest message that has not come back was sent."""
        self._complained = False

    def listen(self, on_hint: Callable[[Hint], object], loop: asyncio.AbstractEventLoop) -> None:
        """Call back on the loop with the hints of other processes."""
        where = self._address.listener
        if where is None or self._closed:
            return
        self._on_hint = on_hint
        self._listener = Listener(where, self._channel, loop, heard=self._heard, back=self._back)
        self._listener.hold(self._waiters if self._awaits_ends else None)

    def await_ends(self, *, wanted: bool) -> asyncio.Future[None] | None:
        """Ask other processes for hints of ends, or no longer: by a lock of the ear's session.

        Who ends a task looks whether the lock is free, in its transaction and up to its commit. So
        an end without a hint was committed before this process had the lock. Return a future that
        is set when it has; what is read then is all that ended without a hint.
        """
        self._awaits_ends = wanted
        if self._listener is None:
            return None
        return self._listener.hold(self._waiters if wanted else None)

    def receives_hints(self) -> bool:
        """Return whether hints arrive, so that silence means that nothing happened."""
        if self._listener is None or not self._listener.connected:
            return False
        since = self._awaited_since
        if since is not None and time.monotonic() - since > ECHO_WITHIN:
            if self._proven:
                # Earlier messages came back and this one does not: the connection is half open.
                self._listener.reopen()
            else:
                self._complain()
            return False
        return self._proven

    def send(self, hint: Hint | None = None) -> float | None:
        """Send a hint, now or soon; return after how many seconds to call again, if at all."""
        begun = time.monotonic()
        due = self._due(hint, begun)
        if due is None or due > 0:
            return due
        if not self._flushed(begun):
            return TRY_AGAIN
        self._pause_since(begun)
        return None

    def post(self, hint: Hint | None = None) -> PreparedCall | float | None:
        """Like `send` without blocking: return the message to send now as a server call."""
        begun = time.monotonic()
        due = self._due(hint, begun)
        if due is None or due > 0:
            return due
        pending, self._pending = self._pending, PendingHint()
        texts = messages(pending.hint(), self._name)
        self._await_echo(begun)

        def over(row: Row | None) -> list[object]:
            if row is None:
                self._pending.add(pending.hint())
                self._send_after = time.monotonic() + TRY_AGAIN
            else:
                self._pause_since(begun)
            return []

        return PreparedCall(
            POST, lambda: [sent(self._channel), array(texts)], over, flush=Flush.NOTHING
        )

    def _due(self, hint: Hint | None, now: float) -> float | None:
        """Merge a hint; return in how many seconds to send it, if at all."""
        if hint is not None:
            self._pending.add(hint)
        if self._closed or not (self._pending or self._wants_proof):
            return None
        after = self._send_after + (BULK_PAUSE if self._pending.in_bulk else 0.0)
        return max(after - now, 0.0)

    def _pause_since(self, begun: float) -> None:
        ended = time.monotonic()
        self._send_after = ended + min(max(PAUSE, (ended - begun) / SHARE), LONGEST_PAUSE)

    def along(self, pool: str) -> tuple[str, str] | None:
        """Return channel and message for the commit of a submit, or None.

        After a pause there are no earlier hints to send with it, so the commit saves a round trip.
        """
        begun = time.monotonic()
        if self._closed or self._pending or begun < self._send_after:
            return None
        self._send_after = begun + PAUSE
        return self._channel, messages(Hint(wakes=(Wake(pool, 0.0),)), self._name)[0]

    def close(self) -> None:
        """Stop sending and receiving; safe twice."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    # --- sending ----------------------------------------------------------------------------------

    @property
    def _wants_proof(self) -> bool:
        listener = self._listener
        return listener is not None and listener.connected and not self._proven

    def _flushed(self, now: float) -> bool:
        """Send the merged hint; False if it must be retried."""
        texts = messages(self._pending.hint(), self._name)
        self._await_echo(now)
        try:
            connection = self._connection()
            if connection is None:
                return False
            connection.execute(NOTIFY, [self._channel, texts])
        except (psycopg.Error, MillpondError) as error:
            log.debug(
                "NOTIFY on %s failed: %s",
                self._address,
                error,
                extra=about("hint.not_sent", reason=str(error)),
            )
            return False
        self._pending = PendingHint()
        return True

    def _await_echo(self, now: float) -> None:
        listener = self._listener
        if self._awaited_since is None and listener is not None and listener.connected:
            # Before it is sent: by then it may be heard.
            self._awaited_since = now

    # --- hearing ----------------------------------------------------------------------------------

    def _back(self, *, restarted: bool) -> None:
        """Everything is heard from now on: earlier hints may be lost, or were not sent."""
        if restarted:
            self._proven, self._awaited_since = False, None
        if self._on_hint is not None:
            self._on_hint(Hint(more=True))

    def _heard(self, texts: list[str]) -> None:
        """Read everything that has arrived, and call back once."""
        heard = PendingHint()
        if len(texts) > _MOST_HEARD:
            # Too many to read: "there is more" makes the process look at everything once.
            heard.add(Hint(more=True))
        for text in texts[:_MOST_HEARD]:
            sender, _, said = text.partition(" ")
            if sender == self._name:
                self._proven, self._awaited_since = True, None
                continue
            try:
                heard.add(without_bad_moments(_decode(said)))
            except (msgspec.MsgspecError, RecursionError) as error:
                log.debug(
                    "ignoring a malformed notification of %s: %s",
                    self._address,
                    error,
                    extra=about("hint.malformed", reason=str(error)),
                )
        if heard and self._on_hint is not None:
            self._on_hint(heard.hint())

    def _complain(self) -> None:
        if not self._complained:
            log.warning(
                "notifications sent to %s do not arrive; polling every second. If there is a "
                "pooler, put the server's own address into the URL as listen=..., or listen=off",
                self._address,
                extra=about("listen.silent"),
            )
        self._complained = True
