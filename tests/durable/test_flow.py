"""Flow control over a real fleet: rates, budgets and limits that adapt, by what the audit says."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.durable.flow_app import MODEL, application
from verify.torture.evidence import from_zero
from verify.torture.replay import Replay

from millpond import Handle, Millpond
from millpond.core.audit import Record
from millpond.core.lifecycle import Transition
from millpond.pool.internals import internals_of

TASKS = int(os.environ.get("FLOW_TASKS", "60"))
"""Of each pool; `make flow` takes more."""

KILL_EVERY = 60
"""After so many tasks of a pool a worker is killed, and another takes its place."""


def started(url: str) -> subprocess.Popen[str]:
    """A process that runs tasks until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.durable.flow_app", url],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
    )


class Fleet:
    """Processes that run tasks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._up: list[subprocess.Popen[str]] = []

    async def start(self) -> None:
        """Start one more, and wait until it is at work."""
        process = started(self._url)
        self._up.append(process)
        assert process.stdout is not None
        assert "up" in await asyncio.to_thread(process.stdout.readline)

    def kill(self) -> None:
        """Kill the one that is longest at work."""
        process = self._up.pop(0)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def kill_all(self) -> None:
        while self._up:
            self.kill()


@contextmanager
def fleet_on(url: str) -> Iterator[Fleet]:
    """Give a fleet without processes; kill those that the test has started."""
    fleet = Fleet(url)
    try:
        yield fleet
    finally:
        fleet.kill_all()


@pytest.mark.real_loop
async def test_a_fleet_keeps_to_budgets_and_rates_though_one_is_killed(url: str) -> None:
    """I1 and I13 from the audit: two pools, three processes, one killed in the middle."""
    mp = application(url)
    with fleet_on(url) as fleet:
        records = await lived(mp, fleet)
    specs = {pool.spec.name: pool.spec for pool in mp.pools()}
    replay = Replay(specs, [MODEL])
    replay.read(from_zero(records))
    assert {} == replay.broken
    assert replay.events[Transition.COMPLETE] == 2 * TASKS
    assert any(limit.endswith("rate of 60 used up") for limit in replay.reached)
    details = {(record.detail or "").partition(" ")[0] for record in records}
    assert {"weight", "hold"} <= details


async def lived(mp: Millpond, fleet: Fleet) -> list[Record]:
    """Submit, kill some on the way, wait for the end of all; return the audit."""
    async with mp:
        await internals_of(mp.get_pool("chat")).ready()
        await asyncio.gather(*(fleet.start() for _ in range(3)))
        handles = [handle for name in ("chat", "embed") for handle in await submitted(mp, name)]
        for point in range(TASKS // 4, TASKS, KILL_EVERY):
            await handles[point].wait(timeout=50)
            fleet.kill()
            if point + KILL_EVERY < TASKS:
                await fleet.start()
        await mp.wait(handles)
        return [record async for record in mp.audit()]


async def submitted(mp: Millpond, pool: str) -> list[Handle[str]]:
    """Submit tasks of four tenants and three weights to a pool."""
    call = mp.tasks["call"]
    return await mp.get_pool(pool).submit_many(
        call.bind(n, f"tenant-{n % 4}").options(weight=1 + n % 3) for n in range(TASKS)
    )
