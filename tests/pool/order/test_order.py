"""Which task starts next: the queue orders, through real pools."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from millpond import (
    ConfigError,
    Context,
    Millpond,
    Retry,
    RetryLater,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from millpond.core.spec import Order


class Desk:
    """A pool with one slot and a task that notes its name; paused until `ran` is called."""

    def __init__(self, order: Order | None, *, max_per_key: int | None = None) -> None:
        self.mp = Millpond()
        self.pool = self.mp.pool("desk", max_concurrent=1, queue=order, max_per_key=max_per_key)
        self.started: list[str] = []
        self.when_started: dict[str, list[str]] = {}
        """Names to submit, under their first letter as key, when a name starts."""

        @self.pool.task
        async def note(name: str, tenant: str | None = None) -> None:
            self.started.append(name)
            for late in self.when_started.pop(name, ()):
                await self.pool.submit(note.bind(late), key=late[0])
            await asyncio.sleep(1)

        self.note = note

    async def submit(self, name: str, **options: object) -> None:
        await self.pool.submit(self.note.bind(name), **options)  # type: ignore[call-overload]

    async def submit_by_letter(self, names: Iterable[str]) -> None:
        for name in names:
            await self.submit(name, key=name[0])

    async def ran(self) -> list[str]:
        await self.pool.resume()
        await self.pool.drain()
        return self.started


@pytest.mark.rows("HN-02")
async def test_a_task_starts_at_once_while_a_slot_is_free() -> None:
    """With two slots two tasks start as they are submitted and the third waits."""
    mp = Millpond()
    pool = mp.pool("two", max_concurrent=2)
    loop = asyncio.get_running_loop()
    started: list[tuple[str, float]] = []

    @pool.task
    async def work(name: str) -> None:
        started.append((name, loop.time()))
        await asyncio.sleep(10)

    async with mp:
        for name in "abc":
            await work.submit(name)
        await pool.drain()
    assert [("a", 0.0), ("b", 0.0), ("c", 10.0)] == started


@pytest.mark.rows("HN-03")
async def test_priority_is_the_default_and_starts_the_highest_first_and_equals_in_order() -> None:
    """Without a queue= the highest priority starts first; equals in order of submission."""
    desk = Desk(None)
    async with desk.mp:
        await desk.pool.pause()
        for name, urgency in (("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 9), ("f", 0)):
            await desk.submit(name, priority=urgency)
        assert ["e", "b", "d", "a", "f", "c"] == await desk.ran()


@pytest.mark.rows("HN-03", "DE-23")
async def test_fifo_ignores_priority_and_records_it() -> None:
    """fifo() starts in order of submission, and each task still shows its priority."""
    desk = Desk(fifo())
    async with desk.mp:
        await desk.pool.pause()
        for name, urgency in (("a", 0), ("b", 5), ("c", 9)):
            handle = await desk.pool.submit(desk.note.bind(name), priority=urgency)
            assert urgency == handle.priority
            assert urgency == (await desk.mp.handle(handle.id)).priority
        assert [0, 5, 9] == [task.priority for task in await desk.pool.tasks()]
        assert ["a", "b", "c"] == await desk.ran()


@pytest.mark.rows("HN-03")
async def test_lifo_starts_the_newest() -> None:
    """lifo() starts the newest waiting task, whatever its priority."""
    desk = Desk(lifo())
    async with desk.mp:
        await desk.pool.pause()
        for name, urgency in (("a", 9), ("b", 5), ("c", 0)):
            await desk.submit(name, priority=urgency)
        assert ["c", "b", "a"] == await desk.ran()


async def test_aging_lets_a_task_that_waits_overtake() -> None:
    """With aging=10 a task that has waited for 25 seconds has two more steps of priority."""
    desk = Desk(priority(aging=10))
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit("old", priority=0)
        await asyncio.sleep(25)
        await desk.submit("one above", priority=1)
        await desk.submit("three above", priority=3)
        assert ["three above", "old", "one above"] == await desk.ran()


@pytest.mark.rows("HN-04")
async def test_fair_round_robin_gives_each_key_a_turn() -> None:
    """A key with eight tasks does not hold up five keys with one each: A B C D E F A A A ..."""
    desk = Desk(fair_round_robin())
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit_by_letter([f"A{n}" for n in range(8)] + ["B", "C", "D", "E", "F"])
        ran = await desk.ran()
    assert "ABCDEFAAAAAAA" == "".join(name[0] for name in ran)
    assert [f"A{n}" for n in range(8)] == [name for name in ran if name[0] == "A"]


@pytest.mark.rows("HN-04")
async def test_two_tenants_interleave_one_to_one() -> None:
    """Two keys with equal backlogs take turns, although one submitted all of its tasks first."""
    desk = Desk(fair_round_robin())
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit_by_letter("AAAABBBB")
        assert "ABABABAB" == "".join(await desk.ran())


@pytest.mark.rows("HN-04")
async def test_a_new_key_is_served_in_the_current_round() -> None:
    """CCC that comes after the first A of AAA BBB is served in that round, behind B."""
    desk = Desk(fair_round_robin())
    desk.when_started["A1"] = ["C1", "C2", "C3"]
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit_by_letter(["A1", "A2", "A3", "B1", "B2", "B3"])
        expected = ["A1", "B1", "C1", "A2", "B2", "C2", "A3", "B3", "C3"]
        assert expected == await desk.ran()


async def test_weights_give_a_key_more_turns() -> None:
    """A key of weight 2 starts two tasks for each one of a key of weight 1."""
    desk = Desk(fair_round_robin(weights={"A": 2.0}))
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit_by_letter("AAAAAABBB")
        ran = "".join(await desk.ran())
    for end in (3, 6, 9):
        assert (2 * end // 3, end // 3) == (ran[:end].count("A"), ran[:end].count("B"))


async def test_a_paused_key_saves_up_no_credit() -> None:
    """A key that was paused for four turns takes turns like any other once it is back."""
    desk = Desk(fair_round_robin())
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit_by_letter("AAAA" + "BBBBBBBB")
        await desk.pool.pause(key="A")
        await desk.pool.resume()
        await asyncio.sleep(3.5)
        assert "BBBB" == "".join(desk.started)
        await desk.pool.resume(key="A")
        await desk.pool.drain()
    assert "BBBB" + "ABABABAB" == "".join(desk.started)


async def test_a_key_at_its_cap_is_passed_over() -> None:
    """In a fair pool with max_per_key=1 the second of a key waits, and others use the slots."""
    mp = Millpond()
    pool = mp.pool("capped", max_concurrent=3, queue=fair_round_robin(), max_per_key=1)
    running: list[str] = []

    @pool.task
    async def work(name: str) -> None:
        running.append(name)
        await asyncio.sleep(1)
        running.remove(name)

    async with mp:
        await pool.pause()
        await pool.submit_many([work.bind(f"A{n}").options(key="A") for n in range(3)])
        await pool.submit_many([work.bind("B").options(key="B"), work.bind("C").options(key="C")])
        await pool.resume()
        await asyncio.sleep(0.5)
        assert ["A0", "B", "C"] == running
        await asyncio.sleep(1)
        assert ["A1"] == running


@pytest.mark.rows("HN-05")
@pytest.mark.parametrize(
    ("tenant", "options", "share"),
    [
        ("arg", {"labels": {"tenant": "label"}, "key": "key"}, "label"),
        ("arg", {"labels": {"other": "label"}, "key": "key"}, "arg"),
        (None, {"key": "key"}, "key"),
        (None, {}, None),
    ],
    ids=["label", "argument", "key", "nothing"],
)
async def test_the_share_is_the_label_else_the_argument_else_the_key(
    tenant: str | None, options: Mapping[str, object], share: str | None
) -> None:
    """fair_round_robin("tenant") reads the label, then the argument, then the key."""
    desk = Desk(fair_round_robin("tenant"))
    async with desk.mp:
        call = desk.note.bind("one", tenant)
        handle = await desk.pool.submit(call, **options)  # type: ignore[call-overload]
        await handle
        records = [r async for r in desk.mp.audit(desk.pool) if r.task == handle.id]
    assert {share} == {record.share for record in records}


@pytest.mark.rows("HN-05", "HN-04")
async def test_tasks_without_a_share_have_one_lane_together() -> None:
    """Tasks without label, argument or key share one default lane, which has a turn like others."""
    desk = Desk(fair_round_robin("tenant"))
    async with desk.mp:
        await desk.pool.pause()
        for name in ("x", "y", "z"):
            await desk.submit(name)
        for name in ("A1", "A2", "A3"):
            await desk.pool.submit(desk.note.bind(name, "A"))
        assert ["x", "A1", "y", "A2", "z", "A3"] == await desk.ran()


@pytest.mark.rows("HN-05")
async def test_a_closure_has_its_share_from_a_label_or_its_key() -> None:
    """A closure has no arguments: its label counts, else its key."""
    mp = Millpond()
    pool = mp.pool("closures", queue=fair_round_robin("tenant"))

    async def work() -> None: ...

    async with mp:
        one = await pool.submit(work, labels={"tenant": "label"}, key="key")
        two = await pool.submit(work, key="key")
        await mp.wait([one, two])
        shares = {r.task: r.share async for r in mp.audit(pool) if r.task is not None}
    assert {one.id: "label", two.id: "key"} == shares


@pytest.mark.parametrize("order", [priority(), fifo(), lifo(), fair_round_robin()])
async def test_a_delayed_task_rejoins_at_its_original_place(order: Order) -> None:
    """In every order a task that becomes due takes the place of its submission."""
    desk = Desk(order)
    async with desk.mp:
        await desk.pool.pause()
        await desk.submit("first", delay=5.0)
        await desk.submit("second")
        await asyncio.sleep(5)
        newest_first = order == lifo()
        expected = ["second", "first"] if newest_first else ["first", "second"]
        assert expected == await desk.ran()


@pytest.mark.parametrize("order", [priority(), fifo(), fair_round_robin()])
async def test_a_retried_task_rejoins_at_its_original_place(order: Order) -> None:
    """A task that comes back from a failure starts before those submitted after it."""
    mp = Millpond()
    pool = mp.pool("retried", queue=order)
    started: list[str] = []

    @pool.task
    async def work(ctx: Context, name: str) -> None:
        started.append(name)
        await asyncio.sleep(1)
        if name == "a" and not ctx.is_retry:
            raise RetryLater(1.0)

    async with mp:
        for name in "abcd":
            await work.submit(name)
        await pool.drain()
    assert ["a", "b", "a", "c", "d"] == started


async def test_a_redriven_task_enters_at_the_tail() -> None:
    """Redrive queues a failed task behind everything that waits now."""
    mp = Millpond()
    pool = mp.pool("redriven", queue=fifo())
    started: list[str] = []

    @pool.task(retry=Retry.never())
    async def work(name: str) -> None:
        started.append(name)
        if started == ["a"]:
            raise ValueError

    async with mp:
        failed = await work.submit("a")
        await failed.wait()
        await pool.pause()
        for name in "bc":
            await work.submit(name)
        assert 1 == await pool.redrive([failed])
        await pool.resume()
        await pool.drain()
    assert ["a", "b", "c", "a"] == started


def test_queue_orders_refuse_bad_arguments() -> None:
    """A weight of nothing and a negative aging are refused where they are given."""
    with pytest.raises(ConfigError, match="weights"):
        fair_round_robin(weights={"a": 0.0})
    with pytest.raises(ConfigError, match="aging"):
        priority(aging=-1.0)
