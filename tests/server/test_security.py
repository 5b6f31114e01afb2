"""What is refused: foreign hosts and sites, strangers, changes, what is too large or too much."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
import pytest
import uvicorn
from tests.server.desk import BEARER, TOKEN, desk, local_client
from tests.server.test_reading import shop

from millpond import Millpond
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.server import app, redaction
from millpond.server.security import content_policy, is_loopback
from millpond.server.serving import Impatient
from millpond.server.sessions import SESSION_LASTS, Sessions, Tokens

JSON = {"content-type": "application/json"}


async def refused(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the code of a refusal."""
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.rows("DA-07")
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "10.0.0.1", "[::2]"]
)
async def test_a_foreign_host_is_refused(host: str) -> None:
    async with desk(shop) as at:
        answer = await at.client.get("/api/v1/pools", headers={"host": host})
        assert await refused(answer) == (421, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:1", "[::1]:8642"])
async def test_the_names_of_this_machine_are_allowed(host: str) -> None:
    async with desk(shop) as at:
        assert (await at.client.get("/api/v1/pools", headers={"host": host})).status_code == 200


async def test_further_hosts_are_allowed_by_name() -> None:
    async with desk(shop, allow_hosts=["Dash.Example"]) as at:
        answer = await at.client.get("/api/v1/pools", headers={"host": "dash.example:443"})
        assert answer.status_code == 200


async def test_with_a_token_a_plain_address_is_a_host() -> None:
    async with desk(shop, token=TOKEN) as at:
        headers = {"host": "10.0.0.1:8642", **BEARER}
        assert (await at.client.get("/api/v1/pools", headers=headers)).status_code == 200


@pytest.mark.rows("DA-07")
@pytest.mark.parametrize("client", ["10.0.0.9", "192.168.1.2", "fe80::1", "testclient"])
async def test_another_machine_is_refused_without_a_token(client: str) -> None:
    async with desk(shop) as at:
        transport = httpx.ASGITransport(at.server, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            assert await refused(await other.get("/api/v1/pools")) == (403, "token_not_set")


@pytest.mark.rows("DA-07")
@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
async def test_a_proxy_is_refused_without_a_token(header: str) -> None:
    async with desk(shop) as at:
        answer = await at.client.get("/api/v1/pools", headers={header: "10.0.0.9"})
        assert await refused(answer) == (403, "token_not_set")


@pytest.mark.rows("DA-07")
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "Bearer ", "Basic abc", f"Bearer {TOKEN}x"]
)
async def test_a_missing_or_wrong_token_is_refused(given: str | None) -> None:
    async with desk(shop, token=TOKEN) as at:
        headers = {} if given is None else {"authorization": given}
        answer = await at.client.get("/api/v1/pools", headers=headers)
        assert await refused(answer) == (401, "token_required")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        live = await at.client.get("/api/v1/live", headers=headers)
        assert live.status_code == 401


