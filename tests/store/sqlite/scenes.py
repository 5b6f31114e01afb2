"""A small world in one file, and every verb and order as a scene in it.

Moments, ids and chance are given, so a scene leaves the same rows behind each time it succeeds.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.spec import PoolSpec, bounded, fair_round_robin, fifo
from millpond.core.task import Call
from millpond.store.protocol import Batch, Store
from millpond.store.sqlite import SqliteStore
from millpond.testing.conformance.lab import (
    WORKER,
    Lab,
    completed,
    failed,
    handing_over,
    released,
    retried,
)

NOW = 2000.0
_IDS = 1 << 40


class World(msgspec.Struct):
    """Which worker holds which tasks when a scene begins."""

    run: int
    plain: list[Leased]
    ahead: list[Leased]
    fair: list[Leased]
    failed: int
    queued: int
    closure: int


async def make_world(path: Path) -> World:
    """Make the file, and something of everything in it."""
    store = SqliteStore(path, durability="normal", inline=True)
    lab = Lab(store)
    await lab.join(WORKER, lease=1e6, owner="us")
    await lab.join("late", lease=500.0, owner="them")
    await lab.join("other", lease=1e6)
    done = Call("done")
    await lab.declare("plain", prefetch=2, max_concurrent=3)
    await lab.declare("narrow", backpressure=bounded(2, "drop_oldest"))
    await lab.declare("full", backpressure=bounded(2, "fail_submitter"))
    await lab.declare("fair", order=fair_round_robin(), max_per_key=1, max_concurrent=6)
    await lab.declare("lanes", lanes=2)
    await lab.declare("slow", rate_per_key=Rate(1, per=60), rates=(Rate(100, per=60),))
    run = NewRun(id=lab.serial(), pool="plain", name="crawl", holder="us")
    await lab.submit(
        *[lab.new(pool="plain", run=run.id, on_complete=done) for _ in range(6)], run=run
    )
    for pool in ("narrow", "full"):
        await lab.put(pool=pool, key="a")
        await lab.put(pool=pool, key="b")
    for key in "aabbcd":
        for pool in ("fair", "lanes", "slow"):
            await lab.put(pool=pool, key=key, share=key, on_complete=done)
    await lab.put(pool="fair", key="late", share="late", delay=100.0)
    await lab.put(pool="fair", key="old", share="old", expires_in=100.0)
    await lab.put(pool="fair", key="once", share="once", idempotency_key="once", fingerprint=7)
    closure = await lab.put(pool="fair", owner="us")
    plain = await lab.lease(2, pool="plain")
    ahead = await lab.claims(2, pool="plain")
    fair = await lab.lease(3, pool="fair")
    await lab.lease(1, pool="fair", worker="late")
    await lab.lease(1, pool="lanes", worker="late")
    await lab.settle(completed(await lab.one(pool="slow")))
    broken = await lab.one(pool="lanes")
    await lab.settle(failed(broken))
    await lab.join("ignorant", lease=1e6)
    parked = await lab.one(pool="fair", worker="ignorant")
    await lab.settle(released(parked, parked=True))
    queued = (await lab.store.view.tasks("slow", limit=100)).tasks[-1].new.id
    await store.close()
    return World(run.id, plain, ahead, fair, broken.fence.task, queued, closure)


Act = Callable[[Lab, World], Awaitable[Any]]


def order(make: Callable[[World], orders.Command]) -> Act:
    """An order as a scene."""
    return lambda lab, world: lab.control(make(world))


def _spec(name: str, **options: Any) -> PoolSpec:
    return PoolSpec(name=name, order=options.pop("order", fifo()), **options)


async def submit_dropping(lab: Lab, world: World) -> Any:
    """A full pool drops its oldest for each of these."""
    return await lab.submit(lab.new(pool="narrow", key="c"), lab.new(pool="narrow", key="d"))


async def submit_refused(lab: Lab, world: World) -> Any:
    """A full pool takes nothing."""
    return await lab.submit(lab.new(pool="full", key="c"))


async def submit_known(lab: Lab, world: World) -> Any:
    """One of them is there already."""
    known = lab.new(pool="fair", key="once", share="x", idempotency_key="once", fingerprint=7)
    fresh = lab.new(pool="fair", key="new", share="x", idempotency_key="another", delay=9.0)
    return await lab.submit(known, fresh)


async def submit_a_run(lab: Lab, world: World) -> Any:
    """A run with its seed."""
    run = NewRun(id=lab.serial(), pool="lanes", name="second")
    return await lab.submit(*[lab.new(pool="lanes", key=k, run=run.id) for k in "ab"], run=run)


async def submit_batches(lab: Lab, world: World) -> Any:
    """Several pools in one step."""
    return await lab.submit_all(
        *[Batch(tasks=(lab.new(pool=pool, key="z", share="z"),)) for pool in ("fair", "slow")]
    )


async def lease_ahead(lab: Lab, world: World) -> Any:
    """A worker takes some, and more to hold."""
    return await lab.ask(1, ahead=2, pool="plain", worker="other")


async def lease_fair(lab: Lab, world: World) -> Any:
    """Turns, keys and what has become due."""
    return await lab.ask(5, pool="fair", worker="other")


async def lease_slow(lab: Lab, world: World) -> Any:
    """A rate for each key."""
    return await lab.ask(5, pool="slow")


async def settle_and_lease(lab: Lab, world: World) -> Any:
    """Ends with callbacks and follow-ups in a run, a successor, and the next lease, all in one."""
    first, second = world.plain
    follow_ups = [lab.new(pool="plain", run=world.run), lab.new(pool="fair", key="x", share="x")]
    return await lab.store.settle(
        [handing_over(completed(first, *follow_ups, result=b"1"), world.ahead[0]), failed(second)],
        then=LeaseRequest(pool="plain", worker=WORKER, want=2, ahead=1),
        now=lab.now,
        entropy=5,
    )


async def settle_fair(lab: Lab, world: World) -> Any:
    """A retry, a failure and one given back."""
    one, two, three = world.fair
    return await lab.settle_all([retried(one, 5.0), failed(two), released(three)])


async def renew(lab: Lab, world: World) -> Any:
    """One small write."""
    return await lab.renew("late")


async def recover(lab: Lab, world: World) -> Any:
    """A worker is late, a task too old."""
    return await lab.recover()


SCENES: dict[str, Act] = {
    "submit, dropping the oldest": submit_dropping,
    "submit, refused": submit_refused,
    "submit, known": submit_known,
    "submit a run": submit_a_run,
    "submit batches": submit_batches,
    "lease ahead": lease_ahead,
    "lease of a fair pool": lease_fair,
    "lease of a slow pool": lease_slow,
    "settle and lease": settle_and_lease,
    "settle in a fair pool": settle_fair,
    "renew": renew,
    "recover": recover,
    "declare": order(lambda _: orders.Declare(_spec("new", lanes=3))),
    "declare again": order(lambda _: orders.Declare(_spec("plain", max_concurrent=9))),
    "declare keys": order(lambda _: orders.Declare(_spec("plain", max_per_key=1))),
    "pause": order(lambda _: orders.Pause("fair")),
    "pause a key": order(lambda _: orders.Pause("plain", "a")),
    "resume": order(lambda _: orders.Resume("fair")),
    "resize": order(lambda _: orders.Resize("fair", 1)),
    "hold": order(lambda _: orders.Hold("fair", 60.0, "b")),
    "purge": order(lambda _: orders.Purge("fair")),
    "cancel all": order(lambda _: orders.CancelAll("lanes")),
    "cancel": order(lambda world: orders.Cancel((world.queued, world.plain[0].fence.task))),
    "redrive": order(lambda world: orders.Redrive((world.failed,))),
    "progress": order(lambda world: orders.Progress(world.plain[0].fence, 0.5, "half")),
    "remember": order(lambda world: orders.SaveStep(world.plain[0].fence, "step", b"1")),
    "close": order(lambda _: orders.Close("fair")),
    "join": order(lambda _: orders.Register("newcomer", 30.0, "us", ("work",))),
    "leave": order(lambda _: orders.Deregister(WORKER)),
    "disown": order(lambda world: orders.Disown(WORKER, (world.plain[0].fence.task,))),
    "bury": order(lambda _: orders.DeclareDead("late")),
    "lead": order(lambda _: orders.ClaimLeadership("us", 30.0)),
    "seal": order(lambda world: orders.Seal(world.run, "us")),
    "call when over": order(lambda world: orders.CallWhenOver(world.run, Call("notify"))),
    "cancel a run": order(lambda world: orders.CancelRun(world.run)),
    "prune": order(
        lambda _: orders.Prune("lanes", NOW, NOW, keys_before=NOW, audit_before=NOW - 500)
    ),
}

SUBMITS = tuple(name for name in SCENES if name.startswith("submit"))


class Stage:
    """Copies of one world, each to be spoilt by one scene."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        self._copies = 0
        self.world = asyncio.run(make_world(self._template))

    def fresh(self) -> Path:
        """A new copy: a connection to an older one may be open still."""
        folder, self._copies = self._template.parent, self._copies + 1
        for old in folder.glob(f"work{self._copies - 3}.db*"):
            old.unlink()
        copy = folder / f"work{self._copies}.db"
        shutil.copy(self._template, copy)
        return copy

    def lab(self, store: Store) -> Lab:
        """A lab that says the same words each time."""
        lab = Lab(store, now=NOW)
        lab._serial = _IDS
        return lab


def rows_of(connection: Connection) -> dict[str, list[Any]]:
    """Everything that is stored, but for which migration was applied when."""
    names = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'millpond_%'"
    ).fetchall()
    return {
        name: connection.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608 - our own
        for (name,) in sorted(names)
        if name != "millpond_schema"
    }
