"""The writer: one thread that writes for a whole process, many jobs per commit.

A commit that reaches the disk costs the same for one job as for two hundred. So jobs gather while a
commit is under way, and the next commit takes them all. No caller gets its answer before the commit
with its change.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import Future as BlockingFuture
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.core.log_fields import about
from millpond.errors import (
    MillpondError,
    OutcomeUnknown,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreLocked,
)
from millpond.store.sql.transactions import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.store.sql.transactions import Transactor

log = logging.getLogger("millpond.store")

MOST_JOBS, LONGEST = 200, 0.005
"""The most jobs of one transaction, and for how many seconds it takes more jobs."""

SHARE, LONGEST_AFTER_WAITING = 0.25, 0.1
"""After waiting for the lock a transaction may take jobs for this part of the waiting time, because
later jobs wait as long again, but never for more seconds, because other processes wait too."""

_GOODBYE = 0.1
"""Seconds for which a thread that ends waits to notify other processes."""

_LOOK_EVERY = 0.5
"""Seconds between two checks for jobs that waited too long while another process writes."""

T = TypeVar("T")
P = TypeVar("P")


class WriteJob(Generic[Unit]):
    """A job for the writer, and the future that gets its answer."""

    __slots__ = ("answer", "argument", "batch_work", "error", "future", "loop", "queued_at", "work")

    def __init__(
        self,
        work: Callable[[Unit], Any],
        future: asyncio.Future[Any] | BlockingFuture[Any],
        loop: asyncio.AbstractEventLoop | None,
        batch_work: Callable[[list[Any]], list[Any]] | None = None,
        argument: object = None,
    ) -> None:
        self.work = work
        self.batch_work = batch_work
        """A function that does all waiting jobs of its kind in a transaction of their own."""
        self.argument = argument
        self.future = future
        self.loop = loop
        self.queued_at = time.monotonic()
        self.answer: Any = None
        self.error: BaseException | None = None

    def attempt(self, unit: Unit, is_answer: Callable[[MillpondError], bool]) -> None:
        """Do the job; a MillpondError is an answer, because it has changed nothing."""
        try:
            self.answer = self.work(unit)
        except MillpondError as error:
            if not is_answer(error):
                raise
            self.error = error

    def deliver(self) -> None:
        """Set the future to the answer or the error; on its own event loop, if it has one."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.answer)
        else:
            self.future.set_exception(self.error)


def must_not_be_forked(opened_by: int, where: str) -> None:
    """Raise StoreForked in a forked process: it lacks the threads of its parent."""
    if os.getpid() != opened_by:
        raise StoreForked(
            f"this process was forked from the one that opened {where}: threads do not survive a "
            "fork; open a new Millpond in the child",
            path=where,
        )


