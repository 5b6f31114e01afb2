"""The promises of the demo: each is broken by the figures that would break it, and no other."""

import asyncio
from typing import Any

import msgspec
import pytest

from millpond import Millpond, fair_round_robin
from millpond.demo import bulkhead_act, fleet_act, flood_act
from millpond.demo.audit_reader import AuditReader
from millpond.demo.report import Show


def changed(figures: Any, path: str, change: Any) -> Any:
    """Return figures with one value changed by a function."""
    name, _, rest = path.partition(".")
    value = getattr(figures, name)
    new = changed(value, rest, change) if rest else change(value)
    return msgspec.structs.replace(figures, **{name: new})


def broken(module: Any, figures: Any) -> list[str]:
    return [promise.promise for promise in module.promises(figures) if not promise.kept]


def more(value: int) -> int:
    return value + 1


def fewer(value: int) -> int:
    return value - 1


def no(_: bool) -> bool:
    return False


@pytest.mark.parametrize(
    ("path", "change", "promise"),
    [
        ("fifo.most_running", more, "Never more than 4 run"),
        ("fair.most_running", more, "Never more than 4 run"),
        ("fair.in_turns", no, "One turn each while others wait"),
        ("fair.seconds", lambda seconds: seconds + 1, "Fairness costs no throughput"),
        ("fair.completed", fewer, "Each task ends once, counts add up"),
        ("fifo.ended_once", fewer, "Each task ends once, counts add up"),
        ("fifo.books_agree", no, "Each task ends once, counts add up"),
        (
            "fair.quiet",
            lambda _: flood_act.Waits(median=1.0, worst=2.0),
            "The quiet do not wait for the flood",
        ),
    ],
)
def test_the_flood_breaks_its_promises(show: Show, path: str, change: Any, promise: str) -> None:
    """Each by one figure."""
    figures = changed(show.flood.ending.figures, path, change)
    assert [promise] == broken(flood_act, figures)


@pytest.mark.parametrize(
    ("path", "change", "promise"),
    [
        ("submitted", more, "kill -9 loses nothing"),
        ("completed", fewer, "kill -9 loses nothing"),
        ("ended_once", fewer, "kill -9 loses nothing"),
        ("left", more, "kill -9 loses nothing"),
        ("books_agree", no, "kill -9 loses nothing"),
        ("found_after", lambda _: 5.1, "It is found at once, not in 30 s"),
        ("found_after", lambda _: -1.0, "It is found at once, not in 30 s"),
        ("charged", fewer, "What it held is charged an attempt"),
        ("charged_others", more, "What it held is charged an attempt"),
        ("effects", fewer, "Each effect once, by ctx.commit"),
        ("effects_twice", more, "Each effect once, by ctx.commit"),
        ("most_running", lambda _: 13, "12 at a time, 8 of a tenant, over all"),
        ("most_of_a_tenant", lambda _: 9, "12 at a time, 8 of a tenant, over all"),
        ("workers", fewer, "12 at a time, 8 of a tenant, over all"),
        ("turns_apart", lambda _: 3, "Turns hold over all processes"),
        ("starts_compared", lambda _: 10, "Turns hold over all processes"),
    ],
)
def test_the_fleet_breaks_its_promises(show: Show, path: str, change: Any, promise: str) -> None:
    """Each by one figure."""
    figures = changed(show.fleet.ending.figures, path, change)
    assert [promise] == broken(fleet_act, figures)


def test_a_fleet_without_a_kill_breaks_the_promise(show: Show) -> None:
    """A kill without anything in hand is no kill."""
    figures = changed(show.fleet.ending.figures, "in_hand", lambda _: 0)
    assert "It is found at once, not in 30 s" in broken(fleet_act, figures)


@pytest.mark.parametrize(
    ("path", "change", "promise"),
    [
        ("with_bulkhead.most_in_flight", more, "Never more than 5 in flight"),
        ("with_bulkhead.failed", more, "Never more than 5 in flight"),
        ("with_bulkhead.most_waiting", more, "Never more than 10 waiting, in order"),
        ("with_bulkhead.in_order", no, "Never more than 10 waiting, in order"),
        ("with_bulkhead.left", more, "Never more than 10 waiting, in order"),
        ("with_bulkhead.slowest_refusal", more, "The rest refused at once, with a reason"),
        ("with_bulkhead.answered", fewer, "The rest refused at once, with a reason"),
        ("with_bulkhead.anomalies", more, "The rest refused at once, with a reason"),
    ],
)
def test_the_bulkhead_breaks_its_promises(show: Show, path: str, change: Any, promise: str) -> None:
    """Each by one figure."""
    figures = changed(show.bulkhead.ending.figures, path, change)
    assert [promise] == broken(bulkhead_act, figures)


async def test_books_agree_with_a_pool_and_with_no_other_counts() -> None:
    """Queued, running and ended tasks are those of the snapshot, or the books say so."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)
    audit = AuditReader(mp, pool)

    @pool.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with mp:
        await pool.submit_many(work.bind(seconds) for seconds in (1.0, 3.0, 9.0, 9.0))
        await asyncio.sleep(2)
        await audit.read()
        snapshot = await pool.snapshot()
        assert (1, 2, 1) == (snapshot.completed, snapshot.running, snapshot.queued)
        assert audit.agree(snapshot)
        for name in ("completed", "failed", "running", "queued", "cancelled", "rejected"):
            off = msgspec.structs.replace(snapshot, **{name: getattr(snapshot, name) + 1})
            assert not audit.agree(off)
        await asyncio.sleep(2)
        assert not audit.agree(await pool.snapshot())
        await audit.read()
        assert audit.agree(await pool.snapshot())


async def test_the_audit_reader_counts_who_was_passed_while_waiting() -> None:
    """A task that joins a fair pool is passed at most once, and its wait is that of the audit."""
    mp = Millpond()
    pool = mp.pool("work", queue=fair_round_robin())
    audit = AuditReader(mp, pool)

    @pool.task(key="tenant")
    async def work(tenant: str) -> None:
        await asyncio.sleep(1)

    async with mp:
        await pool.submit_many(work.bind("loud") for _ in range(5))
        await asyncio.sleep(0.5)
        await pool.submit_many(work.bind("quiet") for _ in range(2))
        await audit.read()
        assert [0.0, 0.0] == audit.waited(["quiet"], asyncio.get_running_loop().time())
        await pool.drain()
        await audit.read()
    (first, one), (second, other) = audit.waits["quiet"]
    assert [0.5, 2.5] == pytest.approx([first, second])
    assert [(0, {}), (1, {"loud": 1})] == [(w.ahead, dict(w.passed)) for w in (one, other)]
    assert one.fair
    assert other.fair
    assert not msgspec.structs.replace(other, ahead=-1).fair
