"""A network that breaks between a worker and its server: nothing is lost, or done twice."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from tests.faults.conftest import OutageLog
from tests.faults.shop import IMPATIENT, Shop
from tests.waiting import eventually
from verify.servers.fault_proxy import FaultProxy

from millpond import Context, TaskFailed
from millpond.core.plan import Wake
from millpond.errors import OutcomeUnknown, StoreUnreachable
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import connect
from millpond.store.postgres.notify import ECHO_WITHIN, PostgresHintChannel
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Hint

pytestmark = pytest.mark.real_loop


def refuse(proxy: FaultProxy) -> None:
    """Refuse new connections and cut the open ones."""
    proxy.refuse()
    proxy.cut()


def go_silent(proxy: FaultProxy) -> None:
    """Leave every connection half-open; new ones are as they should be."""
    proxy.silence()
    proxy.heal()


FAULTS: dict[str, Callable[[FaultProxy], None]] = {
    "cut": FaultProxy.cut,
    "refused": refuse,
    "half-open": go_silent,
    "cut within what is asked": lambda proxy: proxy.cut_within("up"),
    "cut within what is answered": lambda proxy: proxy.cut_within("down"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_worker_goes_on_when_the_network_does(
    proxy: FaultProxy, direct: str, fault: str, outage_log: OutageLog
) -> None:
    """The worker reconnects, completes every task, and logs the outage once."""
    submitter = Shop(direct)
    worker = Shop(proxy.through(direct), work=True, patience=IMPATIENT)
    numbers = range(10, 30)
    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        FAULTS[fault](proxy)
        handles = [await submitter.job.submit(number) for number in numbers]
        if fault == "refused":
            await eventually(lambda: outage_log.away)
            proxy.accept()
        async with asyncio.timeout(40):
            assert [2 * number for number in numbers] == [await one for one in handles]
        assert 21 == await submitter.completed()
        await eventually(lambda: outage_log.away == outage_log.back)
    assert set(worker.runs) == {1, *numbers}
    # Once each; twice where a last try failed just after the first that did not.
    assert outage_log.away <= 2


@pytest.mark.parametrize("slow", ["delay", "trickle"])
async def test_a_slow_network_is_only_slow(
    proxy: FaultProxy, direct: str, slow: str, outage_log: OutageLog
) -> None:
    """Nothing is given up, nothing is done twice."""
    submitter, worker = Shop(direct), Shop(proxy.through(direct), work=True)
    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        proxy.delay(0.05) if slow == "delay" else proxy.trickle(20_000)
        handles = [await submitter.job.submit(number) for number in range(10, 16)]
        assert [2 * number for number in range(10, 16)] == [await one for one in handles]
        proxy.heal()
    assert [1] * 7 == list(worker.runs.values())
    assert 0 == outage_log.away


# Answers that are lost


@pytest.mark.parametrize("key", [None, "once"])
async def test_a_submit_whose_answer_is_lost_is_one_task(
    proxy: FaultProxy, direct: str, key: str | None
) -> None:
    """The client sends it again under the same id; the caller sees no error."""
    shop = Shop(proxy.through(direct))
    async with shop.mp:
        await shop.job.submit(1)
        # It is one statement, recognised by what it carries.
        proxy.lose_answer(request=b'"number":4711')
        job = shop.job if key is None else shop.job.options(idempotency_key=key)
        handle = await job.submit(4711)
        assert 1 == proxy.answers_lost
        assert not handle.duplicate
        assert "queued" == handle.status
        assert 2 == (await shop.pool.snapshot()).queued


async def test_a_submit_that_cannot_be_checked_has_an_unknown_outcome(
    proxy: FaultProxy, direct: str
) -> None:
    """It may be stored. Sent again with its key it is the same task."""
    shop = Shop(proxy.through(direct))
    async with shop.mp:
        await shop.job.submit(1)
        proxy.lose_answer(request=b'"number":4711')
        proxy.refuse()
        keyed = shop.job.options(idempotency_key="once")
        with pytest.raises(OutcomeUnknown, match="idempotency key"):
            await keyed.submit(4711)
        with pytest.raises(StoreUnreachable):
            await keyed.submit(4711)
        proxy.accept()
        assert (await keyed.submit(4711)).duplicate
        assert 2 == (await shop.pool.snapshot()).queued


@pytest.mark.rows("DE-18")
@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_a_step_whose_answer_is_lost_is_taken_once(
    proxy: FaultProxy, direct: str, verb: str
) -> None:
    """The worker gives back claims it got no answer for; settled tasks stay settled."""
    submitter, worker = Shop(direct), Shop(proxy.through(direct), work=True)

    def lose_the_next_step() -> None:
        # A new session gets the statement's text again, so the proxy can recognise it.
        proxy.cut()
        proxy.lose_answer(request=b"settle_and_lease")

    def during(number: int) -> None:
        if number == 2:
            lose_the_next_step()

    worker.during = during if verb == "settle" else lambda _: None
    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        if verb == "claim":
            lose_the_next_step()
        async with asyncio.timeout(30):
            assert 4 == await (await submitter.job.submit(2))
            assert 6 == await (await submitter.job.submit(3))
        await eventually(lambda: proxy.answers_lost)
        assert 3 == await submitter.completed()
    assert {1: 1, 2: 1, 3: 1} == worker.runs
    assert 0 == worker.mp.counts.stale_settles


async def test_a_handlers_transaction_whose_commit_is_not_answered_is_not_done_twice(
    proxy: FaultProxy, direct: str
) -> None:
    """What it wrote and its completion are one commit: that is there, or not."""
    submitter, worker = Shop(direct), Shop(proxy.through(direct), work=True)

    async def note(ctx: Context, number: int) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO public.notes VALUES (%s)", [number])
            proxy.lose_answer(answer=b"COMMIT\0")

    for shop in (submitter, worker):
        shop.pool.task(note)
    with psycopg.connect(direct, autocommit=True) as other:
        other.execute("CREATE TABLE public.notes (number bigint)")
        async with submitter.mp, worker.mp:
            handle = await submitter.mp.tasks["note"].submit(7)
            async with asyncio.timeout(30):
                try:
                    await handle
                except TaskFailed:
                    pytest.fail("it was committed, and then failed")
        assert [(7,)] == other.execute("SELECT number FROM public.notes").fetchall()
    assert 1 == proxy.answers_lost


# Half-open connections


async def test_an_unanswered_renewal_is_sent_again_within_the_lease(
    proxy: FaultProxy, direct: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Over a new connection, before the lease is over: the worker keeps what it holds."""
    worker = Shop(proxy.through(direct), work=True, lease=4.0)
    async with worker.mp:
        assert 2 == await (await worker.job.submit(1))
        proxy.silence()
        proxy.heal()  # for new connections
        renewals = internals_of(worker.mp).runtime.renewals
        (kept,) = renewals._kept.values()
        due = kept.due
        await eventually(lambda: kept.due > due and not kept.pause)
        proxy.cut()  # what is half-open would be waited for at the end, for longer than a test
    assert "stops its handlers" not in caplog.text


