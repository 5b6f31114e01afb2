"""Outages: one log line when the store fails, one when it is back, for all parts together."""

import asyncio
import logging

import pytest

from millpond import Millpond
from millpond.errors import OutcomeUnknown, StoreUnreachable
from millpond.pool.internals import internals_of
from millpond.runtime.observe.outage import Outages, ask_until_answered


def away() -> StoreUnreachable:
    """Return the error of a store that is away."""
    return StoreUnreachable("no answer", path="here")


@pytest.fixture
def outages() -> Outages:
    """Make Outages with a clock that advances by a second at each reading."""
    seconds = iter(range(100))
    return Outages(lambda: float(next(seconds)))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages above INFO."""
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_the_first_failure_and_the_last_recovery_are_logged_once(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """However many parts of the process use the store."""
    for part in ("poll", "worker", "poll", "renewal", "worker"):
        assert outages.failed(part, away())
    assert ["the store cannot be used (MILL-061 no answer); it is tried again until it can"] == (
        lines(caplog)
    )
    for part in ("worker", "poll", "another"):
        outages.worked(part)
    assert 1 == len(lines(caplog))
    outages.worked("renewal")
    assert ["the store can be used again, after 3.0 s"] == lines(caplog)[1:]
    outages.worked("renewal")
    assert 2 == len(lines(caplog))
    outages.failed("poll", away())
    assert 3 == len(lines(caplog))


def test_an_error_that_is_not_the_stores_is_not_an_outage(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller handles a bug."""
    assert not outages.failed("poll", ValueError("a bug"))
    outages.worked("poll")
    assert [] == lines(caplog)


def test_the_end_of_an_outage_does_not_wait_for_a_stopped_part(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """The other parts report when the store is back."""
    outages.failed("worker", away())
    outages.failed("poll", away())
    outages.gone("worker")
    outages.worked("poll")
    assert 2 == len(lines(caplog))


async def test_asking_until_answered_ends_with_an_answer_or_when_it_must_stop() -> None:
    """It tries again after growing pauses; any other error ends it at once."""
    calls = 0

    async def ask() -> int:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise away()
        return calls

    before = asyncio.get_running_loop().time()
    assert 4 == await ask_until_answered(ask, lambda: False)
    assert 0.05 + 0.1 + 0.2 == pytest.approx(asyncio.get_running_loop().time() - before, abs=0.01)
    calls = 0
    with pytest.raises(StoreUnreachable):
        await ask_until_answered(ask, lambda: calls == 2)

    async def wrong() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        await ask_until_answered(wrong, lambda: False)


async def test_a_submit_whose_outcome_is_unknown_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent again once; if that fails too, submit() raises OutcomeUnknown."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> str:
        return "ran"

    async with mp:
        await pool.pause()
        await job.submit()
        store = internals_of(mp).runtime.store
        submit, lost, sent = store.submit, 1, []

        async def losing(batches: object, **given: object) -> object:
            nonlocal lost
            answer = await submit(batches, **given)  # type: ignore[arg-type]
            sent.append(tuple(batch.again for batch in batches))  # type: ignore[attr-defined]
            lost -= 1
            if lost >= 0:
                raise OutcomeUnknown("who knows", path="here")
            return answer

        monkeypatch.setattr(store, "submit", losing)
        handle = await job.submit()
        assert [(False,), (True,)] == sent
        assert not handle.duplicate
        assert 2 == (await pool.snapshot()).queued
        lost = 2
        with pytest.raises(OutcomeUnknown, match="who knows"):
            await job.submit()
        lost = 1
        handles = await asyncio.gather(*(job.submit() for _ in range(3)))
        assert 6 == (await pool.snapshot()).queued
        await pool.resume()
        assert ["ran"] * 3 == [await handle for handle in handles]
