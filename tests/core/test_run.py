"""Runs: counted in the step of their tasks, over when nothing is left."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, Run, view

ENDED = st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED])


def new_run(*, max_tasks: int | None = None, holders: tuple[str, ...] = ()) -> Run:
    """A run of pool `p`."""
    return Run(new=NewRun(id=7, pool="p", max_tasks=max_tasks), opened_at=0.0, holders={*holders})


class RunMachine(RuleBasedStateMachine):
    """Tasks and callbacks join, end and come back; a set of live ones says when it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.run = new_run(max_tasks=20, holders=("a", "b"))
        self.live: list[bool] = []
        self.ended: list[tuple[Status, bool]] = []
        self.total = 0

    @rule(counted=st.booleans())
    def join(self, counted: bool) -> None:
        """A task, or a callback, which is waited for but not counted."""
        if not self.run.finished:
            self.run.joined(counted=counted)
            self.live.append(counted)
            self.total += counted

    @precondition(lambda self: self.live)
    @rule(status=ENDED)
    def end(self, status: Status) -> None:
        """The oldest ends."""
        counted = self.live.pop(0)
        self.run.left(status, counted=counted)
        self.ended.append((status, counted))

    @precondition(lambda self: self.ended)
    @rule()
    def redrive(self) -> None:
        """The one that ended last comes back, and opens the run again."""
        status, counted = self.ended.pop()
        self.run.revived(status, counted=counted)
        self.live.append(counted)
        assert not self.run.finished

    @rule(holder=st.sampled_from(["a", "b"]))
    def seal(self, holder: str) -> None:
        """A holder lets go."""
        self.run.holders.discard(holder)

    @rule(now=st.floats(1, 100))
    def close(self, now: float) -> None:
        """It closes exactly when it has no live task and no holder, and only once."""
        due = not self.live and not self.run.holders and not self.run.finished
        assert due == self.run.close_if_done(now)
        assert not self.run.close_if_done(now)

    @invariant()
    def counts_agree(self) -> None:
        """Live, total, room and the outcomes count the tasks that joined and left."""
        assert len(self.live) == self.run.live
        assert self.total == self.run.total
        assert 20 - self.total == self.run.room()
        for status in Status:
            count = sum(1 for one, counted in self.ended if counted and one is status)
            assert count == self.run.ended.get(status, 0)


TestRun = RunMachine.TestCase


def test_a_run_without_tasks_is_over_when_sealed() -> None:
    """An empty seed ends at once; a holder keeps even an empty run open."""
    assert new_run().close_if_done(3.0)
    held = new_run(holders=("me",))
    assert not held.close_if_done(3.0)
    held.holders.discard("me")
    assert held.close_if_done(4.0)
    assert 4.0 == held.finished_at


def test_two_runs_share_nothing() -> None:
    """The defaults of one run are not the defaults of another."""
    one, other = new_run(), new_run()
    one.joined(counted=True)
    one.left(Status.FAILED, counted=True)
    one.holders.add("me")
    assert (set(), {}, 0) == (other.holders, other.ended, other.total)


def test_a_budget_is_room_for_more() -> None:
    """No budget is no limit; a budget shrinks with each task, not with a callback."""
    assert new_run().room() is None
    run = new_run(max_tasks=2)
    run.joined(counted=True)
    run.joined(counted=False)
    assert 1 == run.room()


def test_the_view_of_a_run_does_not_change_with_the_run() -> None:
    """A view is a copy taken at one moment."""
    run = new_run()
    run.joined(counted=True)
    seen = view(run, resumed=True)
    run.left(Status.COMPLETED, counted=True)
    run.close_if_done(1.0)
    assert (1, 1, {}, False, True) == (
        seen.live,
        seen.total,
        seen.ended,
        seen.finished,
        seen.resumed,
    )
