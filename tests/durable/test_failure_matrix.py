"""Whatever fails between submit and settle: no accepted task is lost, and none runs for nothing."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet, Trouble, until
from tests.pool.moments import clock, rounds
from verify.servers.schemas import Schema

from millpond import Context, Handle, Millpond, Retry
from millpond.errors import OutcomeUnknown, StoreLocked, StoreUnreachable

Place = Path | Schema

BACKOFF = 5.0
LEASE = 10.0
POLL = 1.0
"""Seconds between two polls of a process that gets no hints."""


class Shop:
    """The same program in one process after another; it notes which ran which task, and when."""

    def __init__(self, place: Place) -> None:
        self.fleet = Fleet(place)
        self.ran: list[str] = []
        self.starts: list[float] = []

    def process(self, name: str) -> Millpond:
        """Return one more process."""
        mp = self.fleet.millpond(work=True, lease=LEASE)
        pool = mp.pool("orders", retry=Retry.constant(BACKOFF, attempts=3, jitter=0))

        @pool.task(timeout=3.0)
        async def pack(ctx: Context, how: str) -> str:
            self.ran.append(f"{name} {ctx.attempt}")
            self.starts.append(clock())
            if not ctx.is_retry and how == "raises":
                raise OSError("no paper")
            await asyncio.sleep(100 if not ctx.is_retry and how == "hangs" else 1)
            return name

        return mp

    async def submit(self, mp: Millpond, how: str = "") -> Handle[str]:
        """Submit under a key, as a client does that may have to ask again."""
        return await mp.tasks["pack"].options(idempotency_key="order-1").submit(how)

    async def ends_well(self, mp: Millpond, *ran: str) -> None:
        """See the one task completed, by exactly these attempts, and nothing left behind."""
        pool = mp.get_pool("orders")

        async def idle() -> bool:
            return 0 == await pool.size()

        await until(idle, within=60)
        (task,) = await pool.tasks()
        assert "completed" == task.status
        assert list(ran) == self.ran
        snapshot = await pool.snapshot()
        assert (1, 0, 0) == (snapshot.completed, snapshot.failed, snapshot.running)


@dataclass(frozen=True)
class Case:
    """Where the first process dies, and which process completes the task."""

    trouble: Trouble | None
    """At which verb; None = not at a verb, but after some seconds."""
    ran: tuple[str, ...]
    after: float = 0.0
    how: str = ""


CRASHES = {
    "in submit, before it is stored": Case(Trouble("submit"), ("second 1",)),
    "in submit, before it is answered": Case(Trouble("submit", stored=True), ("second 1",)),
    "before the claim": Case(Trouble("lease"), ("second 1",)),
    "after the claim, before the start": Case(Trouble("lease", stored=True), ("second 2",)),
    "while the handler runs": Case(None, ("first 1", "second 2"), after=0.5),
    "in a backoff": Case(None, ("first 1", "second 2"), after=2.0, how="raises"),
    "after the handler, before the settle": Case(Trouble("settle"), ("first 1", "second 2")),
    "after the settle, before its answer": Case(Trouble("settle", stored=True), ("first 1",)),
}


@pytest.mark.rows("DE-22", "CX-T94", "TRAP-6", "DP-16", "DE-18", "DE-05", "DE-09", "DE-T17")
@pytest.mark.parametrize("where", CRASHES)
@pytest.mark.parametrize("found_dead", [True, False], ids=["found dead", "by its lease"])
async def test_a_crash_loses_no_accepted_task(
    place: Place, where: str, *, found_dead: bool
) -> None:
    """The next process does what is left; a claim that may have started is charged an attempt."""
    case, shop = CRASHES[where], Shop(place)
    first, second = shop.process("first"), shop.process("second")
    await first.__aenter__()
    await rounds()
    shop.fleet.fail(first, *([case.trouble] if case.trouble else []))
    submitting = asyncio.create_task(shop.submit(first, case.how))
    await asyncio.sleep(case.after or 2.0)
    acknowledged = submitting.done()
    assert acknowledged == (case.trouble is None or case.trouble.verb != "submit")
    submitting.cancel()
    await shop.fleet.crash(first, found_dead=found_dead)
    async with second:
        if not acknowledged:
            again = await shop.submit(second, case.how)
            assert case.trouble is not None
            assert case.trouble.stored == again.duplicate
        await shop.ends_well(second, *case.ran)
    if case.how == "raises":
        assert BACKOFF <= shop.starts[1] - shop.starts[0] <= BACKOFF + POLL


REFUSALS = {
    "the claim is refused": (Trouble("lease", StoreLocked("busy")), ("first 1",)),
    "the claim's answer is lost": (
        Trouble("lease", StoreUnreachable("gone"), stored=True),
        ("first 1",),
    ),
    "the settle is refused": (Trouble("settle", StoreLocked("busy")), ("first 1",)),
    "the settle's answer is lost": (
        Trouble("settle", StoreUnreachable("gone"), stored=True),
        ("first 1",),
    ),
}


@pytest.mark.rows("DE-22", "CX-T116", "DE-T25", "DE-05")
@pytest.mark.parametrize("what", REFUSALS)
async def test_a_store_that_fails_for_a_moment_loses_nothing(place: Place, what: str) -> None:
    """The worker asks again, and a handler that ended is not run a second time."""
    trouble, ran = REFUSALS[what]
    shop = Shop(place)
    async with shop.process("first") as first:
        await rounds()
        shop.fleet.fail(first, trouble, trouble, trouble)
        await shop.submit(first)
        await shop.ends_well(first, *ran)


@pytest.mark.rows("DE-22")
async def test_a_submit_that_the_store_refuses_stores_nothing(place: Place) -> None:
    """The caller gets the error, and may submit again."""
    shop = Shop(place)
    async with shop.process("first") as first:
        shop.fleet.fail(first, Trouble("submit", StoreLocked("busy")))
        with pytest.raises(StoreLocked):
            await shop.submit(first)
        assert 0 == (await first.get_pool("orders").snapshot()).total
        assert not (await shop.submit(first)).duplicate
        await shop.ends_well(first, "first 1")


@pytest.mark.rows("DE-22")
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_submit_whose_answer_is_lost_makes_one_task(place: Place, lost: int) -> None:
    """Millpond asks once more by itself; the caller's own second submit finds the task, too."""
    shop = Shop(place)
    async with shop.process("first") as first:
        shop.fleet.fail(first, *[Trouble("submit", OutcomeUnknown("lost"), stored=True)] * lost)
        if lost == 1:
            assert not (await shop.submit(first)).duplicate
        else:
            with pytest.raises(OutcomeUnknown):
                await shop.submit(first)
            assert (await shop.submit(first)).duplicate
        await shop.ends_well(first, "first 1")


@pytest.mark.rows("DE-22", "DE-09")
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_handler_that_raises_or_runs_out_of_time_is_tried_again(
    place: Place, how: str
) -> None:
    """The store counts its attempts from one, whichever process asks."""
    shop = Shop(place)
    async with shop.process("first") as first, shop.process("second") as second:
        handle = await shop.submit(first, how)
        await first.get_pool("orders").pause()
        there = await second.handle(handle.id)
        await until(lambda: has_attempts(there, 0), within=5)
        await first.get_pool("orders").resume()
        await until(lambda: has_attempts(there, 1), within=5)
        await there.wait(timeout=60)
        assert ("completed", 2) == (there.status, there.attempt)
        assert ["1", "2"] == [one.split()[1] for one in shop.ran]


async def has_attempts(handle: Handle[str], count: int) -> bool:
    """Return whether the store counts so many attempts."""
    return count == (await handle.refresh()).attempt
