"""`millpond worker --processes N` and `--reload`: the parent of worker processes.

It imports no code of the application. It starts processes, passes signals on, starts processes
again that ended, with growing delays, and reports their health together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.exits import Exit
from millpond.cli.signals import ECHO
from millpond.cli.supervise.child import Child
from millpond.cli.supervise.health_answer import Health
from millpond.cli.supervise.heartbeat import DRAINING, EVERY, READY, STALLED_AFTER, STARTING
from millpond.cli.supervise.restarts import Restarts
from millpond.core.log_fields import about
from millpond.core.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from millpond.cli.supervise.file_watcher import FileWatcher
    from millpond.cli.supervise.systemd import Systemd

log = logging.getLogger("millpond.cli")

LOOK_EVERY = 0.5
"""Seconds between two looks at the files."""

RELOAD_MARGIN = 10.0
"""Seconds beyond the grace period after which a reload kills a process that does not end."""

REFUSED = (Exit.USAGE, Exit.APP)
"""Exit codes that a restart does not cure."""


class SupervisorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor runs, and how."""

    command: tuple[str, ...]
    """The command line of one worker process."""
    processes: int
    once: bool
    grace: float


class Place:
    """One of the N places for a process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.start_at = 0.0
        """When to start the next process."""
        self.kill_at: float | None = None
        self.restarts = Restarts()
        self.is_done = False
        """Whether it gets no process any more: its last ended, and it was to run once."""


class Supervisor(Service):
    """Keeps N worker processes running until a signal."""

    _options: SupervisorOptions
    _systemd: Systemd
    _watcher: FileWatcher | None = None
    _stopping: bool = False
    _served: bool = False
    """Whether any process has ever served."""
    _waits_for_change: bool = False
    """Whether the code cannot be loaded: only a changed file helps."""

    def __post_init__(self) -> None:
        self._places = [Place(number) for number in range(1, self._options.processes + 1)]
        self._selector = selectors.DefaultSelector()
        self._signals: deque[tuple[str, float]] = deque()
        self._counted, self._last_signal = 0, float("-inf")
        self._code = Exit.CLEAN
        self._looped_at = self._looked_at = self._reported_at = time.monotonic()

    def run(self) -> Exit:
        """Run processes until all have ended for good; return the exit code."""
        with self._woken_by_signals():
            try:
                while not self._is_over():
                    now = self._looped_at = time.monotonic()
                    self._receive_signals()
                    self._reap(now)
                    self._reload_if_changed(now)
                    self._start_due(now)
                    self._report(now)
                    if not self._is_over():
                        self._wait(now)
            finally:
                self._kill_all()
        log.info("all processes have ended", extra=about("supervisor.stopped"))
        return self._code

    def health(self) -> Health:
        """Return the health of all processes together; any thread may call this."""
        now = time.monotonic()
        # The loop may end a process while this thread looks: each place is read once.
        children = [child for place in self._places if (child := place.child) is not None]
        stalled = [one for one in children if one.is_stalled(now)]
        is_ready = len(children) == len(self._places) and all(
            one.beat.state == READY for one in children
        )
        return Health(
            live=not stalled and now - self._looped_at < STALLED_AFTER,
            ready=is_ready and not self._stopping and not stalled,
            state=self._state(is_ready=is_ready, stalled=bool(stalled)),
            running=sum(one.beat.running for one in children),
            processes=len(children),
        )

    def _state(self, *, is_ready: bool, stalled: bool) -> str:
        if self._stopping:
            return DRAINING
        if stalled:
            return "stalled"
        return READY if is_ready else STARTING

    def _is_over(self) -> bool:
        if any(place.child is not None for place in self._places):
            return False
        return self._stopping or all(place.is_done for place in self._places)

    # Signals

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """Let signals and ends of processes wake the loop."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, None)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            self._selector.close()
            ours.close()
            theirs.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append((signal.Signals(number).name, time.monotonic()))

    def _receive_signals(self) -> None:
        while self._signals:
            name, moment = self._signals.popleft()
            if self._counted and (name == "SIGHUP" or moment - self._last_signal < ECHO):
                continue
            self._counted, self._last_signal = self._counted + 1, moment
            self._stop(name)

    def _stop(self, name: str) -> None:
        """Pass a signal on: the first drains, the second stops now, the third exits at once."""
        self._stopping = True
        children = [place.child for place in self._places if place.child is not None]
        if self._counted == 1:
            log.info(
                "%s: stopping %d processes",
                name,
                len(children),
                extra=about("supervisor.stopping", signal=name),
            )
            self._systemd.stopping()
        for child in children:
            if self._counted > 2:
                child.kill()
                self._code = Exit.LOST
            elif self._counted > 1 or not child.stopping:
                # One that a reload stops has its first signal: another would end its grace.
                child.send(signal.SIGTERM)

    def _stop_because(self, code: Exit) -> None:
        """Stop all processes, and exit with this code."""
        self._code, self._stopping = code, True
        for place in self._places:
            if place.child is not None:
                place.child.send(signal.SIGTERM)

    # Processes

    def _start_due(self, now: float) -> None:
        if self._stopping or self._waits_for_change:
            return
        for place in self._places:
            if place.child is None and not place.is_done and now >= place.start_at:
                self._start(place, now)
            if not self._served:
                # One alone finds out whether the application can be served, and migrates.
                return

    def _start(self, place: Place, now: float) -> None:
        try:
            place.child = child = Child(place.number, self._options.command, now)
        except OSError as error:
            self._could_not_start(place, error, now)
            return
        place.kill_at = None
        self._selector.register(child.fd, selectors.EVENT_READ, child)
        log.info(
            "started process %d (pid %d)",
            place.number,
            child.pid,
            extra=about("supervisor.process_started", place=place.number, pid=child.pid),
        )

    def _could_not_start(self, place: Place, error: OSError, now: float) -> None:
        """Try again later: no memory, no file descriptor, or a Python that is being replaced."""
        delay = place.restarts.delay_after(0.0)
        place.start_at = now + delay
        log.warning(
            "could not start process %d: %s; trying again in %g s",
            place.number,
            error,
            delay,
            extra=about("supervisor.process_not_started", place=place.number, reason=str(error)),
        )

    def _reap(self, now: float) -> None:
        for place in self._places:
            child = place.child
            if child is None:
                continue
            code = child.exit_code()
            child.read(now)
            self._served = self._served or (child.served and not child.stopping)
            if code is not None:
                self._forget(child)
                place.child = None
                self._ended(place, child, code, now)
            elif place.kill_at is not None and now >= place.kill_at:
                child.kill()

    def _forget(self, child: Child) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.fd)
        child.close()

    def _ended(self, place: Place, child: Child, code: int, now: float) -> None:
        """Decide what follows the end of a process."""
        if self._stopping:
            self._code = _worse(self._code, code, served=child.served)
        elif child.stopping:
            place.start_at = now
        elif code in REFUSED and not self._served:
            self._refused(next(one for one in REFUSED if one == code))
        elif self._options.once:
            # If it found nothing to do, the others find nothing either.
            place.is_done = self._served = True
            self._code = _worse(self._code, code, served=child.served)
        else:
            self._restart_later(place, child, code, now)

    def _refused(self, code: Exit) -> None:
        if self._watcher is None or code is not Exit.APP:
            self._stop_because(code)
            return
        self._waits_for_change = True
        log.warning(
            "the application cannot be loaded; waiting for a changed file",
            extra=about("supervisor.waiting_for_change"),
        )

    def _restart_later(self, place: Place, child: Child, code: int, now: float) -> None:
        delay = place.restarts.delay_after(now - child.started_at)
        place.start_at = now + delay
        log.warning(
            "process %d (pid %d) ended with %s; starting it again in %g s",
            place.number,
            child.pid,
            _ending(code),
            delay,
            extra=about(
                "supervisor.process_ended", place=place.number, pid=child.pid, exit_code=code
            ),
        )

    def _kill_all(self) -> None:
        for place in self._places:
            if place.child is not None:
                place.child.kill()

    # Reload

    def _reload_if_changed(self, now: float) -> None:
        if self._watcher is None or self._stopping or now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        changed = self._watcher.changed()
        if not changed:
            return
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        log.info("%s%s changed: reloading", changed[0], more, extra=about("supervisor.reloading"))
        self._waits_for_change = self._served = False
        for place in self._places:
            place.restarts.reset()
            place.start_at, place.is_done = now, False
            if place.child is not None and place.kill_at is None:
                place.child.send(signal.SIGTERM)
                place.kill_at = now + self._options.grace + RELOAD_MARGIN

    # Waiting and reporting

    def _report(self, now: float) -> None:
        """Report to systemd once a second, unless a process is stalled."""
        if now - self._reported_at < EVERY:
            return
        self._reported_at = now
        health = self.health()
        status = f"{health.state}, {health.processes} processes, {health.running} running"
        if health.ready:
            self._systemd.ready(status)
        if health.live:
            self._systemd.alive(status)

    def _wait(self, now: float) -> None:
        """Wait for a signal, a beat, the end of a process, or the next thing to do."""
        starts = [
            place.start_at - now
            for place in self._places
            if place.child is None and not place.is_done and place.start_at > now
        ]
        pause = min([LOOK_EVERY if self._watcher is not None else EVERY, *starts])
        for key, _ in self._selector.select(max(pause, 0.0)):
            if isinstance(key.data, Child):
                if not key.data.read(time.monotonic()):
                    self._selector.unregister(key.fd)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)


def _ending(code: int) -> str:
    """Return the end of a process in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


_SEVERITY: Sequence[Exit] = (
    Exit.CLEAN,
    Exit.FORCED,
    Exit.STORE,
    Exit.BROKE,
    Exit.APP,
    Exit.USAGE,
    Exit.LOST,
)


def _worse(before: Exit, code: int, *, served: bool) -> Exit:
    """Return the more serious of two exit codes; a process that never served has lost nothing."""
    if code < 0 or code == Exit.INTERRUPTED:
        found = Exit.LOST if served else Exit.CLEAN
    else:
        found = next((one for one in _SEVERITY if one == code), Exit.BROKE)
    return max(before, found, key=_SEVERITY.index)
