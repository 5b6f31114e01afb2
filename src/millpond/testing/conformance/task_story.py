"""The story of one task: its audit records, found near its moments, and its follow-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Transition
from millpond.core.task import CALLBACKS, Call
from millpond.store.story import MOST_RECORDS
from millpond.testing.conformance.lab import POOL, Lab, completed, retried
from millpond.testing.conformance.scenario import StoreSuite

if TYPE_CHECKING:
    from millpond.store.protocol import Story


class TaskStoryConformance(StoreSuite):
    """What the page of one task asks a store."""

    async def test_a_story_has_every_record_of_its_task(self, lab: Lab) -> None:
        """Its attempts and its end, oldest first, and nothing of other tasks."""
        await lab.declare()
        task, _ = await lab.put(attempts=2), await lab.put("other")
        first, other = await lab.lease()
        await lab.applied(retried(first), completed(other))
        lab.later(60.0)
        await lab.fail(await lab.one())
        story = await _story(lab, task)
        assert await lab.events(task) == [record.event for record in story.records]
        assert all(record.task == task for record in story.records)
        assert story.complete

    async def test_a_long_audit_is_read_near_the_moments_of_a_task(self, lab: Lab) -> None:
        """A submit long ago, a start and an end are found between thousands of other records."""
        await lab.declare(max_concurrent=MOST_RECORDS)
        task = await lab.put()
        await _crowd(lab)
        lab.later(1.0)
        (leased,) = await lab.lease(1)
        lab.later(1.0)
        await _crowd(lab)
        lab.later(1.0)
        await lab.complete(leased)
        story = await _story(lab, task)
        expected = [Transition.SUBMIT, Transition.LEASE, Transition.COMPLETE]
        assert expected == [record.event for record in story.records]
        assert story.complete

    async def test_a_long_audit_of_a_task_that_waits_is_not_read_whole(self, lab: Lab) -> None:
        """It has its submit; whether more happened since would take reading everything."""
        await lab.declare()
        task = await lab.put(delay=3600.0)
        lab.later(1.0)
        await _crowd(lab)
        story = await _story(lab, task)
        assert [Transition.SUBMIT] == [record.event for record in story.records]
        assert not story.complete

    async def test_follow_ups_and_the_callback_belong_to_a_story(self, lab: Lab) -> None:
        """Those of a task that ended in the same step do not."""
        await lab.declare()
        task = await lab.put(on_complete=Call("notify"))
        other = await lab.put("other")
        mine = lab.new("mine", submitted_by=f"task:{task}")
        foreign = lab.new("foreign", submitted_by=f"task:{other}")
        one, two = await lab.lease()
        await lab.applied(completed(one, mine), completed(two, foreign))
        found = (await _story(lab, task)).follow_ups
        assert {(POOL, mine.call.function), (POOL + CALLBACKS, "notify")} == {
            (one.new.pool, one.new.call.function) for one in found
        }
        assert [foreign.id] == [one.new.id for one in (await _story(lab, other)).follow_ups]

    async def test_an_unknown_task_has_no_story(self, lab: Lab) -> None:
        """None, as for a task that retention removed."""
        await lab.declare()
        assert await lab.view.story(12345) is None

    async def test_what_is_ahead_in_a_long_queue_is_not_counted(self, lab: Lab) -> None:
        """Above the limit, the facts say how many wait in all."""
        await lab.declare()
        for _ in range(4):
            task = await lab.put()
        counted = await lab.view.why(task, now=lab.now, most=4)
        assert counted is not None
        assert (3, 0) == (counted.ahead, counted.among)
        uncounted = await lab.view.why(task, now=lab.now, most=3)
        assert uncounted is not None
        assert (0, 4) == (uncounted.ahead, uncounted.among)


async def _story(lab: Lab, task: int) -> Story:
    found = await lab.view.story(task)
    assert found is not None
    return found


async def _crowd(lab: Lab) -> None:
    """Write more records than a story reads from one place."""
    for _ in range(4):
        await lab.submit(*(lab.new(delay=3600.0) for _ in range(MOST_RECORDS // 3)))
        lab.later(0.001)
