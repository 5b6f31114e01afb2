"""The auditor: every promise, one check each, over the evidence of a torture.

Nothing here asks a store or a process. A check returns what it looked at and what it found broken,
in words that name the task; evidence that was doctored must make it speak.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status, Transition
from millpond.core.task import CALLBACKS, Fence
from millpond.runtime.error_info import read as read_error
from verify.torture.cancels import Cancel, cancels
from verify.torture.evidence import from_zero
from verify.torture.fleet import result_of
from verify.torture.ledger import (
    AttemptBegan,
    AttemptEnded,
    CallbackRan,
    CancelNoticed,
    CancelRequested,
    IdleMeasured,
    ProcessEnded,
    ResultReceived,
    RunDrained,
    SignalSent,
    StoreFaulted,
    SubmitConfirmed,
    SubmitFailed,
)
from verify.torture.plan import Behaviour, Plan
from verify.torture.recovery import (
    Recovery,
    locked_by_frozen_processes,
    percentile,
    process_lives,
    recoveries,
    write_outages,
    write_pauses,
)
from verify.torture.replay import ENDINGS, Replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.task import Task
    from verify.torture.evidence import Evidence
    from verify.torture.plan import Item
    from verify.torture.replay import LeaseHeld

FEW_QUESTIONS = 10.0
"""Questions in a second that all workers of an idle fleet together ask at most."""

FEW, MANY = 5, 50
"""Cases from which on a median means something, and a 99th percentile."""

CLOCKS = 0.001
"""Seconds by which two readings of one clock may be in the wrong order."""

HEARSAY = 0.25
"""Seconds by which a server's clock may be behind in a process that was kept from hearing it."""

ASKED = (0, -9, -15)
"""Exit codes of processes that the supervisor ended: SIGTERM itself, if sent too early."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise: how many cases were checked, and which broke it."""

    name: str
    seen: int
    broken: list[str]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the auditor found."""

    checks: list[Check]
    facts: dict[str, int | float]
    """Counts that show how hard it was tried."""
    recoveries: list[Recovery]
    cancels: list[Cancel]
    idle: dict[str, float]
    """Statements of idle workers per second, by name."""

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not any(check.broken for check in self.checks)


REPLAYED = {
    "I1": "no start above a limit of pool, key or lane",
    "I2": "tasks move only along the arrows of the lifecycle",
    "I3": "each end is of the fence in force",
    "I4": "lanes start in sequence, one at a time",
    "I5": "charged runs within the attempts",
    "I6": "never more waiting than the bound",
    "I7": "one idempotency key, one task",
    "I9": "fair shares within a turn of each other",
    "I10": "a task's end and its callback are one step",
    "I13": "starts within the rate",
    "due": "nothing started before it was due",
    "clock": "the store's clock never goes back",
}


class Case:
    """The evidence, and what is made of it once for all checks."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.plan = Plan(evidence.settings)
        self.items: dict[int, Item] = {item.n: item for item in self.plan.items}
        self.replay = Replay(evidence.specs)
        self.replay.read(from_zero(evidence.records))
        self.start = evidence.records[0].at if evidence.records else 0.0
        self.behind = CLOCKS if evidence.settings.sees_deaths else HEARSAY
        self.taken = list(evidence.of(SubmitConfirmed))
        self.began = {_fence(line): line for line in evidence.of(AttemptBegan)}
        self.ended = {_fence(line): line for line in evidence.of(AttemptEnded)}

    def wall(self, at: float) -> float:
        """Return a moment of the replay by the wall clock."""
        return self.start + at


def audit(evidence: Evidence) -> Verdict:
    """Hold the evidence against every promise."""
    case = Case(evidence)
    recovered = recoveries(evidence, case.replay)
    cancelled = cancels(evidence, case.replay)
    checks = [
        nothing_lost(case),
        rows_agree(case),
        right_ends(case),
        right_results(case),
        no_zombie_settled(case),
        *replayed(case),
        surplus_runs(case),
        begun_with_a_lease(case),
        poison_ended(case),
        callbacks_ran(case),
        one_task_per_key(case),
        runs_complete(case),
        waiters_got_the_result(case),
        no_process_crashed(case),
        cancelled_tasks_ended(case),
        recovered_in_time(recovered, evidence.settings.recovered_within),
        cancelled_in_time(cancelled, evidence.settings.cancelled_within),
        *idle_workers_were_quiet(case),
    ]
    return Verdict(
        checks=checks, facts=facts(case), recoveries=recovered, cancels=cancelled, idle=idle(case)
    )


