"""The changes that the API makes; the audit records who made each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests import stores
from tests.server.desk import BEARER, TOKEN, Desk, desk
from tests.server.test_reading import shop, submitted

from millpond import Context, Millpond, Retry, bounded, fail_fast, fair_round_robin
from millpond.errors import RunStopped

Place = stores.Places | None


async def orders_by(at: Desk, actor: str) -> list[str]:
    """Return the orders of an actor from the audit, oldest first."""
    page = await at.get("/audit?kind=control&limit=500")
    return [one["detail"] for one in reversed(page["items"]) if one["by"] == actor]


@pytest.mark.rows("DA-08")
async def test_a_pool_is_paused_resized_and_resumed(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        await at.post("/pools/orders/pause")
        assert (await at.get("/pools/orders"))["pool"]["paused"]
        await at.post("/pools/orders/resize", {"limit": 9})
        pool = (await at.get("/pools/orders"))["pool"]
        assert (pool["limit"], pool["declared_limit"], pool["revision"]) == (9, 2, 2)
        await at.post("/pools/orders/resume")
        await at.post("/pools/orders/resize", {"limit": None})
        pool = (await at.get("/pools/orders"))["pool"]
        assert (pool["paused"], pool["limit"]) == (False, 2)
        assert await orders_by(at, "http:127.0.0.1") == [
            "pause",
            "resize max_concurrent=9",
            "resume",
            "reset max_concurrent=2",
        ]


async def test_one_key_is_paused(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        await at.post("/pools/orders/pause", {"key": "acme"})
        pool = (await at.get("/pools/orders"))["pool"]
        assert (pool["paused"], pool["paused_units"]) == (False, ["acme"])


async def test_a_lane_that_is_not_there_is_refused(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        answer = await at.post("/pools/orders/pause", {"lane": "3"}, status=422)
        assert answer["error"]["code"] == "MILL-003"


async def test_a_stale_revision_is_refused(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        await at.post("/pools/orders/resize", {"limit": 3, "revision": 7})
        answer = await at.post("/pools/orders/resize", {"limit": 4, "revision": 7}, status=409)
        assert answer["error"]["fields"]["current"] == 7


async def test_what_waits_is_purged(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        await at.put("orders", 3, key="a")
        (other,) = await at.put("orders", 1, key="b")
        answer = await at.post("/pools/orders/purge", {"key": "a"})
        assert answer["changed"] == 3
        left = (await at.get("/tasks?status=queued"))["items"]
        assert [one["id"] for one in left] == [str(other)]
        assert await orders_by(at, "http:127.0.0.1") == ["purge"]


async def test_a_closed_pool_takes_nothing_more(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        await at.post("/pools/orders/close")
        answer = await at.post("/pools/orders/tasks", {"function": "pay"}, status=422)
        assert answer["error"]["code"] == "MILL-013"
        body = {"function": "pay", "kwargs": {"amount": 1}}
        answer = await at.post("/pools/orders/tasks", body, status=409)
        assert answer["error"]["code"] == "MILL-006"


@pytest.mark.rows("DA-13")
async def test_a_task_is_cancelled(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        (task,) = await at.put("orders")
        answer = await at.post(f"/tasks/{task}/cancel")
        assert (answer["changed"], answer["status"]) == (1, "cancelled")
        again = await at.post(f"/tasks/{task}/cancel", {"interrupt": True})
        assert (again["changed"], again["status"]) == (0, "cancelled")


@pytest.mark.rows("DA-08")
async def test_a_dead_letter_is_redriven_and_the_audit_has_by_whom(place: Place) -> None:
    tokens = {"ada": TOKEN}
    async with desk(shop, place, allow_actions=True, token=tokens) as at:
        at.client.headers.update(BEARER)
        (task,) = await submitted(at, -1)
        await at.mp.get_pool("orders").pause()
        answer = await at.post(f"/tasks/{task}/redrive")
        assert (answer["changed"], answer["status"]) == (1, "queued")
        assert await orders_by(at, "http:ada") == ["redrive"]
        history = (await at.get(f"/tasks/{task}"))["history"]
        assert "http:ada" in [one["by"] for one in history]


@pytest.mark.rows("DA-02")
async def test_a_bulk_redrive_does_what_was_counted(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        await submitted(at, -1, -2, -3)
        await submitted(at, 1)
        await at.mp.get_pool("orders").pause()
        count = await at.get("/tasks/count?pool=orders&status=failed&error=negative")
        assert (count["count"], count["more"]) == (3, False)
        chosen = {"pool": "orders", "status": "failed", "error": "negative"}
        wrong = {"action": "redrive", "filter": chosen, "expect": 2}
        answer = await at.post("/tasks/bulk", wrong, status=409)
        assert answer["error"]["fields"] == {"count": 3, "expect": 2, "more": False}
        assert (await at.get("/pools/orders"))["pool"]["dead"] == 3
        answer = await at.post("/tasks/bulk", {"action": "redrive", "filter": chosen, "expect": 3})
        assert (answer["matched"], answer["changed"]) == (3, 3)
        pool = (await at.get("/pools/orders"))["pool"]
        assert (pool["dead"], pool["queued"]) == (0, 3)


async def test_a_bulk_cancel_in_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.server.api.actions.PAGE", 4)
    monkeypatch.setattr("millpond.server.api.tasks.PAGE", 3)
    async with desk(shop, place, work=False, allow_actions=True) as at:
        await at.put("orders", 10, key="a")
        await at.put("orders", 2, key="b")
        body = {"action": "cancel", "filter": {"status": "queued", "key": "a"}, "expect": 10}
        assert (await at.post("/tasks/bulk", body))["changed"] == 10
        assert (await at.get("/tasks/count?status=queued"))["count"] == 2


@pytest.mark.rows("DA-02")
async def test_what_came_after_the_count_is_left_out(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        await at.put("orders", 2)
        await asyncio.sleep(1.0)
        counted_at = (await at.get("/tasks/count?status=queued"))["at"]
        await asyncio.sleep(1.0)
        await at.put("orders", 1)
        chosen = {"status": "queued", "before": counted_at}
        answer = await at.post("/tasks/bulk", {"action": "cancel", "filter": chosen, "expect": 2})
        assert answer["changed"] == 2
        assert (await at.get("/tasks/count?status=queued"))["count"] == 1


@pytest.mark.rows("DA-02")
async def test_what_failed_after_the_count_is_left_out(place: Place) -> None:
    """On a busy pool a count is old at once: what it was about is done, and nothing more."""
    async with desk(shop, place, allow_actions=True) as at:
        await submitted(at, -1, -2)
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        await pool.pause()
        late = await pool.submit(pay.bind(-3))
        await asyncio.sleep(1.0)
        counted = await at.get("/tasks/count?status=failed")
        await asyncio.sleep(1.0)
        await pool.resume()
        await late.wait()
        # One of the two has been redriven by another person meanwhile.
        dead = (await at.get("/tasks?status=failed"))["items"]
        await pool.pause()
        await at.post(f"/tasks/{dead[-1]['id']}/redrive")
        chosen = {"status": "failed", "before": counted["at"], "ended_before": counted["at"]}
        body = {"action": "redrive", "filter": chosen, "expect": counted["count"]}
        assert counted["count"] == 2
        assert (await at.post("/tasks/bulk", body))["changed"] == 1
        left = (await at.get("/tasks?status=failed"))["items"]
        assert [one["id"] for one in left] == [str(late.id)]


async def test_a_run_is_stopped(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        pool, pay = at.mp.get_pool("orders"), at.mp.tasks["pay"]
        await pool.pause()
        with pytest.raises(RunStopped):
            async with pool.run("r") as run:
                await run.submit(pay.bind(1))
                (open_run,) = (await at.get("/runs"))["items"]
                await at.post(f"/runs/{open_run['id']}/cancel")
        (over,) = (await at.get("/runs?status=finished"))["items"]
        assert over["ended"] == {"cancelled": 1}


async def test_a_schedule_is_fired_paused_and_resumed(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        shop(mp)
        mp.cron("hourly", every=3600.0, into="orders", task=mp.tasks["pay"].bind(1), emits="tick")

    async with desk(declare, place, allow_actions=True) as at:
        before = (await at.get("/schedules"))["items"]
        answer = await at.post("/schedules/hourly/fire", status=202)
        result = await at.get(f"/tasks/{answer['task']}/result?wait=30")
        assert result["result"]["paid"] == 1
        story = await at.get(f"/tasks/{answer['task']}")
        assert story["task"]["submitted_by"] == "http:127.0.0.1"
        (event,) = (await at.get("/events?name=tick"))["items"]
        assert event["id"] == answer["event"]
        assert (await at.get("/schedules"))["items"] == before
        await at.post("/schedules/hourly/pause")
        assert (await at.get("/schedules"))["items"][0]["state"] == "paused"
        await at.post("/schedules/hourly/resume")
        assert (await at.get("/schedules"))["items"][0]["state"] == "waiting"
        await at.post("/schedules/none/fire", status=404)


# Submit by name


@pytest.mark.rows("DA-12")
async def test_a_call_of_a_function_that_the_server_does_not_know(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        body = {
            "function": "mail.send",
            "kwargs": {"to": "ada@example.com", "n": 1 << 60},
            "options": {"key": "ada", "labels": {"tenant": "acme"}, "priority": 3, "delay": 5.0},
        }
        answer = await at.client.post("/api/v1/pools/orders/tasks", json=body)
        assert answer.status_code == 202
        receipt = answer.json()
        assert answer.headers["location"] == f"/api/v1/tasks/{receipt['id']}"
        story = (await at.client.get(f"{answer.headers['location']}?payload=1")).json()
        task = story["task"]
        assert (task["function"], task["key"], task["priority"]) == ("mail.send", "ada", 3)
        assert (task["state"], task["labels"]) == ("scheduled", {"tenant": "acme"})
        assert (task["submitted_by"], task["attempts"]) == ("http:127.0.0.1", 1)
        assert story["payload"]["arguments"] == body["kwargs"]


@pytest.mark.rows("DA-12")
async def test_a_task_by_name_has_the_attempts_that_its_pool_declares(place: Place) -> None:
    """A pool that never runs a task twice means those that arrive over HTTP, too."""

    def once(mp: Millpond) -> None:
        mp.pool("cards", retry=Retry.never())

    async with desk(once, place, work=False, allow_actions=True) as at:
        for given, expected in (({}, 1), ({"attempts": 2}, 2)):
            body = {"function": "charge", "options": given}
            answer = await at.client.post("/api/v1/pools/cards/tasks", json=body)
            story = (await at.client.get(answer.headers["location"])).json()
            assert expected == story["task"]["attempts"]


@pytest.mark.rows("DA-12")
async def test_a_worker_runs_what_was_submitted_by_name(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        body: dict[str, Any] = {"function": "pay", "kwargs": {"amount": 4}}
        receipt = await at.post("/pools/orders/tasks", body, status=202)
        answer = await at.get(f"/tasks/{receipt['id']}/result?wait=30")
        assert answer["result"] == {"paid": 4, "api_key": "k"}
        body = {"function": "pay", "args": [5]}
        receipt = await at.post("/pools/orders/tasks", body, status=202)
        answer = await at.get(f"/tasks/{receipt['id']}/result?wait=30")
        assert answer["result"] == {"paid": 5, "api_key": "k"}


@pytest.mark.rows("DA-12")
async def test_an_idempotency_key_stands_for_one_task(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        body: dict[str, Any] = {"function": "f", "kwargs": {"n": 1}}
        headers = {"idempotency-key": "order-1"}
        first = await at.post("/pools/orders/tasks", body, status=202, headers=headers)
        again = await at.post("/pools/orders/tasks", body, status=200, headers=headers)
        assert (again["id"], again["duplicate"]) == (first["id"], True)
        body["kwargs"] = {"n": 2}
        answer = await at.post("/pools/orders/tasks", body, status=409, headers=headers)
        assert answer["error"]["code"] == "MILL-007"
        assert answer["error"]["fields"]["task_id"] == first["id"]


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ({"kwargs": {}}, "invalid_request", 422),
        ({"function": "f", "surprise": 1}, "invalid_request", 422),
        ({"function": "f", "options": {"retries": 3}}, "invalid_request", 422),
        ({"function": "f", "options": {"priority": "high"}}, "invalid_request", 422),
        ({"function": "f", "args": [1]}, "MILL-013", 422),
        ({"function": "pay", "kwargs": {"amount": "many"}}, "MILL-013", 422),
        ({"function": "pay", "args": [1, 2, 3, 4]}, "MILL-013", 422),
        ({"function": "pay", "args": [1], "kwargs": {"amount": 1}}, "MILL-013", 422),
        ({"function": "f", "options": {"run_at": 1e300}}, "MILL-003", 422),
        ({"function": "f", "options": {"labels": {"a": "\0"}}}, "MILL-003", 422),
        ({"function": "f", "kwargs": {"text": "x" * 1_060_000}}, "MILL-014", 413),
    ],
)
async def test_what_cannot_be_submitted(body: Any, code: str, status: int) -> None:
    async with desk(shop, allow_actions=True) as at:
        answer = await at.post("/pools/orders/tasks", body, status=status)
        assert answer["error"]["code"] == code


async def test_bodies_that_are_not_json() -> None:
    async with desk(shop, allow_actions=True) as at:
        headers = {"content-type": "application/json"}
        for body in (b"{", b'{"function": NaN}', b'{"function": "\\ud800"}', b"[" * 100_000):
            answer = await at.client.post(
                "/api/v1/pools/orders/tasks", content=body, headers=headers
            )
            assert answer.status_code in (400, 422), body[:40]


@pytest.mark.rows("DA-12")
async def test_a_full_pool_says_when_to_try_again(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        mp.pool("full", backpressure=bounded(1, "fail_submitter"))
        mp.pool("dropping", backpressure=bounded(1, "drop_newest"))
        mp.pool("waiting", backpressure=bounded(1))
        mp.pool("quick", backpressure=fail_fast())

    async with desk(declare, place, work=False, allow_actions=True) as at:
        for pool, code in (("full", "MILL-001"), ("dropping", "MILL-033"), ("waiting", "MILL-001")):
            await at.post(f"/pools/{pool}/tasks", {"function": "f"}, status=202)
            answer = await at.client.post(f"/api/v1/pools/{pool}/tasks", json={"function": "f"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
            assert int(answer.headers["retry-after"]) >= 1
        await at.post("/pools/quick/pause")
        answer = await at.client.post("/api/v1/pools/quick/tasks", json={"function": "f"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "MILL-002")
        assert answer.json()["error"]["fields"]["reason"] == "no_capacity"
        assert int(answer.headers["retry-after"]) >= 1


async def test_pools_of_the_system_take_no_submits() -> None:
    async with desk(shop, allow_actions=True) as at:
        await at.post("/events", {"name": "a"}, status=202)
        await at.post("/pools/~events/tasks", {"function": "~dispatch"}, status=404)


@pytest.mark.rows("DA-13")
async def test_events_are_emitted_once(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        body = {"name": "order.paid", "payload": {"n": 1}, "id": "e1"}
        first = await at.post("/events", body, status=202)
        again = await at.post("/events", body, status=200)
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        (event,) = (await at.get("/events?payload=1"))["items"]
        assert (event["emitted_by"], event["payload"]) == ("http:127.0.0.1", {"n": 1})
        answer = await at.post("/events", {**body, "payload": {"n": 2}}, status=409)
        assert answer["error"]["code"] == "MILL-007"


@pytest.mark.rows("DA-13")
async def test_the_receipts_of_an_event_are_a_link_away(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        answer = await at.client.post("/api/v1/events", json={"name": "order.paid", "id": "e1"})
        receipts = (await at.client.get(answer.headers["location"])).json()
        assert (receipts["event"], receipts["id"], receipts["items"]) == ("order.paid", "e1", [])


async def test_an_unknown_field_is_named_beside_those_that_there_are() -> None:
    async with desk(shop, allow_actions=True) as at:
        body = {"function": "pay", "kwarg": {}}
        answer = (await at.post("/pools/orders/tasks", body, status=422))["error"]
        assert answer["message"] == (
            "unknown field 'kwarg'; there are: args, function, kwargs, options"
        )
        assert answer["fields"] == {"kwarg": "is not a field of this request"}
        body = {"function": "pay", "options": {"keys": "a"}}
        answer = (await at.post("/pools/orders/tasks", body, status=422))["error"]
        assert list(answer["fields"]) == ["options"]


async def test_a_fair_pool_shares_by_what_a_submit_says(place: Place) -> None:
    def declare(mp: Millpond) -> None:
        mp.pool("fair", queue=fair_round_robin("tenant"))

    async with desk(declare, place, work=False, allow_actions=True) as at:
        for body in (
            {"function": "f", "kwargs": {"tenant": "a"}, "options": {"key": "k1"}},
            {"function": "f", "options": {"key": "k2", "labels": {"tenant": "b"}}},
            {"function": "f", "options": {"key": "k3"}},
        ):
            await at.post("/pools/fair/tasks", body, status=202)
        units = (await at.get("/pools/fair"))["units"]
        assert [(one["unit"], one["share"]) for one in units] == [
            ("k1", "a"),
            ("k2", "b"),
            ("k3", "k3"),
        ]


async def test_actions_reach_running_handlers_of_this_process(place: Place) -> None:
    stopped = asyncio.Event()

    def declare(mp: Millpond) -> None:
        pool = mp.pool("slow")

        @pool.task
        async def wait(ctx: Context) -> None:
            await ctx.cancelled.wait()
            stopped.set()

    async with desk(declare, place, allow_actions=True) as at:
        handle = await at.mp.get_pool("slow").submit(at.mp.tasks["wait"].bind())
        await asyncio.sleep(1.0)
        answer = await at.post(f"/tasks/{handle.id}/cancel")
        assert (answer["changed"], answer["status"]) == (1, "running")
        await asyncio.wait_for(stopped.wait(), 60.0)


@pytest.mark.rows("DA-13")
async def test_a_waiting_task_is_changed(place: Place) -> None:
    """Its arguments, its time and more; it keeps its id, and the audit has who did it."""
    async with desk(shop, place, work=False, allow_actions=True) as at:
        (task,) = await at.put("orders", key="a", delay=600.0)
        changes = {"kwargs": {"amount": 5}, "priority": 3, "labels": {"tenant": "acme"}}
        answer = await at.patch(f"/tasks/{task}", changes)
        assert answer == {"id": str(task), "pool": "orders", "state": "scheduled", "revision": 1}
        story = await at.get(f"/tasks/{task}?payload=1")
        assert story["payload"]["arguments"] == {"amount": 5}
        assert (story["task"]["priority"], story["task"]["labels"]) == (3, {"tenant": "acme"})
        assert story["task"]["revision"] == 1
        answer = await at.patch(f"/tasks/{task}", {"delay": 0, "revision": 1})
        assert (answer["state"], answer["revision"]) == ("queued", 2)
        records = (await at.get("/audit?kind=update"))["items"]
        assert [(one["task"], one["by"]) for one in records] == [(str(task), "http:127.0.0.1")] * 2


async def test_a_task_is_moved_to_a_moment(place: Place) -> None:
    async with desk(shop, place, work=False, allow_actions=True) as at:
        (task,) = await at.put("orders")
        moment = (await at.get("/pools"))["at"] + 3600
        assert (await at.patch(f"/tasks/{task}", {"run_at": moment}))["state"] == "scheduled"
        assert (await at.get(f"/tasks/{task}"))["task"]["due_at"] == pytest.approx(moment)


@pytest.mark.rows("DA-13")
async def test_an_update_that_cannot_be_is_refused_with_its_reason(place: Place) -> None:
    async with desk(shop, place, allow_actions=True) as at:
        (done,) = await submitted(at, 1)
        answer = await at.patch(f"/tasks/{done}", {"delay": 0}, status=409)
        assert answer["error"]["code"] == "MILL-099"
        assert answer["error"]["fields"] == {"task_id": str(done), "status": "completed"}
        answer = await at.patch("/tasks/12345", {"delay": 0}, status=404)
        (task,) = await at.put("orders", delay=600.0)
        answer = await at.patch(f"/tasks/{task}", {"delay": 0, "revision": 7}, status=409)
        assert answer["error"]["code"] == "MILL-011"
        for wrong in ({}, {"delay": -1}, {"function": "other"}, {"delay": 1, "run_at": 5.0}):
            await at.patch(f"/tasks/{task}", wrong, status=422)


@pytest.mark.rows("DA-08")
async def test_a_server_that_is_read_only_changes_no_task() -> None:
    async with desk(shop, work=False) as at:
        (task,) = await at.put("orders", delay=600.0)
        answer = await at.patch(f"/tasks/{task}", {"delay": 0}, status=403)
        assert answer["error"]["code"] == "read_only"
