"""The process that meets a wrong count recounts it, and no caller gets an error."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from verify.servers.schemas import InlinePostgresStore, Schemas
from verify.servers.sqlite_files import InlineStore, fresh_file

from millpond import Millpond
from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec, fair_round_robin
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.runtime.fleet import maintain
from millpond.store.postgres.connect import connect as to_server
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch, Store
from millpond.store.sqlite.connect import connect

SPEC = PoolSpec(name="p", order=fair_round_robin(), max_concurrent=5, max_per_key=1)
MISCOUNT = "UPDATE millpond_unit SET running = 0 WHERE unit = 'k'"
"""What a bug would leave behind: a task of the key runs, and the key says that none does."""


async def ends_in_spite_of_a_wrong_count(
    store: Store, miscount: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Start a task, have its key miscounted, and see its end stored and the next one started."""
    await store.control(Declare(SPEC), now=1000.0)
    await store.control(Register("w", 60.0), now=1000.0)
    new = [NewTask(id=n, pool="p", call=Call("f"), key="k", share="k") for n in (1, 2)]
    await store.submit([Batch(tasks=tuple(new))], now=1000.0)
    ask = LeaseRequest(pool="p", worker="w", want=2)
    (leased,) = (await store.lease(ask, now=1000.0)).leased
    miscount()
    end = Settlement(fence=leased.fence, event=Transition.COMPLETE)
    answer = await store.settle([end], then=ask, now=1001.0)
    assert (Settled.APPLIED,) == answer.settled
    assert answer.lease is not None
    assert [2] == [one.fence.task for one in answer.lease.leased]
    assert "recounting" in caplog.text


@pytest.mark.rows("TR-01")
@pytest.mark.stores("sqlite")
async def test_a_wrong_count_in_a_file_is_recounted(caplog: pytest.LogCaptureFixture) -> None:
    """The store takes the end of the task, and logs which count was wrong."""
    with fresh_file() as path:
        store, other = InlineStore(path), connect(path)

        def miscount() -> None:
            other.execute(MISCOUNT)

        try:
            await ends_in_spite_of_a_wrong_count(store, miscount, caplog)
            assert () == await store.repair()
        finally:
            other.close()
            await store.close()


@pytest.mark.rows("TR-01")
@pytest.mark.real_loop
async def test_a_wrong_count_on_a_server_is_recounted(
    postgres_schemas: Schemas, caplog: pytest.LogCaptureFixture
) -> None:
    """The fast path refuses, the verbs refuse, and after a recount they succeed."""
    schema = postgres_schemas.take()
    store = InlinePostgresStore(schema)

    def miscount() -> None:
        connection = schema.connection()
        said = f"{MISCOUNT}; UPDATE millpond_meta SET version = version + 1"  # noqa: S608
        connection.driver.execute(qualified(said, schema.address.schema).encode())
        connection.close()

    try:
        await ends_in_spite_of_a_wrong_count(store, miscount, caplog)
        assert [] == schema.wrong()
    finally:
        await store.close()
    postgres_schemas.give_back(schema)


@pytest.mark.rows("TR-01")
@pytest.mark.real_loop
def test_tables_of_users_refuse_a_count_below_zero(postgres_url: str) -> None:
    """Where limits of keys are counted, the constraint is not one of tests alone."""
    address = address_of(postgres_url)
    driver = to_server(address)
    migrate(driver, address)
    for said in (
        "INSERT INTO millpond_unit VALUES (1, 'k', -1, 0, 0, 0, 0, 0)",
        "INSERT INTO millpond_group VALUES (1, 1, '', '', '', -1, 0, 0, 0, 0)",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            driver.execute(qualified(said, address.schema).encode())
        driver.rollback()
    driver.close()


@pytest.mark.rows("TR-01")
@pytest.mark.real_loop
async def test_the_leader_checks_the_counts_now_and_then(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Maintenance finds a count that no verb meets, logs it, and recounts it."""
    monkeypatch.setattr(maintain, "CHECK_COUNTS_EVERY", 0.0)
    # A new leader checks everything; this test is not about that.
    monkeypatch.setattr(maintain.Maintenance, "took_over", maintain.Maintenance.nudge)
    mp = Millpond(postgres_url)
    pool = mp.pool("p", max_concurrent=2)

    @pool.task
    async def work() -> None:
        pass

    async with mp:
        driver = to_server(address_of(postgres_url))
        said = "UPDATE millpond_pool SET ready = -3 WHERE name = 'p'"
        driver.execute(qualified(said, address_of(postgres_url).schema).encode())
        driver.commit()
        driver.close()
        async with mp.worker(), asyncio.timeout(30):
            while not internals_of(mp).runtime.counts.mended:
                internals_of(mp).runtime.maintenance.nudge()
                await asyncio.sleep(0.05)  # a nudge may come too early, so it repeats
    assert "counts are impossible" in caplog.text
