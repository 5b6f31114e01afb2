"""Webhooks as an ASGI app: what is answered, and that it is stored before it is."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import uvicorn

from millpond import Millpond
from millpond.core.event import Event
from millpond.errors import ConfigError, DuplicateName, StoreUnreachable
from millpond.pool.internals import internals_of
from millpond.webhooks import Webhooks, github, standard, timestamped

SECRET = b"s" * 32
SIGNER = standard(SECRET)
JSON = {"content-type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


async def call(
    app: Webhooks,
    path: str = "/hooks/orders",
    body: bytes | list[bytes] = b"{}",
    headers: dict[str, str] | None = None,
    *,
    method: str = "POST",
    raw: list[tuple[bytes, bytes]] | None = None,
    root: str = "",
) -> Answer:
    """Call it as a server would."""
    parts = [body] if isinstance(body, bytes) else list(body)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    answer = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root,
        "headers": answer + (raw or []),
    }
    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, None)
    start, content = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, json.loads(content["body"]))


def app_of(mp: Millpond, **options: Any) -> Webhooks:
    app = Webhooks(mp, clock=lambda: 1_000.0, **options)
    app.add("/hooks/orders", emits="orders", verify=SIGNER, max_body=1_000)
    return app


def signed(body: bytes, event_id: str = "evt-1", now: float = 1_000.0) -> dict[str, str]:
    return {**JSON, **SIGNER.sign(event_id, body, now)}


@pytest.mark.rows("WH-01")
async def test_a_signed_request_is_stored_and_then_answered() -> None:
    mp = Millpond()
    pool = mp.pool("orders")
    seen: list[Event] = []

    @pool.task
    async def handle(event: Event) -> None:
        seen.append(event)

    mp.trigger("orders", on="orders", into=pool, task=handle)
    app = app_of(mp)
    async with mp:
        body = b'{"total": 7}'
        first = await call(app, body=[body[:4], body[4:]], headers=signed(body))
        assert 202 == first.status
        assert ("orders", "evt-1", False) == (
            first.body["event"],
            first.body["event_id"],
            first.body["duplicate"],
        )
        again = await call(app, body=body, headers=signed(body, now=1_100.0))
        assert (202, {**first.body, "duplicate": True}) == (again.status, again.body)
        other = await call(app, body=b"[]", headers=signed(b"[]"))
        assert (409, "conflict") == (other.status, other.body["error"])
        await asyncio.sleep(1)
        (answer,) = await mp.events("orders")
        assert str(answer.task_id) == first.body["task_id"]
    assert [Event("orders", "evt-1", {"total": 7})] == seen


BODY = b'{"a": 1}'
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no such path": (404, "not_found", {"path": "/hooks/other"}),
    "GET": (405, "not_post", {"method": "GET"}),
    "PUT": (405, "not_post", {"method": "PUT"}),
    "a form": (415, "not_json", {"headers": {"content-type": "application/x-www-form-urlencoded"}}),
    "no type": (415, "not_json", {"headers": {}}),
    "text": (415, "not_json", {"headers": {"content-type": "text/+json"}}),
    "two types": (415, "not_json", {"raw": [(b"content-type", b"application/json")]}),
    "compressed": (415, "encoded", {"raw": [(b"content-encoding", b"gzip")]}),
    "said to be large": (413, "too_large", {"raw": [(b"content-length", b"1001")]}),
    "is large": (413, "too_large", {"body": [b" " * 600, b" " * 600]}),
    "unsigned": (401, "bad_signature", {"headers": JSON}),
    "signed for another body": (401, "bad_signature", {"headers": signed(b"{}")}),
    "old": (403, "replayed", {"headers": signed(BODY, now=600.0)}),
    "from the future": (403, "replayed", {"headers": signed(BODY, now=1_400.0)}),
    "half a JSON": (400, "bad_json", {"body": b"{", "headers": signed(b"{")}),
    "nothing": (400, "bad_json", {"body": b"", "headers": signed(b"")}),
    "no text": (400, "bad_json", {"body": b'"\xff"', "headers": signed(b'"\xff"')}),
    "deep": (400, "bad_json", {"body": b"[" * 900, "headers": signed(b"[" * 900)}),
    "long id": (400, "bad_id", {"headers": signed(BODY, "x" * 513)}),
    "empty id": (202, "", {"headers": signed(BODY, "")}),
}


@pytest.mark.rows("WH-03")
@pytest.mark.parametrize("case", CASES)
async def test_bad_requests(case: str) -> None:
    status, code, options = CASES[case]
    mp = Millpond()
    app = app_of(mp)
    async with mp:
        answer = await call(app, **{"body": BODY, "headers": signed(BODY), **options})
        assert (status, code) == (answer.status, answer.body.get("error", ""))
        if status == 405:
            assert "POST" == answer.headers["allow"]
        if status != 202:
            assert [] == [event async for event in _events(mp)]


async def _events(mp: Millpond) -> AsyncIterator[Any]:
    for name in await internals_of(mp).runtime.view.names("~events"):
        if "callbacks" not in name:
            for task in (await internals_of(mp).runtime.view.tasks(name)).tasks:
                yield task


@pytest.mark.rows("WH-02")
async def test_names_and_ids_from_the_body_and_from_headers() -> None:
    mp = Millpond()
    app = Webhooks(mp, clock=lambda: 1_000.0)
    stripe, hub = timestamped(SECRET), github(SECRET)
    app.add("/stripe", emits="stripe", verify=stripe, id_from="id", name_from="payload.type")
    app.add("/github", emits="github", verify=hub, name_from="header:X-GitHub-Event")
    async with mp:
        body = b'{"id": "evt_9", "type": "charge.failed"}'
        answer = await call(app, "/stripe", body, {**JSON, **stripe.sign(body, 1_000.0)})
        assert (202, "stripe.charge.failed", "evt_9") == (
            answer.status,
            answer.body["event"],
            answer.body["event_id"],
        )
        for bad, code in ((b'{"type": "x"}', "no_id"), (b'{"id": 1, "type": "a b"}', "bad_name")):
            found = {**JSON, **stripe.sign(bad, 1_000.0)}
            refused = await call(app, "/stripe", bad, found)
            assert (400, code) == (refused.status, refused.body["error"])
        pushed = {**JSON, **hub.sign(b"{}"), "x-github-event": "push"}
        first = await call(app, "/github", b"{}", {**pushed, "x-github-delivery": "1"})
        # What is not signed cannot make another event of the same request.
        again = await call(app, "/github", b"{}", {**pushed, "x-github-delivery": "2"})
        assert first.body["event_id"] == again.body["event_id"]
        assert again.body["duplicate"]
        assert "github.push" == first.body["event"]
        unnamed = await call(app, "/github", b"{}", {**JSON, **hub.sign(b"{}")})
        assert (400, "bad_name") == (unnamed.status, unnamed.body["error"])


async def test_senders_that_change_the_body_from_one_try_to_the_next() -> None:
    mp = Millpond()
    app = Webhooks(mp, clock=lambda: 1_000.0)
    app.add("/stripe", emits="stripe", verify=SIGNER, first_wins=True)
    async with mp:
        first = await call(app, "/stripe", b'{"tries": 1}', signed(b'{"tries": 1}'))
        again = await call(app, "/stripe", b'{"tries": 2}', signed(b'{"tries": 2}'))
        assert (202, {**first.body, "duplicate": True}) == (again.status, again.body)
        (answer,) = await mp.events("stripe")
    assert {"tries": 1} == answer.payload


@pytest.mark.real_loop
async def test_a_millpond_that_another_loop_has_open_is_not_used() -> None:
    mp = Millpond()
    app = app_of(mp)
    with mp.sync:
        answer = await call(app, body=BODY, headers=signed(BODY))
    assert 503 == answer.status


async def test_mounted_below_a_path() -> None:
    mp = Millpond()
    app = app_of(mp)
    async with mp:
        for path, root in (("/api/hooks/orders", "/api"), ("/hooks/orders", "/api")):
            answer = await call(app, path, BODY, signed(BODY), root=root)
            assert 202 == answer.status


@pytest.mark.rows("WH-03")
async def test_a_store_that_is_away_or_a_closed_millpond_is_503_and_says_when() -> None:
    mp = Millpond()
    app = app_of(mp)
    closed = await call(app, body=BODY, headers=signed(BODY))
    assert (503, "5") == (closed.status, closed.headers["retry-after"])

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnreachable("the server does not answer", path="x")

    async with mp:
        mp.emit = away  # type: ignore[method-assign]
        gone = await call(app, body=BODY, headers=signed(BODY))
    assert (503, "store_away") == (gone.status, gone.body["error"])
    assert "server" not in gone.body["message"]


@pytest.mark.rows("WH-03")
async def test_too_much_at_once_or_waiting_is_429() -> None:
    mp = Millpond(work=False)
    app = app_of(mp, max_concurrent=1, max_backlog=2)
    async with mp:
        for number in range(2):
            assert 202 == (await call(app, body=BODY, headers=signed(BODY, f"{number}"))).status
        full = await call(app, body=BODY, headers=signed(BODY, "3"))
        assert (429, "1") == (full.status, full.headers["retry-after"])
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/hooks/orders",
            "headers": [(b"content-type", b"application/json")],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        slow = asyncio.create_task(app(scope, lambda: held, send))
        await asyncio.sleep(1)
        busy = await call(app, body=BODY, headers=signed(BODY, "4"))
        assert (429, "busy") == (busy.status, busy.body["error"])
        # A client that sends nothing is dropped, and others get in.
        await slow
        assert 408 == sent[0]["status"]
        assert 401 == (await call(app, body=BODY, headers=JSON)).status


async def test_a_client_that_disconnects_leaves_nothing() -> None:
    mp = Millpond()
    app = app_of(mp, max_concurrent=1)
    async with mp:
        for _ in range(3):
            assert 0 == (await call(app, body=[], headers=signed(b""))).status
        assert 202 == (await call(app, body=BODY, headers=signed(BODY))).status


@pytest.mark.rows("WH-04")
async def test_the_log_has_neither_secrets_nor_bodies(caplog: pytest.LogCaptureFixture) -> None:
    mp = Millpond()
    app = app_of(mp)
    with caplog.at_level(logging.DEBUG):
        async with mp:
            await call(app, body=b'{"card": 4242}', headers=signed(BODY))
    assert "bad_signature" in caplog.text
    assert "4242" not in caplog.text
    assert SECRET.decode() not in caplog.text


def is_open(mp: Millpond) -> bool:
    return mp.is_open


async def test_as_a_server_starts_and_stops_it() -> None:
    mp = Millpond()
    app = app_of(mp)
    messages: asyncio.Queue[Any] = asyncio.Queue()
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    living = asyncio.create_task(app({"type": "lifespan"}, messages.get, send))
    await messages.put({"type": "lifespan.startup"})
    await asyncio.sleep(0.1)
    assert is_open(mp)
    await messages.put({"type": "lifespan.shutdown"})
    await living
    assert not is_open(mp)
    assert ["lifespan.startup.complete", "lifespan.shutdown.complete"] == sent


def test_endpoints_are_checked_where_they_are_made() -> None:
    app = app_of(Millpond(max_payload=5_000))
    with pytest.raises(DuplicateName):
        app.add("/hooks/orders", emits="x", verify=SIGNER)
    cases: list[dict[str, Any]] = [
        {"path": "hooks"},
        {"emits": "a b"},
        {"verify": "hunter2"},
        {"max_body": 6_000},
        {"max_body": 0},
    ]
    for case in cases:
        given = {"path": "/x", "emits": "x", "verify": SIGNER, "max_body": 10, **case}
        with pytest.raises(ConfigError) as caught:
            app.add(given.pop("path"), **given)
        assert "hunter2" not in str(caught.value)
    assert "s" * 32 not in repr(app)


@asynccontextmanager
async def served(app: Callable[..., Any]) -> AsyncIterator[int]:
    """Serve an app on a port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def posted(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    """Post something as a sender would, over a socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = {
        "host": "localhost",
        "connection": "close",
        "content-length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in found.items())
    writer.write(f"POST /hooks/orders HTTP/1.1\r\n{head}\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    start, _, content = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(content)


@pytest.mark.rows("WH-01")
@pytest.mark.real_loop
async def test_over_a_socket(tmp_path: Any) -> None:
    mp = Millpond(f"sqlite:///{tmp_path}/work.db")
    app = app_of(mp)
    async with served(app) as port:
        assert is_open(mp)
        body = b'{"total": 7}'
        answers = await asyncio.gather(*(posted(port, body, signed(body)) for _ in range(8)))
        assert {202} == {status for status, _ in answers}
        # All of them are one event, and one of them was first.
        assert 1 == len({answer["task_id"] for _, answer in answers})
        assert 7 == sum(answer["duplicate"] for _, answer in answers)
        assert 401 == (await posted(port, body, JSON))[0]
        assert 413 == (await posted(port, b" " * 2_000, signed(body)))[0]
    assert not is_open(mp)
    async with mp:
        (stored,) = await mp.events("orders")
    assert {"total": 7} == stored.payload
