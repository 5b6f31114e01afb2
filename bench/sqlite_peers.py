"""The peers of bench/sqlite.py: huey, litequeue and persist-queue, each as its manual shows it.

litequeue and persist-queue are queues without workers: theirs are threads that take a message,
do nothing, and say that it is done; an empty queue is asked again after 5 ms.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from acting import CHUNK, GAP, PATIENCE, Answer, Meter, Stage, begin
from sqlite_contenders import SYNCHRONOUS

POLL = 0.005


class Peer(Protocol):
    """A queue of another library."""

    def submit(self, sent: int) -> object:
        """Store a task."""

    def together(self) -> Any:
        """Return a context in which submits share a transaction, or None."""

    def start(self, threads: int, handler: Callable[[int], None]) -> object:
        """Let threads run what is queued."""

    def left(self) -> int:
        """Return how many tasks have not been taken."""


class Huey:
    """huey with its own consumer and without results; each task is one commit out of the queue."""

    def __init__(self, stage: Stage) -> None:
        from huey import SqliteHuey

        logging.disable(logging.CRITICAL)
        # Nothing of a fill is measured, so it need not wait for the disk.
        fsync = stage.contender.durability == "full" and not stage.get("unmeasured")
        self.huey = SqliteHuey("bench", filename=str(stage.path), results=False, fsync=fsync)
        self.handler: Callable[[int], None] = lambda _sent: None
        self.task = self.huey.task(name="noop")(self._run)

    def _run(self, sent: int) -> None:
        self.handler(sent)

    def submit(self, sent: int) -> object:
        return self.task(sent)

    def together(self) -> Any:
        return None

    def start(self, threads: int, handler: Callable[[int], None]) -> object:
        self.handler = handler
        consumer = self.huey.create_consumer(workers=threads, worker_type="thread", periodic=False)
        consumer.start()
        return consumer

    def left(self) -> int:
        return int(self.huey.pending_count())

    @property
    def connection(self) -> Any:
        return self.huey.storage.conn


class LiteQueue:
    """litequeue: a connection for each thread, and messages kept when they are done."""

    def __init__(self, stage: Stage) -> None:
        self.path = str(stage.path)
        self.queue = self._opened()

    def _opened(self) -> Any:
        import litequeue

        # Where a claim sorts a long queue, ten threads outwait the usual 5 s and give up.
        return litequeue.LiteQueue(self.path, timeout=60)

    def submit(self, sent: int) -> object:
        return self.queue.put(str(sent))

    def together(self) -> Any:
        return self.queue.transaction()

    def start(self, threads: int, handler: Callable[[int], None]) -> object:
        return started(threads, partial(self._loop, handler))

    def _loop(self, handler: Callable[[int], None]) -> None:
        queue = self._opened()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(POLL)
                continue
            handler(int(message.data))
            queue.done(message.message_id)

    def left(self) -> int:
        return int(self.queue.qsize())

    @property
    def connection(self) -> Any:
        return self.queue.conn


class PersistQueue:
    """persist-queue's SQLiteAckQueue, one for all threads, and messages kept when they are done."""

    def __init__(self, stage: Stage) -> None:
        import persistqueue

        self.nothing = persistqueue.exceptions.Empty
        self.queue = persistqueue.SQLiteAckQueue(
            str(stage.path.parent), db_file_name=stage.path.name, multithreading=True
        )
        if stage.get("unmeasured"):
            self.connection.execute("PRAGMA synchronous = OFF")

    def submit(self, sent: int) -> object:
        return self.queue.put({"sent": sent})

    def together(self) -> Any:
        return None

    def start(self, threads: int, handler: Callable[[int], None]) -> object:
        return started(threads, partial(self._loop, handler))

    def _loop(self, handler: Callable[[int], None]) -> None:
        while True:
            try:
                message = self.queue.get(block=False)
            except self.nothing:
                time.sleep(POLL)
                continue
            handler(message["sent"])
            self.queue.ack(message)

    def left(self) -> int:
        return int(self.queue.qsize())

    @property
    def connection(self) -> Any:
        return self.queue._putter  # noqa: SLF001 - it has no other door


def started(threads: int, loop: Callable[[], None]) -> list[threading.Thread]:
    """Start threads that never end."""
    made = [threading.Thread(target=loop, daemon=True) for _ in range(threads)]
    for thread in made:
        thread.start()
    return made


