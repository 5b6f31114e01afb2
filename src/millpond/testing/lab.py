"""The lab: a Millpond in a test, without a running loop and on virtual time.

    with lab(mp) as bench:
        handle = bench.submit(review.bind(1984))
        bench.run_until_idle()
        assert bench.result(handle) == "fine"

Time stands still until `advance` moves it, and nothing runs but in `run_until_idle`, `advance` and
`sync`. Ids, jitter and everything else that chance decides come from one seed (0 by default):
the same test sees the same ids and the same audit each time. Handlers that are plain functions run
in real threads; the clock waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from millpond.core import validation as check
from millpond.core.control import DeclareDead
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.pool.task import BoundCall, Optioned, TaskFunction
from millpond.runtime.fleet.poll import POLL_FLOOR
from millpond.store.memory import MemoryStore
from millpond.testing.clock import VirtualClock, VirtualLoop
from millpond.testing.fault_injection import Fault, FaultyStore, Raised, Verb, When

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from typing import Self, Unpack

    from millpond.core.audit import Record
    from millpond.core.validation import Seconds
    from millpond.pool.handle import Handle
    from millpond.pool.millpond import Millpond
    from millpond.pool.options import Options
    from millpond.pool.pool import Pool
    from millpond.pool.snapshot import Snapshot
    from millpond.runtime.waiting.task_result import TaskResult
    from millpond.store.protocol import Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_TURNS = 1_000_000
"""Turns of the loop without a moment passing after which it is taken for an endless one."""

FOR_EVER = float("inf")


class NotEnded(AssertionError):
    """A test wants a result that is not there yet: time must pass first, or it will never come."""


class Hung(RuntimeError):
    """A handler goes on for ever, or for longer than the lab waits for its thread."""


def lab(
    mp: Millpond,
    *,
    seed: int | None = None,
    start: float | datetime = 0.0,
    durable: bool = False,
    patience: float = 10.0,
) -> Lab:
    """Open a Millpond in a lab: `with lab(mp) as bench`.

    `start` is the time at which it begins. `durable=True` keeps what is stored over `restart()`,
    as a database would; memory forgets. `patience` is how many real seconds a handler that is a
    plain function may take.
    """
    return Lab(mp, seed=seed, start=start, durable=durable, patience=patience)


class Lab:
    """One Millpond under test. Everything is synchronous; use it in the thread that made it."""

    def __init__(
        self,
        mp: Millpond,
        *,
        seed: int | None,
        start: float | datetime,
        durable: bool,
        patience: float,
    ) -> None:
        self.mp = mp
        """The Millpond under test."""
        self._seed = seed if seed is not None else (internals_of(mp).owner.seed or 0)
        self._durable = durable
        self._clock = VirtualClock(start.timestamp() if isinstance(start, datetime) else start)
        self._patience = check.number("patience", patience, above=0.0)
        self._faults: list[Fault] = []
        self._dice = random.Random(self._seed)
        self._store: Store | None = None
        self._door: FaultyStore | None = None
        self._loop: _LabLoop | None = None
        self._life: _Life | None = None
        self._restarts = 0
        self._ended = 0
        self._before: tuple[Callable[[], Store] | None, int | None] = (None, None)
        self._worked: bool | None = None

    # Its life

    def __enter__(self) -> Self:
        _no_loop_here()
        self._loop = _LabLoop(self._clock, self._outside, self._patience)
        owner = internals_of(self.mp).owner
        self._before, self._worked = (owner.make_store, owner.seed), owner.work
        # The workers of an application on a database are other processes; here this is the one.
        owner.work = owner.work is not False
        try:
            self._open()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._faults.clear()
        try:
            if self._life is not None:
                self._life.leave.set()
                self._finish(self._life.task, FOR_EVER)
        finally:
            self._end()

    def _open(self) -> None:
        """Start the process: a new one each time, over what is left of the store."""
        loop = self._running
        if self._store is None or not self._durable:
            make = self._before[0]
            own = MemoryStore(audit_limit=None, clock=loop.wall_time)
            self._store = own if make is None else make()
        self._door = FaultyStore(self._store, self._faults, self._dice, self._look_later)
        self._door.shared = self._durable or self._before[0] is not None
        internals_of(self.mp).owner.make_store = lambda: self._door
        # A process of its own has chances of its own: its ids must not be those of the last one.
        internals_of(self.mp).owner.seed = random.Random(
            f"{self._seed}/{self._restarts}"
        ).getrandbits(63)
        self._restarts += 1
        life = self._life = _Life(self.mp, loop)
        self._run(loop.time(), until=life.opened)
        if not life.opened():
            self._life = None
            self._finish(life.task, FOR_EVER)
            self._life = life
        internals_of(self.mp).runtime.waiting.listen(self, self._heard)

    def _end(self) -> None:
        """Leave nothing behind: no task, no generator, no loop; and the Millpond as it was."""
        owner = internals_of(self.mp).owner
        (owner.make_store, owner.seed), owner.work = self._before, self._worked
        loop, self._loop = self._loop, None
        if loop is None:
            return
        store, self._store = self._store, None
        try:
            if store is not None:
                loop.finish(store.close())
        finally:
            loop.end()

    def restart(self, *, noticed: bool = True) -> None:
        """End the process as a crash would, and start another over the same Millpond.

        Its closures, leases and waiters are gone. What is stored stays if the lab is
        `durable`; memory forgets. `noticed=False`: no process knows of the death, so that
        what it held comes back only when its leases expire.
        """
        assert self._door is not None
        dead = [worker.name for worker in internals_of(self.mp).runtime.workers]
        self._door.cut_off = True
        self._kill()
        self._open()
        if noticed and self._durable:
            for worker in dead:
                self._stand_still(self._bury(worker))

    def _kill(self) -> None:
        """End everything that runs, in no time."""
        assert self._life is not None
        self._life.task.cancel()
        with _silence():
            self._running.sweep()
        # A handler that would not stop keeps the Millpond from closing; a crash does not ask.
        internals_of(self.mp).owner.abandon()

    async def _bury(self, worker: str) -> None:
        runtime = internals_of(self.mp).runtime
        runtime.answers.apply(await runtime.store.control(DeclareDead(worker)))

    @property
    def _running(self) -> _LabLoop:
        if self._loop is None:
            raise ConfigError("lab", None, "is not open: use `with lab(mp) as bench`")
        return self._loop

    # Time

    @property
    def now(self) -> float:
        """The time of the lab, in seconds; it moves only by `advance` and `sync`."""
        return self._clock.now()

    def run_until_idle(self) -> int:
        """Run everything that is due now; return how many tasks ended."""
        return self._run(self.now)

    def advance(self, seconds: Seconds) -> int:
        """Let time pass and run what becomes due; return how many tasks ended."""
        return self._run(self.now + check.seconds("seconds", seconds))

    def sync(self, work: Awaitable[T]) -> T:
        """Run a coroutine (or await a handle) to its end, with as much time as that takes."""
        return self._finish(self._running.create_task(_awaited(work)), FOR_EVER)

    def _run(self, until_moment: float, until: Callable[[], bool] | None = None) -> int:
        before = self._ended
        self._running.run_until(until_moment, until)
        return self._ended - before

    def _finish(self, task: asyncio.Task[T], moment: float) -> T:
        """Run until a task is done, and no further than to a moment."""
        try:
            self._running.run_until(moment, task.done)
        except BaseException:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            self._running.run_until(self.now, task.done)
            raise NotEnded(
                "it waits for something that no passing of time will bring"
                if moment == FOR_EVER
                else "it has to wait: run what is due, or let time pass (advance), and ask again"
            )
        return task.result()

    def _stand_still(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine alone, at this moment; with all others only if it needs them."""
        loop = self._running
        task = loop.create_task(_awaited(work))
        with loop.alone():
            loop.run_until(self.now, task.done)
        return task.result() if task.done() else self._finish(task, self.now)

    def _outside(self) -> int:
        """Return how many handlers are at work in threads and processes."""
        if not self.mp.is_open:
            return 0
        return sum(worker.executors.busy for worker in internals_of(self.mp).runtime.workers)

    def _look_later(self) -> None:
        """A store that can fail is polled; memory cannot, so where it is made to, the lab asks."""
        if not self.mp.is_open or internals_of(self.mp).runtime.shared:
            return
        runtime = internals_of(self.mp).runtime
        look = runtime.maintenance.look
        self._running.call_later(POLL_FLOOR, lambda: runtime.closed or runtime.spawn(look()))

    def _heard(self, _task: int, _end: TaskResult | None) -> None:
        self._ended += 1

    # Work

    @overload
    def submit(
        self, work: BoundCall[T], /, *, pool: str | Pool | None = None, **options: Unpack[Options]
    ) -> Handle[T]: ...
    @overload
    def submit(
        self,
        work: TaskFunction[[], T, Any],
        /,
        *,
        pool: str | Pool | None = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    @overload
    def submit(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        /,
        *,
        pool: str | Pool | None = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    @overload
    def submit(
        self,
        work: Callable[[], T],
        /,
        *,
        pool: str | Pool | None = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    def submit(
        self, work: Any, /, *, pool: str | Pool | None = None, **options: Unpack[Options]
    ) -> Handle[Any]:
        """Submit a call or a function; its handler begins in `run_until_idle`, `advance` or `sync`.

        `pool` may be left out where the function has one, or the Millpond has only one.
        """
        target = self._pool(pool) if pool is not None else self._pool_for(work)
        submit: Any = target.submit
        return self._stand_still(submit(work, **options))

    def _pool_for(self, work: Any) -> Pool:  # noqa: ANN401 - whatever is submitted
        function = work.function if isinstance(work, (BoundCall, Optioned)) else work
        if isinstance(function, TaskFunction) and internals_of(function).pool is not None:
            return function.pool
        pools = self.mp.pools()
        if len(pools) != 1:
            raise ConfigError("pool", None, f"must be named: there are {len(pools)} pools")
        return pools[0]

    def _pool(self, pool: str | Pool) -> Pool:
        return self.mp.get_pool(pool) if isinstance(pool, str) else pool

    def result(self, handle: Handle[T]) -> T:
        """Return the result of a task, or raise its error; NotEnded if it has not ended by now.

        Whatever is due now is run before. Time does not pass: `sync(handle)` waits.
        """
        self.run_until_idle()
        self._stand_still(handle.refresh())
        if not handle.status.terminal:
            raise NotEnded(
                f"task {handle.id} of pool {handle.pool!r} has not ended: {self.why(handle)}; "
                "let time pass with advance(seconds), or sync(handle)"
            )
        return self._stand_still(_awaited(handle))

    # Looking

    def why(self, task: int | Handle[Any], /) -> str:
        """Return in words why a task is not running (or that it is, or how it ended)."""
        return self._stand_still(self.mp.why(task if isinstance(task, int) else task.id))

    def snapshot(self, pool: str | Pool | None = None) -> Snapshot:
        """Return a pool as it is now; `pool` may be left out where there is only one."""
        target = self._pool(pool) if pool is not None else self._pool_for(None)
        return self._stand_still(target.snapshot())

    def audit(self, pool: str | Pool | None = None) -> list[Record]:
        """Return every audit record, oldest first, of one pool or of all."""
        return self._stand_still(self._audit(pool))

    async def _audit(self, pool: str | Pool | None) -> list[Record]:
        return [record async for record in self.mp.audit(pool)]

    # Trouble

    def fail_next(
        self,
        verb: Verb,
        error: Raised | None = None,
        count: int = 1,
        *,
        when: When = "before",
    ) -> Fault:
        """Let the store fail the next times a verb is used, before it did anything or after.

        "after" is a lost answer: it was done, but no answer arrives. The fault that is returned
        counts down: `left` is 0 once it has happened.
        """
        fault = Fault(verb, error, count, when)
        self._faults.append(fault)
        return fault


def _no_loop_here() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "lab() brings its own loop and cannot be used inside a running one: make the test a plain "
        "function, or use `async with mp` in it (millpond.testing.clock.run_virtual gives it "
        "virtual time)"
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let a process that is dead say nothing more, about stores that do not answer it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class _Life:
    """An open Millpond, entered and left by one task."""

    def __init__(self, mp: Millpond, loop: asyncio.AbstractEventLoop) -> None:
        self.leave = asyncio.Event()
        self._is_open = False
        self.task = loop.create_task(self._live(mp))

    async def _live(self, mp: Millpond) -> None:
        async with mp:
            self._is_open = True
            await self.leave.wait()

    def opened(self) -> bool:
        """Return whether it is open, or could not be opened."""
        return self._is_open


class _LabLoop(VirtualLoop):
    """A loop that runs up to a moment, and stops there when nothing is left to do."""

    _ready: deque[asyncio.Handle]

    def __init__(self, clock: VirtualClock, outside: Callable[[], int], patience: float) -> None:
        self._waiting = _Waiting(clock, self, patience)
        self._outside = outside
        self._in_executors = 0
        self._held: deque[asyncio.Handle] = deque()
        super().__init__(clock, self._waiting)

    def run_until(self, moment: float, until: Callable[[], bool] | None = None) -> None:
        """Run what is due up to a moment, or until something is so; the clock stops there."""
        if until is not None and until():
            return
        self._waiting.begin(moment, until)
        try:
            self.run_forever()
        finally:
            self._held.extend(self._ready)
            self._held, self._ready = deque(), self._held

    def stop_here(self) -> None:
        """Stop before anything else runs; what is ready is so still when the loop goes on."""
        self._held, self._ready = self._ready, deque()
        self.stop()

    def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine to its end."""
        task = self.create_task(work)
        self.run_until(FOR_EVER, task.done)
        task.result()

    def outside(self) -> int:
        """Return how much goes on in threads and processes that will come back here."""
        return self._outside() + self._in_executors

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Count what goes on in an executor: the clock waits for it."""
        future = super().run_in_executor(executor, func, *args)
        self._in_executors += 1
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _future: asyncio.Future[Any]) -> None:
        self._in_executors -= 1

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let only the task just made run, and what it needs; the others go on where they were."""
        held, self._ready = self._ready, deque([self._ready.pop()])
        try:
            yield
        finally:
            held.extend(self._ready)
            self._ready = held

    def sweep(self) -> None:
        """Cancel every task until none is left; a handler that will not end is left for dead."""
        for _ in range(10):
            left = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until(self.time())
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001

    def end(self) -> None:
        """End all that is left, and the loop."""
        try:
            self.sweep()
            self.finish(self.shutdown_asyncgens())
            self._in_executors += 1  # a thread reports when they are gone
            self.finish(self.shutdown_default_executor())
        finally:
            self.close()


class _Waiting(selectors.DefaultSelector):
    """Where the loop would wait: the clock jumps, or the loop stops, or a thread is waited for."""

    def __init__(self, clock: VirtualClock, loop: _LabLoop, patience: float) -> None:
        super().__init__()
        self._clock = clock
        self._loop = loop
        self._patience = patience
        self._moment = FOR_EVER
        self._until: Callable[[], bool] | None = None
        self._turns = 0

    def begin(self, moment: float, until: Callable[[], bool] | None) -> None:
        """Run up to a moment, or until something is so."""
        self._moment, self._until, self._turns = moment, until, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._until is not None and self._until():
            self._loop.stop_here()
            return []
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise Hung("a handler goes round and round without waiting for anything")
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.outside():
            return self._wait_for_outside()
        rounding = 4 * math.ulp(self._clock.now())
        if timeout is not None and self._clock.now() + timeout <= self._moment + rounding:
            self._clock.advance(timeout)
            self._turns = 0
            return []
        if self._clock.now() < self._moment < FOR_EVER:
            self._clock.advance(self._moment - self._clock.now())
        self._loop.stop()
        return []

    def _wait_for_outside(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time: only a thread or a process can bring anything now."""
        ready = super().select(self._patience)
        if not ready:
            raise Hung(
                f"a handler in a thread or process has not come back for {self._patience:g} s of "
                "real time; if it waits for time to pass, that is the wrong time: give it a clock "
                "to ask, or make it async"
            )
        return ready
