"""Hooks and observers: told what happened, after it happened; never able to break it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.observe.probe import Probes

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.lease import Leased
    from millpond.core.settle import Settlement
    from millpond.core.task import Call
    from millpond.runtime.observe.probe import Probe
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.waiting.task_result import End
    from millpond.store.protocol import Batch, Drained

log = logging.getLogger("millpond.hooks")

HOOK_FAILED = "a hook failed; it is counted and otherwise ignored"


class Counts:
    """What this process has seen that nobody should have to look for."""

    def __init__(self) -> None:
        self.hook_errors = 0
        """on_dead_letter and on_empty that raised."""
        self.observer_errors = 0
        """Observers and telemetry that raised."""
        self.stale_settles = 0
        """Settlements that came too late, and changed nothing."""
        self.leases_lost = 0
        """Attempts whose lease was gone before they were settled."""
        self.unknown_functions = 0
        """Functions that tasks wait for and that are not known here."""
        self.unfit_arguments = 0
        """Functions, and arguments of theirs, that stored tasks do not fit here."""
        self.corrupt = 0
        """Tasks whose arguments could not be read."""
        self.mended = 0
        """What did not fit together in the store, and was put right."""
        self.stuck = 0
        """Handlers that did not stop when told, and were settled without."""
        self.stalls = 0
        """Workers whose turn did not come to its end in time."""

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={count}" for name, count in vars(self).items() if count)
        return f"<counts {told or 'nothing'}>"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that failed for good, as `on_dead_letter` is told."""

    task_id: int
    """The task."""
    pool: str
    """Its pool."""
    function: str
    """The name of its function."""
    payload: bytes
    """Its arguments as stored, JSON."""
    args: tuple[Any, ...] = ()
    """Its positional arguments in the types of its function."""
    kwargs: dict[str, Any] = {}
    """Its arguments by name; all of them, as plain JSON values, where its function is not known
    here or no longer takes them."""
    error: ErrorInfo | None
    """What its last attempt raised."""
    reason: str | None
    """Why, where that was not its handler's doing."""
    attempts: int
    """Charged runs."""
    key: str | None
    """Its key."""
    labels: dict[str, str]
    """Its labels."""
    lane: str | None
    """Its lane."""
    sequence: int
    """Its number in its lane, or in the pool."""
    submitted_at: float
    """When it was submitted."""
    failed_at: float
    """When it failed."""


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, or a pool without lanes, that has run dry, as `on_empty` is told."""

    pool: str
    """The pool."""
    lane: str | None
    """The lane; None for a pool without lanes."""
    processed: int
    """How many of its tasks ever completed or failed."""


Kind = Literal[
    "blocked",
    "completed",
    "failed",
    "cancelled",
    "rejected",
    "retry",
    "released",
    "stale",
    "stalled",
]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened in this process, as observers are told."""

    kind: Kind
    """An end by its status, or `retry`, `released`, `stale`, `blocked`, `stalled`."""
    pool: str
    """Where."""
    task_id: int | None = None
    """To which task."""
    function: str = ""
    """The name of its function."""
    attempt: int = 0
    """Which charged run it was."""
    at: float = 0.0
    """When."""
    delay: float | None = None
    """Seconds until the next attempt, for a retry."""
    worker: str | None = None
    """The worker, where it is about one and not about a task."""
    error: ErrorInfo | None = None
    """What was raised, where something was."""


