"""The pool submitter: how calls and closures get into one pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds
from millpond.pool.caller_transaction import submit_joined, submit_within
from millpond.pool.internals import internals_of
from millpond.pool.named_call import NamedCall, decode_plain
from millpond.pool.new_task import alike, new_closure, new_named_task, new_task, only_key
from millpond.pool.options import checked
from millpond.pool.refusals import error_of
from millpond.pool.registered import Invocation
from millpond.pool.submitted_task import SubmittedTask
from millpond.pool.task import BoundCall
from millpond.pool.work import as_work
from millpond.runtime.observe.probe import submission
from millpond.store.protocol import Batch, BatchAnswer

if TYPE_CHECKING:
    from millpond.core.admit import Refusal
    from millpond.core.run import NewRun
    from millpond.core.task import NewTask
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.options import Options
    from millpond.runtime.jobs.job import Closure

_NO_OPTIONS: dict[str, Any] = {}


class PoolSubmitter:
    """Makes tasks of calls and closures, sends them to the store, and applies its answers."""

    __slots__ = ("pool",)

    def __init__(self, pool: DeclaredPool) -> None:
        self.pool = pool

    async def submit(
        self,
        work: object,
        options: Options,
        wait: Seconds | None = None,
        connection: object = None,
    ) -> SubmittedTask:
        """Submit one call or closure."""
        if connection is not None:
            return (await self._submit_joined([work], options, connection))[0]
        pool = self.pool
        runtime = pool.runtime
        check_caller = runtime.shared_store.check_caller
        if check_caller is not None:
            check_caller()
        if runtime.hooks.probes is not None:
            # Telemetry sees each submit as a batch.
            return (await self.submit_batch([work], checked(options), wait))[0]
        if pool.spec.name not in runtime.declarations.specs:
            await pool.ready()
        new, closure, decode = self._make(work, checked(options) if options else _NO_OPTIONS)
        task = SubmittedTask(pool, new, decode, runtime.waiting.era)
        limit = None if wait is None else check.seconds("wait", wait)
        if closure is not None:
            if runtime.shared:
                await runtime.closure_worker.serve(pool.spec.name)
            runtime.closures[new.id] = closure
        try:
            answer = await runtime.submitter.submit(Batch(tasks=(new,)), wait=limit)
        except BaseException:
            if closure is not None:
                # Failed or cancelled: only the store knows whether it had taken the task.
                runtime.spawn(runtime.closure_worker.forget_unstored((new.id,)))
            raise
        if answer.refusal is not None:
            runtime.closures.pop(new.id, None)
            raise error_of(answer.refusal, 1)
        admission = answer.admissions[0]
        task.admitted(admission, runtime.clock())
        if pool.warns_at is not None:
            pool.waiting(admission.depth or 0)
        if admission.duplicate or admission.status is Status.REJECTED:
            runtime.closures.pop(new.id, None)
            if admission.duplicate:
                await task.look_up()
        return task

    async def submit_many(
        self,
        works: list[Any],
        options: Options,
        wait: Seconds | None = None,
        connection: object = None,
    ) -> list[SubmittedTask]:
        """Submit many as one batch."""
        if connection is not None:
            return await self._submit_joined(works, options, connection)
        return await self.submit_batch(works, checked(options), wait)

    async def try_submit(self, work: object, options: Options) -> SubmittedTask | Refusal:
        """Submit one without ever waiting; return the refusal of a pool that refuses."""
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, 1) as watched:
            batch, tasks, closures = await self.prepare([work], checked(options))
            watched.made(batch.tasks)
            answer = watched.answered(await self.send(batch, closures, 0.0))
        if answer.refusal is not None:
            return answer.refusal
        return (await self.admitted(tasks, answer))[0]

    async def submit_batch(
        self,
        works: Sequence[Any],
        options: Mapping[str, Any],
        wait: Seconds | None = None,
        run: int | None = None,
    ) -> list[SubmittedTask]:
        """Submit a batch with checked options, as tasks of a run if one is given."""
        if not works:
            return []
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, len(works)) as watched:
            batch, tasks, closures = await self.prepare(works, options, run)
            watched.made(batch.tasks)
            limit = None if wait is None else check.seconds("wait", wait)
            answer = watched.answered(await self.send(batch, closures, limit))
        if answer.refusal is not None:
            raise error_of(answer.refusal, len(batch.tasks))
        return await self.admitted(tasks, answer)

    # One batch, step by step

    async def prepare(
        self,
        works: Sequence[Any],
        options: Mapping[str, Any],
        run: int | None = None,
        opening: NewRun | None = None,
    ) -> tuple[Batch, list[SubmittedTask], dict[int, Closure]]:
        """Make all tasks of a batch, and none if one cannot be made."""
        check_caller = self.pool.runtime.shared_store.check_caller
        if check_caller is not None:
            check_caller()
        await self.pool.ready()
        era = self.pool.runtime.waiting.era
        new_tasks: list[NewTask] = []
        tasks: list[SubmittedTask] = []
        closures: dict[int, Closure] = {}
        pool, shared = self.pool, None
        decode: Callable[[bytes], Any] | None
        for one in works:
            call = internals_of(one) if type(one) is BoundCall else None
            if (
                shared is not None
                and call is not None
                and call.registered is shared.function
                and only_key(call.options)
            ):
                new, decode = shared.task(call), shared.decode
            else:
                new, closure, decode = self._make(one, options, run)
                if closure is not None:
                    closures[new.id] = closure
                shared = None if call is None else alike(pool, call, new, options)
            new_tasks.append(new)
            tasks.append(SubmittedTask(pool, new, decode, era))
        return Batch(tasks=tuple(new_tasks), run=opening), tasks, closures

    async def send(
        self, batch: Batch, closures: dict[int, Closure], wait: float | None
    ) -> BatchAnswer:
        """Send a batch to the store; keep the code of those closures that the store takes."""
        runtime = self.pool.runtime
        if not closures:
            return await runtime.submitter.submit(batch, wait=wait)
        if runtime.shared:
            await runtime.closure_worker.serve(self.pool.spec.name)
        runtime.closures.update(closures)
        try:
            answer = await runtime.submitter.submit(batch, wait=wait)
        except BaseException:
            # Failed or cancelled: only the store knows whether it had taken the tasks.
            runtime.spawn(runtime.closure_worker.forget_unstored(tuple(closures)))
            raise
        for new, admission in zip_longest(batch.tasks, answer.admissions):
            if admission is None or admission.task != new.id or admission.status == "rejected":
                runtime.closures.pop(new.id, None)
        return answer

    def _make(
        self, given: object, options: Mapping[str, Any], run: int | None = None
    ) -> tuple[NewTask, Closure | None, Callable[[bytes], Any] | None]:
        """Return a new task, its code if it is a closure, and what decodes its result."""
        work = as_work(given)
        if isinstance(work, Invocation):
            new = new_task(self.pool, work, options, run=run)
            return new, None, work.registered.signature.decode_result
        if isinstance(work, NamedCall):
            return new_named_task(self.pool, work, options, run=run), None, decode_plain
        new, closure = new_closure(self.pool, work, options, run=run)
        return new, closure, None

    async def admitted(
        self, tasks: list[SubmittedTask], answer: BatchAnswer
    ) -> list[SubmittedTask]:
        """Return the tasks with what the store answered."""
        now = self.pool.runtime.clock()
        for task, admission in zip(tasks, answer.admissions, strict=True):
            task.admitted(admission, now)
        if self.pool.warns_at is not None:
            self.pool.waiting(max((one.depth or 0 for one in answer.admissions), default=0))
        await look_up_duplicates(tasks)
        return tasks

    # Inside a transaction of the caller's

    def submit_within(
        self, works: list[Any], options: Options, connection: object
    ) -> list[SubmittedTask]:
        """Submit inside a transaction of the caller's, in its thread and at once."""
        checked_options = checked(options)
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, len(works)) as watched:
            made = [self._make(work, checked_options) for work in works]
            watched.made([new for new, _, _ in made])
            return submit_within(self.pool, made, connection, watched)

    async def _submit_joined(
        self, works: list[Any], options: Options, connection: object
    ) -> list[SubmittedTask]:
        checked_options = checked(options)
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, len(works)) as watched:
            made = [self._make(work, checked_options) for work in works]
            watched.made([new for new, _, _ in made])
            tasks = await submit_joined(self.pool, made, connection, watched)
        await look_up_duplicates(tasks)
        return tasks


async def look_up_duplicates(tasks: list[SubmittedTask]) -> None:
    """Read the tasks that duplicates stand for."""
    for task in tasks:
        if task.duplicate:
            await task.look_up()
