"""A forked child beside an open Millpond: it gets its own or a clear error, and never hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOON = 50.0

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

HEAD = """
import multiprocessing, os, signal, sys, threading, warnings
from millpond import Millpond, NotOpen
from millpond.errors import StoreForked

warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside threads
mp = Millpond({url!r})
pool = mp.pool("work", max_concurrent=2)

@pool.task
async def double(number: int) -> int:
    return 2 * number

def in_child(fn):
    child = os.fork()
    if child:
        return child
    signal.alarm(20)  # a child that hangs ends, and its parent sees the signal
    try:
        fn()
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
    os._exit(0)

def must_open():
    # SQLite cannot open the file where the parent has it open, and says so.
    assert not mp.is_open
    try:
        mp.sync.open()
    except StoreForked as error:
        assert "after the fork" in str(error), error
        print("refused\\n", end="", flush=True)
        os._exit(0 if mp.url.startswith("sqlite") else 1)

def must_end_well(children):
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), codes
"""

CHILDREN_OF_A_BUSY_PARENT = """
def child():
    try:
        double.sync.submit(1)
    except NotOpen as error:
        assert "mp.sync.open()" in str(error), error
    else:
        raise AssertionError("the child used what is its parent's")
    must_open()
    double.sync.submit(1)
    mp.sync.close()

mp.sync.open()
over = threading.Event()
done = []

def submit_all_the_time():
    while not over.is_set():
        double.sync.submit(2)
        done.append(1)

threads = [threading.Thread(target=submit_all_the_time) for _ in range(2)]
for one in threads:
    one.start()
for _ in range(8):
    must_end_well([in_child(child) for _ in range(3)])
over.set()
for one in threads:
    one.join()
double.sync.submit(3)
print(pool.sync.size() - len(done))
"""

FORK_WHILE_IT_OPENS = """
started = threading.Event()
held = threading.Event()
make = mp._internals.owner._open_runtime

async def slowly():
    started.set()
    held.wait()
    return await make()

mp._internals.owner._open_runtime = slowly
opener = threading.Thread(target=mp.sync.open)
opener.start()
started.wait()

def child():
    mp._internals.owner._open_runtime = make
    mp.sync.open()
    double.sync.submit(1)
    mp.sync.close()

must_end_well([in_child(child)])
held.set()
opener.join()
double.sync.submit(1)
print(pool.sync.size())
"""

CLOSED_BEFORE_THE_FORK = """
import asyncio

def child():
    async def main():
        await mp.open()
        await double.submit(1)
        await mp.close()

    asyncio.run(main())

mp.sync.open()
double.sync.submit(1)
mp.sync.close()
must_end_well([in_child(child) for _ in range(2)])
mp.sync.open()
print(pool.sync.size())
"""

BY_MULTIPROCESSING = """
def work(number):
    mp.sync.open()
    return double.sync.submit(number).id

with multiprocessing.get_context("fork").Pool(2) as processes:
    assert 6 == len(set(processes.map(work, range(6))))
mp.sync.open()
print(pool.sync.size())
"""

SCRIPTS = {
    "a fork while a thread opens it": (FORK_WHILE_IT_OPENS, 2),
    "closed before the fork": (CLOSED_BEFORE_THE_FORK, 3),
    "multiprocessing": (BY_MULTIPROCESSING, 6),
}


def test_children_of_a_busy_parent(url: str, tmp_path: Path) -> None:
    """On a server each opens its own; SQLite cannot, and says what to do. The parent goes on."""
    said = run_script(url, CHILDREN_OF_A_BUSY_PARENT, tmp_path)
    assert (["refused"] * 24 + ["1"] if url.startswith("sqlite") else ["25"]) == said.split()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_forked_child_opens_its_own(url: str, name: str, tmp_path: Path) -> None:
    """The parent goes on beside it, and every task that either submitted is stored."""
    script, stored = SCRIPTS[name]
    assert f"{stored}\n" == run_script(url, script, tmp_path)


def run_script(url: str, script: str, folder: Path) -> str:
    """Run a program in a process of its own; return what it printed."""
    file = folder / "script.py"
    file.write_text(HEAD.format(url=url) + script)
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout
