"""The Millpond as a registry: names, scopes, opening and closing."""

import asyncio

import pytest

from millpond import ConfigError, Millpond, Pool, fail_fast, fifo
from millpond.errors import (
    AlreadyOpen,
    BadStoreURL,
    DuplicateName,
    NotOpen,
    NotSupported,
    UnknownPool,
)
from millpond.testing.clock import run_virtual


def test_making_a_millpond_does_nothing() -> None:
    """Pools and tasks are declared without a loop, at import."""
    mp = Millpond()
    pool = mp.pool("quiet")

    @pool.task
    async def work() -> None: ...

    assert [pool] == mp.pools()
    assert not mp.is_open
    assert isinstance(pool, Pool)


def test_a_pool_is_found_by_its_name_or_id() -> None:
    """get_pool and pools() return the same objects, in the order they were made."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")
    assert [one, two] == mp.pools()
    assert mp.get_pool("two") is two is mp.get_pool(two.id)
    assert ("session::one", "session::two") == (one.id, two.id)
    with pytest.raises(UnknownPool, match="one, two") as caught:
        mp.get_pool("three")
    assert "three" == caught.value.pool


def test_a_name_twice_raises_and_names_get_pool() -> None:
    """The second pool of a name is refused, and the error names mp.get_pool."""
    mp = Millpond()
    first = mp.pool("reviews", max_concurrent=3)
    with pytest.raises(DuplicateName, match=r"mp\.get_pool\('reviews'\)") as caught:
        mp.pool("reviews")
    assert ("pool", "reviews") == (caught.value.kind, caught.value.name)
    assert [first] == mp.pools()
    Millpond().pool("reviews")


@pytest.mark.parametrize("name", ["", "~callbacks", "a b", "../etc", "x" * 129, ".hidden", "a\0b"])
def test_a_bad_name_is_refused(name: str) -> None:
    """A pool's name is short and plain: it ends up in paths, labels and SQL."""
    with pytest.raises(ConfigError, match="name"):
        Millpond().pool(name)


@pytest.mark.parametrize("name", ["pr-review", "a", "llm.gpt_4", "team/queue", "v1:x", "9lives"])
def test_a_plain_name_is_taken(name: str) -> None:
    """Letters, digits and a little punctuation are fine."""
    assert name == Millpond().pool(name).name


@pytest.mark.rows("HN-20")
@pytest.mark.parametrize("scope", ["pipeline", "tenant", "org", "app"])
@pytest.mark.parametrize("scope_id", [None, "acme"])
def test_scopes_that_outlive_the_process_are_refused_by_name(
    scope: str, scope_id: str | None
) -> None:
    """Memory has only `session`; the error names the scope and what it needs."""
    mp = Millpond()
    with pytest.raises(NotSupported, match=f"{scope}.*durable store") as caught:
        mp.pool("scoped", scope=scope, scope_id=scope_id)
    assert "scope" == caught.value.feature
    assert [] == mp.pools()


@pytest.mark.rows("HN-20")
def test_a_scope_that_does_not_exist_is_refused() -> None:
    """The error lists the scopes there are."""
    with pytest.raises(ConfigError, match="session, app, pipeline, tenant, org"):
        Millpond().pool("scoped", scope="galaxy")
    with pytest.raises(ConfigError, match="scope_id"):
        Millpond().pool("scoped", scope_id="acme")


async def test_no_scope_can_be_ended_in_memory() -> None:
    """mp.end_scope needs a durable store."""
    mp = Millpond()
    async with mp:
        with pytest.raises(NotSupported):
            await mp.end_scope("tenant", "acme")


@pytest.mark.rows("HN-18")
async def test_a_pool_in_memory_is_a_session_and_is_forgotten() -> None:
    """The scope is session; the next opening starts with nothing, keys and counts included."""
    mp = Millpond()
    pool = mp.pool("session", scope="session")

    @pool.task
    async def work() -> int:
        return 1

    async with mp:
        await (await work.options(idempotency_key="k").submit())
        snapshot = await pool.snapshot()
        assert ("session", None, 1) == (snapshot.scope, snapshot.scope_id, snapshot.completed)
    async with mp:
        assert 0 == (await pool.snapshot()).total
        assert not (await work.options(idempotency_key="k").submit()).duplicate


async def test_opening_twice_at_once_is_refused_and_harmless() -> None:
    """The second `async with` raises AlreadyOpen; the first goes on."""
    mp = Millpond()
    pool = mp.pool("open")

    @pool.task
    async def work() -> int:
        return 1

    async with mp:
        with pytest.raises(AlreadyOpen):
            async with mp:
                pytest.fail("it was open")
        assert mp.is_open
        assert 1 == await (await work.submit())
    assert not mp.is_open


