"""Scopes: a pool of one tenant, pipeline or organisation is its own, in every process."""

import asyncio
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet
from verify.servers.schemas import Schema

from millpond import ConfigError, Context, Millpond, Pool, PoolClosed, Retry, TaskCancelled

MILLPONDS: dict[Pool, Millpond] = {}
"""The Millpond of each pool that a test makes."""


def process(fleet: Fleet, tenant: str, ran: list[str] | None = None) -> Pool:
    """The pool of one tenant in one process; it runs its tasks there if it has where to note it."""
    mp = fleet.millpond(work=ran is not None)
    mp.url = "sqlite:///work.db"
    dead: list[int] = []
    pool = mp.pool(
        "reviews",
        scope="tenant",
        scope_id=tenant,
        retry=Retry.never(),
        on_dead_letter=lambda letter: dead.append(letter.task_id),
    )

    @pool.task
    async def review(ctx: Context, word: str) -> str:
        assert ran is not None
        ran.append(f"{tenant} {word}")
        if word == "long":
            await ctx.cancelled.wait()
            raise asyncio.CancelledError
        await asyncio.sleep(1)
        if word == "bad":
            raise ValueError(word)
        return word

    MILLPONDS[pool] = mp
    return pool


@pytest.mark.rows("HN-19")
async def test_pools_of_two_tenants_share_nothing_but_the_file(place: Path | Schema) -> None:
    """One name, two ids; tasks, limits, keys and pauses of each are its own, over restarts."""
    fleet = Fleet(place)
    ran: list[str] = []
    acme, bolt = process(fleet, "acme"), process(fleet, "bolt")
    assert ("reviews", "tenant:acme:reviews") == (acme.name, acme.id)
    async with MILLPONDS[acme], MILLPONDS[bolt]:
        for pool in (acme, bolt):
            handle = await MILLPONDS[pool].tasks["review"].options(idempotency_key="k").submit("x")
            assert ("reviews", pool.id, False) == (handle.pool, handle.pool_id, handle.duplicate)
        await acme.pause()
    again = process(fleet, "bolt", ran)
    async with MILLPONDS[again]:
        await again.drain()
        assert ["bolt x"] == ran
        snapshot = await again.snapshot()
        assert ("reviews", "tenant", "bolt", again.id) == (
            snapshot.name,
            snapshot.scope,
            snapshot.scope_id,
            snapshot.id,
        )
        assert (1, 0, False) == (snapshot.completed, snapshot.queued, snapshot.paused)
    async with MILLPONDS[acme]:
        assert (1, True) == (await acme.size(), (await acme.snapshot()).paused)


async def test_a_pool_of_a_scope_can_do_what_any_pool_can(place: Path | Schema) -> None:
    """Runs, handles, the audit, follow-ups of one worker, and hooks find it by its own name."""
    fleet = Fleet(place)
    ran: list[str] = []
    pool = process(fleet, "acme", ran)
    mp = MILLPONDS[pool]
    review = mp.tasks["review"]
    async with mp:
        report = await pool.drain(review.each(["a", "b", "bad"]), run="nightly")
        assert (3, 2, 1) == (report.total, report.completed, report.failed)
        (good, *_) = await pool.tasks()
        assert "a" == await (await mp.handle(good.id))
        assert {"tenant:acme:reviews"} == {record.pool async for record in mp.audit(pool)}
        assert mp.get_pool("reviews") is mp.get_pool("tenant:acme:reviews") is pool
        async with mp.worker(pools=["reviews"]):
            assert "c" == await (await review.submit("c"))
    assert 4 == len(ran)


async def test_ending_a_scope_ends_all_its_pools_and_no_other(place: Path | Schema) -> None:
    """What waits and what runs is cancelled, wherever; nothing more is taken, for good."""
    fleet = Fleet(place)
    ran: list[str] = []
    acme, bolt = process(fleet, "acme", ran), process(fleet, "bolt", ran)
    operator = fleet.millpond(work=False)
    operator.url = "sqlite:///work.db"
    async with MILLPONDS[acme], MILLPONDS[bolt], operator:
        running = await MILLPONDS[acme].tasks["review"].submit("long")
        waiting = await MILLPONDS[acme].tasks["review"].submit("next")
        other = await MILLPONDS[bolt].tasks["review"].submit("fine")
        await asyncio.sleep(0.5)
        await operator.end_scope("tenant", "acme")
        for handle in (running, waiting):
            with pytest.raises(TaskCancelled):
                await handle
        assert "fine" == await other
        with pytest.raises(PoolClosed):
            await MILLPONDS[acme].tasks["review"].submit("more")
        assert not (await bolt.snapshot()).closed
    again = process(fleet, "acme")
    async with MILLPONDS[again]:
        assert (await again.snapshot()).closed
    assert ["acme long", "bolt fine"] == sorted(ran)


def durable() -> Millpond:
    """A Millpond on a file that is never opened."""
    return Millpond("sqlite:///work.db")


def test_a_durable_pool_is_the_applications() -> None:
    """Its scope is `app`, and there is only one of that."""
    mp = durable()
    assert ("app", "app::jobs") == (mp.pool("jobs").scope, mp.get_pool("jobs").id)
    with pytest.raises(ConfigError, match="scope_id"):
        mp.pool("other", scope="app", scope_id="acme")
    with pytest.raises(ConfigError, match="memory"):
        mp.pool("other", scope="session")


@pytest.mark.rows("HN-20")
@pytest.mark.parametrize("scope", ["pipeline", "tenant", "org"])
def test_a_scope_of_many_says_whose(scope: str) -> None:
    """Without an id it is refused; with one that could not be part of a name, too."""
    mp = durable()
    with pytest.raises(ConfigError, match=f"scope_id.*{scope}"):
        mp.pool("jobs", scope=scope)
    with pytest.raises(ConfigError, match="scope_id"):
        mp.pool("jobs", scope=scope, scope_id="a'; DROP TABLE x")
    assert f"{scope}:acme:jobs" == mp.pool("jobs", scope=scope, scope_id="acme").id


def test_a_name_cannot_pretend_to_be_of_a_scope() -> None:
    """Else one could reach into the pools of a tenant by a name."""
    with pytest.raises(ConfigError, match="scope="):
        durable().pool("tenant:acme:reviews")


async def test_only_a_scope_of_many_can_be_ended(place: Path | Schema) -> None:
    """The whole application is not ended by a word."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=False)
    mp.url = "sqlite:///work.db"
    async with mp:
        with pytest.raises(ConfigError, match="pipeline, tenant, org"):
            await mp.end_scope("app", "x")
