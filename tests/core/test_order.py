"""The backlog against a reference that sorts plain lists, its timers, memory and cost."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.making import queued, seats

from millpond.core import rate as gcra
from millpond.core.order.backlog import Backlog
from millpond.core.order.groups import Unit
from millpond.core.order.rank import lane_of, rank
from millpond.core.order.ring import Share
from millpond.core.rate import Rate
from millpond.core.spec import (
    OrderKind,
    PoolSpec,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from millpond.core.task import Task

WEIGHTS = {"acme": 2.0, "bolt": 0.5}


def spec(**options: Any) -> PoolSpec:
    """A pool named `p`."""
    return PoolSpec(**{"name": "p", **options})


PLAIN = [
    spec(order=fifo()),
    spec(order=fifo(), max_per_key=1),
    spec(order=lifo(), max_per_key=2),
    spec(order=priority(), max_per_key=1),
    spec(order=priority(aging=2.0), max_per_key=2),
]
FAIR = [
    spec(order=fair_round_robin()),
    spec(order=fair_round_robin(weights=WEIGHTS), max_per_key=1),
    spec(order=fair_round_robin(), max_per_key=2),
]
RATED = [
    spec(order=fifo(), rate_per_key=Rate(1, per=2.0, burst=2)),
    spec(order=priority(), rate_per_key=Rate(4, per=1.0, burst=1)),
    spec(order=lifo(), rate_per_key=Rate(2, per=1.0, burst=1), max_per_key=2),
    spec(order=fair_round_robin(), rate_per_key=Rate(2, per=1.0, burst=1), max_per_key=2),
]
STRICT = [
    spec(order=fifo(), lanes=3, max_concurrent=3),
    spec(order=fair_round_robin(), lanes=2, max_concurrent=2),
    spec(order=fifo(), ordered=True),
    spec(order=fair_round_robin(weights=WEIGHTS), ordered=True),
]


class Reference:
    """Tasks that may start, and the next one, by definition: it checks every task every time."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.tasks: dict[int, Task] = {}
        self.running: list[Unit] = []
        self.paused: set[Unit] = set()
        self.blocked: set[Unit] = set()
        self.not_before: dict[Unit, float] = {}
        self.tats: dict[Unit, int] = {}
        self.places: dict[Share, tuple[int, int]] = {}
        self.present: set[Share] = set()
        self.passed = (0, 0)
        self.joins = 0

    def share(self, task: Task) -> Share:
        """The partition of a fair pool: its lane where lanes are strict."""
        if self.spec.order.kind is not OrderKind.FAIR:
            return None
        return task.unit if self.spec.strict else task.new.share

    def opens_at(self, task: Task) -> float | None:
        """The moment from which nothing but time keeps a task; None if something else does."""
        unit = task.unit
        if unit in self.paused or unit in self.blocked:
            return None
        limit = self.spec.unit_limit
        if unit is not None and limit is not None and self.running.count(unit) >= limit:
            return None
        if self.spec.strict and unit is not None:
            lane = [other for other in self.tasks.values() if other.unit == unit]
            if task.seq != min(other.seq for other in lane):
                return None
        return max(task.due, self.not_before.get(unit, 0.0))

    def eligible(self, now: float) -> list[Task]:
        """Everything that could start now."""
        moments = [(self.opens_at(task), task) for task in self.tasks.values()]
        return [task for moment, task in moments if moment is not None and moment <= now]

    def next_moment(self, now: float) -> float | None:
        """When time alone makes something startable that is not."""
        moments = [self.opens_at(task) for task in self.tasks.values()]
        return min((m for m in moments if m is not None and m > now), default=None)

    def pick(self, owner: str | None, now: float) -> Task | None:
        """Eligible, then whose turn it is in the ring, then lowest (rank, seq)."""
        mine = [task for task in self.eligible(now) if task.new.owner in (None, owner)]
        return min(
            mine,
            key=lambda task: (self.places[self.share(task)], task.rank, task.seq),
            default=None,
        )

    def start(self, task: Task, now: float) -> None:
        """A task runs: its share's turn is over, its key is charged."""
        share, unit = self.share(task), task.unit
        if self.spec.order.kind is OrderKind.FAIR:
            turn, join = self.places[share]
            self.passed = max(self.passed, (turn, join))
            self.places[share] = (self.passed[0] + self.spec.order.stride(share), join)
        del self.tasks[task.new.id]
        self.running.append(unit)
        limit = self.spec.rate_per_key
        if limit is not None and unit is not None:
            self.tats[unit] = gcra.take(limit, self.tats.get(unit, 0), 1, now)
            ready = gcra.ready_at(limit, self.tats[unit], 1, now)
            self.not_before[unit] = max(self.not_before.get(unit, 0.0), ready)

    def settle_ring(self, now: float, joined: dict[Share, int]) -> None:
        """Let shares in and out; among those that come in at once, in the order of `joined`."""
        present = {self.share(task) for task in self.eligible(now)}
        for share in sorted(present - self.present, key=lambda s: joined.get(s, 0)):
            if self.places.get(share, (0, 0)) <= self.passed:
                self.joins += 1
                self.places[share] = (self.passed[0], self.joins)
        self.present = present


