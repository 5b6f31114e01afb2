"""Handlers in processes: imported by name, with typed arguments, cancelled, and killed."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pool import process_tasks as tasks
from tests.waiting import eventually, until

import millpond
from millpond import Handle, Millpond, TaskCancelled, TaskFailed
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

pytestmark = [pytest.mark.real_loop, pytest.mark.timeout(60)]


@asynccontextmanager
async def opened() -> AsyncIterator[Millpond]:
    async with tasks.mp as mp:
        yield mp


def wait_for(path: Path) -> str:
    """Wait for the file that a handler writes when it has begun."""
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


async def written(path: Path) -> str:
    return await asyncio.to_thread(wait_for, path)


def is_gone(pid: int, seconds: float) -> bool:
    """Whether a process is gone within some seconds."""
    with contextlib.suppress(AssertionError):
        until(lambda: has_ended(pid), within=seconds)
    return has_ended(pid)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


async def gone(pid: int, seconds: float) -> bool:
    return await asyncio.to_thread(is_gone, pid, seconds)


async def test_a_handler_runs_in_a_process_of_its_own_with_types_intact() -> None:
    """Arguments and results keep their types; the context describes the attempt."""
    async with opened():
        handle = await tasks.pool.submit(tasks.echo.bind(tasks.Page(3, "text")), key="k")
        pid, about, page = await handle
        assert os.getpid() != pid
        assert ("processes/1/k", tasks.Page(3, "text")) == (about, page)
        assert 14 == await (await tasks.in_a_loop.submit(7))


async def test_children_are_used_again() -> None:
    """One task after another finds the same child: starting one costs much more."""
    async with opened():
        pids = {(await (await tasks.echo.submit(tasks.Page(n, ""))))[0] for n in range(5)}
        assert 1 == len(pids)


@pytest.mark.parametrize("how", ["timeout", "interrupt", "close"])
async def test_a_hanging_handler_is_killed_within_a_second(how: str, tmp_path: Path) -> None:
    """After a timeout, an interrupt or the end of the worker, with every process it started."""
    started = tmp_path / "started"
    began = 0.0
    async with opened():
        timeout = 3.0 if how == "timeout" else None
        call = tasks.hang.bind(str(started))
        if timeout is not None:
            handle = await tasks.pool.submit(call, timeout=timeout)
        else:
            handle = await tasks.pool.submit(call)
        pid, grandchild = map(int, (await written(started)).split())
        began = time.monotonic()
        if how == "interrupt":
            await handle.cancel("interrupt")
            with pytest.raises(TaskCancelled):
                await handle
            assert await gone(pid, 1.0)
        elif how == "timeout":
            with pytest.raises(TaskFailed) as caught:
                await handle
            assert "TimeoutError" == caught.value.error_type
            assert await gone(pid, 1.0)
    assert await gone(pid, 1.0)
    assert await gone(grandchild, 1.0)
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("task", [tasks.leave.bind(3), tasks.leave.bind(0), tasks.die.bind()])
async def test_a_child_that_dies_is_a_failed_attempt(task: object) -> None:
    """The error names the exit code or the signal, and the pool goes on."""
    async with opened():
        with pytest.raises(TaskFailed, match="process ended") as caught:
            await (await tasks.pool.submit(task))  # type: ignore[call-overload]
        assert "millpond.ChildDied" == caught.value.error_type
        assert 4 == await (await tasks.in_a_loop.submit(2))


async def test_an_attempt_that_died_is_tried_again() -> None:
    """A child's death is charged like any error, and retried."""
    async with opened():
        assert 3 == await (await tasks.flaky.submit())


async def test_an_unserialisable_result_is_a_bad_result() -> None:
    """The child finds it, and it is final."""
    async with opened():
        with pytest.raises(TaskFailed) as caught:
            await (await tasks.wrong.submit())
        assert "bad_result" == caught.value.reason


async def test_errors_of_a_child_keep_their_type_and_traceback() -> None:
    """The type by name, the message, the text of the traceback, and signals such as GiveUp."""
    async with opened():
        with pytest.raises(TaskFailed) as caught:
            await (await tasks.fail.submit("error"))
        assert ("FileNotFoundError", "no such page") == (
            caught.value.error_type,
            caught.value.error_message,
        )
        assert "process_tasks.py" in caught.value.traceback_text
        with pytest.raises(TaskFailed, match="no use"):
            await (await tasks.fail.submit("give up"))
        with pytest.raises(TaskFailed, match="SystemExit"):
            await (await tasks.fail.submit("exit"))
        assert "fine" == await (await tasks.fail.submit("fine"))


