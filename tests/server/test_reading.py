"""The API's answers about pools, tasks, runs, workers, schedules, events and the audit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests import stores
from tests.server.desk import Desk, desk

from millpond import Context, Millpond, Retry
from millpond.core.audit import Record, RecordKind
from millpond.core.lifecycle import Status, Transition
from millpond.server import shapes
from millpond.server.redaction import HIDDEN

Place = stores.Places | None


def shop(mp: Millpond) -> None:
    """Declare pools of several kinds, and tasks that end in several ways."""
    orders = mp.pool("orders", max_concurrent=2, max_per_key=1, retry=Retry.never())
    mp.pool("idle")

    @orders.task
    async def pay(ctx: Context, amount: int, password: str = "") -> dict[str, Any]:
        if amount < 0:
            raise ValueError(f"order {amount} of 'bob' is negative")
        if amount == 7:
            await ctx.submit(pay.bind(8))
        return {"paid": amount, "api_key": "k"}


async def submitted(at: Desk, *amounts: int, **options: Any) -> list[int]:
    """Submit payments, and wait for their ends."""
    pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
    handles = [await pool.submit(pay.bind(one, password="x"), **options) for one in amounts]  # noqa: S106
    for handle in handles:
        await handle.wait()
    return [handle.id for handle in handles]


async def test_pools_in_short(place: Place) -> None:
    async with desk(shop, place) as at:
        await submitted(at, 1, 2, -3)
        page = await at.get("/pools")
        assert [one["name"] for one in page["items"]] == ["idle", "orders"]
        orders = page["items"][1]
        assert (orders["running"], orders["queued"], orders["limit"]) == (0, 0, 2)
        assert (orders["completed"], orders["failed"], orders["dead"]) == (2, 1, 1)
        assert orders["state"] == "idle"
        assert len(orders["recent"]["spark"]) == 60


def test_an_attempt_whose_end_was_not_read_does_not_run() -> None:
    """A later start, or a task that does not run, means that it ended; when is not known."""

    def start(number: int, at: float) -> Record:
        return Record(
            at=at,
            kind=RecordKind.DEQUEUE,
            pool="orders",
            event=Transition.LEASE,
            before=Status.QUEUED,
            after=Status.RUNNING,
            attempt=number,
        )

    starts = [start(1, 5.0), start(2, 8.0)]
    for running, last in ((True, ("running", 2.0)), (False, ("ended", None))):
        found = shapes.attempts(starts, 10.0, running=running)
        assert [(one.outcome, one.ran) for one in found] == [("ended", None), last]
        assert all(one.ended_at is None for one in found)


@pytest.mark.rows("DA-14")
async def test_pools_in_pages(place: Place) -> None:
    async with desk(shop, place) as at:
        first = await at.get("/pools?limit=1")
        assert [one["name"] for one in first["items"]] == ["idle"]
        second = await at.get(f"/pools?limit=1&after={first['next']}")
        assert [one["name"] for one in second["items"]] == ["orders"]
        assert second["next"] is None


async def test_one_pool(place: Place) -> None:
    async with desk(shop, place) as at:
        await submitted(at, 1, 2)
        await at.put("orders", 2, key="k", delay=60.0)
        answer = await at.get("/pools/orders")
        assert answer["pool"]["scheduled"] == 2
        assert answer["config"]["max_concurrent"] == 2
        assert [one["revision"] for one in answer["revisions"]] == [1]
        assert answer["run_times"]["samples"] == 2
        assert answer["callbacks"]["queued"] == 0


async def test_keys_of_a_pool(place: Place) -> None:
    async with desk(shop, place, work=False) as at:
        await at.put("orders", 3, key="a")
        await at.put("orders", 1, key="b")
        answer = await at.get("/pools/orders")
        assert [(one["unit"], one["queued"]) for one in answer["units"]] == [("a", 3), ("b", 1)]


async def test_figures_over_time(place: Place) -> None:
    async with desk(shop, place) as at:
        await at.get("/pools/orders/history")
        for _ in range(3):
            await submitted(at, 1, 2)
            await asyncio.sleep(2.0)
            answer = await at.get("/pools/orders/history")
        assert len({len(series) for name, series in answer.items() if name != "pool"}) == 1
        assert sum(answer["completed"]) > 0
        assert answer["run_p50"][-1] is not None


async def test_a_sparkline_has_a_past(place: Place) -> None:
    async with desk(shop, place) as at:
        await at.get("/pools")
        for _ in range(20):
            await submitted(at, 1)
            await asyncio.sleep(2.0)
            page = await at.get("/pools")
        recent = page["items"][1]["recent"]
        assert recent["spark"][-1] > 0
        assert recent["throughput"] == recent["spark"][-1]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {1, 2, -3}),
        ("status=completed", {1, 2}),
        ("status=failed", {-3}),
        ("status=queued", set()),
        ("key=b", {2}),
        ("label=tenant%3Dacme", {1, 2, -3}),
        ("label=tenant%3Dother", set()),
        ("error=negative", {-3}),
        ("error=valueerror", {-3}),
        ("function=pay", {1, 2, -3}),
        ("function=other", set()),
        ("min_age=3600", set()),
        ("max_age=3600", {1, 2, -3}),
        ("pool=orders", {1, 2, -3}),
        ("pool=idle", set()),
    ],
)
async def test_conditions(place: Place, query: str, found: set[int]) -> None:
    async with desk(shop, place) as at:
        labels = {"tenant": "acme"}
        ids = {}
        for amount, key in ((1, "a"), (2, "b"), (-3, "c")):
            (ids[amount],) = await submitted(at, amount, key=key, labels=labels)
        page = await at.get(f"/tasks?{query}")
        assert {one["id"] for one in page["items"]} == {str(ids[amount]) for amount in found}
        assert (await at.get(f"/tasks/count?{query}"))["count"] == len(found)


@pytest.mark.rows("DA-14")
async def test_tasks_in_pages_over_several_pools(place: Place) -> None:
    async with desk(shop, place, work=False) as at:
        wanted = await at.put("idle", 3) + await at.put("orders", 4)
        seen: list[str] = []
        path = "/tasks?limit=2&status=queued"
        page = await at.get(path)
        while True:
            seen += [one["id"] for one in page["items"]]
            if page["next"] is None:
                break
            page = await at.get(f"{path}&after={page['next']}")
        assert sorted(map(int, seen)) == sorted(wanted)


@pytest.mark.rows("DA-14")
async def test_a_search_of_many_rows_is_partial(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.server.api.tasks.SCAN", 3)
    async with desk(shop, place, work=False) as at:
        await at.put("orders", 5, key="a")
        (last,) = await at.put("orders", 1, key="z")
        page = await at.get("/tasks?status=queued&key=z")
        assert (page["items"], page["partial"]) == ([], True)
        page = await at.get(f"/tasks?status=queued&key=z&after={page['next']}")
        assert [one["id"] for one in page["items"]] == [str(last)]


async def test_the_story_of_a_task(place: Place) -> None:
    async with desk(shop, place) as at:
        (task,) = await submitted(at, 7)
        await at.mp.get_pool("orders").drain()
        answer = await at.get(f"/tasks/{task}")
        assert answer["task"]["status"] == "completed"
        assert answer["why"] == "completed"
        assert [one["outcome"] for one in answer["attempts"]] == ["complete"]
        events = [one["event"] for one in answer["history"]]
        assert events[0] == "submit"
        assert events[-1] == "complete"
        assert answer["history_complete"]
        (followed,) = answer["follow_ups"]
        assert (await at.get(f"/tasks/{followed['id']}"))["parent"] == str(task)
        assert answer["payload"] is None


async def test_the_history_of_a_task_among_many_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.store.story.MOST_RECORDS", 8)
    monkeypatch.setattr("millpond.store.sql.audit_reader.RECORDS_PER_FOUND", 5)
    monkeypatch.setattr("millpond.server.api.tasks.HISTORY_RECORDS", 2)
    async with desk(shop, place) as at:
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        handle = await pool.submit(pay.bind(1), delay=60.0)
        for amount in range(1, 20):
            await submitted(at, amount)
        await handle.wait()
        story = await at.get(f"/tasks/{handle.id}")
        assert {"submit", "complete"} <= {one["event"] for one in story["history"]}
        page = await at.get(f"/tasks/{handle.id}/history")
        found = page["items"]
        while page["next"] is not None:
            page = await at.get(f"/tasks/{handle.id}/history?after={page['next']}")
            found += page["items"]
        assert [one["event"] for one in found] == ["submit", "lease", "complete"]


async def test_a_failed_task_has_its_error(place: Place) -> None:
    async with desk(shop, place) as at:
        (task,) = await submitted(at, -1)
        answer = await at.get(f"/tasks/{task}")
        assert answer["task"]["error"]["type"] == "ValueError"
        assert "ValueError: order -1" in answer["traceback"]


@pytest.mark.rows("DA-05")
async def test_payloads_are_hidden_until_asked_for_and_redacted(place: Place) -> None:
    async with desk(shop, place, redact=["amount"]) as at:
        (task,) = await submitted(at, 5)
        answer = await at.get(f"/tasks/{task}?payload=1")
        assert answer["payload"]["arguments"] == {"amount": HIDDEN, "password": HIDDEN}
        assert answer["payload"]["result"] == {"paid": 5, "api_key": HIDDEN}


async def test_why_a_task_waits(place: Place) -> None:
    async with desk(shop, place, work=False) as at:
        (task,) = await at.put("orders")
        await at.mp.get_pool("orders").pause()
        assert "pool paused" in (await at.get(f"/tasks/{task}"))["why"]


@pytest.mark.rows("DA-13")
async def test_a_result_is_waited_for(place: Place) -> None:
    async with desk(shop, place) as at:
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        handle = await pool.submit(pay.bind(3), delay=5.0)
        early = await at.get(f"/tasks/{handle.id}/result?wait=1")
        assert (early["done"], early["status"]) == (False, "queued")
        late = await at.get(f"/tasks/{handle.id}/result?wait=60")
        assert (late["done"], late["result"]) == (True, {"paid": 3, "api_key": "k"})


async def test_a_failure_is_a_result(place: Place) -> None:
    async with desk(shop, place) as at:
        (task,) = await submitted(at, -2)
        answer = await at.get(f"/tasks/{task}/result")
        assert (answer["done"], answer["status"]) == (True, "failed")
        assert answer["error"]["type"] == "ValueError"


async def test_dead_letters_are_grouped_by_error(place: Place) -> None:
    async with desk(shop, place) as at:
        ids = await submitted(at, -1, -2, -3)
        answer = await at.get("/dead")
        (group,) = answer["items"]
        assert (group["count"], group["type"]) == (3, "ValueError")
        assert group["message"] == "order -… of … is negative"
        assert set(group["tasks"]) == set(map(str, ids))
        assert (answer["scanned"], answer["total"], answer["partial"]) == (3, 3, False)
        assert (await at.get("/dead?pool=idle"))["items"] == []


async def test_runs(place: Place) -> None:
    async with desk(shop, place) as at:
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        await pool.drain([pay.bind(7), pay.bind(1)], run="monday")
        (run,) = (await at.get("/runs?status=finished"))["items"]
        assert (run["name"], run["total"], run["ended"]) == ("monday", 3, {"completed": 3})
        assert (await at.get("/runs"))["items"] == []
        answer = await at.get("/runs/monday?pool=orders")
        assert (answer["run"], answer["tasks"]) == (run, [])
        assert (await at.get(f"/runs/{run['id']}"))["run"] == run


async def test_the_tasks_of_a_run_are_found_behind_many_that_ended_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree can be made of them: each says which task submitted it."""
    monkeypatch.setattr("millpond.server.api.runs.SCAN", 10)
    async with desk(shop, place) as at:
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        await pool.drain([pay.bind(7), pay.bind(1)], run="monday")
        await asyncio.sleep(1)
        await pool.drain([pay.bind(number) for number in range(100, 120)])
        found = (await at.get("/runs/monday?pool=orders"))["ended"]
        assert len(found) == 3
        ids = {f"task:{one['id']}" for one in found}
        assert sorted(one["submitted_by"] in ids for one in found) == [False, False, True]


