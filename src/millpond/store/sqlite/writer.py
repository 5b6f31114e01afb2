"""The writer: one thread that writes for a whole process, many jobs to a commit.

A commit that reaches the disk costs the same for one job as for two hundred. So what the event
loop asks for gathers while a commit is under way, and goes together into the next one. Nobody is
answered before the commit that holds his change.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from concurrent.futures import Future as BlockingFuture
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from millpond.core.errors import (
    MillpondError,
    OutcomeUnknown,
    StoreClosed,
    StoreError,
    StoreForked,
)
from millpond.store.sqlite.connect import PATIENCE, begin
from millpond.store.sqlite.errors import code_of, is_poisonous, translated
from millpond.store.sqlite.lock import WritersLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

MOST_JOBS, LONGEST = 200, 0.005
"""How many jobs one transaction takes at most, and for how many seconds it takes more."""

_NOT_COMMITTED = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
    }
)
"""A COMMIT that says one of these did not happen; after any other error nobody can tell."""


class UnitOfWork(Protocol):
    """What jobs work on, made anew for each transaction."""

    def write(self) -> None:
        """Send to the database what the jobs changed."""
        ...


Unit = TypeVar("Unit", bound=UnitOfWork)
T = TypeVar("T")


class _Job(Generic[Unit]):
    """Something to do, and whom to tell."""

    __slots__ = ("answer", "asked_at", "error", "future", "loop", "work")

    def __init__(
        self,
        work: Callable[[Unit], Any],
        future: asyncio.Future[Any] | BlockingFuture[Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.work = work
        self.future = future
        self.loop = loop
        self.asked_at = time.monotonic()
        self.answer: Any = None
        self.error: BaseException | None = None

    def attempt(self, unit: Unit) -> None:
        """Do it; an error of ours is an answer, because it has changed nothing."""
        self.error = None
        try:
            self.answer = self.work(unit)
        except MillpondError as error:
            self.error = error

    def tell(self) -> None:
        """Hand over what became of it; on the loop it came from, if it came from one."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.answer)
        else:
            self.future.set_exception(self.error)