def test_a_driver_without_an_answer_gives_up(proxy: FaultProxy, direct: str) -> None:
    """As our own line of statements does."""
    address = address_of(proxy.through(direct))
    with connect(address, patience=IMPATIENT) as connection:
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="silent for 1 s"):
            connection.execute("SELECT 1")
    proxy.heal()
    line = PostgresConnection(connect(address, patience=IMPATIENT), {}, silence=IMPATIENT.silence)
    line.hurry(0.5)
    proxy.silence()
    with pytest.raises(psycopg.OperationalError, match=r"silent for 0\.5 s"):
        line.execute("SELECT 1").fetchone()
    line.close()


def test_a_server_that_does_not_finish_a_connection_is_given_up(
    proxy: FaultProxy, direct: str
) -> None:
    """Connecting through a network that swallows everything raises StoreUnreachable."""
    proxy.silence()
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        connect(address_of(proxy.through(direct)), patience=IMPATIENT)


async def test_a_silent_listener_is_replaced(
    proxy: FaultProxy, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own hints came back before and do not now: half of its connection is gone."""
    monkeypatch.setattr("millpond.store.postgres.notify.ECHO_WITHIN", 0.2)
    assert ECHO_WITHIN > 1
    heard: list[Hint] = []
    with connect(address_of(direct)) as speaker:
        wakes = PostgresHintChannel(address_of(proxy.through(direct)), "me", lambda: speaker)
        wakes.listen(heard.append, asyncio.get_running_loop())

        def hears() -> bool:
            wakes.send(Hint(wakes=(Wake("jobs", 0.0),)))
            return wakes.receives_hints()

        await eventually(hears)
        proxy.silence()
        proxy.heal()
        await eventually(lambda: not hears())
        await eventually(hears)
        wakes.close()
    assert 2 == heard.count(Hint(more=True))
