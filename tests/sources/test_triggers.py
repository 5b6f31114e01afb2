"""The short form of `make torture-triggers`: schedules and triggers of a fleet that is killed."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from verify.torture.plan import Settings
from verify.torture.store_setup import StoreSetup, on, setup_for
from verify.triggers.judge import Evidence, judged
from verify.triggers.run import SHORT, TriggerTorture

from millpond.core.event import EVENTS
from millpond.core.lifecycle import Status


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreSetup]:
    """Give a new store; one on the server that the other tests have, too."""
    if request.param == "sqlite":
        opened = setup_for("sqlite", None, tmp_path)
    else:
        opened = on(request.getfixturevalue("postgres"))
    with opened as place:
        yield place


@pytest.mark.timeout(180)
@pytest.mark.rows("CR-01", "HN-22")
def test_a_fleet_that_is_killed_fires_and_delivers_once(tmp_path: Path, place: StoreSetup) -> None:
    """Each moment of each schedule, and each event for each trigger, is one task, and it is done.

    And where it were not so, the judge would say it.
    """
    settings = Settings(home=str(tmp_path), seed=1, **{**place.settings, **SHORT})
    course = TriggerTorture(settings, place)
    result = course.run()
    assert result.clean, "\n".join(result.lines())
    assert result.facts["processes killed"] > 0
    assert result.facts["dead letters redriven"] > 0
    assert course.evidence is not None
    for name, damage in DAMAGES.items():
        evidence = deepcopy(course.evidence)
        damage(evidence)
        assert name in {check.name for check in judged(evidence) if check.broken}


def lose_an_event(evidence: Evidence) -> None:
    """Forget one that was emitted."""
    rows = evidence.rows[EVENTS]
    rows.remove(next(task for task in rows if task.new.key == "order" and not _replay(task)))


def lose_a_pulse(evidence: Evidence) -> None:
    """Forget an event of a schedule."""
    rows = evidence.rows[EVENTS]
    rows.remove(next(task for task in rows if task.new.key == "cron.pulse"))


def deliver_twice(evidence: Evidence) -> None:
    """Have a trigger make a second task."""
    rows = evidence.rows["narrow"]
    rows.append(rows[0])


def miss_a_moment(evidence: Evidence) -> None:
    """Forget the task of a firing."""
    rows = evidence.rows["work"]
    rows.remove(next(task for task in rows if task.new.labels.get("cron") == "skip-3"))


def wait_twice(evidence: Evidence) -> None:
    """Leave two firings of a schedule."""
    evidence.waits_for["changing"] *= 2


def end_twice(evidence: Evidence) -> None:
    """Have a task end a second time."""
    task = evidence.rows["narrow"][0].new.id
    evidence.records += [one for one in evidence.records if one.task == task]


def leave_one(evidence: Evidence) -> None:
    """Have a delivery end in the dead letters."""
    evidence.rows["~trigger/plain"][0].status = Status.FAILED


DAMAGES: dict[str, Callable[[Evidence], None]] = {
    "every event is stored, once": lose_an_event,
    "every event is one task of each trigger": deliver_twice,
    "every moment of a schedule is fired for, once": miss_a_moment,
    "every moment is one event and its task": lose_a_pulse,
    "each schedule waits for one firing": wait_twice,
    "every task was done, and ended once": end_twice,
    "no delivery is left, or dead": leave_one,
}


def _replay(task: object) -> bool:
    return str(task.new.idempotency_key).count("#") > 1  # type: ignore[attr-defined]