# Results of tasks


def nothing_lost(case: Case) -> Check:
    """Every confirmed task is in the store, and has ended."""
    rows = case.evidence.rows
    broken = []
    for line in case.taken:
        row = rows.get(line.task)
        if row is None:
            broken.append(f"task {line.task} (item {line.item}) is gone")
        elif not row.status.terminal:
            broken.append(f"task {line.task} (item {line.item}) is still {row.status}")
    named = {line.item for line in case.taken}
    broken += [f"item {n} was never taken" for n in case.items if n not in named]
    return Check(name="0 lost: every acknowledged task ended", seen=len(case.taken), broken=broken)


def rows_agree(case: Case) -> Check:
    """The rows equal the audit, also for tasks whose submit was not confirmed."""
    rows, broken = case.evidence.rows, []
    for task, fact in case.replay.witness.tasks.items():
        row = rows.get(task)
        status = None if row is None else row.status
        if status is not fact.status or not fact.status.terminal:
            broken.append(f"task {task} is {status}, the audit says {fact.status}")
    unknown = rows.keys() - case.replay.witness.tasks.keys()
    broken += [f"task {task} is held, the audit does not know it" for task in unknown]
    return Check(name="rows and audit agree, all have ended", seen=len(rows), broken=broken)


def right_ends(case: Case) -> Check:
    """Every item ended as the plan says, whatever its processes went through."""
    rows, broken = case.evidence.rows, []
    for line in case.taken:
        row, expected = rows.get(line.task), case.items[line.item].expected
        if row is not None and row.status is not expected:
            broken.append(f"task {line.task} (item {line.item}) is {row.status}, not {expected}")
    return Check(name="each ended as planned", seen=len(case.taken), broken=broken)


def right_results(case: Case) -> Check:
    """The result of a task, or its last error, was made by the very attempt that was settled."""
    ends = {}
    for held in case.replay.held.values():
        if held.end is not None and held.end.event in (Transition.COMPLETE, Transition.FAIL):
            ends[held.fence.task] = held.fence
    item_of = {line.task: line.item for line in case.evidence.of(AttemptBegan)}
    broken, seen = [], 0
    for task, row in case.evidence.rows.items():
        fence = ends.get(task)
        if fence is None or row.new.is_callback:
            continue
        seen += 1
        expected = result_of(item_of.get(task, "unknown"), fence)
        made = _made(row)
        if made != expected:
            broken.append(f"task {task} holds {made!r}, its last attempt made {expected!r}")
    return Check(name="results are of the attempt that was settled", seen=seen, broken=broken)


def _made(row: Task) -> str | None:
    """Return what the handler of a task gave in the end."""
    if row.status is Status.COMPLETED and row.result is not None:
        made: str = msgspec.json.decode(row.result)
        return made
    found = read_error(row.error)
    return None if found is None else found.message


# Who did it


def no_zombie_settled(case: Case) -> Check:
    """A settle was applied only where the handler of that very fence had ended that way before."""
    broken, seen = [], 0
    ways = {Transition.COMPLETE: "returned", Transition.FAIL: "raised", Transition.RETRY: "raised"}
    for held in case.replay.held.values():
        end = held.end
        if end is None or end.event not in ENDINGS:
            continue
        seen += 1
        line = case.ended.get(held.fence)
        where = f"task {held.fence.task} of pool {held.pool}, attempt {held.fence.attempt}"
        if line is None or line.how != ways[end.event]:
            how = "never ended" if line is None else line.how
            broken.append(f"{where}: {end.event} was applied, its handler {how}")
        elif line.wall > case.wall(end.at) + case.behind:
            broken.append(f"{where}: {end.event} was applied before its handler ended")
    return Check(name="0 settles applied by a zombie", seen=seen, broken=broken)


