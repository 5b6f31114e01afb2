"""A proxy that breaks: TCP between a client and its server, with the faults that networks have.

It runs on a loop in a thread of its own, so that those who use it may block. All that it does wrong
the methods of `FaultProxy` say:

- `cut` ends what is connected; `refuse` and `accept` close and open the door for others.
- `silence` lets nothing pass any more, without closing: half-open, as when a machine loses its
  power. Those connections stay silent for good; `heal` lets new ones pass.
- `delay` and `trickle` let everything pass, later or a few bytes at a time.
- `cut_within` lets half of the next message pass, and ends the connection.
- `lose_answer` ends the connection that an answer is for, in place of the answer: the transaction
  has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Self

Direction = Literal["up", "down"]
"""To the server, or to the client."""

T = TypeVar("T")

_CHUNK = 64 * 1024
_LOOPBACK = "127.0.0.1"

DONE = b"Z\x00\x00\x00\x05"
"""How PostgreSQL says that it has done all it was asked."""


class _Link:
    """One client, and the connection to the server that was made for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.ends = (client, server)
        self.silent = False
        self.watched = False
        """Whether to lose the answer to the last message."""

    def cut(self) -> None:
        """End both connections at once, as a router would that forgets them."""
        for end in self.ends:
            end.transport.abort()


class FaultProxy:
    """A port on the loopback, behind which is that of a server."""

    def __init__(self, port: int, host: str = _LOOPBACK) -> None:
        self._target = (host, port)
        self.port = 0
        """Where clients connect."""
        self.links_made = 0
        """How many connections there have been."""
        self.answers_lost = 0
        self._delay = 0.0
        self._pace: float | None = None
        self._silent = False
        self._cut_within: Direction | None = None
        self._marker: tuple[Direction, bytes] | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def through(self, url: str) -> str:
        """Return a URL by TCP, with the proxy in the place of its host."""
        parts = urlsplit(url)
        who, _, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{who}@{_LOOPBACK}:{self.port}"))

    # What can be wrong

    def accept(self) -> None:
        """Let clients connect, at the port of before."""
        self._do(self._open())

    def refuse(self) -> None:
        """Refuse new connections; open ones stay."""
        self._do(self._shut())

    def cut(self) -> None:
        """End all connections."""
        self._now(self._cut)

    def silence(self) -> None:
        """Let nothing pass any more, on these connections and on new ones."""

        def be_silent() -> None:
            self._silent = True
            for link in self._links:
                link.silent = True

        self._now(be_silent)

    def heal(self) -> None:
        """Let everything pass as it should, on new connections; those that are silent stay so."""

        def be_well() -> None:
            self._silent, self._delay, self._pace = False, 0.0, None
            self._cut_within = self._marker = None

        self._now(be_well)

    def delay(self, seconds: float) -> None:
        """Let everything pass so much later."""
        self._delay = seconds

    def trickle(self, bytes_in_a_second: float) -> None:
        """Let everything pass slowly, a few bytes at a time."""
        self._pace = bytes_in_a_second

    def cut_within(self, direction: Direction) -> None:
        """Cut the connection in the middle of the next thing that is said in a direction."""
        self._cut_within = direction

    def lose_answer(self, *, answer: bytes | None = None, request: bytes | None = None) -> None:
        """Cut the connection in place of the next answer that contains `answer`.

        Or in place of the answer to a message that contains `request`, which the server has done.
        """
        self._marker = ("down", answer) if answer is not None else ("up", request or b"")

    # On the loop

    def _now(self, work: Callable[[], None]) -> None:
        async def do() -> None:
            work()

        self._do(do())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, _LOOPBACK, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _close(self) -> None:
        await self._shut()
        self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            server, there = await asyncio.open_connection(*self._target)
            for writer in (back, there):
                writer.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
            link = _Link(back, there)
            link.silent = self._silent
            self._links.add(link)
            self.links_made += 1
            try:
                await self._carry(link, client, server)
            finally:
                self._links.discard(link)
                link.cut()
        back.close()

    async def _carry(
        self, link: _Link, client: asyncio.StreamReader, server: asyncio.StreamReader
    ) -> None:
        """Forward both directions until one side closes, or silently after `silence`."""
        back, there = link.ends
        pumps = [
            asyncio.create_task(self._pump(link, "up", client, there)),
            asyncio.create_task(self._pump(link, "down", server, back)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if link.silent:
                # In silence, a side that hangs up is not reported to the other side.
                await asyncio.wait(pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        link: _Link,
        direction: Direction,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while said := await source.read(_CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                if link.silent:
                    continue
                if not await self._passed(link, direction, said, sink):
                    return

    async def _passed(
        self, link: _Link, direction: Direction, said: bytes, sink: asyncio.StreamWriter
    ) -> bool:
        """Forward data; return False if the connection ended."""
        if self._cut_within == direction:
            self._cut_within = None
            sink.write(said[: max(len(said) // 2, 1)])
            await sink.drain()
            return False
        if self._is_lost(link, direction, said):
            return not link.watched or DONE not in said
        if self._pace is None:
            sink.write(said)
            await sink.drain()
            return True
        few = max(int(self._pace * 0.02), 1)
        for start in range(0, len(said), few):
            sink.write(said[start : start + few])
            await sink.drain()
            await asyncio.sleep(0.02)
        return True

    def _is_lost(self, link: _Link, direction: Direction, said: bytes) -> bool:
        """Return whether this is part of the answer that is to be lost."""
        if direction == "down" and link.watched:
            self.answers_lost += DONE in said
            return True
        if self._marker is None or self._marker[0] != direction or self._marker[1] not in said:
            return False
        self._marker, link.watched = None, True
        if direction == "down":
            self.answers_lost += DONE in said
            return True
        return False
