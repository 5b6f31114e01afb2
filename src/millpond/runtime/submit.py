"""Submit: batches go to the store at once or together, and park in line where a pool is full.

Whoever finds the way to the store free sends at once; whoever comes while a verb is under way
joins the next one. A submitter that a full pool asks to wait stands in line behind those who came
before it, with the room handed over: nobody who comes later takes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from millpond.core.task import key_of

if TYPE_CHECKING:
    from millpond.core.admit import Refusal
    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import Batch, BatchAnswer

MOST_TOGETHER = 1000


class Parked:
    """A submitter that waits for room."""

    __slots__ = ("answer", "batch")

    def __init__(self, batch: Batch, answer: asyncio.Future[BatchAnswer]) -> None:
        self.batch = batch
        self.answer = answer


class Submitter:
    """The way of batches into the store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sending = False
        self._next: list[tuple[Batch, asyncio.Future[BatchAnswer]]] = []
        self._lines: dict[str, dict[str | None, deque[Parked]]] = {}
        self._offering: set[str] = set()
        self._again: set[str] = set()

    def blocked(self, pool: str) -> int:
        """Return how many submitters of a pool wait for room."""
        return sum(map(len, self._lines.get(pool, {}).values()))

    async def submit(self, batch: Batch, *, wait: float | None = None) -> BatchAnswer:
        """Submit a batch; where the pool says so, wait in line for room, at most `wait` seconds."""
        line = self._line_before(batch) if self._lines else None
        if line is None or not self._may_stand(wait):
            answer = await self.send(batch)
            if answer.refusal is None or not answer.refusal.may_wait or not self._may_stand(wait):
                return answer
            return await self._stand_in(answer.refusal.lane, batch, wait)
        known = await self._known(batch)
        return known if known is not None else await self._stand_in(line, batch, wait)

    @staticmethod
    def _may_stand(wait: float | None) -> bool:
        return wait is None or wait > 0

    def _line_before(self, batch: Batch) -> str | None:
        """Return the line somebody stands in whom this batch must not overtake."""
        if not batch.tasks:
            return None
        lines = self._lines.get(batch.tasks[0].pool)
        if not lines:
            return None
        for key in (None, *(new.key for new in batch.tasks)):
            if lines.get(key):
                return key if key is not None else _WHOLE_POOL
        return None

    async def _known(self, batch: Batch) -> BatchAnswer | None:
        """Return the answer for a batch whose keys are all known: that needs no room."""
        if any(new.idempotency_key is None for new in batch.tasks):
            return None
        view = self._runtime.view
        for new in batch.tasks:
            key, run = key_of(new)
            if await view.holder(new.pool, key, run=run, dedupe=new.dedupe) is None:
                return None
        return await self.send(batch)

    async def send(self, batch: Batch) -> BatchAnswer:
        """Send a batch on its own, or with the others that come while a verb is under way."""
        if self._sending:
            answered: asyncio.Future[BatchAnswer] = self._runtime.loop.create_future()
            self._next.append((batch, answered))
            return await answered
        self._sending = True
        try:
            answer = await self._runtime.store.submit((batch,))
        finally:
            self._sending = False
            if self._next:
                self._runtime.spawn(self._flush())
        self._plan_expiry(batch)
        runtime = self._runtime
        if runtime.shared or runtime.inline:
            runtime.heed(answer)
            return answer.batches[0]
        # A verb of a private store takes no time: what may start starts in this very step.
        runtime.inline = True
        try:
            runtime.heed(answer)
        finally:
            runtime.inline = False
        for worker in runtime.workers:
            if worker.scheduled:
                await worker.turn()
        return answer.batches[0]

    def _plan_expiry(self, batch: Batch) -> None:
        """Tell maintenance of tasks that may be too late one day."""
        if any(new.expires_in is not None for new in batch.tasks):
            self._runtime.maintenance.nudge()

    async def _flush(self) -> None:
        while self._next and not self._sending:
            together, self._next = self._next[:MOST_TOGETHER], self._next[MOST_TOGETHER:]
            self._sending = True
            try:
                answer = await self._runtime.store.submit([batch for batch, _ in together])
            except Exception as error:  # noqa: BLE001 - each caller is told, and may send again
                for _, answered in together:
                    if not answered.done():
                        answered.set_exception(error)
                continue
            finally:
                self._sending = False
            self._runtime.heed(answer)
            for (batch, answered), one in zip(together, answer.batches, strict=True):
                self._plan_expiry(batch)
                if not answered.done():
                    answered.set_result(one)

    # Standing in line

    async def _stand_in(self, line: str | None, batch: Batch, wait: float | None) -> BatchAnswer:
        pool = batch.tasks[0].pool
        lane = None if line == _WHOLE_POOL else line
        parked = Parked(batch, self._runtime.loop.create_future())
        standing = self._lines.setdefault(pool, {}).setdefault(lane, deque())
        standing.append(parked)
        self._runtime.observe_blocked(pool, batch)
        try:
            async with asyncio.timeout(wait):
                return await parked.answer
        except TimeoutError:
            if parked.answer.done() and not parked.answer.cancelled():
                return parked.answer.result()
            return await self._told_to_go(parked)
        finally:
            self._leave(pool, lane, parked)
            if not parked.answer.done() or parked.answer.cancelled():
                # Somebody behind may fit where this one did not.
                self.room(pool)

    async def _told_to_go(self, parked: Parked) -> BatchAnswer:
        """Ask one last time, so that the refusal tells how full it is now."""
        return await self.send(parked.batch)

    def _leave(self, pool: str, lane: str | None, parked: Parked) -> None:
        lines = self._lines.get(pool, {})
        standing = lines.get(lane)
        if standing is None:
            return
        if parked in standing:
            standing.remove(parked)
        if not standing:
            del lines[lane]
            if not lines:
                self._lines.pop(pool, None)

    def room(self, pool: str) -> None:
        """A pool may have room: offer it to those who wait, in order."""
        if pool not in self._lines:
            return
        if pool in self._offering:
            self._again.add(pool)
            return
        self._offering.add(pool)
        self._runtime.spawn(self._offer(pool))

    def room_anywhere(self) -> None:
        """A task left some queue: offer what room there may be."""
        for pool in list(self._lines):
            self.room(pool)

    async def _offer(self, pool: str) -> None:
        try:
            again = True
            while again:
                self._again.discard(pool)
                for lane in list(self._lines.get(pool, ())):
                    await self._offer_line(pool, lane)
                again = pool in self._again
        finally:
            self._offering.discard(pool)

    async def _offer_line(self, pool: str, lane: str | None) -> None:
        """Let those at the head of a line in until there is no room for one."""
        while standing := self._lines.get(pool, {}).get(lane):
            parked = standing[0]
            if parked.answer.done():
                standing.popleft()
                continue
            answer = await self.send(parked.batch)
            refusal = answer.refusal
            if refusal is not None and refusal.may_wait:
                self._move_over(pool, lane, parked, refusal)
                return
            self._leave(pool, lane, parked)
            if not parked.answer.done():
                parked.answer.set_result(answer)
            await self._answer_same_keys(pool, parked.batch)

    def _move_over(self, pool: str, lane: str | None, parked: Parked, refusal: Refusal) -> None:
        """Another bound is in the way now: wait for that one, at the head of its line."""
        if refusal.lane == lane or refusal.lane is None:
            return
        lines = self._lines[pool]
        lines[lane].remove(parked)
        if not lines[lane]:
            del lines[lane]
        lines.setdefault(refusal.lane, deque()).appendleft(parked)

    async def _answer_same_keys(self, pool: str, stored: Batch) -> None:
        """Those who wait with a key that has just become known need no room any more."""
        keys = {key_of(new) for new in stored.tasks if new.idempotency_key is not None}
        if not keys:
            return
        for lane, standing in list(self._lines.get(pool, {}).items()):
            for parked in list(standing):
                if (
                    all(new.idempotency_key and key_of(new) in keys for new in parked.batch.tasks)
                    and not parked.answer.done()
                ):
                    answer = await self.send(parked.batch)
                    self._leave(pool, lane, parked)
                    if not parked.answer.done():
                        parked.answer.set_result(answer)

    def close(self, error: BaseException) -> None:
        """Let nobody wait any longer."""
        for lines in list(self._lines.values()):
            for standing in lines.values():
                for parked in standing:
                    if not parked.answer.done():
                        parked.answer.set_exception(error)
        self._lines.clear()


_WHOLE_POOL = "\0pool"
"""The line for room in the pool as a whole, where a name is needed for it."""