async def test_a_token_opens_the_api_from_everywhere() -> None:
    async with desk(shop, token=TOKEN) as at:
        transport = httpx.ASGITransport(at.server, client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            assert (await other.get("/api/v1/pools", headers=BEARER)).status_code == 200


@pytest.mark.parametrize("token", ["short", "ünïcödé-is-not-a-token", ""])
def test_a_token_that_is_none_is_refused_where_it_is_given(token: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        app(Millpond(), token=token)
    assert token not in str(refusal.value) or not token


def test_tokens_are_compared_as_digests() -> None:
    tokens = Tokens({"ada": TOKEN, "bob": TOKEN[::-1]})
    assert tokens.holder(TOKEN) == "ada"
    assert tokens.holder(TOKEN[::-1]) == "bob"
    assert tokens.holder(TOKEN[:-1]) is None
    assert TOKEN.encode() not in b"".join(digest for _, digest in tokens._digests)


@pytest.mark.rows("DA-08")
async def test_without_actions_nothing_is_changed() -> None:
    async with desk(shop) as at:
        for path in ("/pools/orders/pause", "/tasks/1/cancel", "/events", "/pools/orders/tasks"):
            answer = await at.client.post(f"/api/v1{path}", json={})
            assert await refused(answer) == (403, "read_only"), path
        assert not (await at.get("/pools/orders"))["pool"]["paused"]


@pytest.mark.rows("DA-09")
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    async with desk(shop, allow_actions=True) as at:
        csrf = (await at.get("/session"))["csrf"]
        headers = {**headers, "x-csrf-token": csrf}
        answer = await at.client.post("/api/v1/pools/orders/pause", json={}, headers=headers)
        assert await refused(answer) == (403, "cross_site")


@pytest.mark.rows("DA-09")
async def test_a_form_changes_nothing() -> None:
    async with desk(shop, allow_actions=True) as at:
        for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
            answer = await at.client.post(
                "/api/v1/pools/orders/pause", content=b"{}", headers={"content-type": kind}
            )
            assert await refused(answer) == (415, "not_json")


@pytest.mark.rows("DA-09")
async def test_a_page_of_ours_proves_itself() -> None:
    async with desk(shop, allow_actions=True) as at:
        page = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
        path = "/api/v1/pools/orders/pause"
        answer = await at.client.post(path, json={}, headers=page)
        assert await refused(answer) == (403, "csrf_required")
        answer = await at.client.post(path, json={}, headers={**page, "x-csrf-token": "0" * 64})
        assert await refused(answer) == (403, "csrf_required")
        csrf = (await at.get("/session"))["csrf"]
        answer = await at.client.post(path, json={}, headers={**page, "x-csrf-token": csrf})
        assert answer.status_code == 200


async def test_a_browser_logs_in_and_out() -> None:
    async with desk(shop, token={"ada": TOKEN}, allow_actions=True) as at:
        nothing = await at.get("/session")
        assert nothing["token_required"]
        assert {nothing[name] for name in ("actor", "csrf", "store", "version")} == {None}
        wrong = await at.client.post("/api/v1/session", json={"token": "wrong"})
        assert await refused(wrong) == (401, "wrong_token")
        answer = await at.client.post("/api/v1/session", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        session = answer.json()
        assert session["actor"] == "http:ada"
        assert (await at.client.get("/api/v1/pools")).status_code == 200
        path = "/api/v1/pools/orders/pause"
        assert await refused(await at.client.post(path, json={})) == (403, "csrf_required")
        headers = {"x-csrf-token": session["csrf"]}
        assert (await at.client.post(path, json={}, headers=headers)).status_code == 200
        assert (await at.client.delete("/api/v1/session", headers=headers)).status_code == 204
        assert (await at.client.get("/api/v1/pools")).status_code == 401


async def test_a_csrf_token_of_one_session_is_not_that_of_another() -> None:
    async with desk(shop, token=TOKEN, allow_actions=True) as at, local_client(at.server) as other:
        first = (await at.client.post("/api/v1/session", json={"token": TOKEN})).json()
        await other.post("/api/v1/session", json={"token": TOKEN})
        headers = {"x-csrf-token": first["csrf"]}
        answer = await other.post("/api/v1/pools/orders/pause", json={}, headers=headers)
        assert await refused(answer) == (403, "csrf_required")


def test_sessions_end() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin("ada")
    assert sessions.find(first.id) == first
    assert sessions.find("made-up") is None
    now[0] = SESSION_LASTS
    assert sessions.find(first.id) is None


def test_the_oldest_of_too_many_sessions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.server.sessions.MOST_SESSIONS", 2)
    sessions = Sessions()
    first, second, third = (sessions.begin("") for _ in range(3))
    assert sessions.find(first.id) is None
    assert sessions.find(second.id) == second
    assert sessions.find(third.id) == third


async def test_guessing_a_token_is_slowed_down() -> None:
    async with desk(shop, token=TOKEN) as at:
        answers = [
            await at.client.post("/api/v1/session", json={"token": f"guess {n}"}) for n in range(12)
        ]
        assert [one.status_code for one in answers] == [401] * 10 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) >= 1


async def test_an_application_says_who_asks() -> None:
    async def who(scope: Any) -> str | None:
        found = dict(scope["headers"]).get(b"x-user")
        return None if found is None else found.decode()

    async with desk(shop, authenticate=who, allow_actions=True) as at:
        assert (await at.client.get("/api/v1/pools")).status_code == 401
        headers = {"x-user": "ada"}
        await at.post("/pools/orders/pause", headers=headers)
        page = await at.get("/audit?kind=control", headers=headers)
        assert page["items"][0]["by"] == "http:ada"


@pytest.mark.rows("DA-10")
async def test_an_oversized_body_is_refused() -> None:
    async with desk(shop, allow_actions=True, max_body=1000) as at:
        path = "/api/v1/pools/orders/tasks"
        body = b'{"function": "%s"}' % (b"x" * 2000)
        answer = await at.client.post(path, content=body, headers=JSON)
        assert await refused(answer) == (413, "body_too_large")

        async def parts() -> Any:
            for _ in range(20):
                yield b" " * 100

        answer = await at.client.post(path, content=parts(), headers=JSON)
        assert await refused(answer) == (413, "body_too_large")
        headers = {**JSON, "content-length": "1" * 30}
        answer = await at.client.post(path, content=b"{}", headers=headers)
        assert await refused(answer) == (413, "body_too_large")


async def test_a_compressed_body_is_refused() -> None:
    async with desk(shop, allow_actions=True) as at:
        headers = {**JSON, "content-encoding": "gzip"}
        answer = await at.client.post("/api/v1/events", content=b"{}", headers=headers)
        assert await refused(answer) == (415, "encoded")


async def test_unknown_fields_and_parameters_are_refused() -> None:
    async with desk(shop, allow_actions=True) as at:
        answer = await at.client.post("/api/v1/pools/orders/pause", json={"lanes": 3})
        assert await refused(answer) == (422, "invalid_request")
        assert "lanes" in answer.text
        answer = await at.client.get("/api/v1/tasks?statuses=failed")
        assert answer.json()["error"]["fields"] == {"statuses": "is not a parameter of this path"}


@pytest.mark.rows("DA-10")
async def test_a_client_that_asks_too_fast_hears_when_to_come_back() -> None:
    async with desk(shop, max_rate=5) as at:
        answers = [await at.client.get("/api/v1/session") for _ in range(12)]
        assert [one.status_code for one in answers] == [200] * 10 + [429] * 2
        assert await refused(answers[-1]) == (429, "too_many_requests")
        assert answers[-1].headers["retry-after"] == "1"


@pytest.mark.rows("DA-10")
async def test_more_requests_than_are_answered_at_a_time_wait_and_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(shop, max_requests=1) as at:
        blocked = asyncio.Event()

        async def slow(*_: Any, **__: Any) -> Any:
            await blocked.wait()
            return ()

        monkeypatch.setattr(type(internals_of(at.mp).runtime.view), "pools", slow)
        requests = [asyncio.create_task(at.client.get("/api/v1/pools")) for _ in range(8)]
        await asyncio.sleep(5.0)
        over = [one.result() for one in requests if one.done()]
        assert len(over) == 7
        assert {await refused(one) for one in over} == {(503, "overloaded")}
        assert {one.json()["error"]["fields"]["reason"] for one in over} == {
            "queue_limit",
            "timeout",
        }
        blocked.set()
        assert sorted([(await one).status_code for one in requests]) == [200] + [503] * 7


@pytest.mark.rows("DA-06")
async def test_every_answer_has_the_headers_that_keep_a_browser_safe() -> None:
    async with desk(shop) as at:
        for path in ("/api/v1/pools", "/api/v1/none", "/none", "/openapi.json"):
            headers = (await at.client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
        assert (await at.client.get("/api/v1/pools")).headers["cache-control"] == "no-store"


@pytest.mark.rows("DA-06")
def test_an_import_map_is_allowed_by_its_digest_alone() -> None:
    page = '<script type="importmap">{"imports":{}}</script><script>alert(1)</script>'
    policy = content_policy(page)
    assert len(re.findall("'sha256-", policy)) == 1
    assert "unsafe-inline" not in policy


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - that it is not one is the point
        ("::", False),
        ("10.0.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


async def test_mounted_in_another_app(tmp_path: Path) -> None:
    from fastapi import FastAPI

    async with desk(shop, allow_actions=True, token=TOKEN) as at:
        outer = FastAPI()
        outer.mount("/millpond", at.server)
        async with local_client(outer) as client:
            assert (await client.get("/millpond/api/v1/pools")).status_code == 401
            answer = await client.get("/millpond/api/v1/pools", headers=BEARER)
            assert answer.status_code == 200
            answer = await client.post(
                "/millpond/api/v1/pools/orders/tasks", json={"function": "f"}, headers=BEARER
            )
            assert answer.headers["location"].startswith("/millpond/api/v1/tasks/")
            assert (await client.get(answer.headers["location"], headers=BEARER)).is_success
            login = await client.post("/millpond/api/v1/session", json={"token": TOKEN})
            assert "path=/millpond;" in login.headers["set-cookie"].lower()


async def test_a_closed_millpond_is_503() -> None:
    async with local_client(app(Millpond())) as client:
        answer = await client.get("/api/v1/pools")
        assert await refused(answer) == (503, "MILL-023")
        assert answer.headers["retry-after"]


async def test_served_by_itself_it_opens_the_millpond() -> None:
    mp = Millpond()
    shop(mp)
    server = app(mp)
    sent: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    received: asyncio.Queue[Any] = asyncio.Queue()
    life = asyncio.create_task(server({"type": "lifespan"}, sent.get, received.put))
    sent.put_nowait({"type": "lifespan.startup"})
    assert (await received.get())["type"] == "lifespan.startup.complete"
    assert mp.is_open
    async with local_client(server) as client:
        assert (await client.get("/api/v1/pools")).status_code == 200
    sent.put_nowait({"type": "lifespan.shutdown"})
    assert (await received.get())["type"] == "lifespan.shutdown.complete"
    await life
    assert not mp.is_open


@pytest.mark.rows("DA-09")
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_takes_no_place_among_those_who_listen(site: str) -> None:
    async with desk(shop, max_clients=1) as at:
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        for path in ("/api/v1/live", "/api/v1/pools", "/openapi.json"):
            answer = await at.client.get(path, headers=headers)
            assert await refused(answer) == (403, "cross_site")
        assert at.server.site.live.clients == 0


@pytest.mark.parametrize(
    "host",
    ["localhost:80@evil.example", "localhost:evil", "localhost:", "localhost/evil", "[::1", "a b"],
)
async def test_a_host_with_anything_behind_its_name_is_foreign(host: str) -> None:
    async with desk(shop) as at:
        answer = await at.client.get("/api/v1/pools", headers={"host": host})
        assert await refused(answer) == (421, "host_not_allowed")


async def test_a_token_in_an_address_opens_nothing() -> None:
    async with desk(shop, token=TOKEN) as at:
        for name in ("token", "access_token", "authorization"):
            answer = await at.client.get("/api/v1/pools", params={name: TOKEN})
            assert await refused(answer) == (401, "token_required")


@pytest.mark.parametrize(
    "path",
    [
        "/../settings.py",
        "/%2e%2e/settings.py",
        "/app/..%2f..%2fsettings.py",
        "/app/%2e%2e/%2e%2e/%2e%2e/__init__.py",
        "/..%5csettings.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/app/main.js%00.css",
        "/vendor/../../security.py",
    ],
)
async def test_no_path_leads_out_of_the_folder_of_the_pages(path: str) -> None:
    async with desk(shop) as at:
        raw = path.encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": raw,
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        answers: asyncio.Queue[Any] = asyncio.Queue()
        await at.server(scope, asyncio.Queue().get, answers.put)
        assert (await answers.get())["status"] == 404


@pytest.mark.rows("DA-10")
async def test_a_slow_body_is_refused_and_takes_no_place_meanwhile() -> None:
    async with desk(shop, max_requests=1, token=TOKEN) as at:

        async def slow() -> Any:
            yield b"{"
            await asyncio.sleep(3600)

        async def log_in() -> httpx.Response:
            return await at.client.post("/api/v1/session", content=slow(), headers=JSON)

        slow_ones = [asyncio.create_task(log_in()) for _ in range(10)]
        await asyncio.sleep(1.0)
        for _ in range(3):
            assert (await at.client.get("/api/v1/pools", headers=BEARER)).status_code == 200
        for one in slow_ones:
            assert await refused(await one) == (408, "slow_body")


async def test_who_has_no_token_sends_little() -> None:
    async with desk(shop, token=TOKEN) as at:
        body = {"token": "x" * 5000}
        answer = await at.client.post("/api/v1/session", json=body)
        assert await refused(answer) == (413, "body_too_large")


async def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async with desk(shop, allow_actions=True) as at:
        sent = iter([{"type": "http.request", "body": b"{}", "more_body": True}])

        async def receive() -> Any:
            return next(sent, {"type": "http.disconnect"})

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/pools/orders/pause",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", b"20"),
            ],
            "client": ("127.0.0.1", 1),
        }
        answers: asyncio.Queue[Any] = asyncio.Queue()
        await at.server(scope, receive, answers.put)
        assert (await answers.get())["status"] == 400
        assert not (await at.get("/pools/orders"))["pool"]["paused"]


@pytest.mark.real_loop
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local", b"WHOLE"])
async def test_a_connection_that_sends_no_headers_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first request, and at the next."""
    monkeypatch.setattr("millpond.server.serving.HEADERS_WITHIN", 0.2)
    mp = Millpond()
    shop(mp)
    server = app(mp)
    listening = socket.create_server(("127.0.0.1", 0))
    uvicorn_server = uvicorn.Server(uvicorn.Config(server, http=Impatient, log_config=None))
    serving = asyncio.create_task(uvicorn_server.serve([listening]))
    port = listening.getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if sent == b"WHOLE":
        writer.write(b"GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        sent = b"GET / HTTP/1.1\r\nHo"
    writer.write(sent)
    async with asyncio.timeout(10.0):
        await reader.read()
    writer.close()
    uvicorn_server.should_exit = True
    await serving


@pytest.mark.rows("DA-05")
def test_secrets_stay_hidden_wherever_their_names_stand() -> None:
    stored = {
        "env": [{"name": "API_TOKEN", "value": "s3cret"}, {"name": "HOME", "value": "/root"}],
        "body": '{"user": "ada", "passWord": "s3cret"}',
        "dsn": "postgresql://ada:s3cret@db/shop",
        "plain": "[not json",
    }
    shown = redaction.shown(msgspec.json.encode(stored))
    assert "s3cret" not in str(shown)
    assert shown["env"][1]["value"] == "/root"
    assert "ada" in shown["body"]
    assert shown["dsn"] == "postgresql://ada:[hidden]@db/shop"
    assert shown["plain"] == "[not json"
