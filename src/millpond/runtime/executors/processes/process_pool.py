"""The process executor: handlers in child processes, which can really be killed.

    pool = ProcessPool(4)
    match await pool.run(Errand(module="app", qualname="resize", payload=b"...")):
        case Done(value=value): ...
        case Broke(kind=kind, message=message): ...     # the handler raised
        case Died(reason=reason): ...                   # the child is gone: "killed by SIGSEGV"
        case Killed(reason=reason): ...                 # by us: the pool was closed

Cancelling `run` is how a job is killed. Nothing here waits for a handler to agree, and nothing
outlives this process: a child that loses its parent kills its own process group.

A child leads a session and a process group of its own. Ctrl-C in a terminal does not reach it, and
what a handler starts is in that group and dies with the child. Only what leaves the group on
purpose, as daemons do, gets away.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from millpond.runtime.executors.processes import child as child_side
from millpond.runtime.executors.processes.protocol import (
    Answer,
    Died,
    Errand,
    Killed,
    Line,
    OnMessage,
)
from millpond.runtime.executors.processes.supervise import UNKILLABLE, Supervised


class ProcessPool:
    """Runs jobs in child processes, at most `limit` at a time.

    Children start when they are needed, serve one job after another and are closed when they had
    nothing to do for `idle` seconds. A child to be killed gets SIGTERM, which unwinds its handler,
    and `grace` seconds later SIGKILL; both go to its whole process group.

    A pool belongs to the event loop on which it is first used, and so do its children: on Linux
    they end with that loop's thread.
    """

    def __init__(self, limit: int, *, grace: float = 0.3, idle: float = 60.0) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("the process executor needs process groups: Linux or macOS")
        if limit < 1:
            raise ValueError(f"limit={limit} is not 1 or more")
        if not (grace >= 0 and idle >= 0):
            raise ValueError(f"grace={grace} and idle={idle} are seconds, 0 or more")
        self._grace = grace
        self._patience = idle
        self._slots = asyncio.Semaphore(limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.children: set[Supervised] = set()
        self._idle: dict[Supervised, asyncio.TimerHandle] = {}
        self._is_closed = False

    async def run(
        self, job: Errand, *, on_message: OnMessage | None = None, line: Line | None = None
    ) -> Answer:
        """Run the job in a child and return how it ended; waits for a free slot first.

        `on_message` is called on the loop with each message of the handler; `line` leads the other
        way. Cancelling this kills the child: CancelledError comes out when the child is gone,
        `grace` and a little later at most. After `close` it raises RuntimeError.
        """
        loop = self._own_loop()
        line = line or Line()
        line.take()
        try:
            async with self._slots:
                if self._is_closed:
                    return Killed(reason="the pool was closed before the job began")
                return await self._run(loop, job, on_message, line)
        finally:
            line.close()

    async def close(self) -> None:
        """Kill what runs, reap every child, and start none again; safe to call twice."""
        self._is_closed = True
        for timer in self._idle.values():
            timer.cancel()
        for child in list(self.children):
            if child in self._idle:
                child.retire()
            else:
                child.kill(Killed(reason="the pool was closed"))
        self._idle.clear()
        if self.children:
            await asyncio.wait(
                [child.gone for child in self.children], timeout=self._grace + UNKILLABLE
            )

    async def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        job: Errand,
        on_message: OnMessage | None,
        line: Line,
    ) -> Answer:
        try:
            child, answer = self._begin(job, on_message)
        except OSError as error:
            return Died(reason=f"no child could be started: {error}")
        line.open(child.post)
        try:
            return await answer
        except asyncio.CancelledError:
            # Cancelled before the answer came, not in the moment between the answer and its reader.
            if answer.cancelled():
                child.kill(Killed(reason="cancelled"))
                await _until_gone(child, self._grace + UNKILLABLE)
            raise
        finally:
            self._take_back(loop, child)

    def _begin(
        self, job: Errand, on_message: OnMessage | None
    ) -> tuple[Supervised, asyncio.Future[Answer]]:
        """Give the job to the child that was idle for the shortest time, or to a new one."""
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if (answer := child.begin(job, on_message)) is not None:
                return child, answer
            # It died a moment ago and is not reaped yet: the job cannot have begun.
            child.kill(None)
        child = Supervised(self._grace, self._forget)
        self.children.add(child)
        if (answer := child.begin(job, on_message)) is not None:
            return child, answer
        child.kill(None)
        raise OSError("it ended at once")

    def _take_back(self, loop: asyncio.AbstractEventLoop, child: Supervised) -> None:
        """Keep a child that can serve again; see to it that any other ends."""
        if self._is_closed or not child.is_fit():
            child.kill(None)
        else:
            self._idle[child] = loop.call_later(self._patience, self._dismiss, child)

    def _dismiss(self, child: Supervised) -> None:
        del self._idle[child]
        child.retire()

    def _forget(self, child: Supervised) -> None:
        """A child is gone, whatever it was doing."""
        self.children.discard(child)
        if timer := self._idle.pop(child, None):
            timer.cancel()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop this pool belongs to, which is the one it is first used on."""
        if self._is_closed:
            raise RuntimeError("this process pool is closed")
        child_side.refuse_while_main_loads("starts a process pool")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this process pool belongs to another event loop")
        return loop


async def _until_gone(child: Supervised, seconds: float) -> None:
    """Wait for it, however often this task is cancelled meanwhile; `seconds` at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not child.gone.done() and (left := deadline - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([child.gone], timeout=left)