def surplus_runs(case: Case) -> Check:
    """Every run that a handler began has its own fence, and an end that explains the next run."""
    broken: list[str] = []
    times = Counter(_fence(line) for line in case.evidence.of(AttemptBegan))
    for fence, count in times.items():
        held = case.replay.held.get(fence)
        if count > 1:
            broken.append(f"task {fence.task}: attempt {fence.attempt} was begun {count} times")
        if held is None:
            broken.append(f"task {fence.task}: attempt {fence.attempt} ran without a lease")
        elif held.end is None:
            broken.append(f"task {fence.task}: the end of attempt {fence.attempt} is not recorded")
    runs = Counter(fence.task for fence in times)
    surplus = sum(count - 1 for count in runs.values())
    return Check(name="surplus runs explained by records", seen=surplus, broken=broken)


def begun_with_a_lease(case: Case) -> Check:
    """No handler began before the moment at which, by the store's clock, its task was taken.

    No clock is set back, so a store clock ahead of the handlers' has run away.
    """
    broken = []
    for fence, line in case.began.items():
        held = case.replay.held.get(fence)
        early = 0.0 if held is None else case.wall(held.since) - line.wall
        if early > CLOCKS:
            broken.append(f"task {fence.task} began {early:.3f} s before it was taken")
    return Check(name="no handler began before its lease", seen=len(case.began), broken=broken)


def replayed(case: Case) -> list[Check]:
    """Return what the replay of the audit found, one check for each invariant."""
    seen = len(case.evidence.records)
    found = case.replay.broken
    names = {**REPLAYED, **{name: name for name in found if name not in REPLAYED}}
    return [
        Check(name=f"{text} ({invariant})", seen=seen, broken=found.get(invariant, []))
        for invariant, text in names.items()
    ]


# What the plan says besides


def poison_ended(case: Case) -> Check:
    """A task that kills its process ends failed, after all its attempts."""
    broken, seen = [], 0
    for line in case.taken:
        item, row = case.items[line.item], case.evidence.rows.get(line.task)
        if item.behaviour is not Behaviour.POISON or row is None:
            continue
        seen += 1
        if row.status is not Status.FAILED or row.attempt != item.attempts:
            broken.append(f"task {line.task} is {row.status} after {row.attempt} charged runs")
    return Check(name="tasks that kill their process end failed", seen=seen, broken=broken)


def callbacks_ran(case: Case) -> Check:
    """on_complete ran at least once for each task that has one, with the right outcome."""
    found = defaultdict(set)
    for line in case.evidence.of(CallbackRan):
        found[line.task].add(line.status)
    broken, seen = [], 0
    for task, row in case.evidence.rows.items():
        if row.new.on_complete is None:
            continue
        seen += 1
        if found[task] != {str(row.status)}:
            heard = ", ".join(sorted(found[task])) or "nothing"
            broken.append(f"the callback of task {task}, {row.status}, got {heard}")
    return Check(name="callbacks ran, with the right outcome", seen=seen, broken=broken)


def one_task_per_key(case: Case) -> Check:
    """All submitters of one key got the same task, and at most one of them created it."""
    tasks, makers = defaultdict(set), Counter[int]()
    for line in case.taken:
        if case.items[line.item].idempotency_key is not None:
            tasks[line.item].add(line.task)
            makers[line.item] += not line.duplicate
    broken = [f"item {n} has tasks {sorted(ids)}" for n, ids in tasks.items() if len(ids) > 1]
    broken += [f"item {n} was made {count} times" for n, count in makers.items() if count > 1]
    return Check(name="two submitters, one key: one task", seen=len(tasks), broken=broken)


def runs_complete(case: Case) -> Check:
    """Every run visited each page once, and its drain returned then, and not before."""
    reports: dict[str, RunDrained] = {}
    for line in case.evidence.of(RunDrained):
        reports.setdefault(line.run, line)
    tasks = Counter(fact.run for fact in case.replay.witness.tasks.values() if fact.pool == "crawl")
    broken = [
        f"run {run} has {count} tasks" for run, count in tasks.items() if count not in _sizes(case)
    ]
    for web in case.plan.webs:
        report = reports.get(web.name)
        if report is None:
            broken.append(f"{web.name} was never drained")
        elif (report.total, report.completed) != (web.pages, web.pages):
            broken.append(f"{web.name}: {report.completed} of {report.total}, not {web.pages}")
        elif (last := _last_end(case, web.name)) > report.wall + CLOCKS:
            broken.append(f"{web.name} was drained {last - report.wall:.3f} s before its end")
    if len(tasks) != len(case.plan.webs):
        broken.append(f"{len(tasks)} runs, not {len(case.plan.webs)}")
    return Check(name="runs visited each page once", seen=sum(tasks.values()), broken=broken)


