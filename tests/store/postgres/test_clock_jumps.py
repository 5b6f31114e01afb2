"""Workers while the server's clock is set, or a host with another clock takes over.

The tests let the functions of the server and the verbs read a clock that they can set.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from verify.servers.schemas import Schema, Schemas

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.settle import Settled
from millpond.core.spec import PoolSpec
from millpond.core.store_time import NOISE, TOLERANCE, Timeline, read
from millpond.core.task import Call, NewTask
from millpond.store.clock import ServerClock
from millpond.store.postgres.connect import connect
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.store import PostgresStore
from millpond.store.protocol import Batch
from millpond.store.sql.unit_of_work import SqlTables
from millpond.testing.conformance.lab import completed

pytestmark = pytest.mark.real_loop

HOUR, DAY, LEASE = 3600.0, 86_400.0, 30.0

_DEFINITION = "SELECT pg_get_functiondef(%s::regproc)"


class Server:
    """A server whose clock can be set, and time that passes when a test says so."""

    def __init__(self, schema: Schema) -> None:
        self.address = schema.address
        self.passed = self.jump = 0.0
        self._function = qualified("millpond_moment", schema.address.schema)
        self._connection = connect(schema.address)
        ((self._honest,),) = self._connection.execute(_DEFINITION, [self._function]).fetchall()

    def steady(self) -> float:
        """Return a time that no jump of the clock changes."""
        return time.monotonic() + self.passed

    @property
    def shift(self) -> float:
        """How far the server's clock is ahead of what the machine's says."""
        return self.passed + self.jump

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.passed += seconds
        self._set()

    def set_by(self, seconds: float) -> None:
        """Set the server's clock."""
        self.jump += seconds
        self._set()

    def _set(self) -> None:
        shifted = self._honest.replace("BEGIN", f"BEGIN wall := wall + ({self.shift!r});", 1)
        self._connection.execute(shifted)

    def restore(self) -> None:
        """Let the functions be what they were."""
        self._connection.execute(self._honest)
        self._connection.close()


class Member:
    """A process with one worker."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.store = PostgresStore(
            server.address, clock=ServerClock(server.steady), owner=name, inline=True
        )

    async def join(self) -> None:
        """Let its worker present itself."""
        await self.store.control(orders.Register(self.name, LEASE))

    async def put(self, identifier: int, *, delay: float = 0.0, pool: str = "p") -> int:
        """Submit a task."""
        new = NewTask(id=identifier, pool=pool, call=Call("work"), delay=delay)
        await self.store.submit([Batch(tasks=(new,))])
        return new.id

    async def lease(self, want: int = 9, pool: str = "p") -> list[Leased]:
        """Lease some tasks."""
        ask = LeaseRequest(pool=pool, worker=self.name, want=want)
        return list((await self.store.lease(ask)).leased)

    def renew(self) -> bool:
        """Say that its worker lives, as its own thread does."""
        renewer = self.store.renewer()
        try:
            return renewer.renew(self.name, LEASE).alive
        finally:
            renewer.close()

    async def status(self, task: int) -> Status:
        """Return where a task is."""
        found = await self.store.view.task(task)
        assert found is not None
        return found.status


@pytest.fixture
def server(postgres_schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose clock can be set; in the end all rows must fit together."""
    schema = postgres_schemas.take()
    server = Server(schema)
    read_honestly = PostgresStore._wall

    def wall(store: PostgresStore, unit: SqlTables) -> float:
        return read_honestly(store, unit) + server.shift

    monkeypatch.setattr(PostgresStore, "_wall", wall)
    yield server
    server.restore()
    wrong = schema.wrong()
    postgres_schemas.give_back(schema)
    assert [] == wrong


async def started(server: Server) -> tuple[Member, Member]:
    """Return two processes, and two pools."""
    one, other = Member(server, "one"), Member(server, "other")
    await one.store.control(orders.Declare(PoolSpec(name="p", max_concurrent=9)))
    slow = PoolSpec(name="slow", max_concurrent=9, rates=(Rate(1, per=10),))
    await one.store.control(orders.Declare(slow))
    await one.join()
    await other.join()
    return one, other


async def closed(*members: Member) -> None:
    """Close their stores."""
    for member in members:
        await member.store.close()


BACK = pytest.mark.parametrize("back", [5.0, 300.0, HOUR, 400 * DAY])


@pytest.mark.rows("TR-07")
@BACK
async def test_a_clock_set_back_loses_no_lease_and_dead_workers_are_found(
    server: Server, back: float
) -> None:
    """A worker that renews keeps its tasks; a dead one is found after its lease, not the step."""
    one, other = await started(server)
    task = await one.put(1)
    (leased,) = await other.lease()
    server.set_by(-back)
    for _ in range(12):
        server.pass_(10)
        assert other.renew()
        assert one.renew()
        assert 0 == (await one.store.recover()).moved
    assert Status.RUNNING == await one.status(task)
    server.pass_(LEASE + 2)
    assert one.renew()
    assert 1 == (await one.store.recover()).moved
    assert Status.QUEUED == await one.status(task)
    assert (Settled.STALE,) == (await other.store.settle([completed(leased)])).settled
    await closed(one, other)


@pytest.mark.rows("TR-07")
@BACK
async def test_set_back_delays_and_rates_take_as_long_as_they_should(
    server: Server, back: float
) -> None:
    """Neither is anything due as much later as the clock was set back."""
    one, other = await started(server)
    task = await one.put(1, delay=20.0)
    for n in range(2, 5):
        await one.put(n, pool="slow")
    assert 1 == len(await other.lease(pool="slow"))
    server.set_by(-back)
    server.pass_(9)
    assert [] == await other.lease()
    assert [] == await other.lease(pool="slow")
    server.pass_(2)
    assert 1 == len(await other.lease(pool="slow"))
    assert [] == await other.lease()
    server.pass_(11)
    assert [task] == [leased.fence.task for leased in await other.lease()]
    await closed(one, other)


