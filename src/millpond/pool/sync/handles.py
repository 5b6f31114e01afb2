"""Handles, maps and runs, for threads."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.validation import Seconds
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.map import Mapped
from millpond.pool.options import Options
from millpond.pool.pool import Pool
from millpond.pool.sync.bridge import Bridge, Feed

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from millpond.core.lifecycle import Status
    from millpond.pool.outcome import Outcome
    from millpond.pool.run import Run, RunReport, Stream
    from millpond.pool.task import (
        BoundCall,
        TaskFunction,
    )
    from millpond.runtime.error_info import ErrorInfo

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SyncHandle(Generic[R_co]):
    """One submitted task, as a thread holds it: its last known state, and the way to its result."""

    __slots__ = ("_bridge", "_handle")

    def __init__(self, bridge: Bridge, handle: Handle[R_co]) -> None:
        self._bridge = bridge
        self._handle = handle

    @property
    def id(self) -> int:
        """Its id."""
        return self._handle.id

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._handle.pool

    @property
    def pool_id(self) -> str:
        """The id of its pool."""
        return self._handle.pool_id

    @property
    def status(self) -> Status:
        """Where it is, as far as is known here."""
        return self._handle.status

    @property
    def key(self) -> str | None:
        """Its key."""
        return self._handle.key

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self._handle.labels

    @property
    def lane(self) -> str | None:
        """Its lane, in a pool that has lanes."""
        return self._handle.lane

    @property
    def priority(self) -> int:
        """Its priority."""
        return self._handle.priority

    @property
    def sequence(self) -> int:
        """Its number in its lane, or in the pool."""
        return self._handle.sequence

    @property
    def position(self) -> int | None:
        """How many were ahead of it when it was submitted; None in other orders than FIFO."""
        return self._handle.position

    @property
    def queue_depth(self) -> int | None:
        """How many waited when it was submitted."""
        return self._handle.queue_depth

    @property
    def submitted_at(self) -> float | None:
        """When it was submitted."""
        return self._handle.submitted_at

    @property
    def submitted_by(self) -> str:
        """Who submitted it."""
        return self._handle.submitted_by

    @property
    def attempt(self) -> int:
        """How many charged runs it has had."""
        return self._handle.attempt

    @property
    def duplicate(self) -> bool:
        """Whether an idempotency key was answered with a task that was there before."""
        return self._handle.duplicate

    @property
    def reason(self) -> Reason | None:
        """Why it ended as it did."""
        return self._handle.reason

    @property
    def rejection_reason(self) -> Reason | None:
        """Why it was dropped, if it was."""
        return self._handle.rejection_reason

    @property
    def rejection_policy(self) -> str | None:
        """The policy that dropped it, if one did."""
        return self._handle.rejection_policy

    @property
    def result(self) -> R_co | None:
        """What it returned, if it has completed and that is known here."""
        return self._handle.result

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed, if it has and that is known here."""
        return self._handle.error

    def get(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the result, or raise TaskFailed, TaskCancelled or TaskRejected.

        TimeoutError if it takes longer than `timeout`; the task goes on.
        """
        return self._bridge.within(limit_of(timeout), self._handle.value_of, None)

    def wait(self, timeout: Seconds | None = None) -> SyncHandle[R_co]:
        """Wait for the end, whatever it is, and return this handle; TimeoutError if it is late."""
        self._bridge.within(limit_of(timeout), self._handle.wait)
        return self

    def refresh(self) -> SyncHandle[R_co]:
        """Read the task anew from the store."""
        self._bridge.call(self._handle.refresh)
        return self

    def cancel(self, mode: CancelMode = "cooperative") -> bool:
        """Cancel the task: at once if it waits; if it runs it is told, and not retried.

        mode="interrupt" also cancels an async handler. Return whether this changed anything.
        """
        return self._bridge.call(self._handle.cancel, mode)

    def progress(self) -> Iterator[tuple[float, str]]:
        """Yield (fraction, text) as the handler tells it, until the task ends."""
        return self._bridge.iterate(self._handle.progress)

    @property
    def twin(self) -> Handle[R_co]:
        """The same handle for the loop."""
        return self._handle

    def __repr__(self) -> str:
        return repr(self._handle)


class SyncMapped(Generic[R_co]):
    """The results of a map: `get()` for the list, or iterate over them as they come, in order.

    Items are taken in the thread that waits for the results, one at a time, as there is room.
    """

    def __init__(
        self,
        bridge: Bridge,
        pool: Pool,
        fn: Callable[[Any], Any] | TaskFunction[..., R_co, Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._bridge = bridge
        self._feed: Feed[Any] | None = None
        if isinstance(items, Iterable) and type(items) not in _PLAIN:
            items = self._feed = Feed(items)
        self._mapped: Mapped[R_co] = Mapped(pool, fn, items, options)

    def get(self) -> list[R_co]:
        """Wait for all results; the first failure stops the map and is raised."""
        if self._feed is None:
            return self._bridge.call(self._all)
        return self._bridge.fed(self._feed, self._all)

    async def _all(self) -> list[R_co]:
        return await self._mapped

    def __iter__(self) -> Iterator[R_co]:
        return self._bridge.iterate(self._mapped.__aiter__, self._feed)


_PLAIN = frozenset({list, tuple, range, set, frozenset, dict, str, bytes})
"""Iterables that any thread may walk through without waiting; others stay in their own."""


class SyncRun:
    """An open run, for threads: `with pool.sync.run("nightly") as run: run.submit(...)`.

    Leaving the block waits for its end; leaving it with an error cancels what waits.
    """

    def __init__(self, bridge: Bridge, run: Run) -> None:
        self._bridge = bridge
        self._run = run

    @property
    def report(self) -> RunReport | None:
        """What it came to, once the block is left."""
        return self._run.report

    @property
    def finished_before(self) -> bool:
        """Whether a run of this name had ended already; it takes no more tasks."""
        return self._run.finished_before

    def __enter__(self) -> Self:
        self._bridge.call(self._run.__aenter__)
        return self

    def submit(
        self,
        work: BoundCall[T] | TaskFunction[[], T, Any],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]:
        """Submit one task of the run."""
        return SyncHandle(
            self._bridge, self._bridge.call(lambda: self._run.submit(work, wait=wait, **options))
        )

    def submit_many(
        self,
        works: Iterable[BoundCall[T] | TaskFunction[[], T, Any]],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[T]]:
        """Submit tasks of the run as one batch."""
        given = list(works)
        handles = self._bridge.call(lambda: self._run.submit_many(given, wait=wait, **options))
        return [SyncHandle(self._bridge, handle) for handle in handles]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bridge.call(self._run.__aexit__, kind, error, trace)


class SyncStream:
    """The outcomes of a run as they come; leaving early cancels what is left of it."""

    def __init__(self, bridge: Bridge, stream: Stream) -> None:
        self._bridge = bridge
        self._stream = stream

    @property
    def report(self) -> RunReport | None:
        """What it came to, once it has ended."""
        return self._stream.report

    def __enter__(self) -> Self:
        self._bridge.call(self._stream.__aenter__)
        return self

    def __iter__(self) -> Iterator[Outcome]:
        return self._bridge.iterate(self._stream.__aiter__)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bridge.call(self._stream.__aexit__, kind, error, trace)


def limit_of(timeout: Seconds | None) -> float | None:
    """Return for how long to wait, checked; None = as long as it takes."""
    return None if timeout is None else check.seconds("timeout", timeout)
