"""Processes that tests of disks start: on a disk of their own, or to be killed while they write."""

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.mounts import mount_small_disk

from millpond.core.task import Call
from millpond.errors import StoreError
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance.lab import Lab


def say(*words: object) -> None:
    """Print words for the test."""
    print(*words, flush=True)  # noqa: T201


def stored(path: Path) -> set[int]:
    """Return the ids of all tasks; everything must fit together."""
    connection = connect(path)
    try:
        assert [] == check_tables(connection)
        return {task for (task,) in connection.execute("SELECT id FROM millpond_task")}
    finally:
        connection.close()


async def fill(folder: Path) -> None:
    """Submit until the disk is full, make room, and go on."""
    mount_small_disk(folder, 3 * 1024 * 1024)
    path, ballast = folder / "work.db", folder / "ballast"
    ballast.write_bytes(bytes(1024 * 1024))
    store = SqliteStore(path)
    lab = await Lab.around(store)
    await lab.declare()
    acknowledged, error = set(), None
    while error is None:
        news = [lab.new(call=Call("work", bytes(20_000))) for _ in range(4)]
        for task, answer in zip(
            news,
            await asyncio.gather(*map(lab.submit, news), return_exceptions=True),
            strict=True,
        ):
            if isinstance(answer, BaseException):
                error = answer
            else:
                acknowledged.add(task.id)
    assert isinstance(error, StoreError), error
    say(type(error).__name__, str(path) in str(error), "make room" in str(error))
    for _ in range(3):  # it stays full, and says so
        try:
            await lab.submit(lab.new(call=Call("work", bytes(200_000))))
        except StoreError as again:
            say(type(again).__name__)
    # Reading goes on, and what is small may find its place.
    say((await lab.pool()).queued == len(acknowledged))
    ballast.unlink()
    acknowledged.add(await lab.put(call=Call("work", bytes(20_000))))
    await lab.run_one()
    await store.close()
    say(acknowledged == stored(path))


def submit_until_killed(path: Path, pipe: int, start: int) -> None:
    """Submit, lease and settle for ever, and write down each id that was acknowledged."""

    async def forever() -> None:
        store = SqliteStore(path)
        lab = Lab(store, now=time.time())
        lab._serial = start
        while True:
            news = [lab.new(call=Call("work", bytes(300))) for _ in range(3)]
            await asyncio.gather(*map(lab.submit, news))
            os.write(pipe, b"".join(task.id.to_bytes(8) for task in news))
            lab.now = time.time()
            await lab.run_one()

    asyncio.run(forever())


def kill_many(path: Path, times: int, seed: int) -> None:
    """Fork one process after another and kill it at some moment; then look at the file."""
    dice = random.Random(seed)

    async def prepare() -> None:
        store = SqliteStore(path)
        await (await Lab.around(store)).declare(max_concurrent=1000)
        await store.close()

    asyncio.run(prepare())
    acknowledged: set[int] = set()
    for number in range(times):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                submit_until_killed(path, writing, (number + 1) << 33)
            except BaseException:  # noqa: BLE001 - it must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writing)
        heard = os.read(reading, 24)
        time.sleep(dice.uniform(0.0, 0.02))  # the kill comes at any moment
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while part := os.read(reading, 1 << 16):
            heard += part
        os.close(reading)
        acknowledged |= {int.from_bytes(heard[i : i + 8]) for i in range(0, len(heard) - 7, 8)}
        if number % 10 == 9 and not acknowledged <= stored(path):
            say("lost", sorted(acknowledged - stored(path)))
    say(acknowledged <= stored(path), len(acknowledged) >= 3 * times)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        asyncio.run(fill(Path(sys.argv[2])))
    else:
        kill_many(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
