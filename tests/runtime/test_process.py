"""The process executor: jobs that can be killed, and children that never outlive their parent."""

import asyncio
import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from millpond.runtime.executors.processes import child as child_side
from millpond.runtime.executors.processes import frames, supervise
from millpond.runtime.executors.processes.process_pool import ProcessPool
from millpond.runtime.executors.processes.protocol import (
    Broke,
    Died,
    Done,
    Errand,
    Killed,
    Line,
)

pytestmark = [
    pytest.mark.real_loop,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
]

ROOT = Path(__file__).parents[2]


def handler(qualname: str, payload: bytes = b"", context: bytes = b"") -> Errand:
    """Return a job for a handler in handlers.py."""
    return Errand(
        module="tests.runtime.handlers", qualname=qualname, payload=payload, context=context
    )


@contextlib.asynccontextmanager
async def pool_of(
    limit: int = 1, *, grace: float = 0.3, idle: float = 60.0
) -> AsyncIterator[ProcessPool]:
    """A pool that is closed in the end."""
    pool = ProcessPool(limit, grace=grace, idle=idle)
    try:
        yield pool
    finally:
        await pool.close()


class Started:
    """A job under way in a task, after its handler has sent its first message."""

    def __init__(self, pool: ProcessPool, job: Errand) -> None:
        self.line = Line()
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = asyncio.create_task(
            pool.run(job, on_message=self.messages.put_nowait, line=self.line)
        )

    async def next_message(self) -> bytes:
        """The next message of the handler; fails if the job ends instead."""
        message = asyncio.create_task(self.messages.get())
        await asyncio.wait([message, self.task], return_when=asyncio.FIRST_COMPLETED)
        assert message.done(), self.task
        return message.result()

    async def pids(self) -> list[int]:
        """The pids that a SendingPids handler sends first."""
        return [int(pid) for pid in (await self.next_message()).split()]


async def cancelled_after(task: "asyncio.Task[object]") -> float:
    """Cancel the task and return the seconds until it raised CancelledError."""
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - start


def ends_within(pid: int, seconds: float) -> bool:
    """Whether the process ends in that time; one that waits to be reaped has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def is_reaped(pid: int) -> bool:
    """Whether nothing is left of the process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def children_of_this_process() -> list[int]:
    """The pids of all children, zombies among them."""
    found = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return [int(pid) for pid in found.read_text().split()]


class Belongings(NamedTuple):
    """Resources that a leak would add to."""

    descriptors: int
    children: list[int]
    """Zombies too."""
    threads: set[threading.Thread]
    tasks: int


def belongings(before: Belongings | None = None) -> Belongings:
    """Return the resources of this process, without the threads in `before`: an earlier test may
    have left some that end meanwhile."""
    gc.collect()
    return Belongings(
        len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - one that holds a descriptor of its own
        children_of_this_process(),
        set(threading.enumerate()) - before.threads if before else set(threading.enumerate()),
        len(asyncio.all_tasks()),
    )


# Running.


async def test_children_start_when_needed_and_are_used_again() -> None:
    """No job, no child; two jobs one after another, one child."""
    async with pool_of(3) as pool:
        assert set() == pool.children
        first = await pool.run(handler("pid"))
        assert first == await pool.run(handler("pid"))
        assert 1 == len(pool.children)


async def test_a_payload_and_a_value_of_many_megabytes_go_through() -> None:
    """They are larger than any socket's buffer."""
    payload = os.urandom(8 * 1024 * 1024)
    async with pool_of() as pool:
        assert Done(value=payload) == await pool.run(handler("echo", payload))


async def test_never_more_children_than_the_limit() -> None:
    """The third job of two slots begins when one of the first two has ended."""
    async with pool_of(2) as pool:
        jobs = [Started(pool, handler("waiting")) for _ in range(3)]
        await jobs[0].next_message()
        await jobs[1].next_message()
        assert (2, True) == (len(pool.children), jobs[2].messages.empty())
        jobs[0].line.send(b"go")
        await jobs[2].next_message()
        assert 2 == len(pool.children)
        jobs[1].line.send(b"go")
        jobs[2].line.send(b"go")
        assert [Done(value=b"go")] * 3 == [await job.task for job in jobs]


