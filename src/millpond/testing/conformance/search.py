"""Search: lists of tasks, pools, workers, keys and runs for people, in bounded steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settlement
from millpond.core.spec import fair_round_robin
from millpond.core.task import CALLBACKS, Call
from millpond.core.task_filter import TaskFilter
from millpond.errors import UnknownPool
from millpond.testing.conformance.lab import POOL, WORKER, Lab, completed, failed
from millpond.testing.conformance.scenario import StoreSuite

if TYPE_CHECKING:
    from millpond.core.lease import Leased


class SearchConformance(StoreSuite):
    """What a dashboard asks a store."""

    async def test_a_state_is_found_in_its_own_order(self, lab: Lab) -> None:
        """Queued by place, scheduled by due time, ended with the latest end first."""
        await _mixed(lab)
        assert "d" == await _names(lab, TaskFilter(state="running"))
        assert "e f h g" == await _names(lab, TaskFilter(state="queued"))
        assert "g h" == await _names(lab, TaskFilter(state="scheduled"))
        assert "c a" == await _names(lab, TaskFilter(state="completed"))
        assert "b" == await _names(lab, TaskFilter(state="failed"))

    async def test_without_a_state_live_tasks_come_first(self, lab: Lab) -> None:
        """The latest place first, then what ended, the latest end first."""
        await _mixed(lab)
        assert "g h f e d c b a" == await _names(lab, TaskFilter())

    @pytest.mark.parametrize("state", [None, "queued", "scheduled", "completed", "failed"])
    async def test_pages_join_without_gap_or_repetition(self, lab: Lab, state: str | None) -> None:
        """Page after page of one or two is the same list as one long page."""
        await _mixed(lab)
        wanted = TaskFilter(state=state)  # type: ignore[arg-type]
        in_one_page = await _names(lab, wanted)
        assert in_one_page == await _names(lab, wanted, limit=1)
        assert in_one_page == await _names(lab, wanted, limit=2)

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (TaskFilter(function="rare"), "e"),
            (TaskFilter(key="k"), "f"),
            (TaskFilter(labels={"name": "c"}), "c"),
            (TaskFilter(error="valueerror"), "b"),
            (TaskFilter(error="too BIG"), "b"),
            (TaskFilter(error="only in the traceback"), ""),
            (TaskFilter(since=1006.0), "g h f"),
            (TaskFilter(before=1002.0), "b a"),
            (TaskFilter(state="queued", key="k"), "f"),
            (TaskFilter(state="completed", key="k"), ""),
        ],
    )
    async def test_conditions(self, lab: Lab, wanted: TaskFilter, found: str) -> None:
        """Function, key, labels, error and age: all that are given must be met."""
        await _mixed(lab)
        assert found == await _names(lab, wanted)

    async def test_a_search_reads_no_more_than_it_may(self, lab: Lab) -> None:
        """It says that it is partial, and goes on from there."""
        await lab.declare()
        for number in range(10):
            await lab.put(f"t{number}", key="last" if number == 9 else "other")
        wanted = TaskFilter(state="queued", key="last")
        first = await lab.view.search([POOL], wanted, scan=4, now=lab.now)
        assert ((), True) == (first.tasks, first.partial)
        second = await lab.view.search([POOL], wanted, after=first.next, scan=4, now=lab.now)
        assert ((), True) == (second.tasks, second.partial)
        third = await lab.view.search([POOL], wanted, after=second.next, scan=4, now=lab.now)
        assert ["t9"] == [task.new.labels["name"] for task in third.tasks]
        assert (None, False) == (third.next, third.partial)

    async def test_pools_are_searched_in_the_order_of_their_names(self, lab: Lab) -> None:
        """Page after page of them is the same list as one long page."""
        for pool in ("b", "a", "c"):
            await lab.declare(pool)
            for number in range(3):
                await lab.put(f"{pool}{number}", pool=pool)
        wanted, names = TaskFilter(state="queued"), ["c", "a", "b"]
        for limit, scan in ((50, 2000), (1, 2000), (2, 2000), (50, 2)):
            found: list[str] = []
            page = await lab.view.search(names, wanted, limit=limit, scan=scan, now=lab.now)
            found += [task.new.labels["name"] for task in page.tasks]
            while page.next is not None:
                page = await lab.view.search(
                    names, wanted, after=page.next, limit=limit, scan=scan, now=lab.now
                )
                found += [task.new.labels["name"] for task in page.tasks]
            assert "a0 a1 a2 b0 b1 b2 c0 c1 c2" == " ".join(found)

    async def test_tasks_that_ended_at_one_moment_are_in_order(self, lab: Lab) -> None:
        """Those that ended together come with the latest place first, on every page."""
        await lab.declare()
        for name in "abcd":
            await lab.put(name)
        await lab.applied(*map(completed, await lab.lease()))
        assert "d c b a" == await _names(lab, TaskFilter(state="completed"), limit=1)

    async def test_a_redriven_task_is_found_once(self, lab: Lab) -> None:
        """It is queued again, and no longer among those that failed."""
        await lab.declare()
        task = await lab.put("a")
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((task,)))
        assert "" == await _names(lab, TaskFilter(state="failed"))
        assert "a" == await _names(lab, TaskFilter())

    async def test_parked_tasks_are_found(self, lab: Lab) -> None:
        """By their state; they are queued, too."""
        await lab.declare()
        await lab.put("a", call=Call("rare"))
        await lab.put("b")
        await lab.release(await lab.one(), parked=True, begun=False)
        assert "a" == await _names(lab, TaskFilter(state="parked"))
        assert "a b" == await _names(lab, TaskFilter(state="queued"))
        assert "" == await _names(lab, TaskFilter(state="scheduled"))

    async def test_scheduled_tasks_of_lanes_are_found_by_place(self, lab: Lab) -> None:
        """A lane keeps its order, whatever is due first."""
        await lab.declare(lanes=2)
        await lab.put("a", key="x", delay=60.0)
        await lab.put("b", key="x", delay=30.0)
        assert "a b" == await _names(lab, TaskFilter(state="scheduled"))

    async def test_an_unknown_pool_is_an_error(self, lab: Lab) -> None:
        """It is no empty list."""
        with pytest.raises(UnknownPool):
            await lab.view.search(["nowhere"], TaskFilter())
        with pytest.raises(UnknownPool):
            await lab.view.units("nowhere")
        with pytest.raises(UnknownPool):
            await lab.view.runs("nowhere", finished=False)
        with pytest.raises(UnknownPool):
            await lab.view.revisions("nowhere")
        assert await lab.view.pool_in_full("nowhere") is None

    async def test_all_pools_at_once_agree_with_each_alone(self, lab: Lab) -> None:
        """The same counts, without what takes long to find out; no queues of callbacks."""
        await _mixed(lab)
        await lab.declare("empty")
        await lab.control(orders.Pause(POOL, "k"))
        found = await lab.view.pools(now=lab.now)
        assert ["empty", POOL] == [view.spec.name for view in found]
        alone = await lab.pool()
        assert (
            msgspec.structs.replace(
                alone, waits=found[1].waits, run_times=found[1].run_times, held_units=()
            )
            == found[1]
        )

    async def test_a_task_that_became_due_is_not_scheduled_any_more(self, lab: Lab) -> None:
        """Also before a worker has asked for it."""
        await lab.declare()
        await lab.put(delay=5.0)
        await lab.put(delay=9.0)
        lab.later(6.0)
        (found,) = await lab.view.pools(now=lab.now)
        assert (2, 1) == (found.queued, found.scheduled)

    async def test_workers_with_what_each_runs(self, lab: Lab) -> None:
        """In the order of joining, page by page."""
        await lab.declare()
        await lab.join("w2", lease=30.0, owner="host-1-ab", functions=("work",))
        task = await lab.put(key="k")
        (leased,) = await lab.lease(worker="w2")
        first, second = await lab.view.worker_list()
        assert (WORKER, "w2") == (first.id, second.id)
        assert (0, ()) == (first.running, first.holding)
        assert (1, "host-1-ab", ("work",)) == (second.running, second.owner, second.functions)
        assert (lab.now + 30.0, 30.0) == (second.expires_at, second.lease)
        (held,) = second.holding
        assert (task, POOL, "work", "k", 1, lab.now) == (
            held.task,
            held.pool,
            held.function,
            held.key,
            held.attempt,
            held.started_at,
        )
        assert [first] == list(await lab.view.worker_list(limit=1))
        assert [second] == list(await lab.view.worker_list(after=first.number))
        await lab.complete(leased)
        assert 0 == (await lab.view.worker_list())[1].running

    async def test_keys_with_their_tasks(self, lab: Lab) -> None:
        """What is ready, what runs, what is paused, by key."""
        await lab.declare(max_per_key=1)
        await lab.put_keys("aab")
        await lab.put()
        await lab.lease(1)
        await lab.control(orders.Pause(POOL, "b"))
        found = await lab.view.units(POOL)
        assert [(None, 1, 0, False), ("a", 1, 1, False), ("b", 1, 0, True)] == [
            (unit.unit, unit.queued, unit.running, unit.paused) for unit in found
        ]
        assert {None} == {unit.share for unit in found}
        assert found[:1] == await lab.view.units(POOL, limit=1)

    async def test_shares_of_a_fair_pool(self, lab: Lab) -> None:
        """The view names the share of each key's tasks."""
        await lab.declare(order=fair_round_robin("tenant"))
        await lab.put_keys("aab")
        found = await lab.view.units(POOL)
        assert [("a", "a", 2), ("b", "b", 1)] == [
            (unit.unit, unit.share, unit.queued) for unit in found
        ]

    async def test_a_pool_that_looks_at_no_keys_has_none(self, lab: Lab) -> None:
        """Nothing depends on them there, so nothing counts them."""
        await lab.declare()
        await lab.put_keys("ab")
        assert () == await lab.view.units(POOL)

    async def test_runs_of_a_pool(self, lab: Lab) -> None:
        """Open ones by id, finished ones with the latest end first, page by page."""
        await lab.declare()
        ids = []
        for name in ("one", "two", "three"):
            lab.later(1.0)
            ids.append(await _open(lab, name))
        opened = await lab.view.runs(POOL, finished=False)
        assert sorted(ids) == [run.id for run in opened.runs]
        assert 1001.0 == min(run.opened_at for run in opened.runs)
        for _ in range(2):
            lab.later(1.0)
            await lab.run_one()
        over = await lab.view.runs(POOL, finished=True)
        assert ["two", "one"] == [run.name for run in over.runs]
        assert [1005.0, 1004.0] == [run.finished_at for run in over.runs]
        page = await lab.view.runs(POOL, finished=True, limit=1)
        assert ["two"] == [run.name for run in page.runs]
        rest = await lab.view.runs(POOL, finished=True, limit=1, after=page.next)
        assert (["one"], None) == ([run.name for run in rest.runs], rest.next)
        left = await lab.view.runs(POOL, finished=False)
        assert ["three"] == [run.name for run in left.runs]

    async def test_former_settings_of_a_pool(self, lab: Lab) -> None:
        """Each revision with its settings, the latest first."""
        await lab.declare(max_concurrent=1)
        await lab.declare(max_concurrent=2)
        await lab.control(orders.Resize(POOL, 7))
        found = await lab.view.revisions(POOL)
        assert [(3, 7), (2, 2), (1, 1)] == [(n, spec.max_concurrent) for n, spec in found]
        assert found[:1] == await lab.view.revisions(POOL, limit=1)

    async def test_a_pool_in_full_agrees_with_its_parts(self, lab: Lab) -> None:
        """It is read at once, and says what each question for a part says."""
        await lab.declare(max_concurrent=2, max_per_key=1)
        await lab.control(orders.Resize(POOL, 7))
        await lab.put("a", key="x")
        await lab.lease()
        await lab.put("b", key="x")
        found = await lab.view.pool_in_full(POOL, now=lab.now)
        assert found is not None
        assert found.view == await lab.view.pool(POOL, now=lab.now)
        assert found.units == await lab.view.units(POOL)
        assert found.revisions == await lab.view.revisions(POOL)
        assert found.units
        assert [2, 1] == [number for number, _ in found.revisions]
        callbacks = await lab.view.pool(POOL + CALLBACKS, now=lab.now, measured=False)
        assert ((), callbacks) == (found.budgets, found.callbacks)

    async def test_the_end_of_the_audit(self, lab: Lab) -> None:
        """The position behind which nothing was written yet."""
        await lab.declare()
        await lab.put()
        end = await lab.view.audit_end()
        assert () == (await lab.view.audit(after=end)).records
        (last,) = (await lab.view.audit(after=end - 1)).records
        assert Transition.SUBMIT == last.event