KINDS: dict[str, Callable[[Stage], Any]] = {
    "huey": Huey,
    "litequeue": LiteQueue,
    "persistqueue": PersistQueue,
}


def opened(stage: Stage) -> Peer:
    """Open a peer, and see that its file is as safe as it is said to be."""
    peer = KINDS[stage.contender.kind](stage)
    connection: sqlite3.Connection = peer.connection
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    wanted = SYNCHRONOUS[stage.contender.durability]
    assert journal == "wal", journal
    assert stage.get("unmeasured") or synchronous == wanted, synchronous
    taken: Peer = peer
    return taken


# Acts


def fill(stage: Stage) -> Answer:
    """Store tasks that are not measured."""
    stage.given["unmeasured"] = True
    peer = opened(stage)
    begin()
    store(peer, stage.count)
    return {"stored": peer.left()}


def submit(stage: Stage) -> Answer:
    """Store tasks one after another."""
    peer = opened(stage)
    begin()
    lags, start = [], time.monotonic_ns()
    before = start
    for _ in range(stage.count):
        peer.submit(before)
        now = time.monotonic_ns()
        lags.append((now - before) / 1e9)
        before = now
    seconds = (before - start) / 1e9
    return {"seconds": seconds, "stored": peer.left(), "lags": lags if stage.get("lags") else []}


def bulk(stage: Stage) -> Answer:
    """Store tasks in chunks."""
    peer = opened(stage)
    if peer.together() is None:
        return {"error": "has no way to store many at once"}
    begin()
    start = time.monotonic_ns()
    store(peer, stage.count)
    return {"seconds": (time.monotonic_ns() - start) / 1e9, "stored": peer.left()}


def store(peer: Peer, count: int) -> None:
    """Store tasks, many in a transaction where that is possible."""
    for chunk in chunks(count):
        with peer.together() or nothing():
            for _ in range(chunk):
                peer.submit(time.monotonic_ns())


@contextmanager
def nothing() -> Iterator[None]:
    """Do nothing around what is done."""
    yield


def chunks(count: int) -> Iterator[int]:
    """Cut a number into chunks."""
    for at in range(0, count, CHUNK):
        yield min(CHUNK, count - at)


def beat(stage: Stage) -> Answer:
    """Store a task every now and then."""
    peer = opened(stage)
    begin()
    for _ in range(stage.count):
        peer.submit(time.monotonic_ns())
        time.sleep(random.uniform(*GAP))
    return {}


def work(stage: Stage) -> Answer:
    """Be a worker."""
    peer = opened(stage)
    full = threading.Event()
    meter = Meter(stage.count, full.set)
    begin()
    deadline = time.monotonic() + stage.get("seconds")
    kept = peer.start(stage.get("concurrency"), paced(meter, stage.get("pause", 0.0)))
    empty = watch(peer, meter, full, deadline, stay=stage.get("stay", False))
    answer = meter.answer(empty, lags=stage.get("lags", False))
    assert kept is not None
    return answer


def paced(meter: Meter, pause: float) -> Callable[[int], None]:
    """Return a handler that does nothing, or sleeps."""
    if not pause:
        return meter.hit

    def handler(sent: int) -> None:
        meter.hit(sent)
        time.sleep(pause)

    return handler


def watch(
    peer: Peer, meter: Meter, full: threading.Event, deadline: float, *, stay: bool
) -> int | None:
    """Wait until enough have started or nothing is left; return when the queue was empty."""
    seen = -1
    while not full.wait(PATIENCE):
        if time.monotonic() >= deadline:
            return None
        if not stay and seen == len(meter.starts) and not peer.left():
            return time.monotonic_ns()
        seen = len(meter.starts)
    while peer.left():
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)
    return time.monotonic_ns()


def idle(stage: Stage) -> Answer:
    """Be a worker with nothing to do."""
    peer = opened(stage)
    kept = peer.start(stage.get("concurrency"), lambda _sent: None)
    begin()
    sys.stdin.read()
    assert kept is not None
    return {}


ACTS = {one.__name__: one for one in (fill, submit, bulk, beat, work, idle)}


def play(stage: Stage, act: str) -> Answer:
    """Do an act; the threads of a worker do not end, so the process does."""
    answer = ACTS[act](stage)
    if act in ("work", "idle"):
        import json

        print(json.dumps(answer), flush=True)
        os._exit(0)
    return answer