async def test_a_job_cancelled_while_it_waits_for_a_slot_starts_no_child() -> None:
    """The slot goes to the next job."""
    async with pool_of() as pool:
        busy = Started(pool, handler("waiting"))
        await busy.next_message()
        given_up, next_one = Started(pool, handler("pid")), Started(pool, handler("echo", b"x"))
        await asyncio.sleep(0)
        assert await cancelled_after(given_up.task) < 1
        busy.line.send(b"go")
        assert Done(value=b"x") == await next_one.task
        assert 1 == len(pool.children)


async def test_an_idle_child_is_closed(tmp_path: Path) -> None:
    """It exits like any program, and the next job has a new child."""
    note = tmp_path / "note"
    async with pool_of(idle=0.05, grace=5) as pool:
        await pool.run(handler("write_at_exit", bytes(note)))
        (child,) = pool.children
        await asyncio.wait_for(child.gone, 10)
        assert "left through the door" == note.read_text()
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


async def test_the_child_that_worked_last_gets_the_next_job() -> None:
    """So surplus children become idle and close."""
    async with pool_of(2) as pool:
        jobs = [Started(pool, handler("waiting")) for _ in range(2)]
        for job in jobs:
            await job.next_message()
        for job in jobs:
            job.line.send(b"go")
            await job.task
        last = list(pool._idle)[-1]
        assert Done(value=str(last.pid).encode()) == await pool.run(handler("pid"))


async def test_a_job_given_to_a_killed_idle_child_runs_in_another() -> None:
    """The pool has not noticed the death yet: the job has not begun, so another child takes it."""
    async with pool_of() as pool:
        await pool.run(handler("pid"))
        (child,) = pool.children
        os.kill(child.pid, signal.SIGKILL)
        assert ends_within(child.pid, 5)
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))
        assert child.gone.done()


async def test_a_child_has_a_session_of_its_own_and_no_input() -> None:
    """Ctrl-C reaches the parent alone, and a handler that reads its input gets none."""
    async with pool_of() as pool:
        answer = await pool.run(handler("session"))
        assert isinstance(answer, Done)
        assert 1 == len(set(answer.value.split()))
        assert Done(value=b"") == await pool.run(handler("read_standard_input"))


# Killing.


@pytest.mark.parametrize("deed", ["sleeping", "spinning", "holding", "ignoring_sigterm", "stopped"])
async def test_a_cancelled_job_is_dead_within_a_second(deed: str) -> None:
    """Whatever it does: the child and the process it started are dead after CancelledError."""
    async with pool_of() as pool:
        job = Started(pool, handler(deed))
        child, grandchild = await job.pids()
        assert await cancelled_after(job.task) < 1
        assert is_reaped(child)
        assert ends_within(grandchild, 1)
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


async def test_a_killed_handler_may_clean_up(tmp_path: Path) -> None:
    """SIGTERM unwinds it, and it has the grace for that."""
    note = tmp_path / "note"
    async with pool_of(grace=10) as pool:
        job = Started(pool, handler("cleaning_up", bytes(note)))
        await job.next_message()
        await cancelled_after(job.task)
        assert "cleaned up" == note.read_text()


async def test_a_job_cancelled_twice_still_waits_for_the_end_of_its_child() -> None:
    """The second cancel leaves no child behind."""
    async with pool_of() as pool:
        job = Started(pool, handler("ignoring_sigterm"))
        child, _ = await job.pids()
        job.task.cancel()
        await asyncio.sleep(0)  # it has begun to stop the child
        assert await cancelled_after(job.task) < 1
        assert is_reaped(child)


async def test_a_job_cancelled_as_its_answer_arrives_keeps_its_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler has returned: there is nothing to kill."""
    settle = supervise.Supervised._settle
    async with pool_of() as pool:
        await pool.run(handler("pid"))
        (child,) = pool.children
        task = asyncio.create_task(pool.run(handler("pid")))

        def settle_and_cancel(self: supervise.Supervised, answer: object) -> None:
            settle(self, answer)  # type: ignore[arg-type]
            task.cancel()

        monkeypatch.setattr(supervise.Supervised, "_settle", settle_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert Done(value=str(child.pid).encode()) == await pool.run(handler("pid"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_watched_by", ["descriptor", "thread"])
async def test_many_kills_leak_nothing_and_leave_the_pool_working(
    is_watched_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment of a child's life; no descriptor, zombie, thread or task is left over."""
    if is_watched_by == "thread":
        monkeypatch.setattr(supervise, "_pidfd", no_descriptors)
    before = belongings()
    async with pool_of(2, grace=0.1) as pool:
        for number in range(100):
            job = Started(pool, handler("sleeping" if number % 2 else "ignoring_sigterm"))
            if number % 4 == 0:
                await job.pids()
            else:
                await asyncio.sleep(number / 2000)  # at any moment of a child's life
            assert await cancelled_after(job.task) < 1
            assert not pool.children
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))
    for thread in threading.enumerate():
        if thread.name.startswith("millpond-child"):
            thread.join(5)
    assert before._replace(threads=set()) == belongings(before)


