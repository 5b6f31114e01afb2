"""Opening and closing without a block: from tasks and threads, twice, at once, at exit."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millpond import AlreadyOpen, Millpond, NotOpen, TaskFailed
from millpond.errors import UnknownTask
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store

SOON = 20.0

pytestmark = pytest.mark.memory("opening is the same on every store")


class Stores:
    """Makes stores in memory, and counts them; the first `failures` of them fail."""

    def __init__(self, mp: Millpond, failures: int = 0) -> None:
        self.made = 0
        self._failures = failures
        internals_of(mp).owner.make_store = self._make
        internals_of(mp).owner.shared = False

    def _make(self) -> Store:
        self.made += 1
        if self.made <= self._failures:
            raise OSError("no store today")
        return MemoryStore()


@pytest.fixture
def mp() -> Millpond:
    """A Millpond with one pool."""
    mp = Millpond()
    mp.pool("work", max_concurrent=4)
    return mp


async def works(mp: Millpond) -> None:
    """Submit something and wait for it."""
    assert 7 == await (await mp.get_pool("work").submit(seven))


async def seven() -> int:
    """Run on the loop, so that virtual time need not wait for a thread."""
    return 7


def works_in_thread(mp: Millpond) -> None:
    """The same from a thread."""
    assert 7 == mp.sync.get_pool("work").submit(lambda: 7).get(timeout=SOON)


# On an event loop


async def test_open_and_close_do_the_same_the_second_time(mp: Millpond) -> None:
    """Two opens are one, and need one close; after it, it can be opened again."""
    stores = Stores(mp)
    assert mp is await mp.open()
    assert mp is await mp.open()
    await works(mp)
    await mp.close()
    await mp.close()
    assert not mp.is_open
    with pytest.raises(NotOpen, match=r"mp\.open\(\)"):
        await works(mp)
    await mp.open()
    await works(mp)
    await mp.close()
    assert 2 == stores.made


async def test_tasks_that_open_at_once_open_it_once(mp: Millpond) -> None:
    """Every task returns when it is open."""
    stores = Stores(mp)

    async def opens() -> None:
        await mp.open()
        await works(mp)

    await asyncio.gather(*(opens() for _ in range(20)))
    assert 1 == stores.made
    await asyncio.gather(*(mp.close() for _ in range(20)))
    assert not mp.is_open


async def test_a_block_needs_a_closed_millpond_but_open_does_not(mp: Millpond) -> None:
    """The end of `async with` closes it, so two at once are an error; open() may be repeated."""
    async with mp:
        await mp.open()
        await works(mp)
        with pytest.raises(AlreadyOpen):
            await mp.__aenter__()
    assert not mp.is_open

    await mp.open()
    with pytest.raises(AlreadyOpen):
        await mp.__aenter__()
    await mp.close()

    async with mp:
        await mp.close()
        assert not mp.is_open


async def test_an_open_that_fails_or_is_cancelled_leaves_it_to_the_next(mp: Millpond) -> None:
    """The tasks that waited for the open then open it themselves."""
    stores = Stores(mp, failures=1)
    with pytest.raises(OSError, match="no store today"):
        await mp.open()
    first, second = asyncio.create_task(mp.open()), asyncio.create_task(mp.open())
    first.cancel()
    await second
    await works(mp)
    assert 2 == stores.made
    await mp.close()


async def test_a_cancelled_wait_for_an_open_does_not_stop_the_others(mp: Millpond) -> None:
    """Each waits for itself."""
    tasks = [asyncio.create_task(mp.open()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await tasks[0]
    await tasks[2]
    assert mp.is_open
    await mp.close()


async def test_an_open_while_it_closes_opens_it_again(mp: Millpond) -> None:
    """It does not return a Millpond that is about to end."""
    stores = Stores(mp)
    await mp.open()
    closing = asyncio.create_task(mp.close())
    await asyncio.sleep(0)
    await mp.open()
    await closing
    await works(mp)
    assert 2 == stores.made
    await mp.close()


async def test_closing_warns_of_tasks_that_memory_loses(
    mp: Millpond, caplog: pytest.LogCaptureFixture
) -> None:
    """As the end of a block does."""
    await mp.open()
    await mp.get_pool("work").submit(lambda: 7, delay=60)
    await mp.close()
    assert "closed with 1 task(s)" in caplog.text


def test_opening_on_a_second_loop_raises(mp: Millpond) -> None:
    """Async calls belong to one loop; threads and other loops use mp.sync, or close it."""
    mp.sync.open()

    async def elsewhere() -> None:
        with pytest.raises(AlreadyOpen, match="another thread"):
            await mp.open()
        await mp.close()
        assert not mp.is_open
        await mp.open()
        await works(mp)
        await mp.close()

    asyncio.run(elsewhere())


def test_opening_a_millpond_whose_loop_ended_raises(mp: Millpond) -> None:
    """Nothing can close it any more, and no new loop can take it over."""
    asyncio.run(_only_open(mp))
    with pytest.raises(AlreadyOpen, match="has ended"):
        asyncio.run(_only_open(mp))
    # From a thread, too, and not only at the first use.
    with pytest.raises(AlreadyOpen, match="has ended"):
        mp.sync.open()
    with pytest.raises(AlreadyOpen, match="has ended"):
        mp.sync.close()


async def _only_open(mp: Millpond) -> None:
    await mp.open()


# From threads


def test_threads_that_open_at_once_open_it_once(mp: Millpond) -> None:
    """Every thread returns when it is open, and every thread can use it."""
    stores = Stores(mp)

    def opens() -> None:
        mp.sync.open()
        works_in_thread(mp)

    _all_at_once(opens, 32)
    assert 1 == stores.made
    _all_at_once(mp.sync.close, 32)
    assert not mp.sync.is_open
    assert mp.sync is mp.sync.open()
    works_in_thread(mp)
    mp.sync.close()
    assert 2 == stores.made


def test_threads_that_open_and_close_at_random_never_hang(mp: Millpond) -> None:
    """Each finds it open or closed; none waits for ever."""

    def turns() -> None:
        for _ in range(10):
            mp.sync.open()
            with contextlib.suppress(NotOpen, TaskFailed, UnknownTask):  # another thread closed it
                works_in_thread(mp)
            mp.sync.close()

    _all_at_once(turns, 8)
    assert not mp.is_open


def _all_at_once(fn: Callable[[], object], threads: int) -> None:
    with ThreadPoolExecutor(threads) as executor:
        for one in [executor.submit(fn) for _ in range(threads)]:
            one.result(SOON)


def test_a_block_for_threads_needs_a_closed_millpond(mp: Millpond) -> None:
    """As on the loop."""
    mp.sync.open()
    with pytest.raises(AlreadyOpen), mp.sync:
        pass
    mp.sync.close()
    with mp.sync:
        mp.sync.open()
        works_in_thread(mp)
        mp.sync.close()
        assert not mp.is_open


@pytest.mark.real_loop
async def test_a_thread_opens_nothing_where_a_loop_has_opened_it(mp: Millpond) -> None:
    """It uses that one; and it may close it."""
    stores = Stores(mp)
    await mp.open()
    await asyncio.to_thread(mp.sync.open)
    await asyncio.to_thread(works_in_thread, mp)
    with pytest.raises(RuntimeError, match="this very thread"):
        mp.sync.close()
    await asyncio.to_thread(mp.sync.close)
    assert not mp.is_open
    assert 1 == stores.made


@pytest.mark.real_loop
async def test_a_thread_waits_for_the_loop_that_opens_it(mp: Millpond) -> None:
    """It does not open a second one, and does not raise."""
    stores = Stores(mp)
    opened = threading.Event()
    life = mp._life
    begin = life._begin_opening

    def open_too() -> None:
        mp.sync.open()
        opened.set()

    def begin_beside_a_thread() -> object:
        answer = begin()
        threading.Thread(target=open_too).start()
        return answer

    life._begin_opening = begin_beside_a_thread  # type: ignore[method-assign,assignment]
    opening = asyncio.create_task(mp.open())
    await asyncio.sleep(0)
    del life._begin_opening
    await opening
    assert await asyncio.to_thread(opened.wait, SOON)
    assert 1 == stores.made
    await mp.close()


async def test_a_thread_that_would_wait_for_its_own_loop_raises(mp: Millpond) -> None:
    """A wait that can never end raises at once."""
    opening = asyncio.create_task(mp.open())
    life = mp._life
    assert life._begin_opening() is None
    with pytest.raises(RuntimeError, match=r"await mp\.open\(\)"):
        mp.sync.open()
    life._end_opening()
    await opening
    await mp.close()


# The end of a process

AT_EXIT = """
import contextlib, sys
from millpond import Millpond

