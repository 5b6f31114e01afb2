"""Metrics of OpenTelemetry: what this process did, and the pools as the store knows them."""

import asyncio
from typing import Any

import pytest
from tests.telemetry.tracing import Traced
from tests.waiting import eventually

from millpond import Millpond, Retry

Points = dict[tuple[str, ...], Any]


def points(app: Traced, name: str, *labels: str) -> Points:
    """The values of a metric by some of its attributes."""
    return {
        tuple(str(answer.get(label)) for label in labels): value
        for answer, value in app.measured(name)
    }


@pytest.mark.real_loop
async def test_pools_are_read_when_metrics_are() -> None:
    """From the thread of an exporter; on the loop they are left out, all else is exported."""
    app = Traced()
    mail = app.mp.pool("mail", max_concurrent=3, retry=Retry.never())
    hold = asyncio.Event()

    @mail.task
    async def send(fail: bool = False) -> None:
        if fail:
            raise ConnectionError
        await hold.wait()

    async with app.mp:
        await (await send.submit(fail=True)).wait()
        held = await send.submit()
        await send.options(delay=60).submit()
        read = await asyncio.to_thread(
            points, app, "millpond.pool.tasks", "messaging.destination.name", "millpond.state"
        )
        assert {
            ("mail", "ready"): 0,
            ("mail", "scheduled"): 1,
            ("mail", "parked"): 0,
            ("mail", "claimed"): 0,
            ("mail", "running"): 1,
        } == read
        ended = await asyncio.to_thread(points, app, "millpond.pool.ended", "millpond.state")
        assert {("failed",): 1} == ended
        assert {(): 1} == await asyncio.to_thread(points, app, "millpond.pool.dead")
        limit = await asyncio.to_thread(points, app, "millpond.pool.limit")
        assert {(): 3} == limit
        hold.set()
        await held
        # What an exporter read stays good for half a second.
        await eventually(lambda: points(app, "millpond.pool.tasks") == {})
        assert {("mail",): 3} == points(
            app, "messaging.client.sent.messages", "messaging.destination.name"
        )
        await mail.purge()


async def test_what_was_measured_has_the_attributes_of_the_conventions() -> None:
    """How long submits, waits and runs took, and how attempts ended, by function and error."""
    app = Traced()
    mail = app.mp.pool("mail", retry=Retry.constant(1, attempts=2))

    @mail.task
    async def send(fail: bool) -> None:
        if fail:
            raise ConnectionError

    async with app.mp:
        await mail.submit_many([send.bind(fail=False), send.bind(fail=True)])
        await mail.drain()
    where = ("messaging.system", "messaging.operation.name", "messaging.destination.name")
    assert {("millpond", "submit", "mail"): 1} == points(
        app, "messaging.client.operation.duration", *where
    )
    assert {("millpond", "process", "mail"): 3} == points(app, "millpond.task.wait", *where)
    assert {("send", "None"): 1, ("send", "ConnectionError"): 2} == points(
        app, "messaging.process.duration", "millpond.function", "error.type"
    )
    assert {("completed",): 1, ("retry",): 1, ("failed",): 1} == points(
        app, "messaging.client.consumed.messages", "millpond.outcome"
    )


async def test_many_pools_and_errors_are_few_attributes() -> None:
    """The first hundred of each have their own, the others share one."""
    app = Traced(Millpond())
    pools = [app.mp.pool(f"pool{number}", retry=Retry.never()) for number in range(120)]

    def failing(number: int) -> Any:
        async def fail() -> None:
            raise type(f"Error{number}", (Exception,), {})

        return fail

    async with app.mp:
        for number, pool in enumerate(pools):
            await (await pool.submit(failing(number))).wait()
    assert 101 == len(points(app, "messaging.client.sent.messages", "messaging.destination.name"))
    assert 101 == len(points(app, "messaging.process.duration", "error.type"))