def _last_end(case: Case, web: str) -> float:
    """Return when the last page of a run was done, by the wall clock."""
    of_web = {_fence(line) for line in case.began.values() if line.item.partition("/")[0] == web}
    ends = (case.replay.held[fence].end_at for fence in of_web if fence in case.replay.held)
    return case.wall(max(ends, default=0.0))


def _sizes(case: Case) -> set[int]:
    return {web.pages for web in case.plan.webs}


def waiters_got_the_result(case: Case) -> Check:
    """Every waiter got the outcome and the result that the store holds."""
    broken, seen = [], 0
    for line in case.evidence.of(ResultReceived):
        seen += 1
        row = case.evidence.rows.get(line.task)
        if row is None or str(row.status) != line.status:
            held = None if row is None else str(row.status)
            broken.append(f"task {line.task} was reported as {line.status}, it is {held}")
        elif line.status == Status.COMPLETED and line.result != _made(row):
            broken.append(f"task {line.task} was reported to return {line.result!r}")
    return Check(name="waiters got the right result", seen=seen, broken=broken)


# The processes


def no_process_crashed(case: Case) -> Check:
    """No process ended by itself, but for those that a poisoned task killed."""
    poisoned = {
        line.pid
        for line in case.evidence.of(AttemptBegan)
        if line.item.isdecimal() and case.items[int(line.item)].behaviour is Behaviour.POISON
    }
    gone = list(case.evidence.of(ProcessEnded))
    broken = [
        f"{line.role} {line.number} (pid {line.child}) ended with code {line.code}"
        for line in gone
        if not line.expected and not (line.code == -9 and line.child in poisoned)
    ]
    broken += [
        f"{line.role} {line.number} (pid {line.child}) was stopped and ended with {line.code}"
        for line in gone
        if line.expected and line.code not in ASKED
    ]
    return Check(name="no process ended by itself", seen=len(gone), broken=broken)


def cancelled_tasks_ended(case: Case) -> Check:
    """Whatever was cancelled has ended, and as that: its handlers would go on for ever."""
    calls = list(case.evidence.of(CancelRequested))
    broken = []
    for line in calls:
        row = case.evidence.rows.get(line.task)
        status = None if row is None else row.status
        if status is not Status.CANCELLED:
            broken.append(f"task {line.task} was cancelled ({line.way}), it is {status}")
    return Check(name="cancelled tasks ended cancelled", seen=len(calls), broken=broken)


# Time


def recovered_in_time(found: list[Recovery], within: float) -> Check:
    """The leases of a killed worker are taken back in time, in 99 of 100 cases.

    Time counts in which nothing was in the way; where that came in parts, the longest of them.
    """
    return _in_time("recovery of a killed worker", [one.in_peace for one in found], within)


def cancelled_in_time(found: list[Cancel], within: float) -> Check:
    """A running handler notices that it was cancelled elsewhere, and 99 of 100 in time."""
    usual = [one for one in found if not one.stood_still]
    heard = [one.seconds for one in usual if one.seconds < inf]
    check = _in_time("cancel reaches a running handler", heard, within)
    deaf = [f"task {one.task} ({one.way}) never noticed" for one in usual if one.seconds == inf]
    return msgspec.structs.replace(check, seen=len(usual), broken=check.broken + deaf)


def _in_time(what: str, seconds: list[float], within: float) -> Check:
    """Return whether 99 of 100 took no longer.

    Of a few cases, half of them: the slowest of ten says more about the machine than about us, and
    so does any of three.
    """
    part = 0.99 if len(seconds) >= MANY else 0.5
    late = percentile(seconds, part) if len(seconds) >= FEW else 0.0
    broken = [] if late <= within else [f"p{100 * part:g} is {late:.2f} s"]
    return Check(
        name=f"{what}, p{100 * part:g} within {within:g} s", seen=len(seconds), broken=broken
    )


