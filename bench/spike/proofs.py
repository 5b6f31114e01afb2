"""What a store must get right before its speed is worth a word."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from common import RETRY, Backend, Claim, Model, PoolSpec, Settle, Store, Task

FOREVER = 2**60
SIZES = (1, 2, 3, 7, 100)
fork = multiprocessing.get_context("fork")


class Failed(AssertionError):
    """A promise did not hold."""


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise Failed(f"{what}: got {got!r}, wanted {wanted!r}")


def done(claims: Sequence[Claim]) -> list[Settle]:
    return [Settle(c.id, c.attempt, c.token) for c in claims]


def fresh(backend: Backend, spec: PoolSpec) -> Store:
    backend.make("proof", spec)
    store = backend.open("proof", spec)
    store.renew(1, FOREVER)
    return store


def drain(store: Store, size: int) -> list[int]:
    """Every id in the order of its claim, settled batch by batch."""
    order: list[int] = []
    settles: list[Settle] = []
    while claims := store.step(1, settles, size, 10**9).claims:
        order += [c.id for c in claims]
        settles = done(claims)
    return order


def prove_orders(backend: Backend) -> None:
    rng = random.Random(1)
    tasks = [Task(1000 + i, priority=rng.randrange(4)) for i in range(60)]
    times = [i * 10 for i in range(60)]
    place: dict[str, Callable[[int], Any]] = {
        "fifo": lambda i: i,
        "lifo": lambda i: -i,
        "priority": lambda i: (-tasks[i].priority, i),
        "aging": lambda i: (times[i] - 100 * tasks[i].priority, i),
    }
    for name, key in place.items():
        order, aging = ("priority", 100) if name == "aging" else (name, 0)
        wanted = [tasks[i].id for i in sorted(range(60), key=key)]
        for size in SIZES:
            store = fresh(backend, PoolSpec(name, 100, order=order, aging_us=aging))
            for task, now in zip(tasks, times, strict=True):
                store.submit([task], now)
            expect(f"{name} in batches of {size}", drain(store, size), wanted)
            store.close()


def prove_ring(backend: Backend) -> None:
    cases = [
        ("A=8, B..F=1", {}, "AAAAAAAABCDEF", 0, "", "ABCDEFAAAAAAA"),
        ("CCC after the first A", {}, "AAABBB", 1, "CCC", "ABCABCABC"),
        ("weights 2:1", {"A": 2.0}, "AAAAAABBB", 0, "", "ABAABAABA"),
    ]
    for what, weights, first, claimed, second, wanted in cases:
        for size in SIZES:
            store = fresh(backend, PoolSpec("ring", 100, fair=True, weights=weights))
            store.submit([Task(i, key) for i, key in enumerate(first, 1)], 0)
            order = [c.id for c in store.step(1, [], claimed, 1).claims] if claimed else []
            store.submit([Task(i, key) for i, key in enumerate(second, 100)], 0)
            order += drain(store, size)
            got = "".join(first[i - 1] if i < 100 else second[i - 100] for i in order)
            expect(f"{what} in batches of {size}", got, wanted)
            store.close()


HISTORIES = [
    PoolSpec("plain priority", 7, order="priority"),
    PoolSpec("plain fifo", 7),
    PoolSpec("fair, weights", 9, fair=True, weights={"k0": 3.0, "k1": 0.4}),
    PoolSpec("fair, per key 2, pool 6", 6, fair=True, per_key=2, weights={"k2": 2.0}),
    PoolSpec("priority, per key 2", 8, order="priority", per_key=2),
    PoolSpec("lifo, per key 3", 8, order="lifo", per_key=3),
    PoolSpec("lanes", 4, lanes=4),
    PoolSpec("ordered", 5, ordered=True),
    PoolSpec("ordered and fair", 5, ordered=True, fair=True),
]


def prove_histories(backend: Backend, count: int) -> None:
    """Random histories: same verbs, same answers, as the model that serves one at a time."""
    for spec in HISTORIES:
        for seed in range(count):
            store = fresh(backend, spec)
            replay(spec, store, random.Random(seed), f"{spec.name}, seed {seed}")
            store.close()


def replay(spec: PoolSpec, store: Store, rng: random.Random, label: str) -> None:
    model = Model(spec)
    held: list[Claim] = []
    next_id = 1
    for turn in range(60):
        now = turn * 100
        if rng.random() < 0.6:
            batch = []
            for _ in range(rng.randrange(1, 9)):
                delay = rng.choice((0, 0, 0, 0, 150, 500))
                batch.append(Task(next_id, f"k{rng.randrange(6)}", rng.randrange(3), delay=delay))
                next_id += 1
            store.submit(batch, now)
            model.submit(batch, now)
        ends = rng.sample(held, rng.randrange(len(held) + 1))
        held = [c for c in held if c not in ends]
        settles = []
        for claim in ends:
            outcome, delay = rng.choice(((1, 0), (1, 0), (1, 0), (RETRY, 0), (RETRY, 250)))
            settles.append(Settle(claim.id, claim.attempt, claim.token, outcome, delay))
        want = rng.randrange(0, 8)
        mine, theirs = store.step(1, settles, want, now), model.step(1, settles, want, now)
        got = [(c.id, c.attempt) for c in mine.claims]
        expect(f"{label}, turn {turn}", got, [(c.id, c.attempt) for c in theirs.claims])
        held += mine.claims


def prove_fence(backend: Backend) -> None:
    for fair in (False, True):
        store = fresh(backend, PoolSpec("fence", 10, fair=fair))
        store.submit([Task(i, "a") for i in range(1, 5)], 0)
        claims = store.step(1, [], 2, 1).claims
        before = store.census()
        task, _, token, _ = claims[0]
        forged = [Settle(task, 1, token + 1), Settle(task, 2, token)]
        expect("forged settles refused", store.step(1, forged, 0, 1).stale, 2)
        expect("and change nothing", store.census(), before)
        expect("a good settle passes", store.step(1, done(claims), 0, 1).stale, 0)
        expect("the same again is refused", store.step(1, done(claims), 0, 1).stale, 2)
        expect("once each", store.census()[1:], (0, 2, 2))
        store.close()


def prove_intake(backend: Backend) -> None:
    for fair in (False, True):
        store = fresh(backend, PoolSpec("intake", 10, fair=fair, bound=5))
        expect("within the bound", store.submit([Task(i) for i in range(1, 5)], 0).accepted, 4)
        expect("a batch is whole or not", store.submit([Task(5), Task(6)], 0).refused, True)
        keyed = Task(7, idem="x")
        expect("the last place", store.submit([keyed], 0)[::2], (1, False))
        answer = store.submit([Task(8, idem="x")], 0)
        expect("a known key is answered when full", answer[1:], ({"x": 7}, False))
        expect("repeated submit", store.submit([keyed], 0, repeat=True).accepted, 0)
        claims = store.step(1, [], 1, 1).claims
        retry = [Settle(c.id, c.attempt, c.token, RETRY) for c in claims]
        expect("room after a claim", store.submit([Task(9)], 0).accepted, 1)
        store.step(1, retry, 0, 1)
        expect("a retry does not count", store.census().queued, 6)
        expect("but the bound holds", store.submit([Task(10)], 0).refused, True)
        store.close()


CONTESTS = [
    PoolSpec("fair, per key 2, pool 37", 37, fair=True, per_key=2),
    PoolSpec("plain, pool 23", 23),
    PoolSpec("lanes 8, pool 6", 6, lanes=8),
    PoolSpec("ordered, pool 30", 30, ordered=True),
    PoolSpec("fair, pool 20, bound 200", 20, fair=True, bound=200),
]


def prove_contest(backend: Backend, tasks: int) -> list[str]:
    """Four claimers, two submitters and a crash, each a process, watched by one more."""
    return [contest(backend, spec, tasks) for spec in CONTESTS]


def contest(backend: Backend, spec: PoolSpec, count: int) -> str:
    store = fresh(backend, spec)
    keys = {i: f"k{random.Random(i).randrange(50)}" for i in range(1, count + 1)}
    first = [Task(i, keys[i]) for i in range(1, 101)]
    store.submit(first, 0)
    rest = [Task(i, keys[i]) for i in range(101, count + 1)]
    for worker in range(2, 7):
        store.renew(worker, FOREVER)
    store.close()
    results: Queue[Any] = fork.Queue()
    stop = fork.Event()
    claimers = [
        fork.Process(target=claimer, args=(backend, spec, worker, count, results))
        for worker in (2, 3, 4, 5)
    ]
    submitters = [
        fork.Process(target=submitter, args=(backend, spec, rest[half::2])) for half in (0, 1)
    ]
    doomed = fork.Process(target=crash, args=(backend, spec, results))
    watcher = fork.Process(target=watch, args=(backend, spec, stop, results))
    watcher.start()
    doomed.start()
    lost: list[Claim] = results.get(timeout=60)
    doomed.join()
    for process in (*submitters, *claimers):
        process.start()
    time.sleep(0.05)
    store = backend.open("proof", spec)
    moved = store.recover(6, 1)
    expect(f"{spec.name}: everything the lost worker held comes back", moved, len(lost))
    late = store.step(6, done(lost), 0, 1)
    expect(f"{spec.name}: its late settles are refused", late.stale, moved)
    starts = [event for _ in claimers for event in results.get(timeout=120)]
    for process in (*submitters, *claimers):
        process.join()
    stop.set()
    running, busiest, queued, samples = results.get(timeout=60)
    watcher.join()
    if running > spec.cap or busiest > (spec.key_limit or count):
        raise Failed(f"{spec.name}: saw {running} running, {busiest} of one key")
    if spec.bound is not None and queued > spec.bound + moved:
        raise Failed(f"{spec.name}: saw {queued} queued, {moved} of them put back")
    expect(f"{spec.name}: all done, once each", tuple(store.census()), (0, 0, 0, count))
    starts += [(0, c.id, c.attempt) for c in lost]
    expect(f"{spec.name}: starts", len(starts), count + len(lost))
    if spec.blocking:
        check_lanes(spec, store.places(), starts)
    store.close()
    most = f"at most {running} running, {busiest} of one key, {queued} queued"
    return f"{spec.name}: {samples} samples, {most}; {moved} lost and run again"


def check_lanes(
    spec: PoolSpec,
    places: list[tuple[int, int, int, int]],
    starts: list[tuple[int, int, int]],
) -> None:
    """Sequences without a gap, in the order of seq; starts in that order."""
    lanes: dict[int, list[int]] = defaultdict(list)
    lane_of: dict[int, tuple[int, int]] = {}
    for lane, _, number, task in places:
        lanes[lane].append(number)
        lane_of[task] = (lane, number)
    for lane, numbers in lanes.items():
        expect(f"{spec.name}: sequences of lane {lane}", numbers, list(range(1, len(numbers) + 1)))
    started: dict[int, list[int]] = defaultdict(list)
    for _, task, _ in sorted(starts):
        lane, number = lane_of[task]
        started[lane].append(number)
    for lane, order in started.items():
        expect(f"{spec.name}: start order of lane {lane}", order, sorted(order))


def submitter(backend: Backend, spec: PoolSpec, tasks: list[Task]) -> None:
    """Small batches; a refused one is offered again."""
    rng = random.Random(len(tasks))
    store = backend.open("proof", spec)
    while tasks:
        batch = tasks[: rng.randrange(1, 30)]
        if store.submit(batch, 0).refused:
            time.sleep(0.001)
        else:
            tasks = tasks[len(batch) :]
    store.close()


def claimer(backend: Backend, spec: PoolSpec, worker: int, count: int, results: Queue[Any]) -> None:
    rng = random.Random(worker)
    store = backend.open("proof", spec)
    held: list[Claim] = []
    starts: list[tuple[int, int, int]] = []
    idle = 0
    while held or idle < 5 or store.census().done < count:
        ends = rng.sample(held, rng.randrange(len(held) + 1)) if len(held) > 3 else held
        held = [c for c in held if c not in ends]
        claims = store.step(worker, done(ends), rng.randrange(1, 12), 2).claims
        at = time.monotonic_ns()
        starts += [(at, c.id, c.attempt) for c in claims]
        held += claims
        idle = 0 if claims or held else idle + 1
        if idle:
            time.sleep(0.01)
    results.put(starts)
    store.close()


def crash(backend: Backend, spec: PoolSpec, results: Queue[Any]) -> None:
    """Take some, tell what, die without a word to the store."""
    store = backend.open("proof", spec)
    results.put(store.step(6, [], 5, 2).claims)
    results.close()
    results.join_thread()
    os._exit(1)


def watch(backend: Backend, spec: PoolSpec, stop: Event, results: Queue[Any]) -> None:
    store = backend.open("proof", spec)
    running = busiest = queued = samples = 0
    while not stop.is_set():
        census = store.census()
        running, busiest = max(running, census.running), max(busiest, census.busiest)
        queued = max(queued, census.queued)
        samples += 1
    results.put((running, busiest, queued, samples))
    store.close()


def prove(backend: Backend, histories: int, tasks: int) -> list[str]:
    """All of it; raises Failed at the first promise broken. Returns what was seen."""
    seen: list[str] = []
    checks: list[Callable[[], list[str] | None]] = [
        lambda: prove_orders(backend),
        lambda: prove_ring(backend),
        lambda: prove_fence(backend),
        lambda: prove_intake(backend),
        lambda: prove_histories(backend, histories),
        lambda: prove_contest(backend, tasks),
    ]
    names = ("orders", "ring", "fence", "intake", "histories", "contest")
    for name, check in zip(names, checks, strict=True):
        lines = check() or []
        print(f"proved: {name}", *lines, sep="\n  ", flush=True)
        seen += lines
    return seen