@contextlib.asynccontextmanager
async def resources():
    yield "here"
    print("left", flush=True)

mp = Millpond({url!r}, work=True, resources=resources)
pool = mp.pool("work", max_concurrent=2)

@pool.task
async def double(number: int) -> int:
    return 2 * number

mp.sync.open()
print(double.sync.submit(4).get(timeout=20), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('oh')"])
@pytest.mark.parametrize("durable", [False, True])
def test_the_end_of_the_process_closes_it(tmp_path: Path, end: str, durable: bool) -> None:
    """Workers close their resources and give back their tasks."""
    url = f"sqlite:///{tmp_path}/work.db" if durable else None
    done = run_script(tmp_path, AT_EXIT.format(url=url, end=end))
    assert "8\nleft\n" == done.stdout
    assert {"": 0, "sys.exit(3)": 3}.get(end, 1) == done.returncode


def test_threads_use_it_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """The process runs until those threads have ended; only then it closes."""
    end = """
import threading
def goes_on():
    threading.main_thread().join()
    print(double.sync.submit(5).get(timeout=20), flush=True)
threading.Thread(target=goes_on).start()
"""
    done = run_script(tmp_path, AT_EXIT.format(url=None, end=end))
    assert "8\n10\nleft\n" == done.stdout, done.stderr


def test_a_close_that_hangs_at_exit_is_abandoned_and_logged(tmp_path: Path) -> None:
    """The process ends although its close hangs."""
    end = """
import logging
from millpond.pool import process_life
logging.basicConfig(level="WARNING", stream=sys.stdout, format="%(message)s")
process_life.EXIT_PATIENCE = 0.1
async def never():
    await __import__("asyncio").Event().wait()
mp._internals.owner.close = never
"""
    done = run_script(tmp_path, AT_EXIT.format(url=None, end=end))
    assert "could not close the Millpond at the end of the process" in done.stdout
    assert 0 == done.returncode, done.stderr


def test_a_process_that_never_closes_its_loop_ends(tmp_path: Path) -> None:
    """A forgotten `await mp.close()` keeps no process alive."""
    script = f"""
import asyncio
from millpond import Millpond
mp = Millpond("sqlite:///{tmp_path}/work.db")
asyncio.run(mp.open())
print("over", flush=True)
"""
    done = run_script(tmp_path, script)
    assert "over\n" == done.stdout
    assert 0 == done.returncode, done.stderr


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, for at most SOON seconds."""
    file = folder / "script.py"
    file.write_text(text)
    command = [sys.executable, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
