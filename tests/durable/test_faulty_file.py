"""A whole Millpond over a database whose calls fail now and then: nothing lost, nothing extra."""

import asyncio
from collections import Counter

import pytest
from tests.waiting import eventually
from verify.servers.sqlite_faults import Plan
from verify.servers.sqlite_files import fresh_file

from millpond import Millpond
from millpond.errors import OutcomeUnknown, StoreError
from millpond.pool.internals import internals_of
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables

TASKS = 120


@pytest.mark.rows("TRAP-10", "HN-21")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.real_loop
async def test_every_acknowledged_task_ends_and_none_runs_that_was_refused(seed: int) -> None:
    """Faults come while tasks are submitted and while they are worked on, and then cease."""
    ran: Counter[int] = Counter()
    plan = Plan()
    with fresh_file() as path:
        mp = Millpond()
        internals_of(mp).owner.make_store = lambda: SqliteStore(
            path, durability="normal", factory=plan.factory
        )
        pool = mp.pool("pool", max_concurrent=8)

        @pool.task
        async def work(number: int) -> int:
            ran[number] += 1
            await asyncio.sleep(0)
            return number

        async with mp:
            plan.arm_at_random(0.02, seed)
            answers = await asyncio.gather(*map(work.submit, range(TASKS)), return_exceptions=True)
            stored = sum(not isinstance(one, BaseException) for one in answers)
            await eventually(lambda: len(ran) >= stored // 2)  # faults also come while it works
            assert plan.calls
            plan.disarm()
            for one in answers:
                assert not isinstance(one, BaseException) or isinstance(one, StoreError), one
            refused = {
                number
                for number, one in enumerate(answers)
                if isinstance(one, StoreError) and not isinstance(one, OutcomeUnknown)
            }
            await asyncio.wait_for(pool.drain(), 40)
            for number, one in enumerate(answers):
                if not isinstance(one, BaseException):
                    assert number == await one
            assert not refused & ran.keys()
        connection = connect(path)
        assert [] == check_tables(connection)
        left = connection.execute("SELECT count(*) FROM millpond_live").fetchone()
        connection.close()
        assert (0,) == left