class Writer(Generic[Unit]):
    """The writing thread of one open store.

    A job must be able to run twice: where a group fails, each of its jobs is tried once more, in a
    transaction of its own. A job that raises a MillpondError must have changed nothing; any other
    exception undoes its whole transaction.
    """

    def __init__(
        self,
        path: Path,
        open_connection: Callable[[], sqlite3.Connection],
        make_unit: Callable[[sqlite3.Connection], Unit],
        *,
        committed: Callable[[Sequence[Any]], None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._path = path
        self._open_connection = open_connection
        self._make_unit = make_unit
        self._committed = committed
        self._patience = patience
        self._lock = WritersLock(path)
        self._connection: sqlite3.Connection | None = None
        self._jobs: deque[_Job[Unit]] = deque()
        self._news = threading.Condition(threading.Lock())
        self._closing = False
        self._process = os.getpid()
        # A daemon: a program that ends without closing is not held up; its open jobs are not done.
        self._thread = threading.Thread(target=self._run, name="millpond-writer", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[Unit], T]) -> asyncio.Future[T]:
        """Have a job done; the answer arrives once it is committed. Only on an event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._take_in(_Job(job, future, loop))
        return future

    def do_now(self, job: Callable[[Unit], T]) -> T:
        """Have a job done and wait for it, in a thread that has no event loop."""
        future: BlockingFuture[T] = BlockingFuture()
        self._take_in(_Job(job, future, None))
        return future.result()

    def close(self) -> None:
        """Do what waits, then end; safe twice, and of no effect in a forked child."""
        if os.getpid() != self._process:
            return
        with self._news:
            self._closing = True
            self._news.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _take_in(self, job: _Job[Unit]) -> None:
        if os.getpid() != self._process:
            raise StoreForked(
                f"this process was forked from the one that opened {self._path}: a fork has no "
                "writer thread; open a Millpond of its own in the child",
                path=str(self._path),
            )
        with self._news:
            if self._closing:
                raise StoreClosed(f"the store {self._path} is closed; open a new one")
            self._jobs.append(job)
            self._news.notify()

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._answer(self._do_group())
        finally:
            self._disconnect()
            self._lock.close()

    def _wait(self) -> bool:
        """Wait for something to do; False = there will be no more."""
        with self._news:
            while not self._jobs:
                if self._closing:
                    return False
                self._news.wait()
            return True

    def _do_group(self) -> list[_Job[Unit]]:
        """Do what waits in one transaction; where that fails, one by one."""
        try:
            unit = self._begin()
        except StoreError as error:
            return self._failed(self._all_waiting(), error)
        # Only now: all that came while others wrote is taken along.
        group: list[_Job[Unit]] = []
        try:
            for job in self._waiting():
                group.append(job)
                job.attempt(unit)
            self._commit(unit)
        except OutcomeUnknown as error:
            return self._failed(group, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody must be told
            self._undo(error)
            if len(group) == 1 and not isinstance(error, sqlite3.Error):
                return self._failed(group, error)
            log.debug("%d jobs on %s are tried one by one: %r", len(group), self._path, error)
            return self._one_by_one(group)
        return group

    def _one_by_one(self, group: list[_Job[Unit]]) -> list[_Job[Unit]]:
        for index, job in enumerate(group):
            try:
                unit = self._begin()
            except StoreError as error:
                self._failed(group[index:], error)
                break
            try:
                job.attempt(unit)
                self._commit(unit)
            except OutcomeUnknown as error:
                job.error = error
            except BaseException as error:  # noqa: BLE001 - the one who asked is told
                self._undo(error)
                self._failed([job], error)
        return group

    def _waiting(self) -> Iterator[_Job[Unit]]:
        """Give the jobs that wait, also those that come meanwhile, as many as one commit takes."""
        enough = time.monotonic() + LONGEST
        for count in range(MOST_JOBS):
            if not self._jobs or (count and time.monotonic() > enough):
                return
            yield self._jobs.popleft()

    def _all_waiting(self) -> list[_Job[Unit]]:
        return [self._jobs.popleft() for _ in range(len(self._jobs))]

    def _failed(self, jobs: list[_Job[Unit]], error: BaseException) -> list[_Job[Unit]]:
        ours = translated(error, self._path) if isinstance(error, sqlite3.Error) else error
        for job in jobs:
            # Each has an error of its own: raising one adds to its traceback.
            job.error = copy.copy(ours) if len(jobs) > 1 else ours
            job.error.__cause__ = ours.__cause__
        return jobs

    # --- one transaction ----------------------------------------------------------------------

    def _begin(self) -> Unit:
        """Stand in line, begin, and give what jobs work on; a spoilt connection is replaced."""
        self._lock.acquire()
        try:
            try:
                begin(self._connected(), self._path, patience=self._patience)
            except StoreError as error:
                if not is_poisonous(error.__cause__):
                    raise
                self._disconnect()
                begin(self._connected(), self._path, patience=self._patience)
            return self._make_unit(self._connected())
        except BaseException as error:
            self._undo(error)
            raise

    def _commit(self, unit: Unit) -> None:
        unit.write()
        try:
            self._connected().execute("COMMIT")
        except sqlite3.Error as error:
            if code_of(error) in _NOT_COMMITTED:
                raise
            unknown = self._unknown(error)
            self._undo(error)
            raise unknown from error
        self._lock.release()

    def _unknown(self, error: sqlite3.Error) -> OutcomeUnknown:
        name = getattr(error, "sqlite_errorname", "no code")
        return OutcomeUnknown(
            f"the commit to {self._path} failed ({name}: {error}): it is not known whether this "
            "change is stored; look before doing it again, or repeat it with an idempotency key",
            path=str(self._path),
        )

    def _undo(self, error: BaseException) -> None:
        """Leave nothing of a transaction behind, neither on the connection nor in the line."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()
        if is_poisonous(error):
            self._disconnect()
        self._lock.release()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open_connection()
            # `begin` waits in its own way.
            self._connection.execute("PRAGMA busy_timeout=0")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as error:
                log.warning("closing %s failed: %s", self._path, error)

    # --- answers ------------------------------------------------------------------------------

    def _answer(self, group: Sequence[_Job[Unit]]) -> None:
        """Tell everybody, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Job[Unit]]] = {}
        for job in group:
            if job.loop is None:
                job.tell()
            else:
                by_loop.setdefault(job.loop, []).append(job)
        for loop, jobs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_tell, jobs)
            except RuntimeError:  # the loop is closed: nobody is there to hear it
                log.debug("%d answers of %s came too late", len(jobs), self._path)
        self._after_commit([job.answer for job in group if job.error is None])

    def _after_commit(self, answers: Sequence[Any]) -> None:
        if self._committed is None or not answers:
            return
        try:
            self._committed(answers)
        except Exception:
            log.exception("after a commit to %s", self._path)


def _tell(jobs: Sequence[_Job[Any]]) -> None:
    for job in jobs:
        job.tell()
