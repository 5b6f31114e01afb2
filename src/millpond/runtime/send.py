"""Sending batches: a batch goes to the store at once, or together with others.

A batch that comes while no verb is under way goes at once. One that comes while a verb is under way
joins the next verb.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.errors import OutcomeUnknown, StoreError
from millpond.runtime.bad_values import is_store_failure
from millpond.runtime.batching import bytes_of_tasks, fitting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.observe.evictions import Evictions
    from millpond.store.protocol import Batch, BatchAnswer, SubmitAnswer

log = logging.getLogger("millpond.submit")

MOST_TOGETHER = 1000


class Sender(Service):
    """Sends batches to the store, one verb at a time."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _answers: Answers
    _evictions: Evictions
    _nudge: Callable[[], None]
    _sending: bool = False
    _next: list[tuple[Batch, asyncio.Future[BatchAnswer]]] = []
    _closed: BaseException | None = None

    async def send(self, batch: Batch) -> BatchAnswer:
        """Send a batch alone, or with the others that come while a verb is under way."""
        if self._closed is not None:
            raise self._closed
        if self._sending or self._next:
            # It goes with those that wait to be sent, and not before them.
            answered: asyncio.Future[BatchAnswer] = self._env.loop.create_future()
            self._next.append((batch, answered))
            return await answered
        self._sending = True
        try:
            answer = await self._stored((batch,))
        finally:
            self._sending = False
            if self._next:
                self._env.spawn(self._flush())
        self._plan_expiry(batch)
        self._evictions.report((batch,), answer)
        await self._applied(answer)
        return answer.batches[0]

    async def _applied(self, answer: SubmitAnswer) -> None:
        """Apply an answer; where the store is private, run the turns that it makes necessary."""
        env = self._env
        if env.shared or env.inline:
            self._answers.apply(answer)
            return
        if not (answer.wakes or answer.ended or answer.finished_runs or answer.emptied):
            return
        # A verb of a private store takes no time: what may start starts in this very step.
        env.inline = True
        try:
            self._answers.apply(answer)
        finally:
            env.inline = False
        for worker in list(self._workers):
            if worker.scheduled:
                await worker.turn()

    async def _stored(self, batches: Sequence[Batch]) -> SubmitAnswer:
        """Store batches; if the outcome is unknown, send them once more to find out.

        A task has its id before it is sent: the store takes the same one once.
        """
        submit = self._env.store.submit
        try:
            return await submit(batches)
        except OutcomeUnknown as unknown:
            try:
                return await submit([msgspec.structs.replace(one, again=True) for one in batches])
            except StoreError:
                # The first try may have stored them, whatever the second one says.
                raise unknown from unknown.__cause__

    def _plan_expiry(self, batch: Batch) -> None:
        """Nudge maintenance if a task of a batch may expire."""
        for new in batch.tasks[:1] if batch.alike else batch.tasks:
            if new.expires_in is not None:
                self._nudge()
                return

    async def _flush(self) -> None:
        while self._next and not self._sending:
            count = fitting(self._next, _size, MOST_TOGETHER)
            together, self._next = self._next[:count], self._next[count:]
            # A caller that was cancelled before its batch was sent has submitted nothing.
            together = [one for one in together if not one[1].done()]
            if not together:
                continue
            self._sending = True
            try:
                answer = await self._stored([batch for batch, _ in together])
            except Exception as error:  # noqa: BLE001 - each caller gets it, and may send again
                if len(together) == 1 or is_store_failure(error):
                    _fail(together, error)
                else:
                    await self._each_alone(together, error)
                continue
            except BaseException as error:
                # It is cancelled only at closing.
                _fail(together, self._closed or error)
                raise
            finally:
                self._sending = False
            self._answers.apply(answer)
            self._evictions.report([batch for batch, _ in together], answer)
            for (batch, answered), one in zip(together, answer.batches, strict=True):
                self._plan_expiry(batch)
                if not answered.done():
                    answered.set_result(one)

    async def _each_alone(
        self, together: list[tuple[Batch, asyncio.Future[BatchAnswer]]], error: Exception
    ) -> None:
        """Send each batch alone, after the store refused one of them for its values."""
        log.debug(
            "%d batches are stored one by one: %r",
            len(together),
            error,
            extra=about("submit.split", reason=type(error).__name__),
        )
        for batch, answered in together:
            if answered.done():
                continue
            try:
                # The store takes the same id once, however the first try ended.
                answer = await self._stored([msgspec.structs.replace(batch, again=True)])
            except Exception as alone:  # noqa: BLE001 - the caller gets it
                if not answered.done():
                    answered.set_exception(alone)
                continue
            self._answers.apply(answer)
            self._evictions.report([batch], answer)
            self._plan_expiry(batch)
            if not answered.done():
                answered.set_result(answer.batches[0])

    def close(self, error: BaseException) -> None:
        """Fail what waits to be sent, and refuse new tasks."""
        self._closed = error
        _fail(self._next, error)
        self._next.clear()


def _fail(
    waiting: Sequence[tuple[Batch, asyncio.Future[BatchAnswer]]], error: BaseException
) -> None:
    for _, answered in waiting:
        if not answered.done():
            answered.set_exception(error)


def _size(waiting: tuple[Batch, asyncio.Future[BatchAnswer]]) -> int:
    return bytes_of_tasks(waiting[0].tasks)
