"""A discrete simulation of a fleet on one PostgreSQL server.

Each process makes one call at a time, as the store does. A call takes CPU time of its process, a
network round trip, the lock of its pool with CPU time of the server under it, the counts of the
store with the last part of that time, and a flush of the log that it shares with all calls that
wait for one. Nothing here reads a clock or rolls dice: the same costs give the same answer.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Costs(NamedTuple):
    """What one kind of call costs, in seconds."""

    client_call: float
    """CPU time of the process, per call."""
    client_task: float
    """CPU time of the process, per task, with its handler."""
    server_call: float
    """CPU time of the server under the lock, per call."""
    server_task: float
    """CPU time of the server under the lock, per task."""
    server_after: float
    """CPU time of the server after the lock: it commits, and answers."""
    server_counts: float = 0.0
    """CPU time of the server that is included in that of a call, and in which the counts of the
    store are locked: calls of all pools take turns."""


class Site(NamedTuple):
    """Where a fleet runs."""

    server_cores: int
    client_cores: int | None
    """Cores of the machines of the processes; None = they share those of the server."""
    flush: float
    """Seconds for one flush of the log; 0 = calls do not wait for it."""
    round_trip: float = 0.0
    """Seconds on the network, there and back."""


class Fleet(NamedTuple):
    """Processes of one kind."""

    processes: int
    slots: int = 0
    """Slots of each worker; 0 = the processes submit, one task at a time."""
    handler: float = 0.0
    """Seconds that a handler waits for something else."""
    pools: int = 1
    """Pools, among which the processes are divided: each has a lock of its own."""


class Carried(NamedTuple):
    """What a fleet does in a second."""

    rate: float
    """Tasks per second."""
    median: float
    """Seconds of a call, in the middle."""
    lock: float
    """The share of time in which the busiest lock of a pool is held."""
    counts: float
    """The share of time in which the counts of the store are locked."""
    server: float
    """The share of the server's cores in use, with the processes if they share them."""


Step: TypeAlias = Generator[tuple[Callable[..., None], float], None, None]


@dataclass(eq=False)
class _Process:
    steps: Step


