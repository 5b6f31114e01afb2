"""Live events: what clients hear, how often the store is asked, and how many may listen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests import stores
from tests.server.desk import Desk, desk
from tests.server.test_reading import shop, submitted

from millpond.pool.internals import internals_of
from millpond.server.live import ASLEEP_AFTER, HEARTBEAT, IDLE_INTERVAL

Place = stores.Places | None


class Listener:
    """A client of the stream, as a server would run it."""

    def __init__(self, at: Desk, query: str = "") -> None:
        self.events: list[tuple[str, Any]] = []
        self.comments = 0
        self.status: int | None = None
        self.body = b""
        self._gone = asyncio.Event()
        self._heard = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/live",
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("localhost", 80),
        }
        self.task = asyncio.ensure_future(at.server(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            for block in message["body"].decode().split("\n\n"):
                self._take(block)
        self._heard.set()

    def _take(self, block: str) -> None:
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        self.comments += block.startswith(":")
        if "event" in lines:
            self.events.append((lines["event"], json.loads(lines["data"])))

    async def until(self, name: str, count: int = 1) -> Any:
        """Wait for `count` events of a name; return the data of the last of them."""
        while len(found := [data for one, data in self.events if one == name]) < count:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 120.0)
        return found[count - 1]

    async def leave(self) -> None:
        """Go away, as a browser that is closed."""
        self._gone.set()
        await self.task


@pytest.mark.rows("DA-01")
async def test_a_client_hears_all_pools_and_then_what_changes(place: Place) -> None:
    async with desk(shop, place) as at:
        listener = Listener(at)
        first = await listener.until("pools")
        assert first["full"]
        assert [one["name"] for one in first["items"]] == ["idle", "orders"]
        await submitted(at, 1)
        second = await listener.until("pools", 2)
        assert not second["full"]
        assert [(one["name"], one["completed"]) for one in second["items"]] == [("orders", 1)]
        await listener.leave()
        assert at.server.site.live.clients == 0


async def test_a_client_hears_of_the_pool_and_the_task_it_names(place: Place) -> None:
    async with desk(shop, place) as at:
        (task,) = await submitted(at, 1)
        listener = Listener(at, f"pool=orders&task={task}&task=99")
        pool = await listener.until("pool")
        assert (pool["name"], pool["run_times"]["samples"]) == ("orders", 1)
        assert (await listener.until("task"))["status"] == "completed"
        assert await listener.until("task", 2) == {"id": "99", "status": "unknown"}
        await listener.leave()


@pytest.mark.rows("DA-01")
async def test_many_clients_cost_the_store_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(shop) as at:
        view = internals_of(at.mp).runtime.view
        read, reads = view.pools, []

        async def counted(**options: Any) -> Any:
            reads.append(options)
            return await read(**options)

        monkeypatch.setattr(type(view), "pools", lambda _, **options: counted(**options))
        listeners = [Listener(at) for _ in range(50)]
        for listener in listeners:
            await listener.until("pools")
        before = len(reads)
        await asyncio.sleep(10.0)
        assert 9 <= len(reads) - before <= 11
        for listener in listeners:
            await listener.leave()
        before = len(reads)
        await asyncio.sleep(10 * IDLE_INTERVAL)
        assert 9 <= len(reads) - before <= 11
        await asyncio.sleep(ASLEEP_AFTER)
        before = len(reads)
        await asyncio.sleep(ASLEEP_AFTER)
        assert len(reads) == before


async def test_a_silent_stream_shows_that_it_lives() -> None:
    async with desk(shop) as at:
        listener = Listener(at)
        await listener.until("pools")
        await asyncio.sleep(3 * HEARTBEAT)
        assert len(listener.events) == 1
        assert listener.body.startswith(b"retry: ")
        await listener.leave()


async def test_streams_end_with_the_server() -> None:
    async with desk(shop) as at:
        listener = Listener(at)
        await listener.until("pools")
        await at.server.close()
        await asyncio.wait_for(listener.task, 1.0)


async def test_a_store_that_fails_for_a_while_ends_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(shop) as at:
        listener = Listener(at)
        await listener.until("pools")
        with monkeypatch.context() as patched:

            async def broken(*_: Any, **__: Any) -> Any:
                raise OSError("away")

            patched.setattr(type(internals_of(at.mp).runtime.view), "pools", broken)
            await asyncio.sleep(5.0)
        await submitted(at, 1)
        count = 2
        while (await listener.until("pools", count))["items"][-1]["completed"] != 1:
            count += 1
        await listener.leave()


@pytest.mark.rows("DA-10")
async def test_of_ten_thousand_clients_the_limit_is_served_and_room_comes_back() -> None:
    async with desk(shop, max_clients=100) as at:
        listeners = [Listener(at) for _ in range(10_000)]
        for listener in listeners[:100]:
            await listener.until("pools")
        for listener in listeners[100:]:
            await listener.task
            assert listener.status == 503
            assert json.loads(listener.body)["error"]["code"] == "too_many_clients"
        assert at.server.site.live.clients == 100
        for listener in listeners[:100]:
            await listener.leave()
        again = Listener(at)
        await again.until("pools")
        await again.leave()


@pytest.mark.rows("DA-10")
async def test_long_polls_beyond_the_limit_are_refused() -> None:
    async with desk(shop, work=False, max_clients=5) as at:
        (task,) = await at.put("orders")
        path = f"/api/v1/tasks/{task}/result?wait=30"
        polls = [asyncio.create_task(at.client.get(path)) for _ in range(8)]
        codes = sorted([(await one).status_code for one in polls])
        assert codes == [200] * 5 + [503] * 3
