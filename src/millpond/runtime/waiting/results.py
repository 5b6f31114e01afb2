"""Waiting: callbacks of this process for the ends of tasks and of runs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.lifecycle import Status, Transition
from millpond.runtime.waiting.result_reader import ResultReader, in_batches
from millpond.runtime.waiting.task_result import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.errors import UnknownTask
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Closure, Job
    from millpond.runtime.waiting.joined_tasks import JoinedTasks

Waiter: TypeAlias = "asyncio.Future[TaskResult] | Callable[[TaskResult | None], None]"

CAUSES_KEPT = 1_000
_AFTER = {Transition.COMPLETE: Status.COMPLETED, Transition.FAIL: Status.FAILED}
AWAIT_FOR = 10.0
"""Seconds after the last wait for which other processes go on to send hints of ends."""
RECENT_KEPT, RECENT_KEPT_OF_SHARED = 10_000, 1_000
"""How many tasks that ended here are remembered; most of a shared store are awaited elsewhere."""


class Waiting:
    """Callbacks by task and run, and the results that no store can keep."""

    def __init__(
        self,
        env: Environment,
        closures: MutableMapping[int, Closure],
        joined_tasks: JoinedTasks,
    ) -> None:
        self._env = env
        self._closures = closures
        self._joined_tasks = joined_tasks
        self._reader = ResultReader(
            env, self.is_awaited, self.check, self._end_waits, self._until_heard
        )
        self._tasks: dict[int, Any] = {}
        self._runs: dict[int, list[Callable[[], None]]] = {}
        self._everything: dict[object, Callable[[int, TaskResult | None], None]] = {}
        self.values: dict[int, tuple[float, Any]] = {}
        """What closures returned, until retention forgets them."""
        self._causes: OrderedDict[int, tuple[float, BaseException]] = OrderedDict()
        """What handlers raised, the latest, until retention forgets it."""
        self._recent_kept = RECENT_KEPT_OF_SHARED if env.shared else RECENT_KEPT
        self.era = object()
        """Of this opening of the Millpond: tasks of another era are not known here."""
        self._awaits_ends = not env.shared
        """Whether other processes were asked for hints of ends."""
        self._unheard: asyncio.Future[None] | None = None
        """Set when they know it: only then a read finds all that ended without a hint."""
        self._awaited_at = 0.0
        """When something was last awaited, as far as `rest` has seen."""
        self._closed: BaseException | None = None
        """The error for those who begin to wait after the Millpond closed."""
        self._recent: dict[int, TaskResult | None] = {}
        """The tasks that ended in this era: a task of it that is not here has not ended.

        With it the end of one that completed with a small result; it can have no other any more.
        """

    def on_end(self, task: int, callback: Waiter) -> None:
        """Call back, or set a future, once when a task ends.

        A callback gets None, and a future an UnknownTask, if the store does not know the task.
        """
        if self._closed is not None:
            _deliver(callback, TaskResult.closed(self._closed))
            return
        if not self._awaits_ends:
            self.await_ends()
        known = self._tasks.get(task)
        if known is None:
            self._tasks[task] = callback
        elif isinstance(known, list):
            known.append(callback)
        else:
            self._tasks[task] = [known, callback]

    def forget(self, task: int, callback: Waiter) -> None:
        """Take a callback back."""
        known = self._tasks.get(task)
        if isinstance(known, list):
            if callback in known:
                known.remove(callback)
            if not known:
                del self._tasks[task]
        elif known == callback:
            # Equal, not the same: a method is another object each time it is asked for.
            del self._tasks[task]

    def ended(self, task: int, end: TaskResult | None) -> None:
        """Report the end of a task; None = the store has the result, which is read for waiters."""
        if end is not None:
            self._keep(task, end)
        elif task in self._tasks:
            self._reader.ask(task)
        self._note_recent(task, end)
        if end is not None:
            self._deliver(task, end)
        if self._everything:
            for listener in list(self._everything.values()):
                listener(task, end)

    def _note_recent(self, task: int, end: TaskResult | None) -> None:
        small = end is not None and end.status is Status.COMPLETED and len(end.result or b"") <= 256
        self._recent[task] = end if small else None
        if len(self._recent) > self._recent_kept:
            self._recent = {}
            self.era = object()

    def _deliver(self, task: int, end: TaskResult) -> None:
        """Give the end of a task to those who wait for it."""
        known = self._tasks.pop(task, None)
        if known is None:
            return
        if type(known) is list:
            for callback in known:
                _deliver(callback, end)
        else:
            _deliver(known, end)

    def _deliver_unknown(self, task: int) -> None:
        """End the waits for a task that the store does not know, unless it may yet be committed."""
        if task in self._tasks and not self._joined_tasks.is_open(task):
            self._end_waits(task, self.unknown(task))

    def _end_waits(self, task: int, error: Exception) -> None:
        """End the waits for a task with an error; a callback asks by itself, and meets it."""
        known = self._tasks.pop(task, None)
        for waiter in known if type(known) is list else (known,) if known is not None else ():
            if not isinstance(waiter, asyncio.Future):
                waiter(None)
            elif not waiter.done():
                waiter.set_exception(error)

    def stir(self) -> None:
        """Have those who watch many tasks look: some task may have ended."""
        for listener in list(self._everything.values()):
            # No task has the id 0: it only makes them look.
            listener(0, None)

    def is_awaited(self, task: int) -> bool:
        """Return whether code in this process waits for a task."""
        return task in self._tasks

    def is_run_awaited(self, run: int) -> bool:
        """Return whether code in this process waits for a run."""
        return run in self._runs

    @property
    def has_watchers(self) -> bool:
        """Whether code in this process watches more than one task."""
        return bool(self._everything)

    @property
    def any_waiting(self) -> bool:
        """Whether code in this process waits for anything."""
        return bool(self._tasks or self._runs or self._everything)

    def await_ends(self) -> None:
        """Ask other processes for hints of ends, until nothing has waited for a while (`rest`)."""
        if self._env.shared:
            self._awaited_at = self._env.steady()
            await_ends = self._env.shared_store.await_ends
            if not self._awaits_ends and await_ends is not None:
                self._unheard = await_ends(wanted=True)
                if self._unheard is not None:
                    self._unheard.add_done_callback(self._heard)
        self._awaits_ends = True

    def _heard(self, heard: asyncio.Future[None]) -> None:
        """Read all that is awaited: it may have ended without a hint. A failing read is no error.

        Waits that ask for a read meanwhile share it.
        """
        self._unheard = None
        for task in () if self._closed is not None else self._tasks:
            self._reader.ask(task, heard)

    async def _until_heard(self) -> None:
        """Wait until other processes hear that something waits here."""
        if self._unheard is not None:
            await asyncio.wait((self._unheard,))

    def rest(self) -> None:
        """Ask for no more hints of ends if nothing has waited for a while."""
        if not self._env.shared or not self._awaits_ends:
            return
        now, await_ends = self._env.steady(), self._env.shared_store.await_ends
        if self.any_waiting:
            self._awaited_at = now
        elif now - self._awaited_at >= AWAIT_FOR and await_ends is not None:
            self._awaits_ends = False
            await_ends(wanted=False)

    def listen(
        self, key: object, listener: Callable[[int, TaskResult | None], None] | None
    ) -> None:
        """Call a listener with every end from now on, under a key; None = no longer."""
        if listener is None:
            self._everything.pop(key, None)
        else:
            self.await_ends()
            self._everything[key] = listener

    def _keep(self, task: int, end: TaskResult) -> None:
        """Remember what no store keeps: the value of a closure, and the exception itself."""
        if end.value is not None:
            self.values[task] = (self._env.clock(), end.value)
        if end.cause is not None:
            self._causes[task] = (self._env.clock(), end.cause)
            if len(self._causes) > CAUSES_KEPT:
                self._causes.popitem(last=False)

    def expect(self, job: Job, decided: Settlement, value: Any) -> None:  # noqa: ANN401
        """Remember what no store keeps, before the end of a task can be read from the store."""
        self._keep(
            job.id, TaskResult.of(decided, job, value, _AFTER.get(decided.event, Status.QUEUED))
        )

    def forget_values(self, before: float) -> None:
        """Forget what closures returned before a moment."""
        for task in [task for task, (at, _) in self.values.items() if at < before]:
            del self.values[task]
        self._recent = dict.fromkeys(self._recent)

    def forget_causes(self, before: float) -> None:
        """Forget what handlers raised before a moment, with all that its frames hold."""
        for task in [task for task, (at, _) in self._causes.items() if at < before]:
            del self._causes[task]

    def read(self, task: Task) -> TaskResult:
        """Return the result of a task from its record and from what this process remembers."""
        return self._with_kept(task.new.id, TaskResult.read(task))

    def _with_kept(self, task: int, end: TaskResult) -> TaskResult:
        """Add what no store keeps to the result of a task."""
        kept = self.values.get(task)
        if kept is not None:
            end.value = kept[1]
        raised = self._causes.get(task)
        if raised is not None:
            end.cause = raised[1]
        return end

    def unknown(self, task: int) -> UnknownTask:
        """Return the error for a task that the store does not know."""
        return self._joined_tasks.unknown(task)

    def recalled(self, task: int) -> TaskResult | None:
        """Return the result of a task that completed a short while ago, if it is remembered."""
        return self._recent.get(task)

    def has_not_ended(self, task: int, era: object) -> bool:
        """Return whether a task that was alive in an era is known not to have ended since."""
        return era is self.era and task not in self._recent and not self._env.shared

    def begin(self, task: int, era: object = None) -> asyncio.Future[TaskResult]:
        """Begin to wait for the end of a task; in `era` the caller knew that it was alive.

        The caller ends its wait with `forget`, also after a result.
        """
        ended: asyncio.Future[Any] = self._env.loop.create_future()
        self.on_end(task, ended)
        if not ended.done() and not self.has_not_ended(task, era):
            # It may have ended before, here or elsewhere.
            self._reader.ask(task, ended)
        return ended

    async def end_of(self, task: int, era: object = None) -> TaskResult:
        """Wait for the end of a task; in `era` the caller knew that it was alive."""
        ended = self.begin(task, era)
        try:
            end = await ended
        finally:
            self.forget(task, ended)
        end.raise_if_closed()
        return end

    async def check(self, tasks: Sequence[int]) -> list[int]:
        """Read the results of tasks from the store, for those who wait; return which ended."""
        found = await self._env.view.results(tasks)
        for task, stored in found.ended.items():
            self._closures.pop(task, None)
            if task in self._tasks:
                end = self._with_kept(task, TaskResult.stored(stored))
                self._note_recent(task, end)
                self._deliver(task, end)
        for task, why in found.missing.items():
            if why == "expired":
                # One that is unknown may be on its way to the store.
                self._closures.pop(task, None)
            self._deliver_unknown(task)
        return [*found.ended, *(task for task, why in found.missing.items() if why == "expired")]

    async def look(self) -> None:
        """Find the ends that other processes made: read all awaited tasks together."""
        view, closures = self._env.view, self._closures
        waited = tuple({**self._tasks, **closures}) if closures else tuple(self._tasks)
        for batch in in_batches(waited):
            await self.check(batch)
        for run in tuple(self._runs):
            found = await view.run(run)
            if found is None or found.finished:
                self.run_ended(run)
        self.stir()

    def on_run(self, run: int, callback: Callable[[], None]) -> None:
        """Call back once when a run ends."""
        self._runs.setdefault(run, []).append(callback)

    def forget_run(self, run: int, callback: Callable[[], None]) -> None:
        """Take a callback back."""
        known = self._runs.get(run, [])
        if callback in known:
            known.remove(callback)
        if not known:
            self._runs.pop(run, None)

    def run_ended(self, run: int) -> None:
        """Call those who wait for a run."""
        for callback in self._runs.pop(run, ()):
            callback()

    def close(self, error: BaseException) -> None:
        """End every wait with an error, also those that begin later."""
        self._closed = error
        waiting, self._tasks = self._tasks, {}
        for known in waiting.values():
            for callback in known if isinstance(known, list) else [known]:
                _deliver(callback, TaskResult.closed(error))
        runs, self._runs = self._runs, {}
        for callbacks in runs.values():
            for one in callbacks:
                one()
        self.stir()


def _deliver(waiter: Waiter, end: TaskResult) -> None:
    if isinstance(waiter, asyncio.Future):
        if not waiter.done():
            waiter.set_result(end)
    else:
        waiter(end)
