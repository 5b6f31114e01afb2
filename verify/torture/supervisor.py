"""The supervisor: starts the processes of a fleet, hurts them, and brings them back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from verify.torture.fault_schedule import Fault, FaultKind, ProcessFaults, StoreFaults
from verify.torture.ledger import (
    AttemptBegan,
    IdleMeasured,
    ProcessEnded,
    ProcessStarted,
    SignalSent,
    StoreFaulted,
    StoreOpened,
    Tail,
)
from verify.torture.member import LEDGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from verify.torture.ledger import Ledger
    from verify.torture.plan import Settings
    from verify.torture.store_setup import StatementCount, StoreSetup

    Command = Callable[[str, int], Sequence[str]]

TICK = 0.01
"""Seconds between two looks at the processes."""

TO_COME = 60.0
"""Seconds for all processes to open the store, before the first fault."""

TO_STOP = 15.0
"""Seconds that a process has to end in good order."""

ASK_EVERY = 0.5
"""Seconds between two questions whether everything is done."""


ENDS_BY_ITSELF = ("submitter", "canceller")
"""The roles of processes that end when they have done their part."""

SETTLES_WITHIN = 20.0
"""Seconds after which a worker with nothing to do asks the store as seldom as it ever will."""


class Unfinished(Exception):
    """The fleet did not finish in time."""


class Child:
    """A place in the fleet: a role and a number, and the process that fills it now."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.thaw_at: float | None = None
        """When it is to move again; None = it moves."""
        self.kill_frozen = False
        self.opened = False
        """Whether its process has opened the store."""
        self.came = False
        """Whether a process of it ever has."""
        self.expected = False
        """Whether the supervisor ended its process."""
        self.done = False
        """Whether it ended by itself, with all its work done."""

    @property
    def name(self) -> tuple[str, int]:
        """Who it is."""
        return self.role, self.number

    @property
    def moves(self) -> bool:
        """Whether it is up and not frozen."""
        return self.process is not None and self.thaw_at is None


def fleet_of(settings: Settings) -> list[Child]:
    """Return the places of a fleet that is hurt."""
    workers = [Child("worker", number) for number in range(settings.workers)]
    submitters = [Child("submitter", number) for number in range(settings.submitters)]
    return [*workers, *submitters, Child("pulse", 0), Child("canceller", 0)]


