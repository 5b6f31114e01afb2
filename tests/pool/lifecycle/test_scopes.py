"""Scopes of a durable store: pools of one name with different ids, and an end for each scope."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millpond import Context, Keep, Millpond, Outcome, Pool
from millpond.errors import (
    ConfigError,
    DuplicateName,
    NotSupported,
    UnknownPool,
)

URL = "sqlite:///never-opened.db"


def test_a_pool_of_a_durable_store_has_the_scope_app() -> None:
    """Without a scope, every process on the store shares the pool."""
    mp = Millpond(URL)
    pool = mp.pool("reviews")
    assert ("reviews", "app", None, "app::reviews") == (
        pool.name,
        pool.scope,
        pool.scope_id,
        pool.id,
    )
    assert "reviews" == mp.pool("others", scope="app").spec.name.replace("others", "reviews")
    assert pool is mp.get_pool("reviews") is mp.get_pool("app::reviews")


@pytest.mark.rows("HN-19")
@pytest.mark.parametrize("scope", ["pipeline", "tenant", "org"])
def test_two_scopes_have_pools_of_one_name(scope: str) -> None:
    """get_pool finds each by its id, and the store knows it by that id."""
    mp = Millpond(URL)
    app = mp.pool("reviews")
    acme = mp.pool("reviews", scope=scope, scope_id="acme")
    bolt = mp.pool("reviews", scope=scope, scope_id="bolt")
    assert f"{scope}:acme:reviews" == acme.id == acme.spec.name
    assert ("reviews", scope, "acme") == (acme.name, acme.scope, acme.scope_id)
    assert [app, acme, bolt] == mp.pools()
    assert [app, acme, bolt] == [mp.get_pool(pool.id) for pool in mp.pools()]
    assert app is mp.get_pool("reviews")
    with pytest.raises(DuplicateName, match=rf"mp\.get_pool\('{scope}:acme:reviews'\)"):
        mp.pool("reviews", scope=scope, scope_id="acme")


def test_a_name_in_several_scopes_needs_its_id() -> None:
    """A name that only one scope has needs no id."""
    mp = Millpond(URL)
    only = mp.pool("only", scope="tenant", scope_id="acme")
    mp.pool("both", scope="tenant", scope_id="acme")
    mp.pool("both", scope="tenant", scope_id="bolt")
    assert only is mp.get_pool("only")
    with pytest.raises(UnknownPool, match="tenant:acme:both, tenant:bolt:both"):
        mp.get_pool("both")


@pytest.mark.rows("HN-20")
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("scope", {"scope": "galaxy"}),
        ("scope_id", {"scope": "tenant"}),
        ("scope_id", {"scope": "tenant", "scope_id": ""}),
        ("scope_id", {"scope": "tenant", "scope_id": "a:b"}),
        ("scope_id", {"scope": "tenant", "scope_id": "../etc"}),
        ("scope_id", {"scope": "org", "scope_id": 7}),
        ("scope_id", {"scope": "app", "scope_id": "acme"}),
        ("scope_id", {"scope_id": "acme"}),
        ("name", {"scope": "org", "scope_id": "x" * 120}),
    ],
)
def test_a_scope_without_its_id_is_refused(option: str, given: dict[str, Any]) -> None:
    """The error names the option, and no pool is declared."""
    mp = Millpond(URL)
    with pytest.raises(ConfigError) as caught:
        mp.pool("reviews", **given)
    assert option == caught.value.option
    assert [] == mp.pools()


def test_the_scope_session_is_only_for_memory() -> None:
    """The error says what to do instead."""
    with pytest.raises(ConfigError, match=r"second Millpond\(\)") as caught:
        Millpond(URL).pool("reviews", scope="session")
    assert "scope" == caught.value.option


@pytest.mark.parametrize("name", ["tenant:acme:reviews", "app:x", "session:x", "org:a"])
@pytest.mark.parametrize("url", [None, URL])
def test_a_name_that_looks_like_a_pool_id_is_refused(name: str, url: str | None) -> None:
    """A pool of the app must not have the id of a tenant's pool."""
    with pytest.raises(ConfigError, match="give scope="):
        Millpond(url).pool(name)


async def test_opening_refuses_a_scope_that_its_store_does_not_have() -> None:
    """A pool without a scope follows mp.url; opening checks the scopes of the others."""
    mp = Millpond(URL)
    mp.pool("reviews", scope="tenant", scope_id="acme")
    mp.url = None
    with pytest.raises(NotSupported, match="durable store"):
        async with mp:
            pass
    assert not mp.is_open
    mp = Millpond()
    pool = mp.pool("reviews")
    assert "session::reviews" == pool.id
    mp.url = URL
    assert "app::reviews" == pool.id


def app(path: Path, *scope_ids: str) -> tuple[Millpond, list[Pool]]:
    """An app with a pool for each tenant and one for the app, all of one name."""
    mp = Millpond(f"sqlite:///{path}/work.db", work=True, keep=Keep(completed=1000.0))
    pools = [mp.pool("reviews", scope="tenant", scope_id=one) for one in scope_ids]
    pools.append(mp.pool("reviews"))

    @mp.task(name="review")
    async def review(ctx: Context, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return ctx.pool

    return mp, pools


@pytest.mark.real_loop
async def test_pools_of_one_name_do_not_mix(tmp_path: Path) -> None:
    """Each pool has its own tasks, counts, keys, handles, runs, callbacks and audit."""
    mp, (acme, bolt, shared) = app(tmp_path, "acme", "bolt")
    notified: list[str] = []

    @mp.task(name="notify")
    async def notify(outcome: Outcome) -> None:
        notified.append(outcome.pool)

    async with mp:
        review = mp.tasks["review"]
        handles = [
            await pool.submit(review.bind(), idempotency_key="one", on_complete=notify.bind())
            for pool in (acme, bolt, shared)
        ]
        assert not any(handle.duplicate for handle in handles)
        assert ["tenant:acme:reviews", "tenant:bolt:reviews", "reviews"] == [
            await handle for handle in handles
        ]
        assert ["reviews"] * 3 == [handle.pool for handle in handles]
        assert [acme.id, bolt.id, shared.id] == [handle.pool_id for handle in handles]
        again = await mp.handle(handles[1].id)
        assert bolt.id == again.pool_id
        report = await bolt.drain([review.bind()] * 3)
        assert (bolt.id, 3) == (report.pool, report.completed)
        await acme.drain()
        await shared.drain()
        assert ["reviews", acme.id, bolt.id] == sorted(notified)
        snapshots = [await pool.snapshot() for pool in (acme, bolt, shared)]
        assert [1, 4, 1] == [one.completed for one in snapshots]
        assert ["reviews"] * 3 == [one.name for one in snapshots]
        assert [("tenant", "acme"), ("tenant", "bolt"), ("app", None)] == [
            (one.scope, one.scope_id) for one in snapshots
        ]
        submitted = [one async for one in mp.audit(bolt.id) if one.event == "submit"]
        assert 4 == len(submitted)
        assert {bolt.id} == {one.pool for one in submitted}
        assert {acme.id} == {one.pool for one in await acme.tasks()}
