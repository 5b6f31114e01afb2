"""`make mutants`: break the code on purpose, one promise at a time; the simulation must notice.

Each mutant is a mistake that a real library made, or nearly. No scenario is written for any of
them: the general simulation finds them, or it is not good enough.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from millpond.core import settle as core_settle
from millpond.core.admit import Depth, answers_for
from millpond.core.bucket import Bucket
from millpond.core.gate import Gate
from millpond.core.lifecycle import Status, Transition
from millpond.core.order.ring import Ring
from millpond.core.rows import DictRows
from millpond.core.run import Run
from millpond.errors import IllegalTransition
from millpond.store.verbs import budgets, lease, recover, refusals, settle, submit
from millpond.store.verbs import prefetch as ahead
from millpond.store.verbs.tables import Tables
from millpond.testing.simulation.bulkhead_crowd import Crowd
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.seeded import Broken, Lived, kind_of, simulate
from verify.live import simulate_live
from verify.live.mutants import LIVE_MUTANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.core.gate import Ticket
    from millpond.core.lease import Leased, RegisteredWorker
    from millpond.core.rate import Rate
    from millpond.core.settle import Settlement
    from millpond.core.task import Dedupe, Fence, NewTask, Task
    from millpond.store.verbs.tables import PoolTable

MOST_HISTORIES = 5_000
MOST_LIVE = 2_500


@contextmanager
def no_capacity_check() -> Iterator[None]:
    """A worker gets what it asks for, however many run already."""

    def slots(pool: PoolTable, _worker: RegisteredWorker, now: float) -> int:
        return 0 if pool.paused or pool.not_before > now else 1 << 30

    with patch.object(lease, "slots", slots):
        yield


@contextmanager
def grant_at_wake_up() -> Iterator[None]:
    """A freed slot is taken when the waiter wakes up, not when it is freed."""
    decide = Gate._grant

    def count(gate: Gate[Ticket], ticket: Ticket, sign: int) -> None:
        gate.admitted += sign
        gate._excess += sign * (ticket.weight - 1)
        gate._recount()

    def grant(gate: Gate[Ticket]) -> list[Ticket]:
        granted = decide(gate)
        for ticket in granted:
            count(gate, ticket, -1)
        return granted

    def wake(crowd: Crowd, caller: Ticket) -> None:
        count(crowd.gate, caller, 1)
        crowd.inside.append(caller)

    with (
        patch.object(Gate, "_grant", grant),
        patch.object(Crowd, "wake", wake),
        # Its count is late by design; it must be found by what that leads to.
        patch.object(Crowd, "count_is_true", lambda *_: None),
    ):
        yield


@contextmanager
def no_fence() -> Iterator[None]:
    """A settle is applied to whatever task it names."""
    with patch.object(settle, "is_current", lambda _task, _fence: True):
        yield


@contextmanager
def fence_by_state_only() -> Iterator[None]:
    """A settle is applied to a running task, whichever worker runs it."""
    with patch.object(settle, "is_current", lambda task, _: task.status is Status.RUNNING):
        yield


@contextmanager
def ring_reset_when_a_key_drains() -> Iterator[None]:
    """When a key has nothing left, the turns start over from the first key."""
    leave = Ring.leave

    def leave_and_reset(ring: Ring, share: str | None, owner: str | None) -> None:
        leave(ring, share, owner)
        if share in ring:
            return
        assert isinstance(ring._seats, DictRows)
        for other, seat in ring._seats.items():
            if seat.owners:
                seat.turn = int(ring.passed[0])
            for one in seat.owners:
                ring._audiences[one].set(other, seat.place)

    with patch.object(Ring, "leave", leave_and_reset):
        yield


@contextmanager
def depth_check_outside_the_lock() -> Iterator[None]:
    """The depth is read before the transaction that inserts: it may be that of a moment ago."""
    count = refusals.depth
    before: dict[tuple[int, str | None], Depth] = {}

    def stale_depth(pool: PoolTable, key: str | None) -> Depth:
        seen = count(pool, key)
        return before.setdefault((id(pool), key), seen) if seen.pool else seen

    def forget(tables: Tables, entropy: int) -> None:
        if entropy % 2:
            before.clear()
        begin(tables, entropy)

    begin = Tables.begin
    with (
        patch.object(submit, "depth", stale_depth),
        patch.object(refusals, "depth", stale_depth),
        patch.object(Tables, "begin", forget),
    ):
        yield


@contextmanager
def idempotency_checked_once_before_a_wait() -> Iterator[None]:
    """A submitter that had to wait inserts without looking at its key again."""
    find, refuse = submit.holder_of_key, refusals._full
    waited: set[int] = set()

    def find_once(tables: Tables, pool: PoolTable, new: NewTask, **named: Any) -> Any:  # noqa: ANN401 - as the original
        return None if new.id in waited else find(tables, pool, new, **named)

    def refuse_and_note(pool: PoolTable, fresh: Any) -> Any:  # noqa: ANN401 - as the original
        refusal = refuse(pool, fresh)
        if refusal is not None:
            waited.update(new.id for new in fresh)
        return refusal

    with (
        patch.object(submit, "holder_of_key", find_once),
        patch.object(refusals, "_full", refuse_and_note),
    ):
        yield


@contextmanager
def lost_wake_up_on_retry() -> Iterator[None]:
    """A retry goes back to the queue without a word to the workers."""
    move = Tables.move

    def move_quietly(
        tables: Tables, task: Task, event: Transition, now: float, *, cause: int | None = None
    ) -> None:
        said = dict(tables._wakes)
        move(tables, task, event, now, cause=cause)
        if event is Transition.RETRY:
            tables._wakes = said

    with patch.object(Tables, "move", move_quietly):
        yield


@contextmanager
def attempts_counted_at_settle() -> Iterator[None]:
    """An attempt is charged when it is settled: one that never is costs nothing."""
    lose = recover.lose

    def lose_for_free(tables: Tables, task: Task, now: float) -> None:
        task.attempt -= 1
        lose(tables, task, now)

    with patch.object(recover, "lose", lose_for_free):
        yield


@contextmanager
def run_ended_on_a_transient_empty() -> Iterator[None]:
    """A run is over as soon as it is seen empty, though a handler's follow-ups are on their way."""
    apply = settle._apply

    def apply_late(
        tables: Tables, task: Task, settlement: Settlement, now: float
    ) -> tuple[submit.Accepted, ...]:
        apply(tables, task, msgspec.structs.replace(settlement, follow_ups=()), now)
        tables.end(now)
        late = settlement.follow_ups if settlement.event is Transition.COMPLETE else ()
        return tuple(submit.follow_up(tables, new, now) for new in late)

    with patch.object(settle, "_apply", apply_late):
        yield


