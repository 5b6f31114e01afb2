"""What is over leaves in one piece: the audit by its parts, ids of removed tasks by the page."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import scalar_row
from tests.store.postgres.test_held_open import wrong_in

from millpond import Millpond
from millpond.core.control import Declare, Prune, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.runtime.fleet import compact
from millpond.store.postgres import store as postgres_store
from millpond.store.postgres.connect import connect
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.migrate import known_migrations, migrate
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch
from millpond.store.sql import unit_of_work

pytestmark = pytest.mark.real_loop

KEPT = 800.0
"""Seconds for which audit records are kept here: a part is full after an eighth of that."""

_ids = itertools.count(1 << 40)


class Clock:
    """A clock that a test sets."""

    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def new(key: str | None = None) -> NewTask:
    """Return a task."""
    return NewTask(id=next(_ids), pool="p", call=Call("work", b"\x91\x01"), key=key, share=key)


async def opened(
    url: str, clock: Callable[[], float], spec: PoolSpec | None = None
) -> PostgresStore:
    """Return a store with a pool and a worker."""
    store = PostgresStore(address_of(url), clock=clock)
    await store.control(Declare(spec or PoolSpec(name="p", order=fifo(), max_concurrent=50)))
    await store.control(Register("w", 1e6))
    return store


@contextmanager
def asking(url: str) -> Iterator[Callable[..., list[Any]]]:
    """Give what asks for the values of one column."""
    with psycopg.connect(url, autocommit=True, row_factory=scalar_row) as connection:
        connection.execute("SET search_path = millpond")
        yield lambda query, *given: connection.execute(query, given or None).fetchall()


async def go_on(store: PostgresStore, clock: Clock, seconds: float) -> None:
    """Submit a task every now and then, and prune each time."""
    for _ in range(int(seconds / 20.0)):
        clock.now += 20.0
        await store.submit([Batch(tasks=(new(),))])
        await store.control(Prune("p", 0.0, 0.0, audit_before=clock.now - KEPT))


async def test_old_audit_records_leave_by_the_part(own_url: str, clock: Clock) -> None:
    """None of them too early, none much too late, and none by itself."""
    store = await opened(own_url, clock)
    with asking(own_url) as ask:
        files = "SELECT pg_relation_filenode('millpond_audit_' || n) FROM generate_series(0, 11) n"
        first = ask(files)
        begun = clock.now
        for _ in range(30):
            await go_on(store, clock, 100.0)
            moments = ask("SELECT at FROM millpond_audit ORDER BY position")
            since = max(begun + 20.0, clock.now - KEPT)
            assert {*range(int(since), int(clock.now) + 1, 20)} <= {*moments}
            # A part is as long as an eighth, and a step of this test.
            assert moments[0] >= clock.now - KEPT * 9 / 8 - 20.0
        # The parts took turns more than once, so all of them were emptied.
        assert not {*first} & {*ask(files)}
        # Where a part ends is seen once in so many seconds, so there are fewer than nine.
        assert 6 <= len(ask("SELECT DISTINCT part FROM millpond_audit")) <= 10
    pages = (await store.view.audit(after=0, limit=1_000)).records
    assert [one.at for one in pages] == sorted(one.at for one in pages)
    await store.close()
    assert [] == wrong_in(own_url)


async def test_a_reader_delays_no_writer(own_url: str, clock: Clock) -> None:
    """A reader keeps the audit as it is for a while; others write and prune meanwhile."""
    store = await opened(own_url, clock)
    await go_on(store, clock, KEPT + 60.0)
    with asking(own_url) as ask, psycopg.connect(own_url) as reading:
        written = ask("SELECT max(part) FROM millpond_audit")
        reading.execute("SELECT count(*) FROM millpond.millpond_audit")
        await go_on(store, clock, 100.0)
        assert written == ask("SELECT max(part) FROM millpond_audit")
        assert min(ask("SELECT at FROM millpond_audit")) < clock.now - KEPT
        reading.commit()
        await go_on(store, clock, 60.0)
        assert written < ask("SELECT max(part) FROM millpond_audit")
        assert min(ask("SELECT at FROM millpond_audit")) >= clock.now - KEPT * 9 / 8
    await store.close()


async def test_old_records_are_deleted_by_the_row_where_a_reader_holds_their_part(
    own_url: str, clock: Clock
) -> None:
    """After an eighth more of the time they go, though a reader stays for very long."""
    store = await opened(own_url, clock)
    await go_on(store, clock, 100.0)
    with asking(own_url) as ask, psycopg.connect(own_url) as reading:
        reading.execute("SELECT count(*) FROM millpond.millpond_audit")
        await go_on(store, clock, 2 * KEPT)
        assert min(ask("SELECT at FROM millpond_audit")) >= clock.now - KEPT * 9 / 8 - 20.0
    await store.close()


async def test_a_part_that_is_still_written_to_is_not_emptied(own_url: str, clock: Clock) -> None:
    """A transaction that began before the parts changed may commit long after."""
    store = await opened(own_url, clock)
    await go_on(store, clock, 40.0)
    with asking(own_url) as ask, psycopg.connect(own_url) as late:
        ask("SELECT unnest(millpond_turn_audit_1(1e9, 0))")
        late.execute(
            "INSERT INTO millpond.millpond_audit (position, records, at, ids, part)"
            " VALUES (1000, 1, %s, '{}', 0)",
            [clock.now + 10 * KEPT],
        )
        ask("SELECT unnest(millpond_turn_audit_1(1e9, 0))")
        assert [] == ask("SELECT unnest(millpond_turn_audit_1(0, 1e9))")
        late.commit()
        await go_on(store, clock, 20.0)
        assert [] == ask("SELECT unnest(millpond_turn_audit_1(0, %s))", clock.now + KEPT)
        assert ["millpond_audit_0"] == ask("SELECT unnest(millpond_turn_audit_1(0, 1e9))")
    await store.close()


async def test_a_store_from_before_keeps_its_audit(own_url: str, clock: Clock) -> None:
    """It becomes the first part, and goes with it."""
    address = address_of(own_url)
    with connect(address) as connection:
        migrate(connection, address, migrations=known_migrations()[:3])
        connection.execute(
            "INSERT INTO millpond.millpond_audit (position, records, at, ids)"
            " SELECT n, 1, 9000 + n, '{}' FROM generate_series(1, 5) AS n"
        )
        connection.execute("UPDATE millpond.millpond_meta SET records = 5")
        connection.commit()
    store = await opened(own_url, clock)
    with asking(own_url) as ask:
        old = "SELECT position FROM {} WHERE position < 6 ORDER BY 1"
        assert [1, 2, 3, 4, 5] == ask(old.format("millpond_audit_0"))
        options = "SELECT unnest(reloptions) FROM pg_class WHERE relname ~ 'millpond_audit_\\d+$'"
        assert ["toast_tuple_target=8160"] * 12 == ask(options)
        storage = (
            "SELECT DISTINCT attstorage::text FROM pg_attribute WHERE attname IN ('ids', 'plain')"
            " AND attrelid::regclass::text ~ 'millpond_audit_\\d+$'"
        )
        assert ["e"] == ask(storage)
        await go_on(store, clock, 2 * KEPT)
        assert [] == ask(old.format("millpond_audit"))
    await store.close()


async def ended(store: PostgresStore, tasks: tuple[NewTask, ...]) -> None:
    """Have tasks done."""
    await store.submit([Batch(tasks=tasks)])
    answer = await store.lease(LeaseRequest(pool="p", worker="w", want=len(tasks)))
    await store.settle(
        [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in answer.leased]
    )


async def test_removed_tasks_are_remembered_by_the_page(
    own_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of the latest as are to be, and no page is cut in two."""
    monkeypatch.setattr(unit_of_work, "REMOVED_KEPT", 5)
    store = await opened(own_url, clock)
    pages = []
    for _ in range(4):
        tasks = (new(), new(), new())
        await ended(store, tasks)
        clock.now += 10.0
        assert 3 == (await store.control(Prune("p", clock.now, 0.0))).count
        pages.append([one.id for one in tasks])
    with asking(own_url) as ask:
        kept = ask("SELECT ids FROM millpond_removed ORDER BY n")
        assert pages[2:] == [sorted(ids) for ids in kept]
        # A release before this one wrote a row for each.
        ask("INSERT INTO millpond_removed (id) VALUES (7) RETURNING 1")
    named = (pages[1][0], pages[2][0], pages[3][2], 7)
    assert ("unknown", "expired", "expired", "expired") == await store.view.status(named)
    await store.close()
    assert [] == wrong_in(own_url)


