"""Scopes of a durable store: names side by side, ids that tell them apart, and an end for each."""

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


def test_a_pool_of_a_durable_store_is_the_apps() -> None:
    """It says nothing: everybody who uses the store uses it."""
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
    """Each is found by its id, and known to the store by it."""
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
    """One that only one scope has is clear by itself."""
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
    """The option is blamed by its name, and nothing is declared."""
    mp = Millpond(URL)
    with pytest.raises(ConfigError) as caught:
        mp.pool("reviews", **given)
    assert option == caught.value.option
    assert [] == mp.pools()


def test_a_session_is_for_memory() -> None:
    """A file would keep it only to forget it; the error says what to do instead."""
    with pytest.raises(ConfigError, match=r"second Millpond\(\)") as caught:
        Millpond(URL).pool("reviews", scope="session")
    assert "scope" == caught.value.option


@pytest.mark.parametrize("name", ["tenant:acme:reviews", "app:x", "session:x", "org:a"])
@pytest.mark.parametrize("url", [None, URL])
def test_no_name_can_be_taken_for_an_id(name: str, url: str | None) -> None:
    """A pool of the app must not be what another app calls a tenant's."""
    with pytest.raises(ConfigError, match="give scope="):
        Millpond(url).pool(name)


async def test_scopes_go_with_the_store_that_is_opened() -> None:
    """What another store cannot have is refused before it is opened."""
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
    """An app with a pool for each tenant, all of one name, and one for everybody."""
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
    """Tasks, counts, keys, handles, runs, callbacks and the audit are each pool's own."""
    mp, (acme, bolt, everybody) = app(tmp_path, "acme", "bolt")
    told: list[str] = []

    @mp.task(name="tell")
    async def tell(outcome: Outcome) -> None:
        told.append(outcome.pool)

    async with mp:
        review = mp.tasks["review"]
        handles = [
            await pool.submit(review.bind(), idempotency_key="one", on_complete=tell.bind())
            for pool in (acme, bolt, everybody)
        ]
        assert not any(handle.duplicate for handle in handles)
        assert ["tenant:acme:reviews", "tenant:bolt:reviews", "reviews"] == [
            await handle for handle in handles
        ]
        assert ["reviews"] * 3 == [handle.pool for handle in handles]
        assert [acme.id, bolt.id, everybody.id] == [handle.pool_id for handle in handles]
        again = await mp.handle(handles[1].id)
        assert bolt.id == again.pool_id
        report = await bolt.drain([review.bind()] * 3)
        assert (bolt.id, 3) == (report.pool, report.completed)
        await acme.drain()
        await everybody.drain()
        assert ["reviews", acme.id, bolt.id] == sorted(told)
        snapshots = [await pool.snapshot() for pool in (acme, bolt, everybody)]
        assert [1, 4, 1] == [one.completed for one in snapshots]
        assert ["reviews"] * 3 == [one.name for one in snapshots]
        assert [("tenant", "acme"), ("tenant", "bolt"), ("app", None)] == [
            (one.scope, one.scope_id) for one in snapshots
        ]
        submitted = [one async for one in mp.audit(bolt.id) if one.event == "submit"]
        assert 4 == len(submitted)
        assert {bolt.id} == {one.pool for one in submitted}
        assert {acme.id} == {one.pool for one in await acme.tasks()}
