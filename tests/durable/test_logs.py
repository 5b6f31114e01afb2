"""Failures that no handler saw are logged too, once, by the process that found them."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet, until
from verify.servers.schemas import Schema

from millpond import Millpond, Retry
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

pytestmark = pytest.mark.rows("TR-20")


class Shop:
    """One of several processes that share a store."""

    def __init__(self, fleet: Fleet, *, work: bool = True, retry: Retry | None = None) -> None:
        self.mp: Millpond = fleet.millpond(work=work, lease=10.0)
        again = Retry.never() if retry is None else retry
        self.pool = self.mp.pool("mail", max_concurrent=5, retry=again)

        @self.pool.task
        async def send() -> None:
            await asyncio.sleep(1000)

        self.send = send


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of tasks that failed for good."""
    ours = [one for one in caplog.records if one.name.startswith("millpond")]
    return [one for one in ours if one.levelno >= logging.ERROR]


async def test_a_lost_lease_that_was_the_last_is_one_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two processes that stay, the one that finds the dead worker says so."""
    fleet = Fleet(place)
    dead, one, two = Shop(fleet), Shop(fleet, work=True), Shop(fleet, work=True)
    await dead.mp.__aenter__()
    handle = await dead.send.submit()
    await asyncio.sleep(1)
    async with one.mp, two.mp:
        await fleet.crash(dead.mp, found_dead=False)
        await asyncio.sleep(60)
        assert "failed" == (await one.mp.status([handle.id]))[0]
    (record,) = errors(caplog)
    named = [vars(record)[name] for name in ("pool", "task", "function", "attempt", "error")]
    assert ["mail", handle.id, "send", 1, "lease_lost"] == named
    assert "its worker died or lost its lease, and no attempts are left" in record.getMessage()


async def test_a_lost_lease_that_is_tried_again_is_one_warning(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two processes that stay, the one that gives the task to others names pool and task."""
    fleet = Fleet(place)
    dead, one, two = (Shop(fleet, retry=Retry.constant(1.0, attempts=3)) for _ in range(3))
    await dead.mp.__aenter__()
    handle = await dead.send.submit()
    await asyncio.sleep(1)
    async with one.mp, two.mp:
        await fleet.crash(dead.mp, found_dead=False)
        await asyncio.sleep(60)
        assert "running" == (await one.mp.status([handle.id]))[0]
        await (await one.mp.handle(handle.id)).cancel()
    ours = [one for one in caplog.records if one.name == "millpond.tasks"]
    (record,) = [one for one in ours if "is lost" in one.getMessage()]
    named = [vars(record)[name] for name in ("pool", "task", "function", "attempt", "error")]
    assert ["mail", handle.id, "send", 1, "lease_lost"] == named
    assert logging.WARNING == record.levelno


async def test_an_expired_task_is_one_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """It never started, and its submitter may not wait for it."""
    shop = Shop(Fleet(place))
    async with shop.mp:
        await shop.pool.pause()
        handle = await shop.send.options(expires_in=5).submit()
        await asyncio.sleep(60)
    (record,) = errors(caplog)
    assert (handle.id, "expired") == (vars(record)["task"], vars(record)["error"])


async def test_the_closure_of_a_dead_process_is_one_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """Its code is gone: the process that finds it logs it, even if it closes at once."""
    fleet = Fleet(place)
    dead, alive = Shop(fleet, work=False), Shop(fleet)

    async def closure() -> None:
        await asyncio.sleep(1000)

    await dead.mp.__aenter__()
    handle = await dead.pool.submit(closure)
    await asyncio.sleep(1)
    async with alive.mp:
        await fleet.crash(dead.mp, found_dead=False)

        async def ended() -> bool:
            return (await alive.mp.status([handle.id]))[0] == "failed"

        await until(ended)
    (record,) = errors(caplog)
    assert (handle.id, "stale") == (vars(record)["task"], vars(record)["error"])


async def test_a_task_parked_for_a_day_fails_with_one_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning comes when it is met, the error when its day is over."""
    shop = Shop(Fleet(place))
    async with shop.mp:
        gone = NewTask(id=42, pool="mail", call=Call("renamed_away", b"{}"))
        internals_of(shop.mp).runtime.answers.apply(
            await internals_of(shop.mp).runtime.store.submit((Batch(tasks=(gone,)),))
        )
        await asyncio.sleep(10)
        assert [] == errors(caplog)
        a_day_later = internals_of(shop.mp).runtime.clock() + 86_401
        internals_of(shop.mp).runtime.answers.apply(
            await internals_of(shop.mp).runtime.store.recover(now=a_day_later)
        )
    (record,) = errors(caplog)
    assert (42, "unknown_function") == (vars(record)["task"], vars(record)["error"])


async def test_bytes_that_cannot_be_read_are_one_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """With what is wrong with them."""
    shop = Shop(Fleet(place))
    async with shop.mp:
        broken = NewTask(id=5, pool="mail", call=Call("send", b"\xff\xfe"))
        internals_of(shop.mp).runtime.answers.apply(
            await internals_of(shop.mp).runtime.store.submit((Batch(tasks=(broken,)),))
        )
        await asyncio.sleep(10)
    (record,) = errors(caplog)
    assert 5 == vars(record)["task"]
    assert "its record cannot be read" in record.getMessage()


async def test_a_cancelled_or_dropped_task_is_no_error(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has errors for failures, not for an operator's cancel or purge."""
    shop = Shop(Fleet(place))
    async with shop.mp:
        await shop.pool.pause()
        first = await shop.send.submit()
        await shop.pool.submit_many([shop.send.bind() for _ in range(5)])
        await first.cancel()
        assert 5 == await shop.pool.purge()
        await asyncio.sleep(10)
    assert [] == [one for one in caplog.records if one.levelno >= logging.WARNING]