async def test_a_repair_takes_a_live_task_from_the_removed_ones(own_url: str, clock: Clock) -> None:
    """It takes the task out of its page, and leaves the others there."""
    store = await opened(own_url, clock)
    there = new()
    await store.submit([Batch(tasks=(there,))])
    with asking(own_url) as ask:
        ask("INSERT INTO millpond_removed (ids) VALUES (%s) RETURNING 1", [3, there.id])
        assert any("said to be removed" in line for line in wrong_in(own_url))
        await store.repair()
        assert [[3]] == ask("SELECT ids FROM millpond_removed")
    await store.close()
    assert [] == wrong_in(own_url)


FAIR = PoolSpec(name="p", order=fair_round_robin(), max_concurrent=50, max_per_key=20)
SMALL = "SELECT u::text FROM millpond_unit AS u UNION ALL SELECT g::text FROM millpond_group AS g"
GROWN = 32_768


async def grow(url: str, store: PostgresStore, clock: Clock) -> None:
    """Write the rows of three keys again and again; some tasks wait in the end.

    A transaction is open meanwhile: otherwise the server would use the place of dead rows again.
    """
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_current_xact_id()")
        for _ in range(60):
            await ended(store, tuple(new(f"k{number % 3}") for number in range(20)))
            clock.now += 1 / 3
    await store.submit([Batch(tasks=tuple(new(f"k{number % 3}") for number in range(20)))])