def no_descriptors(_pid: int) -> int:
    raise OSError("as on an old kernel")


@pytest.mark.parametrize("is_watched_by", ["descriptor", "thread"])
@pytest.mark.parametrize(
    ("deed", "answer"),
    [
        ("exit_at_once", Died(reason="exit code 3")),
        ("kill_itself", Died(reason="killed by SIGKILL")),
        ("crash", Died(reason="killed by SIGSEGV")),
        ("exit_in_a_thread", Died(reason="exit code 5")),
        ("terminate_itself", Died(reason="exit code 143")),
        ("fork_and_exit", Died(reason="exit code 3")),
    ],
)
async def test_a_handler_that_ends_its_process_does_not_break_the_pool(
    deed: str, answer: Died, is_watched_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's answer says how its child ended, and the next job has a new child."""
    if is_watched_by == "thread":
        monkeypatch.setattr(supervise, "_pidfd", no_descriptors)
    async with pool_of() as pool:
        assert answer == await pool.run(handler(deed))
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


async def test_an_answer_sent_before_the_child_died_counts() -> None:
    """Also when the pool finds the child dead before it reads the answer."""
    async with pool_of() as pool:
        await pool.run(handler("pid"))
        task = asyncio.create_task(pool.run(handler("answering_and_exiting")))
        await asyncio.sleep(0)
        (child,) = pool.children
        asyncio.get_running_loop().remove_reader(child._socket)
        assert Done(value=b"answered") == await task


@pytest.mark.parametrize(
    ("deed", "kind"), [("exit_politely", "SystemExit"), ("interrupt_itself", "KeyboardInterrupt")]
)
async def test_sys_exit_in_a_handler_is_an_error_of_the_handler(deed: str, kind: str) -> None:
    """SystemExit and KeyboardInterrupt are like any other exception; the child lives on."""
    async with pool_of() as pool:
        before = await pool.run(handler("pid"))
        answer = await pool.run(handler(deed))
        assert isinstance(answer, Broke)
        assert kind == answer.kind
        assert before == await pool.run(handler("pid"))


async def test_a_process_that_a_handler_started_dies_with_its_child() -> None:
    """Also when the child ended by itself."""
    async with pool_of() as pool:
        job = Started(pool, handler("leaving_a_grandchild"))
        _, grandchild = await job.pids()
        assert Died(reason="exit code 3") == await job.task
        assert ends_within(grandchild, 1)


async def test_a_process_that_a_handler_left_behind_dies_when_its_child_closes() -> None:
    """The child ends without an error, and the pool kills its process group."""
    async with pool_of() as pool:
        job = Started(pool, handler("returning"))
        _, grandchild = await job.pids()
        assert Done(value=b"survived") == await job.task
    assert ends_within(grandchild, 1)


@pytest.mark.parametrize("is_watched_by", ["descriptor", "thread"])
async def test_a_parent_that_ignores_its_children_s_ends_loses_none(
    is_watched_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SIGCHLD ignored the kernel reaps: how a child ended is not known, but that it did is."""
    if is_watched_by == "thread":
        monkeypatch.setattr(supervise, "_pidfd", no_descriptors)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with pool_of() as pool:
            assert isinstance(await pool.run(handler("kill_itself")), Died)
            job = Started(pool, handler("sleeping"))
            child, _ = await job.pids()
            assert await cancelled_after(job.task) < 1
            assert is_reaped(child)
            assert Done(value=b"x") == await pool.run(handler("echo", b"x"))
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_a_child_that_cannot_be_started_is_a_death() -> None:
    """And leaves no descriptor behind."""
    before = belongings()
    async with pool_of() as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            answer = await pool.run(handler("pid"))
        assert isinstance(answer, Died)
        assert answer.reason.startswith("no child could be started")
        assert before._replace(threads=set()) == belongings(before)
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


# Descriptors that are not the handler's.


@pytest.mark.parametrize(
    ("deed", "payload"),
    [
        ("forge", b""),
        ("write_everywhere", b"x"),
        ("write_everywhere", b"x" * frames.HEADER.size),
        ("write_everywhere", bytes(1000)),
    ],
)
async def test_a_forged_frame_from_a_handler_is_rejected(deed: str, payload: bytes) -> None:
    """A frame without the job's nonce is no answer; other jobs go on."""
    async with pool_of(2) as pool:
        other = Started(pool, handler("waiting"))
        await other.next_message()
        answer = await pool.run(handler(deed, payload))
        assert isinstance(answer, Died)
        assert answer.reason.startswith("protocol")
        other.line.send(b"unharmed")
        assert Done(value=b"unharmed") == await other.task
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


async def test_a_handler_that_closes_the_socket_has_no_answer() -> None:
    """The pool goes on with a new child."""
    async with pool_of() as pool:
        assert isinstance(await pool.run(handler("close_everything")), Died)
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"))


async def test_the_child_does_not_answer_into_a_file_with_the_sockets_number(
    tmp_path: Path,
) -> None:
    """A file that a handler opened under that descriptor number stays empty."""
    file = tmp_path / "file"
    async with pool_of() as pool:
        assert isinstance(await pool.run(handler("put_a_file_in_its_place", bytes(file))), Died)
        assert b"" == file.read_bytes()


async def test_a_fork_that_returns_from_the_handler_does_not_answer() -> None:
    """One job, one answer, by the child that got the job."""
    async with pool_of() as pool:
        for _ in range(3):
            assert Done(value=b"the child") == await pool.run(handler("fork_and_return"))


async def test_an_answer_of_more_than_64_mib_is_a_death() -> None:
    """It is not even read."""
    async with pool_of() as pool:
        answer = await pool.run(handler("large", str(frames.LARGEST).encode()))
        assert isinstance(answer, Died)
        assert answer.reason.startswith("protocol")
        assert Done(value=bytes(9)) == await pool.run(handler("large", b"9"))


@pytest.mark.parametrize(
    "body", [b"\0", frames.LENGTH.pack(5) + b"four", frames.LENGTH.pack(2**63)]
)
def test_a_body_that_is_cut_off_is_malformed(body: bytes) -> None:
    """A field is complete, or unpacking fails."""
    with pytest.raises(ValueError, match="cut off"):
        frames.unpacked(body)


# Errors.


async def test_a_handler_that_raises_is_described() -> None:
    """Its type, message and wish, and a traceback that begins in the handler."""
    async with pool_of() as pool:
        answer = await pool.run(handler("wish"))
        assert isinstance(answer, Broke)
        assert ("tests.runtime.handlers.Wishing", "not now", b"in a minute", True) == (
            answer.kind,
            answer.message,
            answer.data,
            answer.loaded,
        )
        assert 'raise Wishing("not now")' in answer.traceback
        assert "child.py" not in answer.traceback


async def test_a_wish_can_be_an_attribute() -> None:
    """Bytes need no method."""
    async with pool_of() as pool:
        answer = await pool.run(handler("wish_by_attribute"))
        assert isinstance(answer, Broke)
        assert b"at noon" == answer.data


async def test_an_error_whose_str_and_repr_fail_is_still_reported() -> None:
    """Its str(), repr() and wish fail; the child does not."""
    async with pool_of() as pool:
        answer = await pool.run(handler("be_unwilling"))
        assert isinstance(answer, Broke)
        assert ("tests.runtime.handlers.Unwilling", b"") == (answer.kind, answer.data)
        assert "Unwilling object" in answer.message


async def test_a_long_error_is_cut() -> None:
    """Message and traceback are cut at 32 KB each."""
    async with pool_of() as pool:
        answer = await pool.run(handler("fail_at_length"))
        assert isinstance(answer, Broke)
        assert len(answer.message.encode()) <= 32 * 1024
        assert len(answer.traceback.encode()) <= 32 * 1024
        assert answer.message.startswith("ä\\udc80ä")


@pytest.mark.parametrize(
    ("module", "qualname", "kind", "message"),
    [
        ("no_such_module", "f", "ModuleNotFoundError", "No module named 'no_such_module'"),
        (
            "tests.runtime.importing_fails",
            "f",
            "ImportError",
            "importing 'tests.runtime.importing_fails' failed: SystemExit: not today",
        ),
        (
            "tests.runtime.handlers",
            "Waiting.nothing",
            "ImportError",
            "module 'tests.runtime.handlers' has no 'Waiting.nothing'",
        ),
    ],
)
async def test_a_function_that_is_not_found_is_an_import_error(
    module: str, qualname: str, kind: str, message: str
) -> None:
    """It was not loaded, and the child lives on."""
    async with pool_of() as pool:
        before = await pool.run(handler("pid"))
        answer = await pool.run(Errand(module=module, qualname=qualname, payload=b""))
        assert isinstance(answer, Broke)
        assert (kind, message, False) == (answer.kind, answer.message, answer.loaded)
        assert before == await pool.run(handler("pid"))


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("return_text", "a handler returns bytes, not str"),
        ("nothing_to_call", "7 is not a handler"),
    ],
)
async def test_an_object_that_is_not_a_handler_is_a_type_error(deed: str, message: str) -> None:
    """A handler is callable and returns bytes."""
    async with pool_of() as pool:
        answer = await pool.run(handler(deed))
        assert isinstance(answer, Broke)
        assert ("TypeError", message) == (answer.kind, answer.message)


