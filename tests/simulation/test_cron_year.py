"""Some weeks of schedules on every store, clocks set in three zones, processes dying all along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from verify.cron_year.year import Lived, Year, live_through
from verify.servers.sqlite_files import InlineStore

from millpond.pool.schedules import firing as cron
from millpond.pool.schedules.timetable import Plan
from millpond.store.memory import MemoryStore

SPRING = Year(
    seed=1,
    schedules=30,
    since=datetime.fromisoformat("2026-03-27T12:00Z").timestamp(),
    days=4,
    processes=2,
    deaths_apart=0.3,
)
"""Berlin sets its clocks on the 29th of March."""

Make = Callable[[Callable[[], float]], Any]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dying processes have much to say, each time the same."""
    log = logging.getLogger("millpond")
    handler = logging.NullHandler()
    log.addHandler(handler)
    monkeypatch.setattr(log, "propagate", False)
    yield
    log.removeHandler(handler)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What makes the store."""
    if request.param == "memory":
        return lambda clock: MemoryStore(clock=clock)
    if request.param == "sqlite":
        return lambda clock: InlineStore(tmp_path / "work.db", clock)
    schemas = request.getfixturevalue("postgres_schemas")
    return schemas.fresh  # type: ignore[no-any-return]


def lived(year: Year, make: Make) -> Lived:
    found = live_through(year, make)
    assert sum(found.deaths.values()) > year.days / year.deaths_apart / 3
    return found


@pytest.mark.rows("CR-01")
def test_each_firing_is_stored_once_and_done_once(make: Make) -> None:
    found = lived(SPRING, make)
    assert [] == found.wrong
    assert found.fired > 40


def memory(clock: Callable[[], float]) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.mark.rows("CR-01")
def test_both_changes_of_all_three_zones() -> None:
    for day in ("03-07", "03-28", "04-04", "10-02", "10-24", "10-31"):
        since = datetime.fromisoformat(f"2026-{day}T00:00Z").timestamp()
        year = msgspec.structs.replace(SPRING, since=since, days=3, schedules=60, seed=3)
        assert [] == live_through(year, memory).wrong


def test_a_moment_taken_from_the_clock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The year must be able to fail: firings computed from when they ran are late, or missing."""

    def by_the_clock(timetable: Any, due: float, now: float, **_: Any) -> Plan:
        return Plan(now, timetable.after(now))

    monkeypatch.setattr(cron, "plan", by_the_clock)
    assert lived(SPRING, memory).wrong


def test_a_chain_that_is_not_stored_with_its_firing_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who submits at once, without keys, fires again what a dead process had fired."""
    original = cron._target

    def unkeyed(*given: Any) -> Any:
        return msgspec.structs.replace(original(*given), idempotency_key=None)

    async def at_once(job: Any, firing: Any, recorded_as: Any) -> Any:
        answer = await fire(job, firing, recorded_as)
        first, *rest = job.follow_ups
        for new in rest:
            await cron._submit(job.worker.runtime, (new,))
            job.worker.runtime.store._process.world.book.fired[
                new.labels["cron"],
                datetime.fromisoformat(new.labels["scheduled_at"]).timestamp(),
            ].append(new.id)
        job.follow_ups = [first]
        return answer

    fire = cron._fire
    monkeypatch.setattr(cron, "_target", unkeyed)
    monkeypatch.setattr(cron, "_fire", at_once)
    year = msgspec.structs.replace(SPRING, deaths_apart=0.1)
    assert any("fired 2 times" in one for one in live_through(year, memory).wrong)
