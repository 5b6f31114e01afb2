"""Rows that were damaged by hand or by a disk: the task is set aside, and every other goes on."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from verify.servers.schemas import InlinePostgresStore, Schemas
from verify.servers.sqlite_files import InlineStore, fresh_file

from millpond.core.admit import Reason
from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec, fair_round_robin
from millpond.core.task import Call, NewTask
from millpond.store.postgres.quoting import qualified
from millpond.store.protocol import Batch, Store

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-02")]

Edit = Callable[[str], None]

KINDS = {
    "plain": PoolSpec(name="p", max_concurrent=9),
    "fair": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=9, max_per_key=2),
}
BAD = 2
"""The task whose row is damaged."""


def clock() -> float:
    """Stand still."""
    return 1000.0


@pytest.fixture(params=["sqlite", "postgres"])
def damaged(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Edit, bool]]:
    """Give a store, a way to edit its rows past every check, and whether it is a file."""
    if request.param == "sqlite":
        with fresh_file() as path:

            def edit(said: str) -> None:
                with closing(sqlite3.connect(path, isolation_level=None)) as file:
                    file.execute("PRAGMA ignore_check_constraints=ON")
                    assert file.execute(said).rowcount

            file_store = InlineStore(path, clock)
            yield file_store, edit, True
            asyncio.run(file_store.close())
        return
    schemas: Schemas = request.getfixturevalue("postgres_schemas")
    schema = schemas.take()

    def edit_there(said: str) -> None:
        connection = schema.connection()
        # A running task may be in the row of its lease, where it has no columns to damage.
        unfold = "SELECT millpond_unfold(NULL)"
        connection.driver.execute(qualified(unfold, schema.address.schema).encode())
        assert connection.driver.execute(qualified(said, schema.address.schema).encode()).rowcount
        bump = "UPDATE millpond_meta SET version = version + 1"
        connection.driver.execute(qualified(bump, schema.address.schema).encode())
        connection.close()

    store = InlinePostgresStore(schema, clock)
    yield store, edit_there, False
    asyncio.run(store.close())
    schemas.give_back(schema)


def task(number: int, pool: str = "p", **more: object) -> NewTask:
    """Return a new task."""
    key = f"k{number}"
    return NewTask(id=number, pool=pool, call=Call("f"), key=key, share=key, **more)  # type: ignore[arg-type]


async def begun(store: Store, spec: PoolSpec, run: int | None = None) -> None:
    """Declare two pools, and queue three tasks in the first and one in the second."""
    await store.control(Declare(spec), now=1000.0)
    await store.control(Declare(PoolSpec(name="other")), now=1000.0)
    await store.control(Register("w", 60.0), now=1000.0)
    opened = None if run is None else NewRun(id=run, pool="p")
    new = tuple(task(n, run=run, attempts=3) for n in (1, BAD, 3))
    await store.submit([Batch(tasks=new, run=opened)], now=1000.0)
    await store.submit([Batch(tasks=(task(9, "other"),))], now=1000.0)


async def ended(store: Store, pool: str) -> list[int]:
    """Lease and complete all that a pool gives; return which those were."""
    done: list[int] = []
    while True:
        answer = await store.lease(LeaseRequest(pool=pool, worker="w", want=5), now=1001.0)
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in answer.leased]
        if not ends:
            return done
        settled = await store.settle(ends, now=1002.0)
        found = zip(ends, settled.settled, strict=True)
        done += [end.fence.task for end, how in found if how is Settled.APPLIED]


async def ends_without_the_damaged(store: Store) -> None:
    """See every task of the pool end: the damaged one as corrupt, unless it could be run."""
    done = sorted(await ended(store, "p"))
    assert done in ([1, 3], [1, BAD, 3])
    record = await store.view.task(BAD)
    assert record is not None
    assert (Status.COMPLETED if BAD in done else Status.FAILED) is record.status
    assert record.reason in {None, Reason.CORRUPT, Reason.LEASE_LOST}
    view = await store.view.pool("p")
    assert view is not None
    assert (0, 0) == (view.queued, view.running)


OF_A_TASK = {
    "steps": "SET steps = {blob}, runs = 1, attempt = 1, fresh = 0",
    "progress": "SET progress = 'soon', runs = 1, attempt = 1, fresh = 0",
}
OF_A_FILE = {
    "attempts below zero": "SET attempt = -3",
    "fewer runs than attempts": "SET attempt = 5",
    "a text for a time": "SET due = 'soon'",
    "a text for a rank": "SET rank = 'high'",
    "a text for a count": "SET attempt = 'x', runs = 'x'",
    "a number for a key": "SET key = x'ff'",
    "bytes for an end": "SET expires_at = x'00'",
    "a time beyond any": "SET due = 9e999",
    "no fence": "SET token = 'none'",
    "text for an error": "SET error = 7, function = 8",
}

DAMAGES = pytest.mark.parametrize(
    ("damaged", "name"),
    [
        *((store, name) for store in ("sqlite", "postgres") for name in OF_A_TASK),
        # A server takes no such value, by the column's type or its constraint.
        *(("sqlite", name) for name in OF_A_FILE),
    ],
    indirect=["damaged"],
)


@pytest.mark.parametrize("kind", KINDS)
@DAMAGES
async def test_a_damaged_row_of_a_task_is_set_aside(
    damaged: tuple[Store, Edit, bool], kind: str, name: str
) -> None:
    """The others of its pool and of other pools are leased, and it ends as failed: corrupt."""
    store, edit, in_file = damaged
    await begun(store, KINDS[kind])
    said = (OF_A_TASK | OF_A_FILE)[name].format(blob="x'c1ff'" if in_file else "'\\xc1ff'::bytea")
    edit(f"UPDATE millpond_live {said} WHERE id = {BAD}")
    assert [9] == await ended(store, "other")
    await ends_without_the_damaged(store)


@DAMAGES
async def test_recovery_goes_on_past_a_damaged_row(
    damaged: tuple[Store, Edit, bool], name: str
) -> None:
    """A worker died with four tasks: those whose rows can be read are run again."""
    store, edit, in_file = damaged
    await begun(store, KINDS["plain"])
    await store.control(Register("dead", 10.0), now=1000.0)
    for pool in ("p", "other"):
        await store.lease(LeaseRequest(pool=pool, worker="dead", want=5), now=1000.0)
    said = (OF_A_TASK | OF_A_FILE)[name].format(blob="x'c1ff'" if in_file else "'\\xc1ff'::bytea")
    edit(f"UPDATE millpond_live {said} WHERE id = {BAD}")
    await store.recover(now=1015.0)
    record = await store.view.task(1)
    assert record is not None
    assert Status.QUEUED is record.status
    await store.control(Register("w", 60.0), now=1015.0)
    await ends_without_the_damaged(store)


OF_OTHERS = {
    "holding": "UPDATE millpond_pool SET holding = 'x' WHERE name = 'p'",
    "holding of a kind": "UPDATE millpond_pool SET holding = '[]' WHERE name = 'p'",
    "totals": "UPDATE millpond_pool SET totals = '{' WHERE name = 'p'",
    "rates": "UPDATE millpond_pool SET tats = '{}' WHERE name = 'p'",
    "starved": "UPDATE millpond_pool SET starved = '[1]', hungry = 'no' WHERE name = 'p'",
    "functions": "UPDATE millpond_worker SET functions = '{{', unknown = 'x' WHERE id = 'w'",
    "a run": "UPDATE millpond_run SET state = {blob}",
}


@pytest.mark.parametrize("name", OF_OTHERS)
async def test_damage_beside_the_tasks_stops_nothing(
    damaged: tuple[Store, Edit, bool], name: str
) -> None:
    """Wrong counts of a pool, a worker or a run are left out or recounted; all tasks end."""
    store, edit, in_file = damaged
    await begun(store, KINDS["plain"], run=77)
    edit(OF_OTHERS[name].replace("{blob}", "x'c1ff'" if in_file else "'\\xc1ff'::bytea"))
    assert [9] == await ended(store, "other")
    assert [1, BAD, 3] == sorted(await ended(store, "p"))
    await store.recover(now=1100.0)


async def test_a_pool_whose_settings_are_damaged_stops_no_other(
    damaged: tuple[Store, Edit, bool],
) -> None:
    """It is left alone, as one of a newer version is; the log says why."""
    store, edit, _ = damaged
    await begun(store, KINDS["plain"])
    edit("UPDATE millpond_pool SET spec = 'damaged', declared = 'damaged' WHERE name = 'p'")
    assert [] == await ended(store, "p")
    assert [9] == await ended(store, "other")
    await store.recover(now=1100.0)