class Hooks:
    """The user's hooks of each pool, and observers of everything."""

    def __init__(self) -> None:
        self.on_dead_letter: dict[str, Callable[[DeadLetter], Any]] = {}
        self.on_empty: dict[str, Callable[[Empty], Any]] = {}
        self.observers: list[Callable[[Observed], object]] = []
        self.probes: Probes | None = None
        """What telemetry is told by; None = there is none."""
        self.counts = Counts()
        """Of the runtime that uses them; before there was one, of nobody."""

    def attach(self, probe: Probe) -> Callable[[], None]:
        """Let telemetry be told, too; return a function that ends it."""
        self._probe((*self.told, probe))

        def stop() -> None:
            self._probe(tuple(one for one in self.told if one is not probe))

        return stop

    @property
    def told(self) -> tuple[Probe, ...]:
        """The probes that are attached."""
        return () if self.probes is None else self.probes.told

    def _probe(self, told: tuple[Probe, ...]) -> None:
        self.probes = Probes(told, self) if told else None

    def settled(self, runtime: Runtime, leased: Leased, status: Status, end: End) -> None:
        """Tell of a task that one of our own handlers ended."""
        if self.observers:
            self._observe(runtime, _kind(status), leased, error=end.error)
        if status is Status.FAILED and leased.pool in self.on_dead_letter:
            args, kwargs = _arguments(runtime, leased.call)
            letter = DeadLetter(
                task_id=leased.fence.task,
                pool=leased.pool,
                function=leased.call.function,
                payload=leased.call.payload,
                args=args,
                kwargs=kwargs,
                error=read(end.error),
                reason=end.reason,
                attempts=end.attempt,
                key=leased.key,
                labels=leased.labels,
                lane=leased.lane,
                sequence=leased.sequence,
                submitted_at=leased.submitted_at,
                failed_at=runtime.clock(),
            )
            self._call(runtime, self.on_dead_letter[leased.pool], letter)

    def retried(self, runtime: Runtime, leased: Leased, decided: Settlement) -> None:
        """Tell of an attempt that is followed by another."""
        if self.observers:
            kind: Kind = "retry" if decided.event == "retry" else "released"
            self._observe(runtime, kind, leased, error=decided.error, delay=decided.delay)

    def stale(self, runtime: Runtime, leased: Leased) -> None:
        """Tell of a settlement that came too late."""
        if self.observers:
            self._observe(runtime, "stale", leased)

    def stalled(self, runtime: Runtime, worker: str) -> None:
        """Tell of a worker whose loop stands still, or had to start again."""
        if self.observers:
            happened = Observed(kind="stalled", pool="", worker=worker, at=runtime.clock())
            self._tell(runtime, happened)

    def blocked(self, runtime: Runtime, pool: str, batch: Batch) -> None:
        """Tell of a submitter that waits for room."""
        if self.observers:
            first = batch.tasks[0]
            happened = Observed(
                kind="blocked",
                pool=pool,
                task_id=first.id,
                function=first.call.function,
                at=runtime.clock(),
            )
            self._tell(runtime, happened)

    def ended_unseen(self, runtime: Runtime, task: int) -> None:
        """Tell of a task that no handler ended: cancelled, dropped, expired, lost."""
        if self.observers or self.on_dead_letter:
            runtime.spawn(self._look_up(runtime, task))

    async def _look_up(self, runtime: Runtime, task: int) -> None:
        record = await runtime.view.task(task)
        if record is None or not record.status.terminal:
            return
        new = record.new
        if self.observers:
            happened = Observed(
                kind=_kind(record.status),
                pool=new.pool,
                task_id=task,
                function=new.call.function,
                attempt=record.attempt,
                at=runtime.clock(),
                error=read(record.error),
            )
            self._tell(runtime, happened)
        if record.status is Status.FAILED and new.pool in self.on_dead_letter:
            args, kwargs = _arguments(runtime, new.call)
            letter = DeadLetter(
                task_id=task,
                pool=new.pool,
                function=new.call.function,
                payload=new.call.payload,
                args=args,
                kwargs=kwargs,
                error=read(record.error),
                reason=record.reason,
                attempts=record.attempt,
                key=new.key,
                labels=new.labels,
                lane=record.lane,
                sequence=record.sequence,
                submitted_at=record.submitted_at,
                failed_at=runtime.clock(),
            )
            self._call(runtime, self.on_dead_letter[new.pool], letter)

    def emptied(self, runtime: Runtime, empty: Drained) -> None:
        """Tell of a lane or pool that has run dry."""
        hook = self.on_empty.get(empty.pool)
        if hook is not None:
            told = Empty(pool=empty.pool, lane=empty.lane, processed=empty.processed)
            self._call(runtime, hook, told)

    def _observe(
        self,
        runtime: Runtime,
        kind: Kind,
        leased: Leased,
        *,
        error: bytes | None = None,
        delay: float | None = None,
    ) -> None:
        happened = Observed(
            kind=kind,
            pool=leased.pool.removesuffix(CALLBACKS),
            task_id=leased.fence.task,
            function=leased.call.function,
            attempt=leased.fence.attempt,
            at=runtime.clock(),
            delay=delay,
            error=read(error),
        )
        self._tell(runtime, happened)

    def _tell(self, runtime: Runtime, happened: Observed) -> None:
        for observer in list(self.observers):
            try:
                observer(happened)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                runtime.counts.observer_errors += 1
                log.exception(
                    "an observer failed; it is counted and otherwise ignored",
                    extra={"pool": happened.pool or None, "task": happened.task_id},
                )

    def _call(
        self,
        runtime: Runtime,
        hook: Callable[[Any], Any],
        told: DeadLetter | Empty,
    ) -> None:
        try:
            result = hook(told)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            runtime.counts.hook_errors += 1
            log.exception(HOOK_FAILED, extra=_about(told))
            return
        if inspect.isawaitable(result):
            runtime.spawn(self._await(runtime, result, told))

    async def _await(
        self,
        runtime: Runtime,
        result: Any,  # noqa: ANN401 - whatever can be awaited
        told: DeadLetter | Empty,
    ) -> None:
        try:
            await result
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            runtime.counts.hook_errors += 1
            log.exception(HOOK_FAILED, extra=_about(told))


def _about(told: DeadLetter | Empty) -> dict[str, Any]:
    """Return the pool and the task that a hook was told of."""
    return {"pool": told.pool, "task": told.task_id if isinstance(told, DeadLetter) else None}


def _arguments(runtime: Runtime, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in their types, else as plain JSON, else none."""
    handler = runtime.functions.get(call.function)
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