@pytest.mark.rows("TR-07")
@BACK
async def test_set_back_the_store_finds_back_to_the_servers_time(
    server: Server, back: float
) -> None:
    """Slowly where little is missing; else all that is stored is moved, and the step is kept."""
    one, other = await started(server)
    server.set_by(-back)
    for _ in range(8):
        server.pass_(10)
        assert one.renew()
        await one.store.recover()
    if back < HOUR:
        for _ in range(16):
            server.pass_(HOUR)
            await one.store.recover()
    now = time.time() + server.shift
    assert abs(one.store._clock() - now) < 2.0
    with connect(server.address) as connection:
        meta = qualified("millpond_meta", server.address.schema)
        query = f"SELECT behind, clock FROM {meta}"  # noqa: S608 - the schema of the test
        ((behind, text),) = connection.execute(query).fetchall()
    assert 0.0 == behind
    assert (back < 10.0) == ("back" not in text)
    await closed(one, other)


@pytest.mark.rows("TR-07")
async def test_stepping_back_keeps_rates_of_keys_and_moments_of_the_calendar(
    server: Server,
) -> None:
    """A key's rate lasts its seconds, run_at stays run_at, and schedules fire on time."""
    server.set_by(400 * DAY)
    one, other = await started(server)
    keyed = PoolSpec(name="keyed", max_concurrent=9, rate_per_key=Rate(1, per=200))
    await one.store.control(orders.Declare(keyed))
    await one.store.control(orders.Declare(PoolSpec(name="~cron", max_concurrent=9)))
    wrong = round(time.time() + server.shift)

    async def put(identifier: int, pool: str = "p", **options: Any) -> None:
        new = NewTask(id=identifier, pool=pool, call=Call("work"), **options)
        await one.store.submit([Batch(tasks=(new,))])

    await put(1, "keyed", key="k")
    await put(2, "keyed", key="k")
    await put(3, run_at=wrong + 150)
    await put(4, run_at=wrong + 500 * DAY)
    await put(5, "~cron", run_at=wrong + DAY)
    assert 1 == len(await one.lease(pool="keyed"))
    server.set_by(-400 * DAY)
    for _ in range(8):
        server.pass_(10)
        assert one.renew()
        await one.store.recover()
    assert abs(time.time() + server.shift - one.store._clock()) < 2.0
    assert [5] == [found.fence.task for found in await one.lease(pool="~cron")]
    assert [] == await one.lease(pool="keyed")
    assert [] == await one.lease()
    server.pass_(75)
    assert [3] == [found.fence.task for found in await one.lease()]
    server.pass_(50)
    assert 1 == len(await one.lease(pool="keyed"))
    with connect(server.address) as connection:
        live = qualified("millpond_live", server.address.schema)
        query = f"SELECT due FROM {live} WHERE id = 4"  # noqa: S608 - the schema of the test
        assert [(wrong + 500 * DAY,)] == connection.execute(query).fetchall()
    await closed(one, other)


@pytest.mark.rows("TR-07")
async def test_set_forward_by_400_days_and_right_again_nothing_has_happened(
    server: Server,
) -> None:
    """No lease is lost, no task is due or removed early, and a new process agrees."""
    one, other = await started(server)
    task, later = await one.put(1), await one.put(2, delay=HOUR)
    (leased,) = await other.lease()
    before = one.store._clock()
    server.set_by(400 * DAY)
    server.pass_(5)
    assert other.renew()
    assert one.renew()
    assert 0 == (await one.store.recover()).moved
    assert [] == await one.lease()
    late = Member(server, "late")
    await late.join()
    assert [] == await late.lease()
    assert (Settled.APPLIED,) == (await other.store.settle([completed(leased)])).settled
    server.set_by(-400 * DAY)
    server.pass_(5)
    assert other.renew()
    assert 0 == (await one.store.recover()).moved
    assert Status.COMPLETED == await one.status(task)
    assert Status.QUEUED == await one.status(later)
    assert one.store._clock() - before < 60.0
    await closed(one, other, late)


@pytest.mark.rows("TR-07")
async def test_the_functions_of_the_server_leave_a_clock_that_jumped_to_the_verbs(
    server: Server,
) -> None:
    """Where the rule in Python would find a jump, the one in SQL says that it does not know."""
    readings = [
        (wall, latest, behind, vouched)
        for latest in (1e9, 1.7e9)
        for behind in (0.0, 30.5, -30.5)
        for off in (-1e6, -1.0, -0.5 * NOISE, 0.0, 1.0, 59.0, 61.0, 3600.0)
        for wall in (latest + behind + off,)
        for vouched in (None, latest, latest + off, latest + 2000.0)
    ]
    query = f"SELECT {qualified('millpond_moment', server.address.schema)}(NULL, %s, %s, %s, %s)"
    with connect(server.address) as connection:
        for wall, latest, behind, vouched in readings:
            at_most = None if vouched is None else vouched + TOLERANCE
            ((said,),) = connection.execute(query, [at_most, latest, behind, wall]).fetchall()
            # Since this very moment: nothing has been gained, and nothing confirmed.
            known = Timeline(latest, behind, since=wall)
            reading = read(known, wall, vouched)
            if said is not None:
                assert said == reading.timeline.latest
                assert behind == reading.timeline.behind
            else:
                assert behind != reading.timeline.behind, (wall - latest, behind, vouched)
