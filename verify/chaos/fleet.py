"""The fleet of a chaos: its processes, as the one who hurts them has them in hand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from verify.chaos.member import LEDGER, LOAD
from verify.torture.ledger import (
    AttemptBegan,
    AttemptEnded,
    Ledger,
    ProcessEnded,
    ProcessStarted,
    SignalSent,
    StoreOpened,
    Tail,
    read,
)

if TYPE_CHECKING:
    from typing import Self

    from verify.chaos.load import Load

TO_COME, TO_STOP, LOOK_EVERY = 60.0, 30.0, 0.02
"""Seconds that processes have to open the store, and to end; and between two looks."""


class Unfinished(Exception):
    """The fleet did not come, or did not end, in time."""


class Fleet:
    """Some workers and a producer. Only ever signals processes that it started itself."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._home = Path(load.home)
        (self._home / LOAD).write_bytes(msgspec.json.encode(load))
        self.ledger = Ledger(self._home / LEDGER)
        self._tail = Tail(self._home / LEDGER)
        self._came: set[int] = set()
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * load.workers
        self._producer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._producer = self._started("producer", subprocess.PIPE)
            for number in range(self._load.workers):
                self.start(number)
            self._wait_for_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in filter(None, (*self.workers, self._producer)):
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._producer is not None and self._producer.stdin is not None:
            with contextlib.suppress(OSError):
                self._producer.stdin.close()
        self.ledger.close()

    def _started(self, role: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        program = "verify.chaos.member"
        with (self._home / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [sys.executable, "-m", program, self._load.home, role, str(os.getpid())],
                stdin=stdin,
                stdout=log,
                stderr=log,
            )
        self.ledger.write(ProcessStarted, child=process.pid, role=role, number=0)
        return process

    def _wait_for_all(self) -> None:
        until = time.monotonic() + TO_COME
        wanted = {one.pid for one in filter(None, (*self.workers, self._producer))}
        while not wanted <= self._came:
            if time.monotonic() > until:
                raise Unfinished(f"the fleet did not come to work within {TO_COME:g} s")
            time.sleep(LOOK_EVERY)
            self._came |= {line.pid for line in self._tail.read() if isinstance(line, StoreOpened)}

    # Workers

    def start(self, number: int) -> None:
        """Start a worker."""
        self.workers[number] = self._started("worker")

    def kill(self, number: int) -> None:
        """Kill a worker on the spot."""
        process = self.workers[number]
        if process is None:
            return
        self.ledger.write(SignalSent, child=process.pid, how="killed")
        process.kill()
        self._reaped(process, expected=True)
        self.workers[number] = None

    def busiest(self) -> int:
        """Return which worker has most at work, as soon as one has anything."""
        until = time.monotonic() + TO_COME
        while time.monotonic() < until:
            at_work: Counter[int] = Counter()
            for line in read(self._home / LEDGER)[0]:
                at_work[line.pid] += isinstance(line, AttemptBegan) - isinstance(line, AttemptEnded)
            up = [at_work[one.pid] if one is not None else 0 for one in self.workers]
            if any(up):
                return up.index(max(up))
            time.sleep(LOOK_EVERY)
        raise Unfinished(f"no worker had anything to do for {TO_COME:g} s")

    def exits(self) -> int:
        """Return how many processes have ended by themselves."""
        alive = filter(None, (*self.workers, self._producer))
        return sum(process.poll() is not None for process in alive)

    # The producer

    def send_order(self, order: str) -> None:
        """Send an order to the producer."""
        assert self._producer is not None
        assert self._producer.stdin is not None
        self._producer.stdin.write(order.encode() + b"\n")
        self._producer.stdin.flush()

    def stop_producing(self) -> None:
        """Let the producer end, once all it had to submit is stored."""
        producer = self._producer
        assert producer is not None
        assert producer.stdin is not None
        producer.stdin.close()
        self._ended([producer])

    def stop(self) -> None:
        """Let the workers end in good order."""
        up = [process for process in self.workers if process is not None]
        for process in up:
            process.send_signal(signal.SIGTERM)
        self._ended(up)

    def _ended(self, processes: list[subprocess.Popen[bytes]]) -> None:
        until = time.monotonic() + TO_STOP
        for process in processes:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise Unfinished(f"a process did not end within {TO_STOP:g} s") from None
            self._reaped(process, expected=True)

    def _reaped(self, process: subprocess.Popen[bytes], *, expected: bool) -> None:
        code = process.wait()
        self.ledger.write(
            ProcessEnded, child=process.pid, role="worker", number=0, code=code, expected=expected
        )