async def test_workers_and_what_each_runs(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        pool = mp.pool("slow", max_concurrent=3)

        @pool.task
        async def wait(ctx: Context) -> None:
            await asyncio.sleep(60.0)

    async with desk(declare, place) as at:
        pool = at.mp.get_pool("slow")
        handle = await pool.submit(at.mp.tasks["wait"].bind())
        await asyncio.sleep(0.5)
        (worker,) = (await at.get("/workers"))["items"]
        assert worker["alive"]
        assert worker["running"] == 1
        assert [one["id"] for one in worker["holding"]] == [str(handle.id)]
        assert worker["host"]
        assert worker["pid"] > 0
        assert worker["version"]


async def test_schedules_and_when_they_fire(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        shop(mp)
        mp.cron("hourly", every=3600.0, into="orders", task=mp.tasks["pay"].bind(1))

    async with desk(declare, place) as at:
        (schedule,) = (await at.get("/schedules"))["items"]
        assert (schedule["id"], schedule["state"], schedule["task"]) == ("hourly", "waiting", "pay")
        gaps = [b - a for a, b in zip(schedule["upcoming"], schedule["upcoming"][1:], strict=False)]
        assert gaps == [3600.0] * 4


async def test_events_triggers_and_receipts(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        shop(mp)

        @mp.task
        async def note(what: dict[str, Any]) -> None:
            pass

        mp.trigger("on-paid", on="order.paid", into="orders", task=note)

    async with desk(declare, place) as at:
        emitted = await at.mp.emit("order.paid", {"n": 1, "token": "t"}, event_id="e1")
        await emitted.receipts(timeout=60.0)
        (trigger,) = (await at.get("/triggers"))["items"]
        assert (trigger["id"], trigger["state"], trigger["submitted"]) == ("on-paid", "active", 1)
        (event,) = (await at.get("/events"))["items"]
        assert (event["id"], event["payload"]) == ("e1", None)
        (event,) = (await at.get("/events?payload=1&name=order.paid"))["items"]
        assert event["payload"] == {"n": 1, "token": HIDDEN}
        receipts = await at.get(f"/events/{event['task']}/receipts")
        assert [one["outcome"] for one in receipts["items"]] == ["submitted"]
        assert (await at.get("/events?name=other"))["items"] == []


async def test_the_audit_goes_back_page_by_page(place: Place) -> None:
    async with desk(shop, place) as at:
        await submitted(at, 1, 2, 3)
        in_one_page = (await at.get("/audit?limit=500"))["items"]
        positions = [one["position"] for one in in_one_page]
        assert positions == list(range(len(in_one_page), 0, -1))
        seen = []
        page = await at.get("/audit?limit=2")
        while True:
            seen += page["items"]
            if page["next"] is None:
                break
            page = await at.get(f"/audit?limit=2&after={page['next']}")
        assert seen == in_one_page
        orders = await at.get("/audit?pool=orders&kind=submit&limit=500")
        assert {(one["pool"], one["kind"]) for one in orders["items"]} == {("orders", "submit")}
        assert len(orders["items"]) == 3


async def test_what_is_unknown_is_404(place: Place) -> None:
    async with desk(shop, place) as at:
        for path in (
            "/pools/none",
            "/pools/none/history",
            "/tasks?pool=none",
            "/tasks/1",
            "/tasks/1/result",
            f"/tasks/{1 << 63}",
            "/runs/1",
            "/runs/x?pool=orders",
            "/events/1/receipts",
            "/dead?pool=none",
        ):
            answer = await at.client.get(f"/api/v1{path}")
            assert answer.status_code == 404, path
            assert answer.json()["error"]["message"]
