"""Outages: one line when a store goes, one when it is back, whoever finds out."""

import asyncio
import logging

import pytest

from millpond import Millpond
from millpond.errors import OutcomeUnknown, StoreUnreachable
from millpond.pool.internals import internals_of
from millpond.runtime.observe.outage import Outages, ask_until_answered


def away() -> StoreUnreachable:
    """The store is away."""
    return StoreUnreachable("nobody answers", path="here")


@pytest.fixture
def outages() -> Outages:
    """Give what tells; of a clock that goes on by a second with every look."""
    seconds = iter(range(100))
    return Outages(lambda: float(next(seconds)))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was told to people."""
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_it_is_told_once_by_the_first_and_once_by_the_last(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """However many parts of a process use the store."""
    for part in ("poll", "worker", "poll", "renewal", "worker"):
        assert outages.failed(part, away())
    assert [
        "the store cannot be used (MILL-061 nobody answers); it is tried again until it can"
    ] == (lines(caplog))
    for part in ("worker", "poll", "another"):
        outages.worked(part)
    assert 1 == len(lines(caplog))
    outages.worked("renewal")
    assert ["the store can be used again, after 3.0 s"] == lines(caplog)[1:]
    outages.worked("renewal")
    assert 2 == len(lines(caplog))
    outages.failed("poll", away())
    assert 3 == len(lines(caplog))


def test_what_is_no_fault_of_the_store_is_left_to_others(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a bug."""
    assert not outages.failed("poll", ValueError("a bug"))
    outages.worked("poll")
    assert [] == lines(caplog)


def test_a_part_that_is_no_more_is_not_waited_for(
    outages: Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """The others tell when the store is back."""
    outages.failed("worker", away())
    outages.failed("poll", away())
    outages.gone("worker")
    outages.worked("poll")
    assert 2 == len(lines(caplog))


async def test_who_insists_is_answered_in_the_end_or_told_that_it_is_over() -> None:
    """After pauses that grow; any other error is an answer."""
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise away()
        return asked

    before = asyncio.get_running_loop().time()
    assert 4 == await ask_until_answered(ask, lambda: False)
    assert 0.05 + 0.1 + 0.2 == pytest.approx(asyncio.get_running_loop().time() - before, abs=0.01)
    asked = 0
    with pytest.raises(StoreUnreachable):
        await ask_until_answered(ask, lambda: asked == 2)

    async def wrong() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        await ask_until_answered(wrong, lambda: False)


async def test_an_unknown_submit_is_asked_for_by_sending_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once; where that fails, too, whoever submits is told that it is not known."""
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