async def _open(lab: Lab, name: str) -> int:
    """Open a run with one task; return its id."""
    run = NewRun(id=lab.serial(), pool=POOL, name=name)
    await lab.submit(lab.new(name, run=run.id), run=run)
    return run.id


async def _mixed(lab: Lab) -> None:
    """Bring about tasks of many states, a second apart, each known by a letter."""
    await lab.declare()
    for name in "abcd":
        await lab.put(name)
        lab.later(1.0)
    await lab.put("e", call=Call("rare"))
    lab.later(2.0)
    await lab.put("f", key="k")
    await lab.put("h", delay=90.0)
    await lab.put("g", delay=60.0)
    a, b, c, _ = await lab.lease()
    for settlement in (completed(a), _failed(b), completed(c)):
        lab.later(1.0)
        await lab.applied(settlement)


def _failed(leased: Leased) -> Settlement:
    """The handler raised an error that is stored as the runtime does it."""
    error = {"type": "ValueError", "message": "too big", "traceback": "only in the traceback"}
    return msgspec.structs.replace(failed(leased), error=msgspec.msgpack.encode(error))


async def _names(lab: Lab, wanted: TaskFilter, *, limit: int = 50) -> str:
    """Return the names of all tasks that a search finds, page after page."""
    names: list[str] = []
    after = None
    while True:
        page = await lab.view.search([POOL], wanted, after=after, limit=limit, now=lab.now)
        assert len(page.tasks) <= limit
        names += [task.new.labels["name"] for task in page.tasks]
        if page.next is None:
            return " ".join(names)
        after = page.next