# Messages.


async def test_messages_go_both_ways_until_the_handler_is_cancelled() -> None:
    """The handler decides how to react to the cancel."""
    async with pool_of() as pool:
        job = Started(pool, handler("talking", b"payload", b"+context"))
        assert b"payload+context" == await job.next_message()
        for word in (b"first", b"second"):
            job.line.send(word)
            assert word.upper() == await job.next_message()
        job.line.cancel()
        assert Done(value=b"cancelled") == await job.task


async def test_a_message_sent_before_the_job_begins_is_kept() -> None:
    """A caller need not know whether its job has a slot."""
    async with pool_of() as pool:
        busy = Started(pool, handler("waiting"))
        await busy.next_message()
        waiting = Started(pool, handler("waiting"))
        waiting.line.send(b"early")
        busy.line.send(b"go")
        await busy.task
        assert Done(value=b"early") == await waiting.task


async def test_a_message_sent_after_the_job_ended_has_no_effect() -> None:
    """The child's next job does not receive it."""
    async with pool_of() as pool:
        first = Started(pool, handler("waiting"))
        first.line.send(b"go")
        await first.task
        second = Started(pool, handler("waiting"))
        await second.next_message()
        first.line.send(b"too late")
        first.line.cancel()
        second.line.send(b"in time")
        assert Done(value=b"in time") == await second.task