KEYS = st.sampled_from([None, "acme", "acme", "bolt"])
UNITS = st.sampled_from(["acme", "bolt", "0", "1"])
WAITS = st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 3.0])
RARELY = st.sampled_from([False, False, True])


class BacklogMachine(RuleBasedStateMachine):
    """Tasks come, start, finish and go, under pauses, holds and blocks, as time passes."""

    specs: ClassVar[list[PoolSpec]] = PLAIN
    owners: ClassVar[bool] = True

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        """One pool of the family."""
        chosen = data.draw(st.sampled_from(self.specs))
        self.now = 100.0
        self.seq = 0
        self.log = Backlog(chosen)
        self.ref = Reference(chosen)

    def after(self) -> None:
        """One step is over: what it touched takes its place."""
        self.log.flush(self.now)
        joined = {share: seat.joined for share, seat in seats(self.log._ring).items()}
        self.ref.settle_ring(self.now, joined)

    @rule(
        key=KEYS,
        shares=st.lists(st.sampled_from([None, "acme", "bolt"]), min_size=1, max_size=3),
        level=st.integers(-2, 2),
        delay=WAITS,
        owner=st.sampled_from([None, None, None, "me"]),
    )
    def add(
        self, key: str | None, shares: list[Share], level: int, delay: float, owner: str | None
    ) -> None:
        """Tasks of one key are submitted, perhaps for later, perhaps for one owner."""
        for share in shares:
            self.seq += 1
            task = queued(
                self.log.spec,
                self.seq,
                now=self.now,
                due=self.now + delay,
                key=key,
                share=share,
                priority=level,
                owner=owner if self.owners else None,
            )
            self.log.add(task, self.now)
            self.ref.tasks[self.seq] = task
            self.after()

    @precondition(lambda self: self.ref.tasks)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        """A queued task is cancelled, wherever it stands."""
        identifier = data.draw(st.sampled_from(sorted(self.ref.tasks)))
        self.log.discard(self.ref.tasks.pop(identifier))
        self.after()

    @rule(owner=st.sampled_from([None, "me", "you"]), times=st.integers(1, 3))
    def start(self, owner: str | None, times: int) -> None:
        """Whatever is next starts; the reference has picked the same."""
        for _ in range(times):
            task = self.log.peek(owner)
            picked = self.ref.pick(owner, self.now)
            assert (picked and picked.seq) == (task and task.seq)
            if task is None:
                return
            self.ref.start(task, self.now)
            self.log.start(task, self.now)
            self.after()

    @precondition(lambda self: self.ref.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A running task ends."""
        index = data.draw(st.integers(0, len(self.ref.running) - 1))
        self.log.finish(self.ref.running.pop(index))
        self.after()

    @rule(wait=WAITS)
    def pass_time(self, wait: float) -> None:
        """Time passes, and what became due is made ready."""
        self.now += wait
        self.log.promote(self.now)
        self.after()

    @rule()
    def sleep_until_the_next_moment(self) -> None:
        """No task can start before that moment; then one can, or the next moment is later."""
        moment = self.log.next_moment()
        sooner = self.ref.next_moment(self.now)
        assert sooner is None or (moment is not None and moment <= sooner)
        if moment is None:
            return
        assert moment > self.now
        self.now = moment
        self.log.promote(self.now)
        self.after()
        again = self.log.next_moment()
        assert again is None or again > moment

    @rule(unit=UNITS, order=st.sampled_from(["pause", "block", "hold"]), on=RARELY, wait=WAITS)
    def stop(self, unit: str, order: str, on: bool, wait: float) -> None:
        """A lane or key is paused or resumed, blocked or freed, or held back for a while."""
        if order == "pause":
            self.log.pause(unit, paused=on)
            (self.ref.paused.add if on else self.ref.paused.discard)(unit)
            if not on:
                self.ref.not_before.pop(unit, None)
        elif order == "block":
            self.log.block(unit, blocked=on)
            (self.ref.blocked.add if on else self.ref.blocked.discard)(unit)
        else:
            self.log.hold(unit, self.now + wait)
            self.ref.not_before[unit] = max(self.ref.not_before.get(unit, 0.0), self.now + wait)
        self.after()

    @precondition(lambda self: not self.log.spec.strict)
    @rule(limit=st.sampled_from([None, 1, 2]))
    def respec(self, limit: int | None) -> None:
        """The limit per key changes under the backlog."""
        changed = msgspec.structs.replace(self.log.spec, max_per_key=limit)
        self.log.respec(changed)
        self.ref.spec = changed
        self.after()

    @invariant()
    def same_as_the_reference(self) -> None:
        """For every owner the next task is that of the reference, and so are all startable ones."""
        assert len(self.ref.tasks) == len(self.log)
        eligible = {task.seq for task in self.ref.eligible(self.now) if task.new.owner is None}
        assert eligible == {task.seq for task in self.log.startable(None, self.now)}
        for owner in (None, "me"):
            task, picked = self.log.peek(owner), self.ref.pick(owner, self.now)
            assert (picked and picked.seq) == (task and task.seq)

    def teardown(self) -> None:
        """When everything has left and every order is lifted, nothing is kept."""
        if not hasattr(self, "log"):
            return
        for task in list(self.ref.tasks.values()):
            self.log.discard(task)
        for unit in self.ref.running:
            self.log.finish(unit)
        for unit in {*self.ref.paused, *self.ref.blocked}:
            self.log.block(unit, blocked=False)
            self.log.pause(unit, paused=False)
        self.log.flush(self.now)
        self.log.flush(self.now + 1000.0)
        assert kept(self.log) == 0


def kept(log: Backlog) -> int:
    """How much a backlog holds beyond what the ring must remember."""
    seated = [share for share in seats(log._ring) if share in log._ring]
    parts: list[Any] = [log, log._units.items(), log._shares, seated, log._ring._audiences]
    heaps = [log._delayed.all(), log._unit_timers.entries, log._fading.entries]
    noted = [log._touched, log._touched_units, log._running]
    return sum(map(len, [*parts, *heaps, *noted, *log._lines.values(), [*log]]))


class FairMachine(BacklogMachine):
    """Fair pools."""

    specs = FAIR


class RatedMachine(BacklogMachine):
    """Pools with a rate per key."""

    specs = RATED


class StrictMachine(BacklogMachine):
    """Pools with lanes, by number or by key."""

    specs = STRICT
    owners = False


TestPlain = BacklogMachine.TestCase
TestFair = FairMachine.TestCase
TestRated = RatedMachine.TestCase
TestStrict = StrictMachine.TestCase
TestPlain.settings = TestFair.settings = settings(max_examples=80, stateful_step_count=30)
TestRated.settings = TestStrict.settings = settings(max_examples=80, stateful_step_count=30)


@given(st.integers(-9, 9), st.floats(0, 1e6), st.integers(1, 10**9))
def test_ranks_are_fixed_and_say_the_order(level: int, at: float, seq: int) -> None:
    """fifo and fair go by seq, lifo against it, priority by priority, aging by both."""
    aged = rank(priority(aging=5.0), level, at, seq)
    assert 0 == rank(fifo(), level, at, seq) == rank(fair_round_robin(), level, at, seq)
    assert -seq == rank(lifo(), level, at, seq)
    assert -level == rank(priority(), level, at, seq)
    assert abs((at - level * 5.0) * 1e6 - aged) <= 1
    assert isinstance(aged, int)


def test_aging_overtakes_exactly_those_it_should() -> None:
    """One step of priority is worth `aging` seconds of waiting, no more and no less."""
    order = priority(aging=10.0)
    old = rank(order, 0, 100.0, 1)
    assert rank(order, 1, 109.0, 2) < old
    assert rank(order, 1, 111.0, 3) > old


def test_lanes_are_stable_and_even() -> None:
    """A key has the same lane in every process and release, and keys spread over the lanes."""
    assert ["6", "7", "7"] == [lane_of(key, 8) for key in ("acme", "bolt", "c\u00f6rd")]
    lanes = [lane_of(f"key-{n}", 8) for n in range(8000)]
    assert {str(n) for n in range(8)} == set(lanes)
    assert all(850 < lanes.count(str(n)) < 1150 for n in range(8))


def test_a_delayed_task_rejoins_at_its_original_place() -> None:
    """When it is due it stands before tasks that were submitted later."""
    log = Backlog(spec(order=fifo()))
    log.add(queued(log.spec, 1, due=5.0), 0.0)
    log.add(queued(log.spec, 2), 0.0)
    log.flush(0.0)
    assert 2 == peeked(log)
    log.promote(5.0)
    assert 1 == peeked(log)


def test_a_delay_blocks_its_lane_and_only_its_lane() -> None:
    """In a strict lane what is behind waits too; the other lane goes on."""
    log = Backlog(spec(order=fifo(), ordered=True))
    log.add(queued(log.spec, 1, key="a", due=5.0), 0.0)
    log.add(queued(log.spec, 2, key="a"), 0.0)
    log.add(queued(log.spec, 3, key="b"), 0.0)
    log.flush(0.0)
    assert (3, 5.0) == (peeked(log), log.next_moment())
    log.promote(5.0)
    assert 1 == peeked(log)


def test_cancelling_a_waiting_head_frees_its_lane() -> None:
    """The next of the lane is startable at once, without waiting for the head's time."""
    log = Backlog(spec(order=fifo(), ordered=True))
    head = queued(log.spec, 1, key="a", due=5.0)
    log.add(head, 0.0)
    log.add(queued(log.spec, 2, key="a"), 0.0)
    log.flush(0.0)
    assert peeked(log) is None
    log.discard(head)
    log.flush(0.0)
    assert (2, None) == (peeked(log), log.next_moment())


def peeked(log: Backlog, owner: str | None = None) -> int | None:
    """The id of what is next."""
    task = log.peek(owner)
    return None if task is None else task.new.id


def calls(work: Callable[[], None]) -> int:
    """How many function calls a piece of work makes: its cost, without a clock."""
    count = 0

    def tally(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def filled(chosen: PoolSpec, size: int, keys: int) -> Backlog:
    """A backlog of `size` tasks over `keys` keys, a tenth of them for later."""
    log = Backlog(chosen)
    for seq in range(1, size + 1):
        key = f"k{seq * 7919 % keys}"
        due = 1e6 + seq if seq % 10 == 0 else 0.0
        log.add(queued(chosen, seq, key=key, share=key, due=due, priority=seq % 5), 0.0)
    log.flush(0.0)
    return log


def churn(log: Backlog, first: int) -> None:
    """Two hundred starts, submits, ends and cancellations."""
    running: list[Unit] = []
    for n in range(200):
        task = log.peek(None)
        assert task is not None
        log.promote(0.0)
        log.start(task, 0.0)
        running.append(task.unit)
        added = [
            queued(log.spec, first + 2 * n + i, key=f"k{n + i}", share=f"k{n + i}") for i in (0, 1)
        ]
        for one in added:
            log.add(one, 0.0)
        log.discard(added[1])
        if len(running) > 5:
            log.finish(running.pop(0))
        log.flush(0.0)
        log.next_moment()


@pytest.mark.parametrize(
    "chosen",
    [
        spec(order=fifo()),
        spec(order=priority(), max_per_key=2),
        spec(order=lifo()),
        spec(order=fair_round_robin(), max_per_key=2),
        spec(order=fair_round_robin(weights={"k1": 3.0}), ordered=True),
    ],
    ids=["fifo", "priority", "lifo", "fair", "ordered"],
)
def test_an_operation_costs_the_same_on_a_long_queue(chosen: PoolSpec) -> None:
    """Twenty times the tasks and a hundred times the keys: less than twice the calls."""
    small = filled(chosen, 1_000, 100)
    large = filled(chosen, 20_000, 10_000)
    few, many = calls(lambda: churn(small, 10**6)), calls(lambda: churn(large, 10**6))
    assert many < 2 * few


RATED_FAIR = spec(order=fair_round_robin(), rate_per_key=Rate(2, per=1.0, burst=1))


def test_a_timer_belongs_to_a_key_and_not_to_one_share_of_it() -> None:
    """Emptying one share's group keeps the moment for which the other share's task waits."""
    log = Backlog(RATED_FAIR)
    first, second, other = (
        queued(log.spec, seq, key="k", share=share) for seq, share in enumerate("aab", 1)
    )
    for task in (first, second, other):
        log.add(task, 0.0)
    log.flush(0.0)
    log.start(first, 0.0)
    log.discard(second)
    log.flush(0.0)
    assert (None, 0.5) == (peeked(log), log.next_moment())
    log.promote(0.5)
    assert 3 == peeked(log)


def test_a_timer_goes_with_the_last_task_of_its_key() -> None:
    """When no share has a task of the key left there is nothing to wait for."""
    log = Backlog(RATED_FAIR)
    tasks = [queued(log.spec, seq, key="k", share=share) for seq, share in enumerate("aab", 1)]
    for task in tasks:
        log.add(task, 0.0)
    log.flush(0.0)
    log.start(tasks[0], 0.0)
    for task in tasks[1:]:
        log.discard(task)
    log.flush(0.0)
    assert log.next_moment() is None


def test_a_key_seen_once_is_forgotten_when_its_rate_is() -> None:
    """Its bucket is remembered until it is full again, and then nothing is."""
    log = Backlog(RATED_FAIR)
    for seq in range(1, 101):
        task = queued(log.spec, seq, key=f"k{seq}", share="a")
        log.add(task, 0.0)
        log.flush(0.0)
        log.start(task, 0.0)
        log.finish(task.unit)
        log.flush(0.0)
    assert 100 == len([*log._units.items()])
    log.flush(0.5)
    assert (0, 0) == (len([*log._units.items()]), kept(log))


@pytest.mark.parametrize(
    "chosen",
    [
        spec(order=fair_round_robin()),
        spec(order=fair_round_robin(), max_per_key=2),
        RATED_FAIR,
    ],
    ids=["fair", "limited", "rated"],
)
def test_a_start_without_a_key_touches_one_share(chosen: PoolSpec) -> None:
    """Tasks without a key share no limit: what a start costs does not grow with the shares."""

    def of_shares(shares: int) -> Backlog:
        log = Backlog(chosen)
        for seq in range(1, 2 * shares + 1):
            log.add(queued(chosen, seq, share=f"s{seq % shares}"), 0.0)
        log.flush(0.0)
        return log

    def serve(log: Backlog) -> None:
        for _ in range(50):
            task = log.peek(None)
            assert task is not None
            log.start(task, 0.0)
            log.finish(task.unit)
            log.flush(0.0)

    small, large = of_shares(100), of_shares(2_000)
    few, many = calls(lambda: serve(small)), calls(lambda: serve(large))
    assert many < 2 * few