def idle_workers_were_quiet(case: Case) -> list[Check]:
    """Return whether workers with nothing to do left the store in peace, if that was seen."""
    checks = []
    for line in case.evidence.of(IdleMeasured):
        expected = line.transactions / line.seconds
        broken = [] if expected < FEW_QUESTIONS else [f"{expected:.1f} transactions in a second"]
        name = f"{line.workers} idle workers, under {FEW_QUESTIONS:g} transactions a second"
        checks.append(Check(name=name, seen=line.transactions, broken=broken))
    return checks


def idle(case: Case) -> dict[str, float]:
    """Return the statements of idle workers per second, if counted."""
    expected: dict[str, float] = {}
    for line in case.evidence.of(IdleMeasured):
        expected["transactions"] = line.transactions / line.seconds
        if line.statements is not None:
            expected["statements"] = line.statements / line.seconds
    return expected


def facts(case: Case) -> dict[str, int | float]:
    """Return what shows how hard it was tried."""
    evidence, replay = case.evidence, case.replay
    struck = Counter(line.how for line in evidence.of(SignalSent))
    fell = Counter(line.how for line in evidence.of(StoreFaulted))
    lost = {fence: held for fence, held in replay.held.items() if held.lost}
    late = [
        line
        for fence, line in case.ended.items()
        if fence in lost and line.wall > case.wall(lost[fence].end_at)
    ]
    still, locked = write_pauses(evidence), locked_by_frozen_processes(evidence)
    counted: dict[str, int | float] = {
        "tasks": sum(not name.endswith(CALLBACKS) for name in _pools_of(case)),
        "callbacks": sum(name.endswith(CALLBACKS) for name in _pools_of(case)),
        "audit records": len(evidence.records),
        "handler runs": len(case.began),
        "processes killed": struck["killed"],
        "processes frozen": struck["frozen"],
        "processes stopped": struck["stopped"],
        "connections cut by the server": fell["cut"],
        "crashes of the server": fell["crash"],
        "killed by their own task": sum(
            line.code == -9 and not line.expected for line in evidence.of(ProcessEnded)
        ),
        "leases lost": len(lost),
        "handlers that went on after their lease was lost": len(late),
        "leases lost by workers without faults": len(undisturbed(case, lost.values())),
        "stale settles refused": sum(evidence.stale_settles.values()),
        "retries": replay.events[Transition.RETRY],
        "released": replay.events[Transition.RELEASE],
        "duplicates answered": sum(line.duplicate for line in case.taken),
        "submits to be tried again": sum(1 for _ in evidence.of(SubmitFailed)),
        "tasks cancelled while they ran": sum(1 for _ in evidence.of(CancelNoticed)),
        "runs taken up again": sum(line.resumed for line in evidence.of(RunDrained)),
        "times no process wrote": len(still),
        "of these, a frozen process had the lock": len(locked),
        "longest time without a write": round(max((one.seconds for one in still), default=0), 1),
        "torn ledger lines": evidence.torn,
    }
    return counted | {f"met: {limit}": count for limit, count in sorted(replay.reached.items())}


def undisturbed(case: Case, lost: Iterable[LeaseHeld]) -> list[LeaseHeld]:
    """Return leases lost by workers that were neither killed nor frozen, nor kept from writing.

    A worker that the machine gives no time to may lose a lease as well: so this is no promise.
    """
    owners = {life.owner: life for life in process_lives(case.evidence)}
    struck = defaultdict(list)
    for line in case.evidence.of(SignalSent):
        struck[line.child].append(line.wall)
    still = write_outages(case.evidence)
    found = []
    for held in lost:
        life, at = owners.get(held.worker.rpartition("/")[0]), case.wall(held.end_at)
        hit = life is not None and any(fault <= at for fault in struck[life.pid])
        died = life is not None and life.killed_at is not None and life.killed_at <= at
        if not (hit or died or any(one.start <= at <= one.end + 1.0 for one in still)):
            found.append(held)
    return found


def _pools_of(case: Case) -> Iterable[str]:
    return [fact.pool for fact in case.replay.witness.tasks.values()]


def _fence(line: AttemptBegan | AttemptEnded) -> Fence:
    return Fence(line.task, line.attempt, line.token)