async def test_a_line_serves_one_job() -> None:
    """Two jobs would get each other's messages."""
    line = Line()
    async with pool_of() as pool:
        await pool.run(handler("pid"), line=line)
        with pytest.raises(RuntimeError, match="one job"):
            await pool.run(handler("pid"), line=line)


async def test_messages_after_the_answer_are_dropped() -> None:
    """A thread that a handler left behind cannot send messages to the next job."""
    async with pool_of() as pool:
        await pool.run(handler("late"))
        messages: list[bytes] = []
        assert Done(value=b"x") == await pool.run(handler("echo", b"x"), on_message=messages.append)
        assert [] == messages
        assert 1 == len(pool.children)


async def test_an_on_message_that_raises_does_not_stop_the_job() -> None:
    """The loop's exception handler gets the error, and the job goes on."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(context["message"])
    )

    def fail(_message: bytes) -> None:
        raise ValueError

    async with pool_of() as pool:
        line = Line()
        line.send(b"go")
        assert Done(value=b"go") == await pool.run(handler("waiting"), on_message=fail, line=line)
    assert ["on_message of a process job raised"] == reported


@pytest.mark.parametrize("send", [Line().send, child_side.Channel(bytes(16), print).send])
def test_a_message_that_fits_into_no_frame_is_refused(send: object) -> None:
    """On either side, before anything is sent."""
    assert callable(send)
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        send(bytes(frames.LARGEST))


# Closing.


async def test_closing_kills_running_jobs_and_drops_waiting_ones() -> None:
    """Each job's answer says so, and no child is left."""
    before = belongings()
    pool = ProcessPool(2)
    idle = Started(pool, handler("waiting"))
    running = Started(pool, handler("ignoring_sigterm"))
    await idle.next_message()
    await running.pids()
    idle.line.send(b"go")
    await idle.task
    running_too = Started(pool, handler("sleeping"))
    await running_too.pids()
    waiting = Started(pool, handler("pid"))
    await asyncio.sleep(0)
    await asyncio.gather(pool.close(), pool.close())
    assert Killed(reason="the pool was closed") == await running.task
    assert Killed(reason="the pool was closed") == await running_too.task
    assert Killed(reason="the pool was closed before the job began") == await waiting.task
    await pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(handler("pid"))
    del idle, running, running_too, waiting
    assert before._replace(threads=set()) == belongings(before)


