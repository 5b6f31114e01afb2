"""The judge: each promise about schedules and triggers, one check, over what the store holds."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from millpond.core.event import EVENTS, TRIGGERS
from millpond.core.lifecycle import Status, Transition
from millpond.pool.internals import internals_of
from millpond.pool.schedules.firing import CRON, shown, standing_of
from verify.torture.auditor import Check
from verify.torture.ledger import SignalSent, StoreFaulted, SubmitConfirmed
from verify.triggers.fleet import CHANGING, COMPLETE, LATE, LOSSY, ORDER, PULSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.pool.millpond import Millpond
    from verify.torture.ledger import AnyEntry
    from verify.torture.plan import Settings

TRIGGERS_OF_ORDERS = ("plain", "narrow", "flaky", "doomed", LATE)

PAGE = 1_000


class Evidence(msgspec.Struct, kw_only=True):
    """What the store holds in the end, and what processes wrote down."""

    armed_at: float
    """When every schedule was armed."""
    events: int
    """How many events were to be emitted."""
    lines: list[AnyEntry]
    records: list[Record]
    rows: dict[str, list[Task]]
    """The tasks of each pool."""
    waits_for: dict[str, list[float]]
    """The moments that schedules wait for."""
    stale: int = 0


async def gather(
    mp: Millpond, settings: Settings, armed_at: float, lines: list[AnyEntry]
) -> Evidence:
    """Read everything, once the fleet has come to rest."""
    view, stale = internals_of(mp).runtime.view, 0
    rows: dict[str, list[Task]] = {}
    own = [name for name in await view.names("") if not name.startswith(CRON)]
    for name in {*own, *await view.names(TRIGGERS), EVENTS, CRON}:
        seen = await view.pool(name, measured=False)
        stale += 0 if seen is None else seen.stale_settles
        rows[name] = []
        after: int | None = 0
        while after is not None:
            page = await view.tasks(name, after=after, limit=PAGE)
            rows[name] += page.tasks
            after = page.next
    standing = await standing_of(internals_of(mp).runtime)
    return Evidence(
        armed_at=armed_at,
        events=settings.tasks,
        lines=lines,
        records=[record async for record in mp.audit()],
        rows=rows,
        waits_for={name: [one.firing.moment for one in found] for name, found in standing.items()},
        stale=stale,
    )


class Case:
    """The evidence, sorted."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.made = [
            task
            for name, tasks in evidence.rows.items()
            if not name.startswith("~")
            for task in tasks
        ]
        """What schedules and triggers made."""
        self.by_key = Counter(task.new.idempotency_key or "" for task in self.made)
        self.settings = [str(n) for n in range(evidence.events)]
        self.ends = Counter(
            record.task
            for record in evidence.records
            if record.after is not None and record.after.terminal
        )

    def moments(self, schedule: str, pace: float) -> Iterator[float]:
        """Yield the moments at which a schedule had to fire: until the one it waits for."""
        moment = (self.evidence.armed_at // pace + 1) * pace
        until = min(self.evidence.waits_for.get(schedule, [0.0]))
        while moment < until:
            yield moment
            moment += pace

    def fired(self, schedule: str) -> list[float]:
        """Return the moments for which a schedule submitted its task."""
        found = [task.new.labels for task in self.made if task.new.labels.get("cron") == schedule]
        return sorted(_moment(labels["scheduled_at"]) for labels in found)


def judged(evidence: Evidence) -> list[Check]:
    """Return a check for every promise."""
    case = Case(evidence)
    return [
        every_event_is_kept(case),
        every_event_is_one_task_per_trigger(case),
        every_moment_is_fired_once(case),
        every_moment_is_one_event(case),
        no_moment_is_made_up(case),
        one_firing_waits(case),
        everything_ended_once(case),
        nothing_is_left(case),
    ]


def every_event_is_kept(case: Case) -> Check:
    """Each event that was to be emitted is stored once, besides its replays."""
    found: Counter[str] = Counter()
    for task in case.evidence.rows[EVENTS]:
        name, _, rest = (task.new.idempotency_key or "").partition("#")
        if name == ORDER and "#" not in rest:
            found[rest] += 1
    broken = [f"event {n} is stored {found[n]} times" for n in case.settings if found[n] != 1]
    return Check(name="every event is stored, once", seen=len(case.settings), broken=broken)


def every_event_is_one_task_per_trigger(case: Case) -> Check:
    """Each event made one task of each trigger, replayed or not, killed or not."""
    wanted = [f"{name}#{ORDER}#{n}" for name in TRIGGERS_OF_ORDERS for n in case.settings]
    broken = [f"{key} made {case.by_key[key]} tasks" for key in wanted if case.by_key[key] != 1]
    made = {key for key in case.by_key if f"#{ORDER}#" in key}
    broken += [f"{key} was never emitted" for key in made - set(wanted)]
    return Check(name="every event is one task of each trigger", seen=len(wanted), broken=broken)


def every_moment_is_fired_once(case: Case) -> Check:
    """A schedule that leaves nothing out has one task for each moment, to the one it waits for."""
    seen, broken = 0, []
    for schedule, pace in COMPLETE.items():
        wanted = set() if schedule == "pulse" else set(case.moments(schedule, pace))
        fired = Counter(case.fired(schedule))
        seen += len(wanted)
        # A time that was due while the schedule was being armed may or may not have fired.
        wanted |= {at for at in fired if at <= case.evidence.armed_at and not at % pace}
        broken += [
            f"{schedule} fired {fired[at]} times for {at}"
            for at in sorted(wanted | set(fired))
            if at not in wanted or fired[at] != 1
        ]
    return Check(name="every moment of a schedule is fired for, once", seen=seen, broken=broken)


def every_moment_is_one_event(case: Case) -> Check:
    """A schedule that emits has one event for each moment, and its trigger one task for that."""
    found = Counter(
        task.new.idempotency_key for task in case.evidence.rows[EVENTS] if task.new.key == PULSE
    )
    seen, broken = 0, []
    for moment in case.moments("pulse", COMPLETE["pulse"]):
        key = f"{PULSE}#{shown(moment)}"
        seen += 1
        if (found[key], case.by_key[f"pulse#{key}"]) != (1, 1):
            broken.append(f"{key}: {found[key]} events, {case.by_key[f'pulse#{key}']} tasks")
    return Check(name="every moment is one event and its task", seen=seen, broken=broken)


def no_moment_is_made_up(case: Case) -> Check:
    """Schedules that leave out, or change, fire for moments of theirs, and once for each."""
    seen, broken = 0, []
    for schedule, paces in ((LOSSY, (1,)), (CHANGING, (2, 3))):
        fired = Counter(case.fired(schedule))
        seen += len(fired)
        for at, times in fired.items():
            if times != 1 or all(at % pace for pace in paces):
                broken.append(f"{schedule} fired {times} times for {at}")
    return Check(name="no moment is fired for twice, or made up", seen=seen, broken=broken)


def one_firing_waits(case: Case) -> Check:
    """Each schedule waits for one firing, however often it was declared, and changed."""
    names = (*COMPLETE, LOSSY, CHANGING)
    counts = {name: len(case.evidence.waits_for.get(name, ())) for name in names}
    broken = [f"{name} waits for {count} firings" for name, count in counts.items() if count != 1]
    return Check(name="each schedule waits for one firing", seen=len(names), broken=broken)


def everything_ended_once(case: Case) -> Check:
    """Every submitted task completed, and ended once by the audit."""
    broken = [
        f"task {task.new.id} ({task.new.idempotency_key}) is {task.status}, "
        f"ended {case.ends[task.new.id]} times"
        for task in case.made
        if task.status is not Status.COMPLETED or case.ends[task.new.id] != 1
    ]
    return Check(name="every task was done, and ended once", seen=len(case.made), broken=broken)


def nothing_is_left(case: Case) -> Check:
    """No event and no delivery is on its way, or a dead letter."""
    seen, broken = 0, []
    for name, tasks in case.evidence.rows.items():
        if name == EVENTS or name.startswith(TRIGGERS):
            seen += len(tasks)
            broken += [
                f"task {task.new.id} of {name} is {task.status}"
                for task in tasks
                if task.status is not Status.COMPLETED
            ]
    return Check(name="no delivery is left, or dead", seen=seen, broken=broken)


def facts_of(evidence: Evidence) -> dict[str, int]:
    """Return how much happened: a fleet that was not hurt proves nothing."""
    struck = Counter(line.how for line in evidence.lines if isinstance(line, SignalSent))
    fell = Counter(line.how for line in evidence.lines if isinstance(line, StoreFaulted))
    happened = Counter(record.event for record in evidence.records)
    replays = [
        task for task in evidence.rows[EVENTS] if (task.new.idempotency_key or "").count("#") > 1
    ]
    taken = [line for line in evidence.lines if isinstance(line, SubmitConfirmed)]
    return {
        "processes killed": struck["killed"],
        "processes frozen": struck["frozen"],
        "connections cut": fell["cut"],
        "crashes of the server": fell["crash"],
        "leases lost": happened[Transition.LOSE] + happened[Transition.EXHAUST],
        "settles refused": evidence.stale,
        "retries": happened[Transition.RETRY],
        "dead letters redriven": happened[Transition.REDRIVE],
        "events emitted twice": sum(line.duplicate for line in taken),
        "events replayed": len(replays),
        "firings": sum(
            task.status is Status.COMPLETED and task.new.call.function == CRON
            for task in evidence.rows[CRON]
        ),
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