class Supervisor:
    """Runs one torture. Only ever signals processes that it started itself."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        children: Sequence[Child] | None = None,
        command: Command | None = None,
        place: StoreSetup | None = None,
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._command = command or self._member
        self._process_faults = ProcessFaults(settings)
        self._place = place
        self._store_faults = StoreFaults(settings)
        self.children = fleet_of(settings) if children is None else children
        self._tail = Tail(ledger_of(settings))
        self._began_at = settings.began
        """When a handler last began, by the monotonic clock."""
        self.faults: dict[FaultKind, int] = dict.fromkeys(FaultKind, 0)

    def run(self, all_done: Callable[[], bool]) -> None:
        """Let the fleet do its work, hurting it all the while, until `all_done` says yes."""
        try:
            self._hurt()
            self._wait(all_done)
            self._stop()
        finally:
            self._end_all()

    def rest(self, count: Callable[[], StatementCount]) -> None:
        """Let a fleet stand idle, and record the statements it sends meanwhile."""
        try:
            self._come()
            self._stay(SETTLES_WITHIN)
            before, since = count(), time.monotonic()
            self._stay(self.settings.idle_seconds)
            after = count()
            self._ledger.write(
                IdleMeasured,
                workers=len(self.children),
                seconds=time.monotonic() - since,
                transactions=after.transactions - before.transactions,
                statements=after.statements_since(before),
            )
            self._stop()
        finally:
            self._end_all()

    def _come(self) -> None:
        """Start all processes, and wait until they have opened the store."""
        until = time.monotonic() + TO_COME
        while not all(child.came for child in self.children):
            self._tend(time.monotonic())
            if time.monotonic() >= until:
                raise Unfinished(f"the fleet did not come to work within {TO_COME:g} s")
            time.sleep(TICK)

    def _stay(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self._tend(now)
            time.sleep(TICK)

    # The three parts

    def _hurt(self) -> None:
        """Hurt the fleet for as long as ordered, from the moment on at which it is at work."""
        self._come()
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + self.settings.seconds:
            self._tend(now)
            self._blows(now - begun, now)
            if self._place is not None:
                self._storm(self._place, now - begun)
            time.sleep(TICK)

    def _blows(self, elapsed: float, now: float) -> None:
        moving = [child for child in self.children if child.moves]
        faults = self._process_faults.due(
            elapsed,
            [child.name for child in moving if child.opened],
            [child.name for child in moving if not child.opened],
            sum(child.thaw_at is not None for child in self.children),
        )
        for fault in faults:
            self._strike(fault, now)

    def _storm(self, place: StoreSetup, elapsed: float) -> None:
        """Let happen to the store what is due."""
        if self._store_faults.cut(elapsed):
            self._ledger.write(StoreFaulted, how="cut")
            place.cut(self._store_faults.dice)
        away = self._store_faults.crash(elapsed)
        if away is not None:
            self._ledger.write(StoreFaulted, how="crash")
            place.crash()
            self._stay(away)
            place.start()
            self._ledger.write(StoreFaulted, how="back")

    def _wait(self, all_done: Callable[[], bool]) -> None:
        """Inject no more faults, and wait until all items are submitted and done."""
        started = time.monotonic()
        until = started + self.settings.patience
        while True:
            calm = time.monotonic() + ASK_EVERY
            while (now := time.monotonic()) < calm:
                self._tend(now)
                time.sleep(TICK)
            ending = [child for child in self.children if child.role in ENDS_BY_ITSELF]
            frozen = any(child.thaw_at is not None for child in self.children)
            if not frozen and all(child.done for child in ending) and all_done():
                return
            if now >= until:
                patience = self.settings.patience
                raise Unfinished(f"not everything was done {patience:g} s after the last blow")
            if now >= max(self._began_at, started) + self.settings.stalled:
                raise Unfinished(f"no handler has begun for {self.settings.stalled:g} s")

    def _stop(self) -> None:
        """Send SIGTERM to all processes, and wait for their end."""
        for child in self._up():
            self._signal(child, signal.SIGTERM, "stopped")
            child.expected = True
        until = time.monotonic() + TO_STOP
        while list(self._up()):
            for child in self._up():
                self._reap(child)
            if time.monotonic() >= until:
                stuck = ", ".join(f"{child.role} {child.number}" for child in self._up())
                raise Unfinished(f"these did not stop within {TO_STOP:g} s after SIGTERM: {stuck}")
            time.sleep(TICK)

    # Processes

    def _tend(self, now: float) -> None:
        """Restart ended processes, and continue those that were frozen for long enough."""
        self._read()
        for child in self.children:
            if child.process is not None:
                self._reap(child)
            if child.process is None and not child.done:
                self._start(child)
            if child.thaw_at is not None and now >= child.thaw_at:
                self._thaw(child)

    def _read(self) -> None:
        """Take in what the processes wrote down since."""
        up = {child.process.pid: child for child in self.children if child.process is not None}
        for line in self._tail.read():
            if isinstance(line, StoreOpened) and line.pid in up:
                up[line.pid].opened = up[line.pid].came = True
            elif isinstance(line, AttemptBegan):
                self._began_at = line.mono

    def _start(self, child: Child) -> None:
        log = Path(self.settings.home) / f"{child.role}-{child.number}.log"
        with log.open("ab") as output:
            child.process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                self._command(*child.name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        child.expected = child.kill_frozen = child.opened = False
        child.thaw_at = None
        pid = child.process.pid
        self._ledger.write(ProcessStarted, child=pid, role=child.role, number=child.number)

    def _member(self, role: str, number: int) -> list[str]:
        program = "verify.torture.member"
        parent = str(os.getpid())
        return [sys.executable, "-m", program, self.settings.home, role, str(number), parent]

    def _reap(self, child: Child) -> None:
        """Take note if its process has ended."""
        process = child.process
        if process is None or (code := process.poll()) is None:
            return
        child.process = None
        child.thaw_at = None
        child.done = child.role in ENDS_BY_ITSELF and code == 0
        self._ledger.write(
            ProcessEnded,
            child=process.pid,
            role=child.role,
            number=child.number,
            code=code,
            expected=child.expected or child.done,
        )

    def _up(self) -> Iterator[Child]:
        return (child for child in self.children if child.process is not None)

    # Blows

    def _strike(self, fault: Fault, now: float) -> None:
        child = next(one for one in self.children if one.name == (fault.role, fault.number))
        self.faults[fault.how] += 1
        match fault.how:
            case FaultKind.KILL:
                child.expected = True
                self._signal(child, signal.SIGKILL, "killed")
            case FaultKind.STOP:
                child.expected = True
                self._signal(child, signal.SIGTERM, "stopped")
            case FaultKind.FREEZE | FaultKind.FREEZE_AND_KILL:
                child.thaw_at = now + fault.seconds
                child.kill_frozen = fault.how is FaultKind.FREEZE_AND_KILL
                self._signal(child, signal.SIGSTOP, "frozen")

    def _thaw(self, child: Child) -> None:
        child.thaw_at = None
        if child.kill_frozen:
            child.expected = True
            self._signal(child, signal.SIGKILL, "killed")
        else:
            self._signal(child, signal.SIGCONT, "thawed")

    def _signal(self, child: Child, number: signal.Signals, how: str) -> None:
        """Send a signal to a process of ours; it is written down first, so that nothing is late."""
        process = child.process
        if process is None or process.poll() is not None:
            return
        self._ledger.write(SignalSent, child=process.pid, how=how)
        os.kill(process.pid, number)

    def _end_all(self) -> None:
        """Leave no process behind, whatever happened."""
        for child in list(self._up()):
            process = child.process
            if process is None:
                continue
            if process.poll() is None:
                child.expected = True
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=TO_STOP)
            self._reap(child)


def ledger_of(settings: Settings) -> Path:
    """Return where the ledger of a torture is."""
    return Path(settings.home) / LEDGER
