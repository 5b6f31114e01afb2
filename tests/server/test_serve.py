"""`millpond serve` as a process: where it listens, what it refuses, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.desk import BEARER, TOKEN

from millpond import Millpond

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Give a file with a pool and a task."""
    url = f"sqlite:///{tmp_path / 'work.db'}"

    async def make() -> None:
        mp = Millpond(url)
        pool = mp.pool("orders")

        @pool.task
        async def pay(amount: int) -> int:
            return amount

        async with mp:
            await pool.submit(pay.bind(1))

    asyncio.run(make())
    return url


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "millpond", "serve", *arguments]


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command; give the process and its address, and end it."""
    process = subprocess.Popen(
        command("--port", "0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"{line}{process.stderr.read() if process.stderr else ''}"
        yield process, found[0].rstrip("/")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def refusal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Return how the command ends, and what it says, where it must not start."""
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


def test_it_serves_a_store_until_sigterm(store: str) -> None:
    with serving("--store", store) as (process, url):
        (pool,) = httpx.get(f"{url}/api/v1/pools").json()["items"]
        assert (pool["name"], pool["queued"]) == ("orders", 1)
        answer = httpx.post(f"{url}/api/v1/pools/orders/pause", json={})
        assert answer.status_code == 403
        assert "server" not in answer.headers
        assert httpx.get(f"{url}/api/v1/pools", headers={"host": "evil"}).status_code == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_actions_and_live_events_over_a_real_connection(store: str) -> None:
    with (
        serving("--store", store, "--allow-actions") as (process, url),
        httpx.stream("GET", f"{url}/api/v1/live", timeout=30) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert _next(lines, "pools")["items"][0]["paused"] is False
        httpx.post(f"{url}/api/v1/pools/orders/pause", json={}).raise_for_status()
        assert _next(lines, "pools")["items"][0]["paused"] is True
        # A stream that is open does not keep it from stopping.
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def _next(lines: Iterator[str], event: str) -> Any:
    for line in lines:
        if line == f"event: {event}":
            return json.loads(next(lines).removeprefix("data: "))
    raise AssertionError("the stream ended")


@pytest.mark.rows("DA-07")
def test_a_public_address_needs_a_token(store: str) -> None:
    environment = {"MILLPOND_TOKEN": ""}
    code, said = refusal("--store", store, "--host", "0.0.0.0", **environment)  # noqa: S104
    assert code == 2
    assert "a token is needed: set MILLPOND_TOKEN" in said


def test_a_public_address_with_a_token(store: str) -> None:
    arguments = ("--store", store, "--host", "0.0.0.0")  # noqa: S104
    with serving(*arguments, MILLPOND_TOKEN=TOKEN) as (_, url):
        local = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert httpx.get(f"{local}/api/v1/pools").status_code == 401
        assert httpx.get(f"{local}/api/v1/pools", headers=BEARER).status_code == 200


def test_tokens_of_several_people(store: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# who may look\nada {TOKEN}\n")
    arguments = ("--store", store, "--allow-actions", "--token-file", str(file))
    with serving(*arguments) as (_, url):
        path = f"{url}/api/v1/pools/orders/pause"
        httpx.post(path, json={}, headers=BEARER).raise_for_status()
        page = httpx.get(f"{url}/api/v1/audit?kind=control", headers=BEARER).json()
        assert page["items"][0]["by"] == "http:ada"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--token", "short"), "at least 16 characters"),
        (("--token-file", "absent"), "cannot be read"),
        (("--port", "70000"), "70000"),
    ],
)
def test_options_that_cannot_be(store: str, arguments: tuple[str, ...], said: str) -> None:
    code, written = refusal("--store", store, *arguments)
    assert code == 2
    assert said in written


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    code, said = refusal("--store", f"sqlite:///{tmp_path / 'none.db'}")
    assert code == 4
    assert "none.db" in said
    assert not (tmp_path / "none.db").exists()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    from millpond.cli.exits import Refusal
    from millpond.cli.serve import _check_extra

    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "fastapi" else found(name))
    with pytest.raises(Refusal, match=r"pip install 'millpond\[server\]'"):
        _check_extra()