async def test_a_child_may_ask_to_be_tried_later(tmp_path: Path) -> None:
    """RetryLater(spend=False) in a child costs no attempt."""
    async with opened():
        handle = await tasks.later.submit(str(tmp_path / "ran"))
        assert ("at last", 1) == (await handle, handle.attempt)


async def test_a_child_process_can_throttle_and_settle_its_weight(tmp_path: Path) -> None:
    """The worker gets Throttled and the weight before it settles the attempt."""
    async with opened() as mp:
        settled = internals_of(mp).runtime.store.settle
        weights: list[int | None] = []

        async def watched(settlements: Any, **rest: Any) -> Any:
            weights.extend(one.weight for one in settlements)
            return await settled(settlements, **rest)

        internals_of(mp).runtime.store.settle = watched  # type: ignore[method-assign]
        handle = await tasks.busy.options(weight=8, key="acme").submit(str(tmp_path / "ran"))
        assert ("at last", 1) == (await handle, handle.attempt)
        held = [one async for one in mp.audit("processes") if one.detail == "hold acme"]
        assert (1, [7, 7]) == (len(held), weights)


async def test_progress_of_a_child_reaches_the_handle(tmp_path: Path) -> None:
    """handle.progress() yields the reports of the child; the child refuses a bad fraction."""
    go = tmp_path / "go"
    async with opened():
        handle: Handle[str] = await tasks.report_progress.submit(str(go))
        async for report in handle.progress():
            assert (0.5, "half") == report
            go.touch()
        assert "reported" == await handle
        assert "ConfigError" == await (await tasks.too_far.submit())


@pytest.mark.rows("TR-23")
async def test_a_child_process_sees_a_cancel(tmp_path: Path) -> None:
    """ctx.cancelled is set in the child, with its reason; the result of the handler counts."""
    started = tmp_path / "started"
    async with opened():
        handle = await tasks.listen.submit(str(started))
        await written(started)
        assert await handle.cancel()
        assert "heard: cancel" == await handle


async def test_features_that_need_the_loop_raise_in_a_child_process() -> None:
    """ctx.submit and ctx.once are refused by name."""
    async with opened():
        assert ["submit", "once"] == await (await tasks.not_here.submit())


async def test_many_kills_in_a_row_leak_no_slot_and_no_child() -> None:
    """Every slot is free again, every child is dead, and other tasks run."""
    async with opened() as mp:
        for _ in range(6):
            await (await tasks.leave.submit(1)).wait()
        snapshot = await tasks.pool.snapshot()
        assert (0, 0) == (snapshot.running, snapshot.queued)
        handles = [await tasks.in_a_loop.submit(n) for n in range(4)]
        assert [0, 2, 4, 6] == [await handle for handle in handles]
        assert 0 == internals_of(mp).runtime.counts.stale_settles


UNGUARDED = """
import asyncio
from millpond import Millpond, Retry

mp = Millpond()
work = mp.pool("work", retry=Retry.never())

@work.task(executor="process")
def double(number: int) -> int:
    return 2 * number

async def main() -> None:
    async with mp:
        print("opened", flush=True)
        print(await (await double.submit(1)))

asyncio.run(main())
"""


def test_a_script_without_a_guard_does_its_work_once(tmp_path: Path) -> None:
    """The child that imports it may not open a Millpond; the error of the task says what to do."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    source = Path(millpond.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(source)},
        text=True,
        timeout=60,
    )
    assert "opened\n" == ended.stdout
    assert "this script opens a Millpond while a child of it imports it" in ended.stderr


@pytest.mark.rows("TR-11")
async def test_arguments_that_do_not_fit_the_function_in_the_process_are_parked() -> None:
    """The attempt is not charged; damaged bytes fail as corrupt, as in any executor."""
    async with opened() as mp:
        stored = [
            NewTask(id=71, pool="processes", call=Call("in_a_loop", b'{"renamed": 1}')),
            NewTask(id=72, pool="processes", call=Call("in_a_loop", b'{"number": ')),
        ]
        internals_of(mp).runtime.answers.apply(
            await internals_of(mp).runtime.store.submit((Batch(tasks=tuple(stored)),))
        )
        damaged = await (await mp.handle(72)).wait(timeout=50)
        assert ("failed", "corrupt", 0) == (damaged.status, damaged.reason, damaged.attempt)
        assert 4 == await (await tasks.in_a_loop.submit(2))
        handle = await mp.handle(71)

        async def is_queued() -> bool:
            return (await handle.refresh()).status == "queued"

        await eventually(is_queued)
        assert ("queued", 0) == (handle.status, handle.attempt)
        assert "'number'" in await mp.why(71)
        assert await handle.cancel()
