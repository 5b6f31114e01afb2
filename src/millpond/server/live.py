"""Live events: one poller samples the pools for all clients, and each client gets what changed.

While clients listen it samples every second. Otherwise it samples every fifteen seconds, so that
sparklines have a past. After ten minutes without a request it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from millpond.core.log_fields import about
from millpond.errors import MillpondError
from millpond.server import contract, shapes
from millpond.server.history import History

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.bulkhead.permit import Permit
    from millpond.server.security import Message, Receive, Send
    from millpond.server.site import Site
    from millpond.store.protocol import PoolInFull, PoolView

log = logging.getLogger("millpond.server")

IDLE_INTERVAL = 15.0
"""Seconds between two samples while no client listens."""

ASLEEP_AFTER = 600.0
"""Seconds without a request after which the poller stops."""

HEARTBEAT = 15.0
"""Seconds after which a silent stream sends a comment: proxies close what is silent."""

STREAM_LASTS = 3600.0
"""Seconds after which a stream ends; a browser comes back by itself, and shows who it is again."""

RECONNECT = 2000
"""Milliseconds after which a browser comes back."""

MOST_WATCHED = 50
"""Tasks, and pools, that one client may watch."""

_encode = msgspec.json.Encoder().encode


def _now() -> float:
    """Return the time of the loop: intervals and waits go by the same clock."""
    return asyncio.get_running_loop().time()


class Topics(msgspec.Struct, frozen=True):
    """What a client wants to hear of besides all pools."""

    pools: tuple[str, ...] = ()
    tasks: tuple[int, ...] = ()


class Live:
    """The poller of one server, and those who listen."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.history = History()
        self._views: tuple[PoolView, ...] = ()
        self._sampled_at = float("-inf")
        self._at = 0.0
        self._version = 0
        self._pools: dict[str, tuple[int, bytes]] = {}
        """Of each pool: the version at which it changed last, and its JSON."""
        self._details: dict[str, tuple[int, bytes]] = {}
        self._tasks: dict[int, tuple[int, bytes]] = {}
        self._listening: dict[object, Topics] = {}
        self._watched: dict[str, PoolInFull] = {}
        """Pools on view, as of the last sample."""
        self._looked_at: dict[str, float] = {}
        """Pools whose percentiles a client asked for, and when."""
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._sampling = asyncio.Lock()
        self._poller: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._closed = False
        self._failing = False

    @property
    def clients(self) -> int:
        """How many listen."""
        return len(self._listening)

    # Samples

    async def overview(self) -> tuple[tuple[PoolView, ...], float]:
        """Return all pools and their moment, at most one interval old."""
        self._asked_at = _now()
        self._start()
        if _now() - self._sampled_at > self._site.settings.interval:
            await self._sample()
        return self._views, self._at

    def summary(self, view: PoolView, now: float) -> contract.PoolGlance:
        """Return a pool in short, with its recent rates."""
        return shapes.pool_summary(view, now, self.history.recent(view.spec.name, now))

    async def look_at(self, name: str, full: PoolInFull | None = None) -> None:
        """Note that a client looks at a pool: sample its percentiles for a minute."""
        await self.overview()
        full = full or self._watched.get(name) or await self._site.pool_in_full(name)
        self._looked_at[name] = _now()
        self.history.measure(full.view, self._at)

    async def _sample(self) -> None:
        """Read the pools; those who ask at the same time share one reading."""
        async with self._sampling:
            if _now() - self._sampled_at <= self._site.settings.interval / 2:
                return
            now = self._site.now()
            views = await self._site.view.pools(now=now)
            self._watched = await self._read_watched(now)
            self._views, self._at, self._sampled_at = views, now, _now()
            for view in views:
                watched = self._watched.get(view.spec.name)
                self.history.add(view if watched is None else watched.view, now)

    async def _read_watched(self, now: float) -> dict[str, PoolInFull]:
        """Return the pools on view."""
        recently = _now() - 60.0
        self._looked_at = {name: at for name, at in self._looked_at.items() if at > recently}
        wanted = {name for topics in self._listening.values() for name in topics.pools}
        found = {}
        for name in wanted | self._looked_at.keys():
            full = await self._site.view.pool_in_full(name, now=now)
            if full is not None:
                found[name] = full
        return found

    # The poller

    def _start(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        while not self._closed and (self._listening or _now() - self._asked_at < ASLEEP_AFTER):
            try:
                await self._tick()
                self._failing = False
            except (MillpondError, OSError) as error:
                self._report(error)
            interval = self._site.settings.interval if self._listening else IDLE_INTERVAL
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    # A client that begins to listen ends the pause: it sets the event.
                    await self._wake.wait()

    def _report(self, error: Exception) -> None:
        """Say once that the store fails, until it answers again."""
        if not self._failing:
            log.warning(
                "could not read the pools for the dashboard; trying again: %s",
                error,
                extra=about("dashboard.sample_failed", reason=str(error)),
            )
        self._failing = True

    async def _tick(self) -> None:
        """Sample, and wake the streams that send the changes."""
        await self._sample()
        if not self._listening:
            return
        self._version += 1
        for view in self._views:
            self._note(self._pools, view.spec.name, self.summary(view, self._at))
        await self._note_watched()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _note_watched(self) -> None:
        pools = {name for topics in self._listening.values() for name in topics.pools}
        tasks = {task for topics in self._listening.values() for task in topics.tasks}
        self._details = {name: known for name, known in self._details.items() if name in pools}
        self._tasks = {task: known for task, known in self._tasks.items() if task in tasks}
        for name in pools:
            await self._note_detail(name)
        for task in tasks:
            record = await self._site.view.task(task)
            gone = {"id": str(task), "status": "unknown"}
            item = gone if record is None else shapes.task_item(record, self._at)
            self._note(self._tasks, task, item)

    async def _note_detail(self, name: str) -> None:
        # Who began to listen since the last sample does not wait for the next.
        full = self._watched.get(name)
        if full is None:
            full = await self._site.view.pool_in_full(name, now=self._at)
        if full is None:
            return
        detail = {
            "name": name,
            "waits": shapes.percentiles(full.view.waits),
            "run_times": shapes.percentiles(full.view.run_times),
            "units": [shapes.unit(one) for one in full.units],
        }
        self._note(self._details, name, detail)

    def _note(self, among: dict[Any, tuple[int, bytes]], key: object, value: object) -> None:
        encoded = _encode(value)
        known = among.get(key)
        if known is None or known[1] != encoded:
            among[key] = self._version, encoded

    # Those who listen

    def since(self, version: int, topics: Topics) -> tuple[bytes, int]:
        """Return what changed after a version as events, and the version they lead to."""
        events: list[bytes] = []
        pools = [item for at, item in self._pools.values() if at > version]
        if pools or version < 0:
            full = b"true" if version < 0 else b"false"
            listed = b",".join(pools)
            data = b'{"at":%s,"full":%s,"items":[%s]}' % (_encode(self._at), full, listed)
            events.append(b"event: pools\ndata: %s\n\n" % data)
        for name in topics.pools:
            at, item = self._details.get(name, (-1, b""))
            if at > version:
                events.append(b"event: pool\ndata: %s\n\n" % item)
        for task in topics.tasks:
            at, item = self._tasks.get(task, (-1, b""))
            if at > version:
                events.append(b"event: task\ndata: %s\n\n" % item)
        return b"".join(events), self._version

    async def stream(self, topics: Topics, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send a client what changes, until its time is over or the server stops."""
        me, version = object(), -1
        self._listening[me] = topics
        ends_at = _now() + STREAM_LASTS
        try:
            changed = self._changed
            self._start()
            self._wake.set()
            await send(b"retry: %d\n\n" % RECONNECT)
            while not self._closed and _now() < ends_at:
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        await changed.wait()
                except TimeoutError:
                    await send(b": still here\n\n")
                    continue
                changed = self._changed
                events, version = self.since(version, topics)
                if events:
                    await send(events)
        finally:
            del self._listening[me]
            self._asked_at = _now()

    async def close(self) -> None:
        """End every stream, and the poller."""
        self._closed = True
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._wake.set()
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poller

    def reopen(self) -> None:
        """Serve again after `close`, on whatever loop runs now."""
        self._closed = False
        self._changed, self._wake = asyncio.Event(), asyncio.Event()
        self._sampling = asyncio.Lock()


class EventStream(Response):
    """A text/event-stream that ends as soon as its client goes away."""

    media_type = "text/event-stream"

    def __init__(self, live: Live, topics: Topics, permit: Permit) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._live = live
        self._topics = topics
        self._permit = permit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send events until either side has enough."""
        with self._permit:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

            async def write(data: bytes) -> None:
                await send({"type": "http.response.body", "body": data, "more_body": True})

            streaming = asyncio.ensure_future(self._live.stream(self._topics, write))
            leaving = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (streaming, leaving):
                    task.cancel()
                await asyncio.gather(streaming, leaving, return_exceptions=True)
            with contextlib.suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