async def test_small_tables_are_copied_without_their_dead_rows(own_url: str, clock: Clock) -> None:
    """Though a transaction is open that keeps them; every live row is there, unchanged."""
    store = await opened(own_url, clock, FAIR)
    with asking(own_url) as ask, psycopg.connect(own_url) as other:
        other.execute("SELECT pg_current_xact_id()")
        await grow(own_url, store, clock)
        before = sorted(map(str, ask(SMALL)))
        size = "SELECT pg_relation_size('millpond_unit')"
        assert ask(size)[0] > GROWN
        assert "millpond_unit" in await store.compact(least=GROWN)
        assert [8192] == ask(size)
        assert before == sorted(map(str, ask(SMALL)))
        assert () == await store.compact(least=GROWN)
    assert 20 == len((await store.lease(LeaseRequest(pool="p", worker="w", want=50))).leased)
    await store.close()
    assert [] == wrong_in(own_url)


async def test_a_copy_never_waits_for_a_reader(own_url: str, clock: Clock) -> None:
    """A reader of ours that has read no row yet reads all of them."""
    store = await opened(own_url, clock, FAIR)
    with asking(own_url) as ask, psycopg.connect(own_url, autocommit=True) as reading:
        await grow(own_url, store, clock)
        before = len(ask(SMALL))
        for statement in dialect_of("millpond").begin_reading:
            reading.execute(statement.encode())
        reading.execute("SELECT 1")
        assert () == await store.compact(least=GROWN)
        await store.submit([Batch(tasks=(new("k0"),))])
        reading.execute("SET search_path = millpond")
        assert before == len(reading.execute(SMALL).fetchall())
        reading.execute("ROLLBACK")
        assert await store.compact(least=GROWN)
    await store.close()


async def test_a_table_of_many_rows_is_left_as_it_is(
    own_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers would wait for as long as it takes to copy it."""
    store = await opened(own_url, clock, FAIR)
    await grow(own_url, store, clock)
    monkeypatch.setattr(postgres_store, "COPIED_UPTO", 2)
    assert () == await store.compact(least=GROWN)
    monkeypatch.setattr(postgres_store, "COPIED_UPTO", 1_000)
    assert await store.compact(least=GROWN)
    await store.close()


async def test_the_leader_compacts_small_tables(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so now and then, and again after it failed."""
    calls: list[PostgresStore] = []

    async def compacted(store: PostgresStore) -> tuple[str, ...]:
        calls.append(store)
        if len(calls) == 1:
            raise RuntimeError("not now")
        return ("millpond_unit",)

    monkeypatch.setattr(compact, "COMPACT_EVERY", 0.0)
    monkeypatch.setattr(PostgresStore, "compact", compacted)
    mp = Millpond(own_url)
    pool = mp.pool("p", max_concurrent=2)

    @pool.task
    async def work() -> None:
        pass

    async with mp, mp.worker(), asyncio.timeout(30):
        while len(calls) < 3:
            internals_of(mp).runtime.maintenance.nudge()
            await asyncio.sleep(0.05)  # a nudge may come too early, so it repeats