async def test_a_pool_that_was_never_used_closes() -> None:
    """There is nothing to do."""
    await ProcessPool(1).close()


def test_a_pool_belongs_to_one_loop() -> None:
    """Its children answer there and nowhere else."""
    pool = ProcessPool(1)

    async def use() -> object:
        return await pool.run(handler("pid"))

    async def use_and_close() -> None:
        await use()
        await pool.close()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(use())
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(use())
        first.run(use_and_close())


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": 1, "grace": -1}, {"limit": 1, "idle": float("nan")}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    """Where they are given."""
    with pytest.raises(ValueError):
        ProcessPool(**options)


def test_a_process_pool_on_windows_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error, before anything starts."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match="Linux or macOS"):
        ProcessPool(1)


# The parent's end.


@contextlib.contextmanager
def killed_in_the_end(*pids: int) -> Iterator[None]:
    """Kill the processes, also when the test fails."""
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def program(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that uses a pool, with its output in a pipe; killed in the end."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


PARENT = "tests/runtime/parent.py"


@pytest.mark.parametrize(
    "deed",
    [
        "sleeping",
        "spinning",
        "holding",
        "ignoring_sigterm",
        "returning",
        "spinning_without_the_kernel",
    ],
)
def test_no_child_survives_its_parent(deed: str) -> None:
    """Whatever it does when the parent is killed; its own child dies with it, at once."""
    with program(PARENT, deed) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert 2 == len(pids)
        with killed_in_the_end(*pids):
            parent.kill()
            assert [True, True] == [ends_within(pid, 1) for pid in pids]


def test_no_child_survives_a_parent_that_dies_while_it_starts() -> None:
    """The child finds that its parent is gone."""
    with program(PARENT, "starting") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with killed_in_the_end(child):
            parent.kill()
            assert ends_within(child, 5)


def test_no_child_survives_its_parent_when_a_fork_of_the_parent_does() -> None:
    """The fork keeps the socket open, so the kernel must signal the parent's death."""
    with program(PARENT, "spinning", FORK="1") as parent:
        assert parent.stdout is not None
        fork, *pids = [int(pid) for pid in parent.stdout.readline().split()]
        with killed_in_the_end(fork, *pids):
            parent.kill()
            assert [True, True] == [ends_within(pid, 1) for pid in pids]
            assert not ends_within(fork, 0)


# The main module.


@pytest.mark.parametrize("command", [[PARENT], ["-m", "tests.runtime.parent"]])
def test_a_handler_in_the_main_module_is_found(command: list[str]) -> None:
    """Each child runs the module once under another name; its output goes to the parent's."""
    with program(*command, "shout") as parent:
        output, _ = parent.communicate(timeout=15)
    assert [
        "answer Done(value=b'__mp_main__')",
        "answer Done(value=b'__mp_main__')",
        "shouted once",
        "shouted twice",
    ] == sorted(output.splitlines())


UNGUARDED = """
import asyncio
from millpond.runtime.executors.processes.process_pool import ProcessPool
from millpond.runtime.executors.processes.protocol import Errand

def handle(payload):
    return payload

async def main():
    pool = ProcessPool(1)
    print(await pool.run(Errand(module="__main__", qualname="handle", payload=b"x")))
    await pool.close()

asyncio.run(main())
"""


def test_a_script_without_a_guard_does_not_multiply(tmp_path: Path) -> None:
    """Its child gets an error that names the guard, and starts no children of its own."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    with program(str(script)) as parent:
        output, _ = parent.communicate(timeout=15)
    assert "Broke(kind='ImportError'" in output
    assert "if __name__ ==" in output


def test_a_main_module_without_a_file_has_no_handlers() -> None:
    """As from `python -c` or a prompt: the error says where to put them."""
    with program("-c", UNGUARDED) as parent:
        output, _ = parent.communicate(timeout=15)
    assert "the main module has no file" in output


def test_a_package_s_main_module_is_not_run_twice(tmp_path: Path) -> None:
    """Such a module has no `if __name__` guard."""
    package = tmp_path / "unguarded"
    package.mkdir()
    (package / "__main__.py").write_text(UNGUARDED)
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    with program("-m", "unguarded", PYTHONPATH=path) as parent:
        output, _ = parent.communicate(timeout=15)
    assert "cannot be run twice" in output
