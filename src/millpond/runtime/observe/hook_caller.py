"""Calls the hooks and observers of one open Millpond; their errors are counted, never raised."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.core.task import CALLBACKS
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import read
from millpond.runtime.observe.hooks import DeadLetter, Empty, Observed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.lease import Leased
    from millpond.core.settle import Settlement
    from millpond.core.task import Call, NewTask, Task
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Handler
    from millpond.runtime.observe.hooks import Hooks, Kind
    from millpond.runtime.waiting.task_result import TaskResult
    from millpond.store.protocol import Batch, Drained

log = logging.getLogger("millpond.hooks")


class HookCaller(Service):
    """Calls hooks and observers after something happened."""

    _env: Environment
    _hooks: Hooks
    _functions: Mapping[str, Handler]

    def __post_init__(self) -> None:
        self._counts = self._hooks.counts

    def settled(self, leased: Leased, status: Status, end: TaskResult) -> None:
        """Report a task that a handler of this process ended."""
        if self._hooks.observers:
            self._observe(_kind(status), leased, error=end.error)
        if status is Status.FAILED:
            self._dead_letter(leased.fence.task, leased, leased, end)

    def retried(self, leased: Leased, decided: Settlement) -> None:
        """Report an attempt that is followed by another."""
        if self._hooks.observers:
            kind: Kind = "retry" if decided.event == "retry" else "released"
            self._observe(kind, leased, error=decided.error, delay=decided.delay)

    def stale(self, leased: Leased) -> None:
        """Report a settlement that came too late."""
        if self._hooks.observers:
            self._observe("stale", leased)

    def stalled(self, worker: str) -> None:
        """Report a worker whose turn the store does not answer."""
        if self._hooks.observers:
            self._call_observers(kind="stalled", pool="", worker=worker)

    def blocked(self, pool: str, batch: Batch) -> None:
        """Report a submitter that waits for room."""
        if self._hooks.observers:
            first = batch.tasks[0]
            self._call_observers(
                kind="blocked", pool=pool, task_id=first.id, function=first.call.function
            )

    def ended_unseen(self, task: int) -> None:
        """Report a task that no handler ended: cancelled, dropped, expired, lost."""
        if self._hooks.observers or self._hooks.on_dead_letter:
            self._env.spawn(self._look_up(task))

    async def _look_up(self, task: int) -> None:
        record = await self._env.view.task(task)
        if record is None or not record.status.terminal:
            return
        new = record.new
        if self._hooks.observers:
            self._call_observers(
                kind=_kind(record.status),
                pool=new.pool,
                task_id=task,
                function=new.call.function,
                attempt=record.attempt,
                error=read(record.error),
            )
        if record.status is Status.FAILED:
            self._dead_letter(task, new, record, record)

    def _dead_letter(
        self, task: int, new: Leased | NewTask, placed: Leased | Task, end: TaskResult | Task
    ) -> None:
        hook = self._hooks.on_dead_letter.get(new.pool)
        if hook is None:
            return
        args, kwargs = self._arguments(new.call)
        letter = DeadLetter(
            task_id=task,
            pool=new.pool,
            function=new.call.function,
            payload=new.call.payload,
            args=args,
            kwargs=kwargs,
            error=read(end.error),
            reason=end.reason,
            attempts=end.attempt,
            key=new.key,
            labels=new.labels,
            lane=placed.lane,
            sequence=placed.sequence,
            submitted_at=placed.submitted_at,
            failed_at=self._env.clock(),
        )
        self._call_hook(hook, letter)

    def emptied(self, empty: Drained) -> None:
        """Report a lane or pool that has run empty."""
        hook = self._hooks.on_empty.get(empty.pool)
        if hook is not None:
            given = Empty(pool=empty.pool, lane=empty.lane, processed=empty.processed)
            self._call_hook(hook, given)

    def _observe(
        self,
        kind: Kind,
        leased: Leased,
        *,
        error: bytes | None = None,
        delay: float | None = None,
    ) -> None:
        self._call_observers(
            kind=kind,
            pool=leased.pool.removesuffix(CALLBACKS),
            task_id=leased.fence.task,
            function=leased.call.function,
            attempt=leased.fence.attempt,
            delay=delay,
            error=read(error),
        )

    def _call_observers(self, **what: Any) -> None:  # noqa: ANN401 - fields of Observed
        event = Observed(**what, at=self._env.clock())
        for observer in list(self._hooks.observers):
            try:
                observer(event)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                self._counts.observer_errors += 1
                log.exception(
                    "an observer failed; it is counted and otherwise ignored",
                    extra=about(
                        "observer.failed",
                        pool=event.pool or None,
                        task=event.task_id,
                        reason=type(error).__name__,
                    ),
                )

    def _call_hook(self, hook: Callable[[Any], Any], given: DeadLetter | Empty) -> None:
        try:
            result = hook(given)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C is raised again
            self._hook_failed(given, error)
            return
        if inspect.isawaitable(result):
            self._env.spawn(self._await_hook(result, given))

    async def _await_hook(
        self,
        result: Any,  # noqa: ANN401 - any awaitable
        given: DeadLetter | Empty,
    ) -> None:
        try:
            await result
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - Ctrl-C is raised again
            self._hook_failed(given, error)

    def _hook_failed(self, given: DeadLetter | Empty, error: BaseException) -> None:
        """Count the error of a hook and log it; raise Ctrl-C again."""
        if is_ctrl_c(error):
            raise error
        self._counts.hook_errors += 1
        log.error(
            "a hook failed; it is counted and otherwise ignored",
            exc_info=error,
            extra=about(
                "hook.failed",
                pool=given.pool,
                task=given.task_id if isinstance(given, DeadLetter) else None,
                reason=type(error).__name__,
            ),
        )

    def _arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call in their types, else as plain JSON, else none."""
        handler = self._functions.get(call.function)
        if handler is not None and handler.arguments is not None:
            with contextlib.suppress(Exception):  # damaged bytes, or types of the user's that raise
                args, kwargs = handler.arguments(call.payload)
                return tuple(args), dict(kwargs)
        try:
            return (), msgspec.json.decode(call.payload, type=dict[str, Any])
        except msgspec.MsgspecError:
            return (), {}


def _kind(status: Status) -> Kind:
    match status:
        case Status.COMPLETED:
            return "completed"
        case Status.CANCELLED:
            return "cancelled"
        case Status.REJECTED:
            return "rejected"
        case _:
            return "failed"
