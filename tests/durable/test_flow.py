"""Flow control over a real fleet: rates, budgets and limits that adapt, by what the audit says."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.durable.flow_app import MODEL, application

from millpond import Millpond
from millpond.core.audit import Record
from millpond.core.lifecycle import Event
from millpond.testing.torture.evidence import from_zero
from millpond.testing.torture.replay import Replay

TASKS = 60


@contextmanager
def workers(url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that run tasks; they are killed in the end."""
    fleet = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.durable.flow_app", url],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
        )
        for _ in range(count)
    ]
    try:
        yield fleet
    finally:
        for process in fleet:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.real_loop
async def test_a_fleet_keeps_to_budgets_and_rates_though_one_is_killed(tmp_path: Path) -> None:
    """I1 and I13 from the audit: two pools, three processes, one killed in the middle."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    mp = application(url)
    with workers(url, 3) as fleet:
        records = await lived(mp, fleet)
    specs = {pool.spec.name: pool.spec for pool in mp.pools()}
    replay = Replay(specs, [MODEL])
    replay.read(from_zero(records))
    assert {} == {name: found for name, found in replay.broken.items() if name in ("I1", "I13")}
    assert replay.events[Event.COMPLETE] == 2 * TASKS
    assert any(limit.endswith("rate of 60 used up") for limit in replay.reached)


async def lived(mp: Millpond, fleet: list[subprocess.Popen[str]]) -> list[Record]:
    """Submit, kill one, wait for the end of all; return the audit."""
    async with mp:
        for process in fleet:
            assert process.stdout is not None
            assert "up" in await asyncio.to_thread(process.stdout.readline)
        chat, embed = mp.get_pool("chat"), mp.get_pool("embed")
        call = mp.tasks["call"]
        handles = [
            handle
            for pool in (chat, embed)
            for handle in await pool.submit_many(
                call.bind(n, f"tenant-{n % 4}").options(weight=1 + n % 3) for n in range(TASKS)
            )
        ]
        await handles[TASKS // 4].wait(timeout=30)
        fleet[0].kill()
        await mp.wait(handles)
        return [record async for record in mp.audit()]
