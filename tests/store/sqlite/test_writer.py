"""The writer: it commits jobs in groups, answers after the commit, and retries a failed group."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.store.sqlite.counting import Entries, adding, table, words

from millpond.core.lifecycle import Status, Transition, advance
from millpond.errors import (
    IllegalTransition,
    OutcomeUnknown,
    PoolClosed,
    StoreClosed,
    StoreError,
    StoreFailing,
    StoreForked,
    StoreFull,
    StoreLocked,
    StoreMissing,
)
from millpond.store.sql import writer as writer_module
from millpond.store.sql.writer import Writer
from millpond.store.sqlite.connect import PATIENCE, begin, connect
from millpond.store.sqlite.transactions import SqliteTransactor
from millpond.store.sqlite.writers_lock import WritersLock

pytestmark = pytest.mark.real_loop

Opening = Callable[..., Writer[Entries]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table to write to."""
    return table(tmp_path / "work.db")


@pytest.fixture
def opened(path: Path) -> Iterator[Opening]:
    """Opens writers, and closes them when the test is over."""
    writers: list[Writer[Entries]] = []

    def opening(
        unit: Callable[[sqlite3.Connection], Entries] = Entries, **options: Any
    ) -> Writer[Entries]:
        connection = options.pop("connection", lambda: connect(path))
        patience = options.pop("patience", PATIENCE)
        transactor = SqliteTransactor(path, connection, unit, patience=patience)
        writers.append(Writer(transactor, **options))
        return writers[-1]

    yield opening
    for writer in writers:
        writer.close()