@contextmanager
def claims_ahead_not_counted_per_key() -> Iterator[None]:
    """What a worker holds ahead does not count for the limit of its key until it starts."""
    claim, start, drop = Tables.claim, Tables.start_claim, Tables.drop_claim

    def claim_uncounted(
        tables: Tables, task: Task, worker: RegisteredWorker, token: int, now: float
    ) -> None:
        claim(tables, task, worker, token, now)
        tables.pools.require(task.new.pool).backlog.finish(task.unit)

    def count(tables: Tables, task: Task) -> None:
        backlog, unit = tables.pools.require(task.new.pool).backlog, task.unit
        if unit is not None and backlog.grouped:
            backlog._unit(unit).running += 1
        elif unit is not None:
            backlog._running[unit] = backlog._running.get(unit, 0) + 1

    def start_counted(tables: Tables, task: Task, now: float) -> None:
        count(tables, task)
        start(tables, task, now)

    def drop_counted(tables: Tables, task: Task, now: float, *, rate: bool) -> None:
        count(tables, task)
        drop(tables, task, now, rate=rate)

    with (
        patch.object(Tables, "claim", claim_uncounted),
        patch.object(Tables, "start_claim", start_counted),
        patch.object(Tables, "drop_claim", drop_counted),
    ):
        yield


@contextmanager
def claims_ahead_lost_for_free() -> Iterator[None]:
    """A claim whose worker is lost is not charged, though it may have started."""

    def drop_only(tables: Tables, task: Task, now: float) -> None:
        tables.drop_claim(task, now, rate=False)

    with patch.object(recover, "charge", drop_only):
        yield


@contextmanager
def claims_ahead_take_no_token() -> Iterator[None]:
    """The rate counts what is started from the queue, and not what is held ahead first."""
    claim_ahead = lease._claim_ahead

    def claim_for_free(tables: Tables, pool: PoolTable, *rest: Any) -> tuple[Leased, ...]:  # noqa: ANN401 - as the original
        before = deepcopy(pool.buckets)
        claimed = claim_ahead(tables, pool, *rest)
        pool.buckets = before
        return claimed

    with patch.object(lease, "_claim_ahead", claim_for_free):
        yield


@contextmanager
def starts_without_a_slot() -> Iterator[None]:
    """A claim is started on its worker's word, whether or not there is a slot for it."""
    begin = ahead.begin

    def begin_anyway(tables: Tables, fence: Fence, _slot: object, now: float) -> bool:
        task = tables.tasks.get(fence.task)
        own = None if task is None else (task.new.pool, task.worker)
        return begin(tables, fence, own, now)

    with patch.object(ahead, "begin", begin_anyway):
        yield


@contextmanager
def refunds_twice() -> Iterator[None]:
    """A weight that was not used is given back whole, though time has given some of it back."""

    def refund(self: Bucket, rate: Rate, cost: int, _since: float, _now: float) -> None:
        self.give_back(rate, cost)

    with patch.object(Bucket, "refund", refund):
        yield


