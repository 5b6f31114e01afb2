"""`millpond demo --serve`: the fleet of act 3 without an end, live in the dashboard."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING

from millpond.demo import fleet_app as depot
from millpond.demo.fleet_act import EACH, TENANTS, called_off, url_of
from millpond.demo.fleet_act import WORKERS as WORKERS
from millpond.demo.scenes import CannotGoOn, dice_of
from millpond.demo.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from millpond import BoundCall, Millpond
    from millpond.demo.scenes import Scene

NEEDED = ("fastapi", "uvicorn")
BACKLOG = 60
"""Waiting tasks below which the demo submits more."""
BATCH = 30
WEIGHTS = (4, 2, 1)
"""How much the tenants submit, compared with each other."""
UNREADABLE = 0.04
"""Part of the labels that cannot be printed: dead letters to look at and to redrive."""
PAUSE = 0.5
STREETS = ("Mill Lane", "Weir Road", "Sluice Street")
ROUND = 8.0
"""Seconds between two rounds of visits."""
KILL_EVERY, ABSENT = 20.0, 4.0
"""Seconds between two kills, and until another worker takes the place of a killed one."""


def check_extra() -> None:
    """Refuse to start without the packages of the dashboard."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CannotGoOn(f"--serve needs {missing[0]}: run `pip install 'millpond[server]'`")


async def serve_fleet(scene: Scene, port: int, started: Callable[[str], None]) -> None:
    """Keep three worker processes busy, kill one now and then, and serve the dashboard."""
    # The extra may be absent.
    from millpond.server import app  # noqa: PLC0415
    from millpond.server.serving import serve  # noqa: PLC0415

    dice = dice_of(scene.seed)
    async with depot.make_live(url_of(scene)) as mp:
        depot.lay_out(scene.file)
        with WorkerProcesses(url_of(scene), scene.file, WORKERS, EACH, make="make_live") as crew:
            busy = [
                asyncio.create_task(_keep_submitting(mp, dice)),
                asyncio.create_task(_keep_visiting(mp, dice)),
                asyncio.create_task(_keep_killing(crew, dice)),
            ]
            try:
                await serve(app(mp, allow_actions=True), "127.0.0.1", port, started)
            finally:
                for task in busy:
                    await called_off(task)


async def _keep_submitting(mp: Millpond, dice: random.Random) -> None:
    pool = mp.get_pool("parcels")
    while True:
        if (await pool.snapshot()).queued < BACKLOG:
            await pool.submit_many([_call(mp, dice) for _ in range(BATCH)])
        await asyncio.sleep(PAUSE)


def _call(mp: Millpond, dice: random.Random) -> BoundCall[None]:
    (tenant,) = dice.choices(tuple(TENANTS), WEIGHTS)
    seconds = round(dice.uniform(0.1, 0.9), 3)
    if dice.random() < 0.7:
        return mp.tasks["pack"].bind(seconds, tenant)
    house = 0 if dice.random() < UNREADABLE / 0.3 else dice.randint(1, 99)
    return mp.tasks["label"].bind(seconds, tenant, house)


async def _keep_visiting(mp: Millpond, dice: random.Random) -> None:
    """Open a run of visits and emit an event, round after round."""
    visits, visit = mp.get_pool("visits"), mp.tasks["visit"]
    for number in count(1):
        streets = [visit.bind(name, dice.randint(2, 5)) for name in STREETS]
        async with visits.run(f"round-{number}") as run:
            for street in streets:
                await run.submit(street)
        joined = {"customer": f"customer-{number}"}
        await mp.emit("customer.joined", joined, event_id=f"customer-{number}")
        await asyncio.sleep(ROUND)


async def _keep_killing(crew: WorkerProcesses, dice: random.Random) -> None:
    while True:
        await asyncio.sleep(KILL_EVERY - ABSENT)
        victim = dice.choice(crew.hands)
        victim.kill()
        await asyncio.sleep(ABSENT)
        crew.replace(victim)
