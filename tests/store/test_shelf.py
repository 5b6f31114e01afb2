"""The shelf: tasks by their places, read in pages, however many have left."""

import random

import pytest
from tests.core.making import queued

from millpond.core.lifecycle import Status
from millpond.core.spec import PoolSpec
from millpond.core.task import Task
from millpond.store.memory.shelf import Shelf

SPEC = PoolSpec(name="p")


@pytest.mark.parametrize("seed", range(20))
def test_a_shelf_shows_what_is_kept(seed: int) -> None:
    """Against a plain sorted list: after any mix of ends, removals and redrives."""
    dice = random.Random(seed)
    tasks: dict[int, Task] = {}
    everything, living = Shelf("p"), Shelf("p", live=True)
    seq = 0
    for identifier in range(1, 600):
        seq += 1
        task = tasks[identifier] = queued(SPEC, identifier)
        task.seq = seq
        everything.add(task)
        living.add(task)
        for other in dice.sample(list(tasks.values()), min(2, len(tasks))):
            if not other.status.terminal:
                other.status = Status.FAILED
                living.left(tasks)
            elif dice.random() < 0.3:
                everything.left(tasks)
                seq += 1
                other.seq, other.status = seq, Status.QUEUED
                everything.add(other)
                living.add(other)
            elif dice.random() < 0.5:
                del tasks[other.new.id]
                everything.left(tasks)
        after = dice.randrange(seq)
        kept = sorted((t for t in tasks.values() if t.seq > after), key=lambda task: task.seq)
        assert kept == list(everything.after(after, tasks))
        assert [t for t in kept if not t.status.terminal] == list(living.after(after, tasks))


def test_a_shelf_does_not_grow_with_what_has_left() -> None:
    """A million tasks through a queue of ten leave a handful of entries behind."""
    tasks: dict[int, Task] = {}
    shelf = Shelf("p", live=True)
    for identifier in range(1, 10_000):
        tasks[identifier] = queued(SPEC, identifier)
        shelf.add(tasks[identifier])
        if identifier > 10:
            del tasks[identifier - 10]
            shelf.left(tasks)
    assert len(shelf._ids) < 200


def test_an_id_that_came_back_elsewhere_is_not_taken_for_the_old_one() -> None:
    """The place of a removed task stays empty though another pool has a task of its id and seq."""
    shelf = Shelf("other")
    shelf.add(queued(SPEC, 1))
    assert [] == list(shelf.after(0, {1: queued(SPEC, 1)}))