@contextmanager
def budget_counts_no_task() -> Iterator[None]:
    """A budget that pools share looks at none of them."""

    def none(_tables: Tables, _budget: object) -> int:
        return 0

    with patch.object(budgets, "running", none):
        yield


@contextmanager
def only_attempt_given_back() -> Iterator[None]:
    """A task with one attempt goes back to the queue after its handler began."""
    with patch.object(core_settle, "ends_the_only_attempt", lambda *_: False):
        yield


@contextmanager
def callback_at_each_end_of_a_run() -> Iterator[None]:
    """A run that a redriven task ends once more calls back once more."""
    with patch.object(Run, "to_call", property(lambda run: run.new.on_complete)):
        yield


@contextmanager
def callback_of_a_run_lost_with_its_holder() -> Iterator[None]:
    """A run that ends by the loss of a worker, and not by a settle, does not call back."""
    call_back = Tables._call_back

    def call_back_of_settles(tables: Tables, run: Run, now: float) -> None:
        if tables.endings.ended():
            call_back(tables, run, now)

    with patch.object(Tables, "_call_back", call_back_of_settles):
        yield


@contextmanager
def joins_what_a_worker_holds() -> Iterator[None]:
    """A key of waiting tasks is answered with one that a worker has read already."""

    def joined(dedupe: Dedupe, status: Status, **_: bool) -> bool:
        return answers_for(dedupe, status)

    with patch.object(submit, "answers_for", joined):
        yield


@contextmanager
def update_keeps_the_old_arguments() -> Iterator[None]:
    """An update changes the place of a task, and its next attempt gets the arguments of before."""
    update = Tables.update

    def keep(tables: Tables, old: Task, new: NewTask, *given: Any, **named: Any) -> Task:  # noqa: ANN401 - as the original
        return update(tables, old, msgspec.structs.replace(new, call=old.new.call), *given, **named)

    with patch.object(Tables, "update", keep):
        yield


MUTANTS: tuple[Callable[[], Any], ...] = (
    joins_what_a_worker_holds,
    update_keeps_the_old_arguments,
    no_capacity_check,
    grant_at_wake_up,
    no_fence,
    fence_by_state_only,
    ring_reset_when_a_key_drains,
    depth_check_outside_the_lock,
    idempotency_checked_once_before_a_wait,
    lost_wake_up_on_retry,
    attempts_counted_at_settle,
    run_ended_on_a_transient_empty,
    claims_ahead_not_counted_per_key,
    claims_ahead_lost_for_free,
    claims_ahead_take_no_token,
    starts_without_a_slot,
    refunds_twice,
    budget_counts_no_task,
    only_attempt_given_back,
    callback_at_each_end_of_a_run,
    callback_of_a_run_lost_with_its_holder,
)


WORLDS: dict[str, Callable[[int], Lived]] = {"store": simulate, "live": simulate_live}

HUNTS = (
    *(("store", mutant.__name__) for mutant in MUTANTS),
    *(("live", mutant.__name__) for mutant in (*MUTANTS, *LIVE_MUTANTS)),
)
"""Which kind of world hunts which mutant."""


class Hunt(msgspec.Struct):
    """How long a mutant lived."""

    world: str
    mutant: str
    histories: int
    found: str | None


def hunt(name: str, first: int = 0, most: int = MOST_HISTORIES, *, world: str = "store") -> Hunt:
    """Simulate with a mutant in place until a promise breaks."""
    mutant = next(one for one in (*MUTANTS, *LIVE_MUTANTS) if one.__name__ == name)
    live_through = WORLDS[world]
    with ExitStack() as stack:
        stack.enter_context(mutant())
        for tried in range(most):
            try:
                live_through(first + tried)
            except Broken as broken:
                if not isinstance(broken.cause, (Violated, IllegalTransition)):
                    raise  # The mutant itself does not work: that is no find.
                found = f"{kind_of(broken.cause)} at seed {broken.seed}"
                return Hunt(world, name, tried + 1, found)
    return Hunt(world, name, most, None)


def hunt_in(where: tuple[str, str]) -> Hunt:
    """Hunt a mutant in a kind of world."""
    world, name = where
    return hunt(name, most=MOST_HISTORIES if world == "store" else MOST_LIVE, world=world)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", help="hunt just this one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    hunts = [one for one in HUNTS if given.only in (None, one[1])]
    survivors = 0
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for result in pool.imap(hunt_in, hunts):
            fate = f"found by {result.found}" if result.found else "SURVIVED"
            what = f"{result.world:6}{result.mutant:42}"
            print(f"{what}{result.histories:>6} histories   {fate}", flush=True)
            survivors += result.found is None
    print(f"{len(hunts) - survivors} of {len(hunts)} mutants found")
    return 1 if survivors or not hunts else 0


if __name__ == "__main__":
    sys.exit(main())