class Held:
    """A job that keeps the writer busy until it is let go, so that others gather behind it."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self, unit: Entries) -> int:
        """Add a word, late."""
        self.begun.set()
        assert self.gate.wait(10)
        return unit.add("held")


async def gathered(writer: Writer[Entries], *jobs: Callable[[Entries], Any]) -> list[Any]:
    """Return the answers of jobs that all waited when the writer took them."""
    held = Held()
    first = writer.do(held)
    await asyncio.to_thread(held.begun.wait, 10)
    # The one that is held takes along all that comes until it is over, so the next are behind it.
    futures = [writer.do(job) for job in jobs]
    held.gate.set()
    await first
    return await asyncio.gather(*futures, return_exceptions=True)


def raising(error: Exception, *, then: Callable[[Entries], object] | None = None) -> Any:
    """A job that fails, perhaps after it did something."""

    def job(unit: Entries) -> None:
        if then is not None:
            then(unit)
        raise error

    return job


# --- answers ---------------------------------------------------------------------------------


async def test_an_answer_comes_after_the_commit(path: Path, opened: Opening) -> None:
    """The caller then finds the change with any other connection."""
    writer = opened()
    assert 1 == await writer.do(adding("first"))
    assert ["first"] == words(path)
    assert 2 == await writer.do(adding("second"))
    assert ["first", "second"] == words(path)


async def test_jobs_that_wait_share_a_commit(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they were asked for, with one call to the loop for all."""
    groups: list[list[int]] = []
    writer = opened(committed=lambda answers: groups.append(list(answers)))
    calls = 0
    loop = asyncio.get_running_loop()
    soon = loop.call_soon_threadsafe

    def counting(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return soon(*args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    answers = await asyncio.gather(*[writer.do(adding(str(n))) for n in range(500)])
    await asyncio.to_thread(writer.close)
    assert list(range(1, 501)) == answers
    assert [str(n) for n in range(500)] == words(path)
    assert 500 == sum(map(len, groups))
    assert len(groups) < 100
    assert max(map(len, groups)) <= writer_module.MOST_JOBS
    # The last one was made by `to_thread`.
    assert len(groups) + 1 >= calls


async def test_jobs_that_come_during_a_transaction_are_taken_along(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that has begun takes what arrives, for a little while."""
    monkeypatch.setattr(writer_module, "LONGEST", 60.0)
    groups: list[int] = []
    writer = opened(committed=lambda answers: groups.append(len(answers)))
    assert [2, 3] == await gathered(writer, adding("a"), adding("b"))
    await asyncio.to_thread(writer.close)
    assert [3] == groups


async def test_a_transaction_does_not_take_more_for_ever(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some milliseconds the rest goes into the next one."""
    monkeypatch.setattr(writer_module, "LONGEST", 0.0)
    monkeypatch.setattr(writer_module, "SHARE", 0.0)
    groups: list[int] = []
    writer = opened(committed=lambda answers: groups.append(len(answers)))
    assert [2, 3] == await gathered(writer, adding("a"), adding("b"))
    await asyncio.to_thread(writer.close)
    assert [1, 1, 1] == groups


async def test_a_writer_that_waited_for_the_lock_takes_more_jobs(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs left would have to wait as long again."""
    monkeypatch.setattr(writer_module, "LONGEST", 0.0)
    groups: list[int] = []
    begin = SqliteTransactor.begin

    def in_turn(transactor: Any) -> Any:
        time.sleep(0.2)  # a turn that is long in coming, which is the point
        return begin(transactor)

    monkeypatch.setattr(SqliteTransactor, "begin", in_turn)
    writer = opened(committed=lambda answers: groups.append(len(answers)))
    assert [2, 3, 4] == await gathered(writer, adding("a"), adding("b"), adding("c"))
    await asyncio.to_thread(writer.close)
    assert 3 <= groups[-1]


@pytest.mark.parametrize(("again", "calls"), [(0.02, 2), (3600.0, 1)])
async def test_closing_calls_a_hook_that_is_due_soon(
    opened: Opening, again: float, calls: int
) -> None:
    """A hook that asked to be called again soon is; one that wants to wait for long is not."""
    groups: list[int] = []

    def hook(answers: Sequence[Any]) -> float | None:
        groups.append(len(answers))
        return again if len(groups) == 1 else 3600.0

    writer = opened(committed=hook)
    await writer.do(adding("first"))
    await asyncio.to_thread(writer.close)
    assert [1, 0][:calls] == groups


def test_a_thread_may_submit_jobs_too(path: Path, opened: Opening) -> None:
    """It waits for its answer."""
    writer = opened()
    assert 1 == writer.do_now(adding("first"))
    with pytest.raises(PoolClosed):
        writer.do_now(raising(PoolClosed("no", pool="p")))
    assert ["first"] == words(path)


async def test_cancelling_the_waiting_caller_does_not_undo_the_job(
    path: Path, opened: Opening
) -> None:
    """The writer does the job, and drops its answer."""
    writer = opened()
    held = Held()
    future = writer.do(held)
    await asyncio.to_thread(held.begun.wait, 10)
    future.cancel()
    held.gate.set()
    assert 2 == await writer.do(adding("after"))
    assert ["held", "after"] == words(path)


def test_answers_to_a_loop_that_is_closed_are_dropped(path: Path, opened: Opening) -> None:
    """The writer goes on for others."""
    writer = opened()
    held = Held()

    async def leaving() -> None:
        writer.do(held)

    asyncio.run(leaving())
    held.gate.set()
    assert 2 == writer.do_now(adding("after"))


# --- failures ----------------------------------------------------------------------------------


async def test_a_refusal_concerns_only_its_own_job(path: Path, opened: Opening) -> None:
    """An error of ours has changed nothing: the others of its group are committed."""
    writer = opened()
    refused = raising(PoolClosed("no", pool="p"))
    before, error, after = await gathered(writer, adding("a"), refused, adding("b"))
    assert isinstance(error, PoolClosed)
    assert (2, 3) == (before, after)
    assert ["held", "a", "b"] == words(path)


async def test_any_other_error_undoes_the_group_and_each_is_tried_alone(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the job that fails again raises; its changes are rolled back."""
    monkeypatch.setattr(writer_module, "LONGEST", 60.0)
    groups: list[int] = []
    writer = opened(committed=lambda answers: groups.append(len(answers)))
    bug = raising(ZeroDivisionError("a bug"), then=lambda unit: unit.add("wrong"))
    first, second, error = await gathered(writer, adding("a"), adding("b"), bug)
    await asyncio.to_thread(writer.close)
    assert isinstance(error, ZeroDivisionError)
    assert (2, 3) == (first, second)
    assert ["held", "a", "b"] == words(path)
    assert [3] == groups


async def test_an_impossible_transition_is_a_bug_and_no_answer(path: Path, opened: Opening) -> None:
    def half_done(unit: Entries) -> None:
        unit.add("half")
        advance(Status.RUNNING, Transition.LEASE)

    one, other, two = await gathered(opened(), adding("one"), half_done, adding("two"))

    assert isinstance(other, IllegalTransition)
    assert (2, 3) == (one, two)
    assert ["held", "one", "two"] == words(path)


async def test_a_bug_alone_is_not_tried_again(path: Path, opened: Opening) -> None:
    """It would only happen twice."""
    tries = 0

    def bug(unit: Entries) -> None:
        nonlocal tries
        tries += 1
        unit.add("wrong")
        raise ZeroDivisionError

    writer = opened()
    with pytest.raises(ZeroDivisionError):
        await writer.do(bug)
    assert 1 == tries
    assert 1 == await writer.do(adding("right"))
    assert ["right"] == words(path)


async def test_a_broken_constraint_is_translated(path: Path, opened: Opening) -> None:
    """The error is ours, and names the file."""

    def job(unit: Entries) -> None:
        unit.connection.execute("INSERT INTO entry (id) VALUES (1), (1)")

    writer = opened()
    with pytest.raises(StoreError, match=str(path)) as caught:
        await writer.do(job)
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
    assert [] == words(path)


async def test_a_translated_error_of_the_database_undoes_too(path: Path, opened: Opening) -> None:
    """A job that wraps what SQLite said has not therefore changed nothing."""

    def job(unit: Entries) -> None:
        unit.add("half")
        try:
            unit.connection.execute("SELECT nothing FROM nowhere")
        except sqlite3.Error as error:
            raise StoreError("wrapped") from error

    writer = opened()
    with pytest.raises(StoreError, match="wrapped"):
        await writer.do(job)
    assert [] == words(path)


def test_each_failed_job_has_its_own_error(path: Path, opened: Opening) -> None:
    """Two tasks that raise one object would write into each other's traceback."""

    def failing(connection: sqlite3.Connection) -> Entries:
        raise StoreError("no unit today")

    writer = opened(failing)

    async def asking() -> list[BaseException]:
        jobs = [writer.do(adding(str(n))) for n in range(3)]
        return await asyncio.gather(*jobs, return_exceptions=True)  # type: ignore[return-value]

    errors = asyncio.run(asking())
    assert 3 == len({id(error) for error in errors})
    assert {"MILL-020 no unit today"} == {str(error) for error in errors}


async def test_an_error_after_the_commit_does_not_undo_or_repeat_it(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is stored, and its caller gets the answer."""

    def failing(unit: Entries) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Entries, "committed", failing)
    assert 1 == await opened().do(adding("a"))
    assert ["a"] == words(path)
    assert "a hook after the commit" in caplog.text


# --- faults of the database --------------------------------------------------------------------


class Faulty(sqlite3.Connection):
    """A connection whose statements fail where a test says so."""

    faults: dict[str, list[sqlite3.Error]] = {}  # noqa: RUF012 - set by each test
    after: bool = False

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        """Fail before (or after) the statement, if a fault waits for it."""
        waiting = self.faults.get(statement, [])
        if waiting and not self.after:
            raise waiting.pop()
        cursor = super().execute(statement, *args)
        if waiting:
            raise waiting.pop()
        return cursor


def said(code: int, name: str) -> sqlite3.Error:
    """An error as SQLite raises it."""
    error = sqlite3.OperationalError("said SQLite")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


IO = (sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC")
FULL = (sqlite3.SQLITE_FULL, "SQLITE_FULL")


class Faults:
    """Connections with faults to come, and how often one was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = 0

    def __call__(self) -> sqlite3.Connection:
        """Open one."""
        self.opened += 1
        return sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, factory=Faulty
        )

    def at(self, statement: str, *errors: tuple[int, str], after: bool = False) -> None:
        """Have the next executions of a statement fail."""
        Faulty.faults = {statement: [said(*error) for error in reversed(errors)]}
        Faulty.after = after


async def test_a_commit_that_fails_for_sure_is_tried_again(path: Path, opened: Opening) -> None:
    """A full disk may be freed a moment later; no caller gets an error."""
    faults = Faults(path)
    writer = opened(connection=faults)
    faults.at("COMMIT", FULL)
    assert 1 == await writer.do(adding("a"))
    assert ["a"] == words(path)


async def test_a_commit_that_fails_twice_is_an_error(path: Path, opened: Opening) -> None:
    """And nothing is stored; the next job finds the writer in good health."""
    faults = Faults(path)
    writer = opened(connection=faults)
    faults.at("COMMIT", FULL, FULL)
    with pytest.raises(StoreFull, match="disk is full"):
        await writer.do(adding("a"))
    assert 1 == await writer.do(adding("b"))
    assert ["b"] == words(path)


@pytest.mark.parametrize("after", [False, True])
async def test_a_commit_with_an_unknown_outcome_raises_and_is_not_repeated(
    path: Path, opened: Opening, after: bool
) -> None:
    """Repeating it might do it twice. Each job of the group gets an error of its own."""
    faults = Faults(path)
    writer = opened(connection=faults)
    faults.at("COMMIT", IO, after=after)
    jobs = [writer.do(adding(word)) for word in "ab"]
    answers = await asyncio.gather(*jobs, return_exceptions=True)
    kinds = {type(one) for one in answers}
    assert OutcomeUnknown in kinds
    assert kinds <= {OutcomeUnknown, int}
    stored = words(path)
    if after:
        assert ["a", "b"] == stored
    else:
        assert [w for w, one in zip("ab", answers, strict=True) if isinstance(one, int)] == stored
    assert len(stored) + 1 == await writer.do(adding("c"))


async def test_after_a_disk_error_the_connection_is_a_new_one(path: Path, opened: Opening) -> None:
    """And the job that met it is tried again on that."""
    faults = Faults(path)
    writer = opened(connection=faults)
    await writer.do(adding("a"))
    assert 1 == faults.opened
    faults.at("SELECT count(*) FROM entry", IO)
    assert 2 == await writer.do(adding("b"))
    assert 2 == faults.opened
    faults.at("BEGIN IMMEDIATE", IO)
    assert 3 == await writer.do(adding("c"))
    assert 3 == faults.opened
    assert ["a", "b", "c"] == words(path)


async def test_a_disk_that_keeps_failing_is_an_error_each_time(path: Path, opened: Opening) -> None:
    """The writer lives on, and works again when the disk does."""
    faults = Faults(path)
    writer = opened(connection=faults)
    faults.at("BEGIN IMMEDIATE", *[IO] * 4)
    for _ in range(2):
        with pytest.raises(StoreFailing):
            await writer.do(adding("a"))
    assert 1 == await writer.do(adding("b"))


async def test_a_rollback_that_fails_costs_the_connection(path: Path, opened: Opening) -> None:
    """It may still be in a transaction; a new one is not."""
    faults = Faults(path)
    writer = opened(connection=faults)
    faults.at("ROLLBACK", IO)
    with pytest.raises(ZeroDivisionError):
        await writer.do(raising(ZeroDivisionError(), then=lambda unit: unit.add("x")))
    assert 1 == await writer.do(adding("b"))
    assert 2 == faults.opened


async def test_a_transaction_that_sqlite_ended_is_not_committed_in_part(
    path: Path, opened: Opening
) -> None:
    """Some errors roll back by themselves; what is written after that would stand alone."""

    def job(unit: Entries) -> None:
        unit.connection.execute("ROLLBACK")

    writer = opened()
    with pytest.raises(StoreError, match="undone a transaction"):
        await writer.do(job)
    assert 1 == await writer.do(adding("b"))


async def test_every_waiting_job_gets_the_error_of_opening(path: Path, opened: Opening) -> None:
    """The next job makes the writer open the file again."""
    doors = iter([False, True])

    def door() -> sqlite3.Connection:
        return connect(path if next(doors) else path.parent / "nowhere" / "work.db")

    writer = opened(connection=door)
    with pytest.raises(StoreMissing):
        await writer.do(adding("a"))
    assert 1 == await writer.do(adding("b"))


# --- others ------------------------------------------------------------------------------------


async def test_a_foreign_transaction_is_waited_for(path: Path, opened: Opening) -> None:
    """A user's own connection takes no writers' lock; the writer polls for its end."""
    foreign = connect(path)
    begin(foreign, path)
    writer = opened(patience=0.05)
    with pytest.raises(StoreLocked, match=str(path)):
        await writer.do(adding("a"))
    foreign.execute("ROLLBACK")
    assert 1 == await writer.do(adding("b"))
    foreign.close()


async def test_jobs_behind_a_hanging_process_time_out(
    path: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs give up while the thread still waits for the lock; the writer never does them."""
    monkeypatch.setattr(writer_module, "_LOOK_EVERY", 0.02)
    hanging = WritersLock(path)
    hanging.acquire()
    writer = opened(patience=0.1)
    with pytest.raises(StoreLocked, match=r"-writers locked for more than 0\.1 s") as caught:
        await writer.do(adding("a"))
    assert 0.1 == caught.value.waited
    late = writer.do(adding("b"))
    hanging.release()
    assert 1 == await late
    assert ["b"] == words(path)
    hanging.close()


async def test_two_writers_of_one_file_do_not_meet(path: Path, opened: Opening) -> None:
    """Two stores in one process wait for the lock like two processes."""
    first, second = opened(), opened()
    jobs = [one.do(adding("x")) for _ in range(50) for one in (first, second)]
    assert list(range(1, 101)) == sorted(await asyncio.gather(*jobs))


def test_a_transactor_serves_a_thread_that_writes_alone(path: Path) -> None:
    """As one that renews leases does: a job at a time, beside the writer."""
    transactor = SqliteTransactor(path, lambda: connect(path), Entries)
    assert 1 == transactor.run(adding("a"))
    with pytest.raises(PoolClosed):
        transactor.run(raising(PoolClosed("no", pool="p")))
    with pytest.raises(ZeroDivisionError):
        transactor.run(raising(ZeroDivisionError()))
    assert 2 == transactor.run(adding("b"))
    transactor.close()
    transactor.close()


def test_a_transactor_tries_again_after_a_disk_error(path: Path) -> None:
    """Once, on a new connection; never where the outcome is unknown."""
    faults = Faults(path)
    transactor = SqliteTransactor(path, faults, Entries)
    faults.at("SELECT count(*) FROM entry", IO)
    assert 1 == transactor.run(adding("a"))
    faults.at("SELECT count(*) FROM entry", IO, IO)
    with pytest.raises(StoreFailing):
        transactor.run(adding("b"))
    faults.at("COMMIT", IO)
    with pytest.raises(OutcomeUnknown):
        transactor.run(adding("c"))
    assert 2 == transactor.run(adding("d"))
    assert ["a", "d"] == words(path)
    transactor.close()


# --- the end -----------------------------------------------------------------------------------


async def test_closing_does_the_jobs_that_wait(path: Path, opened: Opening) -> None:
    """A closed writer takes no job; closing it twice is harmless."""
    writer = opened()
    jobs = [writer.do(adding(str(n))) for n in range(300)]
    await asyncio.to_thread(writer.close)
    writer.close()
    await asyncio.gather(*jobs)
    assert 300 == len(words(path))
    with pytest.raises(StoreClosed, match=str(path)):
        writer.do(adding("late"))
    with pytest.raises(StoreClosed):
        writer.do_now(adding("late"))


async def test_a_failing_hook_is_only_logged(
    path: Path, opened: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """The change is committed and answered by then."""

    def failing(answers: object) -> None:
        raise ZeroDivisionError

    writer = opened(committed=failing)
    assert 1 == await writer.do(adding("a"))
    assert 2 == await writer.do(adding("b"))
    await asyncio.to_thread(writer.close)
    assert "a hook after the commit" in caplog.text


def test_a_forked_child_must_open_its_own_store(path: Path, opened: Opening) -> None:
    """It has no thread, and the parent's goes on undisturbed."""
    writer = opened()
    writer.do_now(adding("a"))
    child = os.fork()
    if child == 0:
        try:
            writer.do_now(adding("b"))
        except StoreForked:
            writer.close()
            os._exit(42)
        os._exit(1)
    assert 42 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 2 == writer.do_now(adding("c"))


LEAVING = """
import sys
from pathlib import Path
from millpond.store.sql.writer import Writer
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.transactions import SqliteTransactor
from tests.store.sqlite.counting import Entries, adding
path = Path(sys.argv[1])
writer = Writer(SqliteTransactor(path, lambda: connect(path), Entries))
print(writer.do_now(adding("a")), flush=True)
if sys.argv[2] == "wait":
    input()
"""


def leaving(path: Path, how: str) -> subprocess.Popen[str]:
    """A process that writes and never closes."""
    return subprocess.Popen(
        [sys.executable, "-c", LEAVING, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_a_program_that_forgets_to_close_still_ends(path: Path) -> None:
    """The thread of the writer does not keep it alive."""
    process = leaving(path, "go")
    assert "1\n" == process.communicate(timeout=20)[0]
    assert 0 == process.returncode


def test_a_killed_process_blocks_no_other(path: Path, opened: Opening) -> None:
    """Its locks go with it, and its acknowledged writes stay."""
    process = leaving(path, "wait")
    assert process.stdout is not None
    assert "1\n" == process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 2 == opened().do_now(adding("b"))