def test_it_can_be_opened_again_on_another_loop() -> None:
    """Each opening has its own loop, and keeps nothing of the last one."""
    mp = Millpond()
    pool = mp.pool("loops")

    @pool.task
    async def work(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async def opening(n: int) -> int:
        async with mp:
            await work.submit(100)
            return await (await work.submit(n))

    assert [1, 2, 3] == [run_virtual(opening(n)) for n in (1, 2, 3)]


async def test_a_failing_block_closes_it() -> None:
    """An error inside `async with mp` comes out, and the Millpond is closed."""
    mp = Millpond()
    mp.pool("breaks")
    with pytest.raises(ZeroDivisionError):
        async with mp:
            _ = 1 / 0
    assert not mp.is_open
    with pytest.raises(NotOpen):
        await mp.unsettled()
    async with mp:
        assert [] == await mp.unsettled()


async def test_a_pool_and_a_task_made_after_opening_work() -> None:
    """The worker serves them like the others."""
    mp = Millpond()
    async with mp:
        pool = mp.pool("late", max_concurrent=2)

        @pool.task
        async def work() -> str:
            return "late"

        assert "late" == await (await work.submit())
        quiet = mp.pool("quiet")
        assert 0 == await quiet.size()
        assert "idle" == (await quiet.snapshot()).state


async def test_opening_in_memory_starts_a_worker() -> None:
    """`async with mp` is also a worker, unless work=False."""
    mp, idle = Millpond(), Millpond(work=False)
    for one in (mp, idle):
        one.pool("work")

    async def work() -> str:
        return "done"

    async with mp:
        assert "done" == await (await mp.get_pool("work").submit(work))
    calls = Millpond(work=False)
    pool = calls.pool("calls")
    task = pool.task(work)
    async with calls:
        handle = await task.submit()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=60)
        async with calls.worker(pools=["calls"]):
            assert "done" == await handle


async def test_closing_interrupts_running_work() -> None:
    """Leaving the block does not wait for running tasks, and nothing hangs."""
    mp = Millpond()
    pool = mp.pool("stops")
    ended: list[str] = []

    @pool.task
    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("interrupted")

    async with mp:
        await work.submit()
        await asyncio.sleep(1)
    assert ["interrupted"] == ended
    assert 10 > asyncio.get_running_loop().time()


def test_an_unknown_store_url_is_refused() -> None:
    """Millpond() refuses a URL of no known store."""
    with pytest.raises(BadStoreURL, match="redis"):
        Millpond("redis://localhost")


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("max_concurrent", {"max_concurrent": -1}),
        ("max_concurrent", {"max_concurrent": 1.5}),
        ("max_per_key", {"max_per_key": 0}),
        ("queue", {"queue": "filo"}),
        ("lanes", {"lanes": 0}),
        ("ordered", {"lanes": 2, "ordered": True}),
        ("max_concurrent", {"lanes": 2, "max_concurrent": 3}),
        ("backpressure", {"backpressure": 5}),
        ("rate", {"rate": 5}),
        ("rate", {"rate": [5]}),
        ("rate_per_key", {"rate_per_key": 5}),
        ("max_callbacks", {"max_callbacks": 0}),
        ("retry", {"retry": 3}),
        ("on_dead_letter", {"on_dead_letter": 5}),
        ("on_empty", {"on_empty": "x"}),
    ],
)
def test_an_impossible_setting_is_refused_by_name(option: str, settings: dict[str, object]) -> None:
    """mp.pool() refuses it at import; the error names the setting."""
    with pytest.raises(ConfigError) as caught:
        Millpond().pool("wrong", **settings)  # type: ignore[arg-type]
    assert option == caught.value.option


def test_an_unknown_setting_is_a_type_error() -> None:
    """A misspelt setting is never ignored."""
    with pytest.raises(TypeError, match="max_concurent"):
        Millpond().pool("wrong", max_concurent=5)  # type: ignore[call-arg]


def test_objects_have_a_readable_repr() -> None:
    """Pools, tasks and calls have a readable repr."""
    mp = Millpond()
    pool = mp.pool("shown", queue=fifo(), backpressure=fail_fast())

    @pool.task
    async def work(n: int, *, colour: str = "red") -> None: ...

    assert "<pool session::shown>" == repr(pool)
    assert "<task work>" == repr(work)
    assert "work(1, colour='blue')" == repr(work.bind(1, colour="blue"))


async def test_public_objects_have_a_readable_repr() -> None:
    """At a prompt or in a log, a Millpond, its sync side, a worker and a run look different."""
    mp = Millpond(work=False)
    assert "<millpond in memory, closed: no pools>" == repr(mp)
    pool = mp.pool("mail")
    async with mp, mp.worker(pools=["mail"]) as worker:
        assert "<millpond in memory, open: mail>" == repr(mp)
        assert "<sync <millpond in memory, open: mail>>" == repr(mp.sync)
        assert f"<worker {worker.name} of mail: 0 running>" == repr(worker)
        assert "<run 'nightly' of pool 'mail'>" == repr(pool.run("nightly"))
