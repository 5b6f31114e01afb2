"""Submit: batches go to the store at once or together, and park in line where a pool is full.

Whoever finds the way to the store free sends at once; whoever comes while a verb is under way
joins the next one. A submitter that a full pool asks to wait stands in line behind those who came
before it, with the room handed over: nobody who comes later takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import Reason, Refusal, too_large
from millpond.core.order.rank import lane_of
from millpond.core.task import key_of
from millpond.errors import OutcomeUnknown, StoreError
from millpond.runtime.bad_values import is_the_stores
from millpond.runtime.batching import portion, weight_of_tasks
from millpond.store.protocol import BatchAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import Batch, SubmitAnswer

log = logging.getLogger("millpond.submit")

MOST_TOGETHER = 1000

OFFER_AGAIN = 1.0
"""Seconds after which those who wait for room try again when the store has failed."""


class Parked:
    """A submitter that waits for room: in which line, and what was said when it was last full."""

    __slots__ = ("answer", "batch", "lane", "refusal")

    def __init__(
        self, batch: Batch, lane: str | None, refusal: Refusal, answer: asyncio.Future[BatchAnswer]
    ) -> None:
        self.batch = batch
        self.lane = lane
        self.refusal = refusal
        self.answer = answer


class Submitter:
    """The way of batches into the store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sending = False
        self._next: list[tuple[Batch, asyncio.Future[BatchAnswer]]] = []
        self._lines: dict[str, dict[str | None, OrderedDict[Parked, None]]] = {}
        """Who stands in line, by pool and lane; whoever is cancelled leaves at once, wherever."""
        self._offering: set[str] = set()
        self._again: set[str] = set()
        self._closed: BaseException | None = None

    @property
    def has_lines(self) -> bool:
        """Whether anybody waits for room."""
        return bool(self._lines)

    def blocked(self, pool: str) -> int:
        """Return how many submitters of a pool wait for room."""
        return sum(map(len, self._lines.get(pool, {}).values()))

    async def submit(self, batch: Batch, *, wait: float | None = None) -> BatchAnswer:
        """Submit a batch; where the pool says so, wait in line for room, at most `wait` seconds."""
        may_stand = wait is None or wait > 0
        before = self._last_before(batch) if self._lines else None
        if before is None:
            answer = await self.send(batch)
            refusal = answer.refusal
            if refusal is None or not refusal.may_wait or not may_stand:
                return answer
            return await self._stand_in(refusal.lane, refusal, batch, wait)
        answered = await self._known(batch) or self._never_fits(batch)
        if answered is not None:
            return answered
        if not may_stand:
            # There may be room, but it is spoken for.
            return BatchAnswer(refusal=before.refusal)
        return await self._stand_in(before.lane, before.refusal, batch, wait)

    def _last_before(self, batch: Batch) -> Parked | None:
        """Return the last of those who wait and whom this batch must not overtake."""
        lines = self._lines.get(batch.tasks[0].pool) if batch.tasks else None
        if not lines:
            return None
        for lane in (None, *(new.key for new in batch.tasks)):
            if standing := lines.get(lane):
                return next(reversed(standing))
        return None

    def _never_fits(self, batch: Batch) -> BatchAnswer | None:
        """Return the refusal of a batch that no room will ever do for; it need not wait for it."""
        pool = batch.tasks[0].pool
        new = [one for one in batch.tasks if one.idempotency_key is None]
        per_key = Counter(one.key for one in new if one.key is not None)
        largest = max(per_key.values(), default=0)
        spec = self._runtime.declared[pool]
        lanes = Counter(lane_of(one.key, spec.lanes) for one in new if one.key and spec.lanes)
        bound = too_large(spec, len(new), largest, max(lanes.values(), default=0))
        if bound is None:
            return None
        refusal = Refusal(
            reason=Reason.BATCH_TOO_LARGE, pool=pool, bound=bound, depth=len(batch.tasks)
        )
        return BatchAnswer(refusal=refusal)

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
        if self._closed is not None:
            raise self._closed
        if self._sending or self._next:
            # Whoever comes while others wait to be sent goes with them, and not before them.
            answered: asyncio.Future[BatchAnswer] = self._runtime.loop.create_future()
            self._next.append((batch, answered))
            return await answered
        self._sending = True
        try:
            answer = await self._stored((batch,))
        finally:
            self._sending = False
            if self._next:
                self._runtime.spawn(self._flush())
        self._plan_expiry(batch)
        runtime = self._runtime
        if answer.ended and runtime.hooks.probes is not None:
            runtime.hooks.probes.evicted(runtime, (batch,), answer)
        if runtime.shared or runtime.inline:
            runtime.heed(answer)
            return answer.batches[0]
        if not (answer.wakes or answer.ended or answer.finished_runs or answer.emptied):
            return answer.batches[0]
        # A verb of a private store takes no time: what may start starts in this very step.
        runtime.inline = True
        try:
            runtime.heed(answer)
        finally:
            runtime.inline = False
        for worker in list(runtime.workers):
            if worker.scheduled:
                await worker.turn()
        return answer.batches[0]

    async def _stored(self, batches: Sequence[Batch]) -> SubmitAnswer:
        """Have batches stored; if it is not known whether they are, ask by sending them again.

        A task has its id before it is sent: the same one twice is one task.
        """
        submit = self._runtime.store.submit
        try:
            return await submit(batches)
        except OutcomeUnknown as unknown:
            try:
                return await submit([msgspec.structs.replace(one, again=True) for one in batches])
            except StoreError:
                # It may have been stored before, whatever this one says.
                raise unknown from unknown.__cause__

    def _plan_expiry(self, batch: Batch) -> None:
        """Tell maintenance of tasks that may be too late one day."""
        for new in batch.tasks:
            if new.expires_in is not None:
                self._runtime.maintenance.nudge()
                return

    async def _flush(self) -> None:
        while self._next and not self._sending:
            count = portion(self._next, _weight, MOST_TOGETHER)
            together, self._next = self._next[:count], self._next[count:]
            # Whoever was cancelled before it was sent has submitted nothing.
            together = [one for one in together if not one[1].done()]
            if not together:
                continue
            self._sending = True
            try:
                answer = await self._stored([batch for batch, _ in together])
            except Exception as error:  # noqa: BLE001 - each caller is told, and may send again
                if len(together) == 1 or is_the_stores(error):
                    for _, answered in together:
                        if not answered.done():
                            answered.set_exception(error)
                else:
                    await self._each_alone(together, error)
                continue
            except BaseException as error:
                # It is cancelled only at closing.
                for _, answered in together:
                    if not answered.done():
                        answered.set_exception(self._closed or error)
                raise
            finally:
                self._sending = False
            self._runtime.heed(answer)
            if answer.ended and self._runtime.hooks.probes is not None:
                sent = [batch for batch, _ in together]
                self._runtime.hooks.probes.evicted(self._runtime, sent, answer)
            for (batch, answered), one in zip(together, answer.batches, strict=True):
                self._plan_expiry(batch)
                if not answered.done():
                    answered.set_result(one)

    async def _each_alone(
        self, together: list[tuple[Batch, asyncio.Future[BatchAnswer]]], error: Exception
    ) -> None:
        """Send each by itself, after one of them was refused for what it is: it alone hears it."""
        log.debug("%d batches are stored one by one: %r", len(together), error)
        for batch, answered in together:
            if answered.done():
                continue
            try:
                # What is known by its id is not stored twice, whatever became of it before.
                answer = await self._stored([msgspec.structs.replace(batch, again=True)])
            except Exception as alone:  # noqa: BLE001 - the caller is told
                if not answered.done():
                    answered.set_exception(alone)
                continue
            self._runtime.heed(answer)
            if answer.ended and self._runtime.hooks.probes is not None:
                self._runtime.hooks.probes.evicted(self._runtime, [batch], answer)
            self._plan_expiry(batch)
            if not answered.done():
                answered.set_result(answer.batches[0])

    # Standing in line

    async def _stand_in(
        self, lane: str | None, refusal: Refusal, batch: Batch, wait: float | None
    ) -> BatchAnswer:
        pool = batch.tasks[0].pool
        parked = Parked(batch, lane, refusal, self._runtime.loop.create_future())
        self._line(pool, lane)[parked] = None
        self._runtime.observe_blocked(pool, batch)
        self._runtime.polling.hurry()
        try:
            async with asyncio.timeout(wait):
                return await parked.answer
        except TimeoutError:
            if parked.answer.done() and not parked.answer.cancelled():
                return parked.answer.result()
            return await self._told_to_go(pool, parked)
        finally:
            self._leave(pool, parked)
            if not parked.answer.done() or parked.answer.cancelled():
                # Somebody behind may fit where this one did not.
                self.room(pool)

    async def _told_to_go(self, pool: str, parked: Parked) -> BatchAnswer:
        """Let the first in line ask one last time; whoever stands behind others is refused."""
        standing = self._lines.get(pool, {}).get(parked.lane)
        if standing and next(iter(standing)) is parked:
            return await self._send_parked(parked)
        return BatchAnswer(refusal=parked.refusal)

    async def _send_parked(self, parked: Parked) -> BatchAnswer:
        """Send the batch of somebody in line; what is sent once may be stored, answered or not."""
        batch = parked.batch
        if not batch.again:
            parked.batch = msgspec.structs.replace(batch, again=True)
        return await self.send(batch)

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
        """Offer room until there is none; whom the store's failure keeps waiting asks again soon.

        A batch that was stored though its answer was lost is known by its ids the next time, also
        when its tasks have ended and been removed meanwhile.
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
                "the store failed (%s); room in %s is offered again",
                error,
                pool,
                extra={"pool": pool},
            )
            self._runtime.loop.call_later(OFFER_AGAIN, self.room, pool)
        finally:
            self._offering.discard(pool)

    async def _offer_line(self, pool: str, lane: str | None) -> None:
        """Let those at the head of a line in until there is no room for one."""
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
                    # What is in its way now is not in the way of those behind it.
                    continue
                return
            self._leave(pool, parked)
            if not parked.answer.done():
                parked.answer.set_result(answer)
            await self._answer_same_keys(pool, parked.batch)

    def _moved_over(self, pool: str, parked: Parked, lane: str | None) -> bool:
        """Let somebody in whose way is another bound now wait at the head of its line instead."""
        if lane is None or lane == parked.lane:
            return False
        self._leave(pool, parked)
        parked.lane = lane
        line = self._line(pool, lane)
        line[parked] = None
        line.move_to_end(parked, last=False)
        return True

    async def _answer_same_keys(self, pool: str, stored: Batch) -> None:
        """Those who wait with a key that has just become known need no room any more."""
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
                    self._leave(pool, parked)
                    if not parked.answer.done():
                        parked.answer.set_result(answer)

    def close(self, error: BaseException) -> None:
        """Let nobody wait any longer, and take no more."""
        self._closed = error
        for _, answered in self._next:
            if not answered.done():
                answered.set_exception(error)
        self._next.clear()
        for lines in list(self._lines.values()):
            for standing in lines.values():
                for parked in standing:
                    if not parked.answer.done():
                        parked.answer.set_exception(error)
        self._lines.clear()


def _weight(waiting: tuple[Batch, asyncio.Future[BatchAnswer]]) -> int:
    return weight_of_tasks(waiting[0].tasks)
