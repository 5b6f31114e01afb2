"""The line of tasks against a plain sorted list, and its memory under storms."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.making import queued

from millpond.core.order.line import _SLACK, TaskLine
from millpond.core.spec import PoolSpec, fifo, lifo, priority
from millpond.core.task import Task

FIFO = PoolSpec(name="p", order=fifo())


def entries(line: TaskLine) -> int:
    """How many tasks a line refers to, dead ones too."""
    return sum(task is not None for task in line._row) + len(line._heap or ())


class LineMachine(RuleBasedStateMachine):
    """Tasks of all ranks come, go from anywhere, and some come back to where they stood."""

    def __init__(self) -> None:
        super().__init__()
        self.line = TaskLine()
        self.model: dict[int, Task] = {}
        self.aside: dict[int, Task] = {}
        self.seq = 0

    @rule(level=st.integers(-1, 1), order=st.sampled_from([fifo(), lifo(), priority()]))
    def come(self, level: int, order: object) -> None:
        """A new task comes; its rank may put it anywhere."""
        self.seq += 1
        task = queued(PoolSpec(name="p", order=order), self.seq, priority=level)  # type: ignore[arg-type]
        self.line.add(task)
        self.model[self.seq] = task

    @precondition(lambda self: self.model)
    @rule(data=st.data(), keep=st.booleans())
    def go(self, data: st.DataObject, *, keep: bool) -> None:
        """Any task goes, for good or to come back."""
        seq = data.draw(st.sampled_from(sorted(self.model)))
        task = self.model.pop(seq)
        self.line.remove(task)
        if keep:
            self.aside[seq] = task

    @precondition(lambda self: self.aside)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """One that went comes back with the seq it had."""
        seq = data.draw(st.sampled_from(sorted(self.aside)))
        task = self.model[seq] = self.aside.pop(seq)
        self.line.add(task)

    @precondition(lambda self: self.model)
    @rule(times=st.integers(1, 5))
    def take(self, times: int) -> None:
        """The first ones are taken, one after another."""
        for _ in range(min(times, len(self.model))):
            task = self.line.first()
            assert task is not None
            self.line.remove(task)
            del self.model[task.seq]

    @invariant()
    def same_as_the_model(self) -> None:
        """The first, the number and the whole content agree."""
        first = min(self.model.values(), key=lambda task: (task.rank, task.seq), default=None)
        assert first is self.line.first()
        assert len(self.model) == len(self.line)
        assert sorted(self.model) == sorted(task.seq for task in self.line)

    @invariant()
    def memory_is_bounded(self) -> None:
        """The dead never outnumber the living by more than a constant."""
        assert entries(self.line) <= 2 * len(self.model) + _SLACK
        assert len(self.line._row) <= 2 * entries(self.line) + _SLACK


TestLine = LineMachine.TestCase


def test_a_task_that_was_taken_is_let_go_of() -> None:
    """However long the line is, what has left it is not kept alive by it."""
    line = TaskLine()
    for seq in range(1, 1001):
        line.add(queued(FIFO, seq))
    for _ in range(400):
        task = line.first()
        assert task is not None
        line.remove(task)
    assert (600, 600) == (len(line), entries(line))


def test_a_storm_of_cancellations_leaves_no_memory() -> None:
    """Ten thousand come and go behind one that stays at the head."""
    line = TaskLine()
    stays = queued(FIFO, 1)
    line.add(stays)
    tasks = [queued(FIFO, seq) for seq in range(2, 10_002)]
    for task in tasks:
        line.add(task)
    for task in tasks:
        line.remove(task)
    assert (1, stays) == (len(line), line.first())
    assert entries(line) <= 2 + _SLACK


def test_a_storm_ahead_of_the_row_leaves_no_memory_and_no_disorder() -> None:
    """Those of higher priority wait in a heap; what is swept out of it leaves the rest in order."""
    order = PoolSpec(name="p", order=priority())
    line = TaskLine()
    tasks = [queued(order, seq, priority=seq) for seq in range(1, 301)]
    for task in tasks:
        line.add(task)
    for task in tasks[1:-1:2]:
        line.remove(task)
    for task in tasks[2:-1:4]:
        line.remove(task)
    gone = {task.seq for task in (*tasks[1:-1:2], *tasks[2:-1:4])}
    left = [task for task in tasks if task.seq not in gone]
    assert entries(line) <= 2 * len(left) + _SLACK
    served = []
    while (first := line.first()) is not None:
        served.append(first.seq)
        line.remove(first)
    assert sorted((task.seq for task in left), reverse=True) == served
    assert 0 == entries(line)
