"""Sentry, with the real SDK and a transport that keeps what it gets."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from millpond import Cancelled, Context, GiveUp, Millpond, Retry, RetryLater
from millpond.telemetry.sentry import SentryMiddleware


class Kept(Transport):
    """Keeps envelopes."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            self.items.append((str(item.type), dict(item.payload.json or {})))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the sent items of a kind."""
        return [found for one, found in self.items if one == kind]


@pytest.fixture
def sent() -> Iterator[Kept]:
    """What the SDK sent."""
    transport = Kept()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=transport,
        traces_sample_rate=1.0,
        default_integrations=False,
        auto_enabling_integrations=False,
    )
    yield transport
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.real_loop
@pytest.mark.parametrize("threaded", [False, True])
async def test_an_error_is_sent_with_its_task(sent: Kept, threaded: bool) -> None:
    """Once per attempt that failed; a transaction for each attempt."""
    mp = Millpond()
    pool = mp.pool("mail", retry=Retry(attempts=2, initial=0.001))
    mp.add_middleware(SentryMiddleware())

    async def on_loop(to: str) -> None:
        raise ValueError(f"no address {to}")

    def in_thread(to: str) -> None:
        raise ValueError(f"no address {to}")

    task = pool.task(name="send")(in_thread if threaded else on_loop)
    async with mp:
        handle = await task.options(key="ada", labels={"tenant": "acme"}).submit("ada")
        await asyncio.wait_for(handle.wait(), 20)
    first, second = sent.of("event")
    (error,) = first["exception"]["values"]
    assert ("ValueError", "no address ada") == (error["type"], error["value"])
    assert {"millpond.pool": "mail", "millpond.function": "send", "millpond.attempt": "1"} == {
        name: str(value) for name, value in first["tags"].items()
    }
    assert (str(handle.id), {"tenant": "acme"}, "ada") == tuple(
        second["contexts"]["millpond"][name] for name in ("task_id", "labels", "key")
    )
    assert ["send", "send"] == [one["transaction"] for one in sent.of("transaction")]
    assert {"internal_error"} == {
        one["contexts"]["trace"]["status"] for one in sent.of("transaction")
    }


async def test_signals_of_a_handler_are_no_errors(sent: Kept) -> None:
    """Nor is a success; GiveUp is, with its cause."""
    mp = Millpond()
    pool = mp.pool("mail")
    mp.add_middleware(SentryMiddleware())
    raises: list[BaseException] = [RetryLater(0.001), Cancelled("left")]

    @pool.task
    async def send() -> None:
        if raises:
            raise raises.pop(0)

    @pool.task
    async def never() -> None:
        raise GiveUp from LookupError("no such user")

    async with mp:
        await (await send.submit()).wait()
        await (await send.submit())
        assert [] == sent.of("event")
        await (await never.submit()).wait()
    (event,) = sent.of("event")
    assert "LookupError" == event["exception"]["values"][-1]["type"]


async def test_only_the_last_attempt_may_be_sent(sent: Kept) -> None:
    """With last_attempt_only=True."""
    mp = Millpond()
    pool = mp.pool("mail", retry=Retry(attempts=3, initial=0.001))
    mp.add_middleware(SentryMiddleware(last_attempt_only=True))

    @pool.task
    async def send(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    async with mp:
        await (await send.submit()).wait()
    (event,) = sent.of("event")
    assert "attempt 3" == event["exception"]["values"][-1]["value"]


async def test_scopes_of_tasks_do_not_mix(sent: Kept) -> None:
    """Tags that a handler sets stay with its own events."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=2, retry=Retry.never())
    mp.add_middleware(SentryMiddleware())
    both = asyncio.Barrier(2)

    @pool.task
    async def send(number: int) -> None:
        sentry_sdk.set_tag("number", number)
        await both.wait()
        raise ValueError(str(number))

    async with mp:
        for handle in await pool.submit_many(send.each([1, 2])):
            await handle.wait()
    found = {
        one["exception"]["values"][-1]["value"]: one["tags"]["number"] for one in sent.of("event")
    }
    assert {"1": 1, "2": 2} == {value: int(tag) for value, tag in found.items()}
