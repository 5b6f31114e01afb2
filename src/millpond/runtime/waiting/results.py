"""Who waits for what in this process: the ends of tasks and of runs, and idle pools."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.lifecycle import Status, Transition
from millpond.runtime.waiting.task_result import End

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.job import Job

Waiter: TypeAlias = "asyncio.Future[End | None] | Callable[[End | None], None]"

CAUSES_KEPT = 1_000
_AFTER = {Transition.COMPLETE: Status.COMPLETED, Transition.FAIL: Status.FAILED}
RECENT_KEPT, RECENT_KEPT_OF_SHARED = 10_000, 1_000
"""How many tasks that ended here are remembered; most of a shared store are awaited elsewhere."""


class Waiting:
    """Callbacks by task and run; what a closure returned, which no store could keep."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: dict[int, Any] = {}
        self._runs: dict[int, list[Callable[[], None]]] = {}
        self._everything: dict[object, Callable[[int, End | None], None]] = {}
        self.values: dict[int, tuple[float, Any]] = {}
        """What closures returned, until retention forgets them."""
        self._causes: OrderedDict[int, tuple[float, BaseException]] = OrderedDict()
        """What handlers raised, the latest, until retention forgets it."""
        self._recent_kept = RECENT_KEPT_OF_SHARED if runtime.shared else RECENT_KEPT
        self.era = object()
        """Of this Millpond's opening and of no other: what lived in another is not known here."""
        self._closed: BaseException | None = None
        """What is told to who waits after the end of everything."""
        self._recent: dict[int, End | None] = {}
        """The tasks that ended in this era: a task of it that is not here has not ended.

        With it the end of one that completed with a small result; it can have no other any more.
        """

    def on_end(self, task: int, callback: Waiter) -> None:
        """Call back, or set a future, once when a task ends; None means: ask the store."""
        if self._closed is not None:
            _tell(callback, End.closed(self._closed))
            return
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

    def ended(self, task: int, end: End | None) -> None:
        """Tell who waits for a task."""
        if end is not None:
            self._keep(task, end)
        small = end is not None and end.status is Status.COMPLETED and len(end.result or b"") <= 256
        self._recent[task] = end if small else None
        if len(self._recent) > self._recent_kept:
            self._recent = {}
            self.era = object()
        known = self._tasks.pop(task, None)
        if known is not None:
            if type(known) is list:
                for callback in known:
                    _tell(callback, end)
            else:
                _tell(known, end)
        if self._everything:
            for listener in list(self._everything.values()):
                listener(task, end)

    def ended_elsewhere(self, task: int) -> None:
        """Tell who waits for a task that it is worth asking the store."""
        known = self._tasks.pop(task, None)
        for callback in known if type(known) is list else (known,) if known is not None else ():
            _tell(callback, None)

    def stir(self) -> None:
        """Something may have ended, nobody knows what: tell those who watch more than one task."""
        for listener in list(self._everything.values()):
            # No task has this id: it only makes them look.
            listener(0, None)

    def is_awaited(self, task: int) -> bool:
        """Return whether somebody in this process waits for a task."""
        return task in self._tasks

    def is_run_awaited(self, run: int) -> bool:
        """Return whether somebody in this process waits for a run."""
        return run in self._runs

    @property
    def anybody_watches(self) -> bool:
        """Whether anybody in this process watches more than one task."""
        return bool(self._everything)

    @property
    def anybody(self) -> bool:
        """Whether anybody in this process waits for anything."""
        return bool(self._tasks or self._runs or self._everything)

    def listen(self, key: object, listener: Callable[[int, End | None], None] | None) -> None:
        """Hear of every end from now on, under a key; None = no longer."""
        if listener is None:
            self._everything.pop(key, None)
        else:
            self._everything[key] = listener

    def _keep(self, task: int, end: End) -> None:
        """Remember what no store can: the value of a closure, and the exception itself."""
        if end.value is not None:
            self.values[task] = (self._runtime.clock(), end.value)
        if end.cause is not None:
            self._causes[task] = (self._runtime.clock(), end.cause)
            if len(self._causes) > CAUSES_KEPT:
                self._causes.popitem(last=False)

    def expect(self, job: Job, decided: Settlement, value: Any) -> None:  # noqa: ANN401
        """Remember what no store can before the end of a task is stored, and so can be read."""
        self._keep(job.id, End.of(decided, job, value, _AFTER.get(decided.event, Status.QUEUED)))

    def forget_values(self, before: float) -> None:
        """Forget what closures returned before a moment."""
        for task in [task for task, (at, _) in self.values.items() if at < before]:
            del self.values[task]
        self._recent = dict.fromkeys(self._recent)

    def forget_causes(self, before: float) -> None:
        """Forget what handlers raised before a moment, with all that its frames hold."""
        for task in [task for task, (at, _) in self._causes.items() if at < before]:
            del self._causes[task]

    def read(self, task: Task) -> End:
        """Return the end of a task from its record and from what this process remembers."""
        end = End.read(task)
        kept = self.values.get(task.new.id)
        if kept is not None:
            end.value = kept[1]
        raised = self._causes.get(task.new.id)
        if raised is not None:
            end.cause = raised[1]
        return end

    def recalled(self, task: int) -> End | None:
        """Return the end of a task that completed a little while ago, if it is at hand."""
        return self._recent.get(task)

    def has_not_ended(self, task: int, era: object) -> bool:
        """Return whether a task that lived in an era is known not to have ended since."""
        return era is self.era and task not in self._recent and not self._runtime.shared

    async def end_of(self, task: int, era: object = None) -> End:
        """Wait for the end of a task; `era` is that in which the caller knew it alive."""
        if task in self._recent:
            # It has ended here: nobody needs to tell, unless it was redriven since.
            seen = await self._seen(task)
            if seen is not None:
                return seen
        told: asyncio.Future[End | None] = self._runtime.loop.create_future()
        self.on_end(task, told)
        try:
            end = None
            if not self.has_not_ended(task, era):
                end = await self._seen(task)
            if end is None:
                end = await told
            if end is not None:
                end.must_be_one()
            return end if end is not None else await self._must_be_seen(task)
        finally:
            self.forget(task, told)

    async def _seen(self, task: int) -> End | None:
        """Return the end that the store knows of, or None while there is none."""
        record = await self._runtime.view.task(task)
        if record is None:
            if self._runtime.joins.is_open(task):
                return None
            raise self._runtime.gone(task)
        return self.read(record) if record.status.terminal else None

    async def _must_be_seen(self, task: int) -> End:
        end = await self._seen(task)
        if end is None:
            # Redriven between its end and our reading: its next end is the one to wait for.
            return await self.end_of(task)
        return end

    async def look(self) -> None:
        """Find the ends that others made: ask for all that somebody waits for, at once."""
        view, closures = self._runtime.view, self._runtime.closures
        waited = tuple({**self._tasks, **closures}) if closures else tuple(self._tasks)
        if waited:
            for task, status in zip(waited, await view.status(waited), strict=True):
                if status in (Status.QUEUED, Status.RUNNING):
                    continue
                if task in self._tasks:
                    self.ended(task, None)
                if status != "unknown":
                    # One that is unknown may be on its way to the store.
                    closures.pop(task, None)
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
        """Tell who waits for a run."""
        for callback in self._runs.pop(run, ()):
            callback()

    def close(self, error: BaseException) -> None:
        """Nothing more will end here: tell everybody so, those who come later too."""
        self._closed = error
        waiting, self._tasks = self._tasks, {}
        for known in waiting.values():
            for callback in known if isinstance(known, list) else [known]:
                _tell(callback, End.closed(error))
        runs, self._runs = self._runs, {}
        for callbacks in runs.values():
            for one in callbacks:
                one()
        self.stir()


def _tell(waiter: Waiter, end: End | None) -> None:
    if isinstance(waiter, asyncio.Future):
        if not waiter.done():
            waiter.set_result(end)
    else:
        waiter(end)