class Writer(Generic[Unit]):
    """The writing thread of one open store.

    A job must be able to run twice: when a group fails, each of its jobs is retried in a
    transaction of its own. A job that raises a MillpondError must have changed nothing; any other
    exception rolls back its whole transaction.

    The thread calls `committed` with the answers of each commit, after delivering them. It may
    return a number of seconds: if no job comes by then, it is called again without answers.
    """

    def __init__(
        self,
        transactor: Transactor[Unit, Any],
        *,
        committed: Callable[[Sequence[Any]], float | None] | None = None,
    ) -> None:
        self._transactor = transactor
        self._where = transactor.where
        self._patience = transactor.patience
        self._committed = committed
        self._jobs: deque[WriteJob[Unit]] = deque()
        self._news = threading.Condition(threading.Lock())
        self._closing = False
        self._hook_again: float | None = None
        self._in_line = False
        self._watched = False
        self._watch_until = 0.0
        self._process = os.getpid()
        # A daemon: a program that ends without closing does not wait for its open jobs.
        self._thread = threading.Thread(target=self._run, name="millpond-writer", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[Unit], T]) -> asyncio.Future[T]:
        """Queue a job; its future gets the answer after the commit. Only on an event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._take_in(WriteJob(job, future, loop))
        return future

    def do_in_batch(self, work: Callable[[list[P]], list[T]], argument: P) -> asyncio.Future[T]:
        """Queue a job that makes its own transaction. Only on an event loop.

        Consecutive jobs with the same `work` are passed to it together.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._take_in(WriteJob(nothing, future, loop, work, argument))
        return future

    def do_now(self, job: Callable[[Unit], T]) -> T:
        """Queue a job and wait for its answer, in a thread without an event loop."""
        future: BlockingFuture[T] = BlockingFuture()
        self._take_in(WriteJob(job, future, None))
        return future.result()

    def close(self) -> None:
        """Do the waiting jobs, then end; safe twice, no effect in a forked child."""
        if os.getpid() != self._process:
            return
        with self._news:
            self._closing = True
            self._news.notify()
        # Another process may hold the lock for ever: jobs fail, and the thread is abandoned.
        self._thread.join(self._patience + 2 * _LOOK_EVERY)

    def _take_in(self, job: WriteJob[Unit]) -> None:
        must_not_be_forked(self._process, self._where)
        with self._news:
            if self._closing:
                raise StoreClosed(f"the store {self._where} is closed; open a new one")
            self._jobs.append(job)
            then = self._taken_in(job)
        if then is not None:
            then()

    def _taken_in(self, job: WriteJob[Unit]) -> Callable[[], None] | None:
        """Wake the thread for a queued job; return what to call without the lock."""
        del job
        self._news.notify()
        return None

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._line_up()
                try:
                    group = self._do_group()
                finally:
                    self._transactor.lock.release()
                self._answer(group)
                self._after_commit([job.answer for job in group if job.error is None])
                self._tidy()
        finally:
            self._end()

    def _end(self) -> None:
        """Fail all waiting jobs, however the thread ended."""
        with self._news:
            self._closing = True
            left = list(self._jobs)
            self._jobs.clear()
        self._answer(
            self._failed(left, StoreClosed(f"the writer thread of {self._where} has ended"))
        )
        self._transactor.close()

    def _wait(self) -> bool:
        """Wait for a job; False = the writer ends."""
        while True:
            with self._news:
                if self._jobs:
                    return True
                if self._closing and not self._last_words:
                    return False
                woken = self._news.wait(self._hook_again)
            if not woken:
                self._after_commit(())

    @property
    def _last_words(self) -> bool:
        """Whether other processes still have to be notified of a commit, within a moment."""
        return self._hook_again is not None and self._hook_again <= _GOODBYE

    def _do_group(self) -> list[WriteJob[Unit]]:
        """Do the waiting jobs in one transaction; if it fails, one by one."""
        if apart := self._apart():
            return self._do_alone(apart)
        called_at = time.monotonic()
        try:
            unit = self._transactor.begin()
        except BaseException as error:  # noqa: BLE001 - the thread survives every error
            return self._failed(list(self._taken(len(self._jobs))), error)
        # Only now: this takes all jobs that came while other processes wrote.
        group: list[WriteJob[Unit]] = []
        try:
            for job in self._waiting(time.monotonic() - called_at):
                group.append(job)
                job.attempt(unit, self._transactor.is_answer)
            self._transactor.commit(unit)
        except OutcomeUnknown as error:
            return self._failed(group, error)
        except BaseException as error:  # noqa: BLE001 - the callers get it
            self._transactor.undo(error)
            if len(group) == 1 and not self._transactor.of_database(error):
                return self._failed(group, error)
            log.debug(
                "retrying %d writes to %s one by one: %r",
                len(group),
                self._where,
                error,
                extra=about("writes.retried", reason=repr(error)),
            )
            self._one_by_one(group)
        return group

    def _apart(self) -> list[WriteJob[Unit]]:
        """Take the first jobs that make their own transaction together."""
        with self._news:
            return self._first_apart()

    def _first_apart(self) -> list[WriteJob[Unit]]:
        apart: list[WriteJob[Unit]] = []
        while self._jobs and len(apart) < MOST_JOBS:
            first = self._jobs[0]
            if first.batch_work is None or (apart and first.batch_work != apart[0].batch_work):
                break
            apart.append(self._jobs.popleft())
        return apart

    def _do_alone(self, jobs: list[WriteJob[Unit]]) -> list[WriteJob[Unit]]:
        work = jobs[0].batch_work
        assert work is not None  # noqa: S101 - that is why they are here
        try:
            for job, answer in zip(jobs, work([job.argument for job in jobs]), strict=True):
                job.answer = answer
        except BaseException as error:  # noqa: BLE001 - the callers get it
            self._apart_failed(jobs, error)
        return jobs

    def _apart_failed(self, jobs: list[WriteJob[Unit]], error: BaseException) -> None:
        """Fail jobs that were done together, or retry each alone.

        An error of the database concerns all. An error before (a value that cannot be encoded)
        concerns one of them, and must not fail the others.
        """
        if len(jobs) < 2 or self._transactor.of_database(error) or isinstance(error, StoreError):
            self._failed(jobs, error)
            return
        for job in jobs:
            work = job.batch_work
            assert work is not None  # noqa: S101 - that is why they are here
            try:
                (job.answer,) = work([job.argument])
            except BaseException as own:  # noqa: BLE001 - the caller gets it
                self._failed([job], own)

    def _one_by_one(self, group: list[WriteJob[Unit]]) -> None:
        for index, job in enumerate(group):
            try:
                job.answer, job.error = self._transactor.once(job.work), None
            except StoreLocked as error:  # each of the others would wait as long
                self._failed(group[index:], error)
                return
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                self._failed([job], error)

    def _waiting(self, waited: float) -> Iterator[WriteJob[Unit]]:
        """Yield waiting jobs, also those that come meanwhile, as many as one commit takes."""
        longest = max(LONGEST, min(SHARE * waited, LONGEST_AFTER_WAITING))
        enough = time.monotonic() + longest
        for job in self._taken(MOST_JOBS):
            yield job
            if time.monotonic() > enough:
                return

    def _taken(self, most: int) -> Iterator[WriteJob[Unit]]:
        """Yield waiting jobs, up to one that makes its own transaction."""
        for _ in range(most):
            with self._news:  # the second thread may be failing some
                if not self._jobs or self._jobs[0].batch_work is not None:
                    return
                job = self._jobs.popleft()
            yield job

    def _failed(self, jobs: list[WriteJob[Unit]], error: BaseException) -> list[WriteJob[Unit]]:
        transactor = self._transactor
        ours = transactor.translated(error) if isinstance(error, transactor.errors) else error
        for job in jobs:
            # Each has an error of its own: raising one adds to its traceback.
            job.error = copy.copy(ours) if len(jobs) > 1 else ours
            job.error.__cause__ = ours.__cause__
        return jobs

    def _tidy(self) -> None:
        """Run maintenance of the database in a turn of its own, after all answers."""
        if not self._transactor.has_to_tidy():
            return
        self._line_up()
        try:
            self._transactor.tidy()
        except MillpondError as error:
            log.warning(
                "maintenance of %s failed: %s",
                self._where,
                error,
                extra=about("store.maintenance_failed", reason=str(error)),
            )
        finally:
            self._transactor.lock.release()

    # --- patience -----------------------------------------------------------------------------

    def _line_up(self) -> None:
        """Wait for the writers' lock; jobs that wait too long fail meanwhile."""
        lock = self._transactor.lock
        if lock.try_acquire():
            return
        self._be_watched()
        self._in_line = True
        lock.wait()
        self._in_line = False

    def _be_watched(self) -> None:
        """Start a second thread that fails jobs which wait too long for the lock.

        A thread cannot stop waiting for such a lock half way, so another thread fails its jobs. It
        starts when another process has the lock, and ends when that has not happened for a while.
        """
        with self._news:
            self._watch_until = time.monotonic() + 4 * _LOOK_EVERY
            if self._watched:
                return
            self._watched = True
        threading.Thread(target=self._watch, name="millpond-patience", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY)
            if self._in_line:
                self._answer(self._given_up())
            with self._news:
                if not self._in_line and time.monotonic() > self._watch_until:
                    self._watched = False
                    return

    def _given_up(self) -> list[WriteJob[Unit]]:
        """Remove and fail the jobs that waited too long; the error names the lock holder."""
        latest = time.monotonic() - self._patience
        given_up: list[WriteJob[Unit]] = []
        with self._news:
            while self._jobs and self._jobs[0].queued_at <= latest:
                given_up.append(self._jobs.popleft())
        return self._failed(given_up, self._transactor.kept_waiting())

    # --- answers ------------------------------------------------------------------------------

    def _answer(self, group: Sequence[WriteJob[Unit]]) -> None:
        """Deliver all answers, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[WriteJob[Unit]]] = {}
        for job in group:
            if job.loop is None:
                job.deliver()
            else:
                by_loop.setdefault(job.loop, []).append(job)
        for loop, jobs in by_loop.items():
            try:
                loop.call_soon_threadsafe(answer_caller, jobs)
            except RuntimeError:  # the loop is closed
                log.debug(
                    "dropping %d answers of %s: their event loop is closed",
                    len(jobs),
                    self._where,
                    extra=about("answers.dropped"),
                )

    def _after_commit(self, answers: Sequence[Any]) -> None:
        self._hook_again = None
        if self._committed is None:
            return
        try:
            self._hook_again = self._committed(answers)
        except Exception:
            log.exception(
                "a hook after the commit to %s failed; the commit is stored",
                self._where,
                extra=about("commit.hook_failed"),
            )


def nothing(_: object) -> None:
    """Do nothing."""


def answer_caller(jobs: Sequence[WriteJob[Any]]) -> None:
    """Hand over the outcomes of these, on their loop."""
    for job in jobs:
        job.deliver()