class _World:
    """The time, and what happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._next: list[tuple[float, int, _Process]] = []
        self._order = itertools.count()

    def after(self, process: _Process, seconds: float) -> None:
        heapq.heappush(self._next, (self.now + seconds, next(self._order), process))

    def go_on(self, process: _Process) -> None:
        """Let a process do its next step: a resource, and for how long it is needed."""
        step = next(process.steps, None)
        if step is not None:
            take, seconds = step
            take(process, seconds)

    def run(self, until: float) -> None:
        while self._next and self._next[0][0] <= until:
            self.now, _, process = heapq.heappop(self._next)
            self.go_on(process)
        self.now = until


class _Cores:
    """Some cores: each does one thing at a time, first come, first served."""

    def __init__(self, world: _World, cores: int) -> None:
        self._world = world
        self._free = [0.0] * cores
        self.busy = 0.0

    def take(self, process: _Process, seconds: float) -> None:
        start = max(heapq.heappop(self._free), self._world.now)
        heapq.heappush(self._free, start + seconds)
        self.busy += seconds
        self._world.after(process, start + seconds - self._world.now)


class _Lock:
    """A lock, first come, first served."""

    def __init__(self, world: _World) -> None:
        self._world = world
        self._waiting: deque[_Process] = deque()
        self._held = False
        self._since = 0.0
        self.held_for = 0.0

    def take(self, process: _Process, _: float) -> None:
        if self._held:
            self._waiting.append(process)
        else:
            self._grant(process)

    def _grant(self, process: _Process) -> None:
        self._held, self._since = True, self._world.now
        self._world.after(process, 0.0)

    def release(self, process: _Process, _: float) -> None:
        self.held_for += self._world.now - self._since
        self._held = False
        if self._waiting:
            self._grant(self._waiting.popleft())
        self._world.after(process, 0.0)


class _Log:
    """The log of the server: one flush at a time, for all that wait when it begins."""

    def __init__(self, world: _World, seconds: float) -> None:
        self._world = world
        self._seconds = seconds
        self._waiting: list[_Process] = []
        self._flushing = False

    def take(self, process: _Process, _: float) -> None:
        if not self._seconds:
            self._world.after(process, 0.0)
            return
        self._waiting.append(process)
        if not self._flushing:
            self._begin()

    def _begin(self) -> None:
        self._flushing = True
        self._world.after(_Process(self._flush(self._waiting)), self._seconds)
        self._waiting = []

    def _flush(self, done: list[_Process]) -> Step:
        for process in done:
            self._world.after(process, 0.0)
        self._flushing = False
        if self._waiting:
            self._begin()
        yield from ()


class _Simulation:
    """One fleet at one site."""

    def __init__(self, fleet: Fleet, costs: Costs, site: Site) -> None:
        self.world = _World()
        self.server = _Cores(self.world, site.server_cores)
        self.clients = (
            self.server
            if site.client_cores is None
            else _Cores(self.world, max(1, site.client_cores))
        )
        self.log = _Log(self.world, site.flush)
        self.locks = [_Lock(self.world) for _ in range(fleet.pools)]
        self.counts = _Lock(self.world)
        self.done = 0
        self.calls: list[float] = []
        self._spread = 0.0
        self._fleet, self._costs, self._site = fleet, costs, site

    def start(self) -> None:
        fleet = self._fleet
        for number in range(fleet.processes):
            lock = self.locks[number % fleet.pools]
            steps = _Worker(self, lock).steps() if fleet.slots else self._submits(lock)
            # They do not all begin at one moment.
            self.world.after(_Process(steps), number * 0.0007)

    def _submits(self, lock: _Lock) -> Step:
        while True:
            yield from self.call(lock, 1)
            self.done += 1

    def call(self, lock: _Lock, tasks: int) -> Step:
        """One call that stores or leases some tasks, until its answer is there."""
        costs, way, began = self._costs, self._site.round_trip / 2, self.world.now
        yield self.clients.take, costs.client_call + tasks * costs.client_task
        yield self.world.after, way
        yield lock.take, 0.0
        under_lock = costs.server_call + tasks * costs.server_task
        yield self.server.take, max(0.0, under_lock - costs.server_counts)
        yield self.counts.take, 0.0
        yield self.server.take, min(under_lock, costs.server_counts)
        yield self.counts.release, 0.0
        yield lock.release, 0.0
        yield self.log.take, 0.0
        yield self.server.take, costs.server_after
        yield self.world.after, way
        self.calls.append(self.world.now - began)

    def start_handler(self, worker: _Worker) -> None:
        # Up to a tenth shorter or longer, in turn: or all slots would end together for ever.
        self._spread = (self._spread + 0.618) % 1.0
        seconds = self._fleet.handler * (0.9 + 0.2 * self._spread)
        self.world.after(_Process(worker.handler_ends()), seconds)

    @property
    def slots(self) -> int:
        return self._fleet.slots


class _Worker:
    """A worker: one call settles all that ended since the last one, and leases as many."""

    def __init__(self, simulation: _Simulation, lock: _Lock) -> None:
        self._simulation = simulation
        self._lock = lock
        self._free = simulation.slots
        self._sleeper: _Process | None = None

    def steps(self) -> Step:
        simulation = self._simulation
        while True:
            if not self._free:
                yield self._sleep, 0.0
            tasks, self._free = self._free, 0
            yield from simulation.call(self._lock, tasks)
            for _ in range(tasks):
                simulation.start_handler(self)

    def _sleep(self, process: _Process, _: float) -> None:
        self._sleeper = process

    def handler_ends(self) -> Step:
        self._free += 1
        self._simulation.done += 1
        process, self._sleeper = self._sleeper, None
        if process is not None:
            self._simulation.world.after(process, 0.0)
        yield from ()


def carried(fleet: Fleet, costs: Costs, site: Site, *, seconds: float = 10.0) -> Carried:
    """Return what a fleet does, after a second to settle in."""
    simulation = _Simulation(fleet, costs, site)
    simulation.start()
    world, warm = simulation.world, min(2.0, seconds / 2)
    world.run(warm)
    done, busy = simulation.done, simulation.server.busy
    held = [lock.held_for for lock in simulation.locks]
    counted = simulation.counts.held_for
    simulation.calls.clear()
    world.run(warm + seconds)
    calls = sorted(simulation.calls)
    locks = zip(simulation.locks, held, strict=True)
    return Carried(
        rate=(simulation.done - done) / seconds,
        median=calls[len(calls) // 2] if calls else seconds,
        lock=max((lock.held_for - before) / seconds for lock, before in locks),
        counts=(simulation.counts.held_for - counted) / seconds,
        server=(simulation.server.busy - busy) / seconds / site.server_cores,
    )
