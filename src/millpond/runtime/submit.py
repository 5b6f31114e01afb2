"""Submit: send a batch, and wait in line where a pool is full.

A submitter that a full pool asks to wait stands in line behind those who came before it. The head
of the line gets the room: no later submitter takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import Reason, Refusal, too_large
from millpond.core.log_fields import about
from millpond.core.order.rank import lane_of
from millpond.core.service import Service
from millpond.core.task import key_of
from millpond.store.protocol import BatchAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.spec import PoolSpec
    from millpond.runtime.environment import Environment
    from millpond.runtime.observe.hook_caller import HookCaller
    from millpond.runtime.send import Sender
    from millpond.store.protocol import Batch

log = logging.getLogger("millpond.submit")

OFFER_AGAIN = 1.0
"""Seconds after a failure of the store until waiting submitters try again."""


class Parked(Service):
    """A submitter that waits for room: in which line, and the last refusal."""

    batch: Batch
    lane: str | None
    refusal: Refusal
    answer: asyncio.Future[BatchAnswer]


class Submitter(Service):
    """Submits batches; where a pool is full, keeps its submitters in lines."""

    _env: Environment
    _sender: Sender
    _specs: Mapping[str, PoolSpec]
    _hook_caller: HookCaller
    _poll_soon: Callable[[], None]
    _lines: dict[str, dict[str | None, OrderedDict[Parked, None]]] = {}
    """The waiting submitters, by pool and lane; a cancelled one leaves at once."""
    _offering: set[str] = set()
    _again: set[str] = set()

    @property
    def has_lines(self) -> bool:
        """Whether a submitter waits for room."""
        return bool(self._lines)

    def blocked(self, pool: str) -> int:
        """Return how many submitters of a pool wait for room."""
        return sum(map(len, self._lines.get(pool, {}).values()))

    async def submit(self, batch: Batch, *, wait: float | None = None) -> BatchAnswer:
        """Submit a batch; where the pool says so, wait in line for room, at most `wait` seconds."""
        may_stand = wait is None or wait > 0
        before = self._last_before(batch) if self._lines else None
        if before is None:
            answer = await self._sender.send(batch)
            refusal = answer.refusal
            if refusal is None or not refusal.may_wait or not may_stand:
                return answer
            return await self._stand_in(refusal.lane, refusal, batch, wait)
        answered = await self._known(batch) or self._never_fits(batch)
        if answered is not None:
            return answered
        if not may_stand:
            # There may be room, but it belongs to those in line.
            return BatchAnswer(refusal=before.refusal)
        return await self._stand_in(before.lane, before.refusal, batch, wait)

    def _last_before(self, batch: Batch) -> Parked | None:
        """Return the last waiting submitter that this batch must not overtake."""
        lines = self._lines.get(batch.tasks[0].pool) if batch.tasks else None
        if not lines:
            return None
        for lane in (None, *(new.key for new in batch.tasks)):
            if standing := lines.get(lane):
                return next(reversed(standing))
        return None

    def _never_fits(self, batch: Batch) -> BatchAnswer | None:
        """Return the refusal of a batch that is larger than its pool; it need not wait."""
        pool = batch.tasks[0].pool
        new = [one for one in batch.tasks if one.idempotency_key is None]
        per_key = Counter(one.key for one in new if one.key is not None)
        largest = max(per_key.values(), default=0)
        spec = self._specs[pool]
        lanes = Counter(lane_of(one.key, spec.lanes) for one in new if one.key and spec.lanes)
        bound = too_large(spec, len(new), largest, max(lanes.values(), default=0))
        if bound is None:
            return None
        refusal = Refusal(
            reason=Reason.BATCH_TOO_LARGE, pool=pool, bound=bound, depth=len(batch.tasks)
        )
        return BatchAnswer(refusal=refusal)

    async def _known(self, batch: Batch) -> BatchAnswer | None:
        """Return the answer for a batch whose keys the store has all: it needs no room."""
        if any(new.idempotency_key is None for new in batch.tasks):
            return None
        view = self._env.view
        for new in batch.tasks:
            key, run = key_of(new)
            if await view.holder(new.pool, key, run=run, dedupe=new.dedupe) is None:
                return None
        return await self._sender.send(batch)

    # Standing in line

    async def _stand_in(
        self, lane: str | None, refusal: Refusal, batch: Batch, wait: float | None
    ) -> BatchAnswer:
        pool = batch.tasks[0].pool
        parked = Parked(batch, lane, refusal, self._env.loop.create_future())
        self._line(pool, lane)[parked] = None
        self._hook_caller.blocked(pool, batch)
        self._poll_soon()
        try:
            async with asyncio.timeout(wait):
                return await parked.answer
        except TimeoutError:
            if parked.answer.done() and not parked.answer.cancelled():
                return parked.answer.result()
            return await self._last_try(pool, parked)
        finally:
            self._leave(pool, parked)
            if not parked.answer.done() or parked.answer.cancelled():
                # A smaller one behind it may fit.
                self.room(pool)

    async def _last_try(self, pool: str, parked: Parked) -> BatchAnswer:
        """After a timeout the first in line asks once more; those behind it are refused."""
        standing = self._lines.get(pool, {}).get(parked.lane)
        if standing and next(iter(standing)) is parked:
            return await self._send_parked(parked)
        return BatchAnswer(refusal=parked.refusal)

    async def _send_parked(self, parked: Parked) -> BatchAnswer:
        """Send the batch of a waiting submitter; the next try is marked as sent before."""
        batch = parked.batch
        if not batch.again:
            parked.batch = msgspec.structs.replace(batch, again=True)
        return await self._sender.send(batch)

    def _line(self, pool: str, lane: str | None) -> OrderedDict[Parked, None]:
        return self._lines.setdefault(pool, {}).setdefault(lane, OrderedDict())

    def _leave(self, pool: str, parked: Parked) -> None:
        lines = self._lines.get(pool, {})
        standing = lines.get(parked.lane)
        if standing is None:
            return
        standing.pop(parked, None)
        if not standing:
            del lines[parked.lane]
            if not lines:
                self._lines.pop(pool, None)

    def room(self, pool: str) -> None:
        """Offer the room that a pool may have to those who wait, in order."""
        if pool not in self._lines:
            return
        if pool in self._offering:
            self._again.add(pool)
            return
        self._offering.add(pool)
        self._env.spawn(self._offer(pool))

    def room_anywhere(self) -> None:
        """Offer the room that any pool may have: a task left some queue."""
        for pool in list(self._lines):
            self.room(pool)

    async def _offer(self, pool: str) -> None:
        """Offer room until there is none; after a failure of the store, again after a while.

        The store knows a batch whose answer was lost by its ids the next time, also when its tasks
        have ended and been removed meanwhile.
        """
        try:
            again = True
            while again:
                self._again.discard(pool)
                for lane in list(self._lines.get(pool, ())):
                    await self._offer_line(pool, lane)
                again = pool in self._again
        except Exception as error:  # noqa: BLE001 - those who wait go on waiting
            log.warning(
                "the store failed (%s); submitters to pool %s go on waiting and try again",
                error,
                pool,
                extra=about("submit.delayed", pool=pool, reason=type(error).__name__),
            )
            self._env.loop.call_later(OFFER_AGAIN, self.room, pool)
        finally:
            self._offering.discard(pool)

    async def _offer_line(self, pool: str, lane: str | None) -> None:
        """Send batches from the head of a line until one gets no room."""
        while standing := self._lines.get(pool, {}).get(lane):
            parked = next(iter(standing))
            if parked.answer.done():
                self._leave(pool, parked)
                continue
            answer = await self._send_parked(parked)
            refusal = answer.refusal
            if refusal is not None and refusal.may_wait:
                parked.refusal = refusal
                if self._moved_over(pool, parked, refusal.lane):
                    # The bound that refuses it now does not concern those behind it.
                    continue
                return
            self._leave(pool, parked)
            if not parked.answer.done():
                parked.answer.set_result(answer)
            await self._answer_same_keys(pool, parked.batch)

    def _moved_over(self, pool: str, parked: Parked, lane: str | None) -> bool:
        """Move a submitter that another bound refuses now to the head of that bound's line."""
        if lane is None or lane == parked.lane:
            return False
        self._leave(pool, parked)
        parked.lane = lane
        line = self._line(pool, lane)
        line[parked] = None
        line.move_to_end(parked, last=False)
        return True

    async def _answer_same_keys(self, pool: str, stored: Batch) -> None:
        """Answer those who wait with a key that was just stored: they need no room."""
        keys = {key_of(new) for new in stored.tasks if new.idempotency_key is not None}
        if not keys:
            return
        for standing in list(self._lines.get(pool, {}).values()):
            for parked in list(standing):
                if (
                    all(new.idempotency_key and key_of(new) in keys for new in parked.batch.tasks)
                    and not parked.answer.done()
                ):
                    answer = await self._send_parked(parked)
                    if answer.refusal is not None and answer.refusal.may_wait:
                        # The task of the key runs by now, and does not answer for it.
                        continue
                    self._leave(pool, parked)
                    if not parked.answer.done():
                        parked.answer.set_result(answer)

    def close(self, error: BaseException) -> None:
        """End every wait with an error, and refuse new tasks."""
        self._sender.close(error)
        for lines in list(self._lines.values()):
            for standing in lines.values():
                for parked in standing:
                    if not parked.answer.done():
                        parked.answer.set_exception(error)
        self._lines.clear()
