"""The pool submitter: how calls and closures get into one pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.core import validation as check
from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds
from millpond.pool.alike_tasks import alike_tasks, all_have_keys_or_none
from millpond.pool.caller_transaction import submit_joined, submit_within
from millpond.pool.handle import Handle
from millpond.pool.named_call import NamedCall, decode_plain
from millpond.pool.new_task import new_closure, new_named_task, new_task
from millpond.pool.options import checked
from millpond.pool.refusals import error_of
from millpond.pool.registered import Invocation
from millpond.pool.submitted_task import SubmittedBatch, SubmittedTask
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


class Prepared(NamedTuple):
    """A batch to send, and what this process must know of its tasks."""

    batch: Batch
    submitted: SubmittedBatch
    closures: dict[int, Closure]


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

    async def handles(
        self,
        works: list[Any],
        options: Options,
        wait: Seconds | None = None,
        connection: object = None,
    ) -> list[Handle[Any]]:
        """Submit many as one batch; return their handles."""
        if connection is not None or not works:
            return list(map(Handle, await self.submit_many(works, options, wait, connection)))
        handles: list[Handle[Any]] = []

        def make(made: Prepared) -> None:
            if not handles:
                submitted, tasks = made.submitted, made.batch.tasks
                handles.extend([Handle(None, submitted, at, new) for at, new in enumerate(tasks)])

        made = await self._stored(works, checked(options), wait, meanwhile=make)
        if made.submitted.has_duplicates:
            return list(map(Handle, await looked_up(made)))
        make(made)
        return handles

    async def try_submit(self, work: object, options: Options) -> SubmittedTask | Refusal:
        """Submit one without ever waiting; return the refusal of a pool that refuses."""
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, 1) as watched:
            made = await self.prepare([work], checked(options))
            watched.made(made.batch.tasks)
            answer = watched.answered(await self.send(made, 0.0))
        if answer.refusal is not None:
            return answer.refusal
        self.admitted(made, answer)
        return (await looked_up(made))[0]

    async def submit_batch(
        self,
        works: Sequence[Any],
        options: Mapping[str, Any],
        wait: Seconds | None = None,
        run: int | None = None,
    ) -> list[SubmittedTask]:
        """Submit a batch with checked options, as tasks of a run if one is given."""
        return await looked_up(await self._stored(works, options, wait, run)) if works else []

    async def _stored(
        self,
        works: Sequence[Any],
        options: Mapping[str, Any],
        wait: Seconds | None,
        run: int | None = None,
        meanwhile: Callable[[Prepared], None] | None = None,
    ) -> Prepared:
        """Submit a batch; call `meanwhile` while the store is at work, or a little later."""
        with submission(self.pool.runtime.hooks.probes, self.pool.spec.name, len(works)) as watched:
            made = await self.prepare(works, options, run)
            watched.made(made.batch.tasks)
            limit = None if wait is None else check.seconds("wait", wait)
            if meanwhile is not None:
                self.pool.runtime.loop.call_soon(meanwhile, made)
            answer = watched.answered(await self.send(made, limit))
        if answer.refusal is not None:
            raise error_of(answer.refusal, len(works))
        self.admitted(made, answer)
        return made

    # One batch, step by step

    async def prepare(
        self,
        works: Sequence[Any],
        options: Mapping[str, Any],
        run: int | None = None,
        opening: NewRun | None = None,
    ) -> Prepared:
        """Make all tasks of a batch, and none if one cannot be made."""
        check_caller = self.pool.runtime.shared_store.check_caller
        if check_caller is not None:
            check_caller()
        await self.pool.ready()
        era = self.pool.runtime.waiting.era
        tasks: list[NewTask] = []
        decoders: list[Callable[[bytes], Any] | None] = []
        closures: dict[int, Closure] = {}
        following: list[NewTask] = []
        while len(tasks) < len(works):
            at = len(tasks)
            new, closure, decode = self._make(works[at], options, run)
            if closure is not None:
                closures[new.id] = closure
            following = alike_tasks(self.pool, works, at, new, options)
            tasks += new, *following
            decoders += [decode] * (1 + len(following))
        same_function = len(following) == len(tasks) - 1
        alike = same_function and all_have_keys_or_none(tasks)
        submitted = SubmittedBatch(self.pool, decoders[:1] if same_function else decoders, era)
        return Prepared(Batch(tasks=tuple(tasks), run=opening, alike=alike), submitted, closures)

    async def send(self, made: Prepared, wait: float | None) -> BatchAnswer:
        """Send a batch to the store; keep the code of those closures that the store takes."""
        batch, closures, runtime = made.batch, made.closures, self.pool.runtime
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

    def admitted(self, made: Prepared, answer: BatchAnswer) -> None:
        """Apply the answer of the store, which has taken the batch."""
        made.submitted.admitted(answer.admissions, self.pool.runtime.clock())
        if self.pool.warns_at is not None:
            self.pool.waiting(max((one.depth or 0 for one in answer.admissions), default=0))

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


async def looked_up(made: Prepared) -> list[SubmittedTask]:
    """Return the tasks of a stored batch; duplicates as the tasks are that they stand for."""
    submitted = made.submitted
    tasks = [submitted.task(at, new) for at, new in enumerate(made.batch.tasks)]
    if submitted.has_duplicates:
        await look_up_duplicates(tasks)
    return tasks


async def look_up_duplicates(tasks: list[SubmittedTask]) -> None:
    """Read the tasks that duplicates stand for."""
    for task in tasks:
        if task.duplicate:
            await task.look_up()
