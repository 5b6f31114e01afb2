"""`mp.submit("pool", "function", {...})`: a submit without the code of the function."""

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millpond import Millpond, Retry, fair_round_robin
from millpond.errors import BadPayload, ConfigError, TaskFailed, UnknownPool


class Address(msgspec.Struct):
    """A type that only the worker knows."""

    street: str


def application(url: str) -> tuple[Millpond, list[Any]]:
    """The process that has the code."""
    mp = Millpond(url, work=False)
    mail = mp.pool("mail", max_concurrent=4, queue=fair_round_robin("tenant"))
    seen: list[Any] = []

    @mail.task(key="to")
    async def send(to: str, tenant: str, address: Address, copies: int = 1) -> dict[str, Any]:
        seen.append((to, tenant, address, copies))
        return {"to": to, "copies": copies}

    @mail.task
    async def fail() -> None:
        seen.append("fail")
        raise ValueError("no")

    return mp, seen


@pytest.mark.real_loop
async def test_a_process_without_the_code_submits_by_name(tmp_path: Path) -> None:
    """The worker gets typed arguments and defaults; the result comes back as plain data."""
    url = f"sqlite:///{tmp_path}/work.db"
    app, seen = application(url)
    other = Millpond(url, work=False)
    async with app, other:
        arguments = {"to": "ada", "tenant": "acme", "address": {"street": "Mill Lane"}}
        handle = await other.submit("mail", "send", arguments, key="ada", labels={"why": "test"})
        assert ("mail", "ada", {"why": "test"}) == (handle.pool, handle.key, handle.labels)
        async with app.worker():
            assert {"to": "ada", "copies": 1} == await asyncio.wait_for(handle, 20)
        assert [("ada", "acme", Address("Mill Lane"), 1)] == seen


@pytest.mark.real_loop
async def test_a_task_has_the_attempts_that_its_pool_declares(tmp_path: Path) -> None:
    """Also where the process that submits has not declared the pool."""
    url = f"sqlite:///{tmp_path}/work.db"
    app, other = Millpond(url, work=False), Millpond(url, work=False)
    runs: list[int] = []
    cards = app.pool("cards", retry=Retry.never())

    @cards.task
    async def charge() -> None:
        runs.append(1)
        raise ConnectionError

    async with app, other, app.worker():
        with pytest.raises(TaskFailed):
            await asyncio.wait_for(await other.submit("cards", "charge", {}), 20)
        assert [1] == runs


@pytest.mark.real_loop
async def test_a_retry_policy_travels_with_the_task(tmp_path: Path) -> None:
    """The worker obeys it, although the submitter does not know the function."""
    url = f"sqlite:///{tmp_path}/work.db"
    app, seen = application(url)
    other = Millpond(url, work=False)
    async with app, other:
        handle = await other.submit("mail", "fail", retry=Retry(attempts=2, initial=0.001))
        async with app.worker():
            with pytest.raises(TaskFailed, match="after 2 attempt"):
                await asyncio.wait_for(handle, 20)
        assert ["fail", "fail"] == seen


async def test_a_function_that_is_registered_here_checks_its_arguments() -> None:
    """Its key and its types apply."""
    mp = Millpond()
    pool = mp.pool("mail")

    @pool.task(key="to")
    async def send(to: str, copies: int = 1) -> int:
        return copies * 2

    async with mp:
        handle = await mp.submit(pool, "send", {"to": "ada", "copies": 2})
        assert ("ada", 4) == (handle.key, await handle)
        for wrong in ({}, {"to": 1}, {"to": "ada", "cc": "bob"}):
            with pytest.raises(BadPayload, match="not those of send"):
                await mp.submit("mail", "send", wrong)


async def test_what_cannot_be_submitted_by_name_is_refused() -> None:
    """An unknown pool, arguments that are no mapping, values that JSON cannot hold."""
    mp = Millpond(max_payload=100)
    mp.pool("mail")
    async with mp:
        with pytest.raises(UnknownPool):
            await mp.submit("post", "send")
        with pytest.raises(UnknownPool):
            await mp.submit("\ud800", "send")
        for odd in (None, 7, b"mail", ["mail"]):
            with pytest.raises(TypeError, match="takes names"):
                await mp.submit(odd, "send")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="arguments"):
            await mp.submit("mail", "send", ["ada"])  # type: ignore[arg-type]
        with pytest.raises(BadPayload, match="cannot be stored"):
            await mp.submit("mail", "send", {"to": object()})
        with pytest.raises(BadPayload, match="the limit is 100"):
            await mp.submit("mail", "send", {"to": "a" * 100})


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
async def test_a_number_that_json_cannot_hold_is_refused_and_not_made_null(odd: float) -> None:
    """However deep it is, by name and in an event; `None` itself is a value."""
    mp = Millpond()
    pool = mp.pool("mail")
    async with mp:
        for arguments in ({"to": odd}, {"to": {"a": [1, (None, odd)]}}):
            with pytest.raises(BadPayload, match="JSON cannot hold"):
                await mp.submit("mail", "send", arguments)
            with pytest.raises(BadPayload, match="JSON cannot hold"):
                await mp.emit("sent", arguments)
        assert [] == await pool.tasks()
        await mp.submit("mail", "send", {"to": {"a": [None]}})


async def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    """As such, not with an error of the interpreter. How deep that is depends on its version."""
    mp = Millpond()
    mp.pool("mail")
    deep: list[Any] = []
    for _ in range(1_000_000):
        deep = [deep]
    async with mp:
        with pytest.raises(BadPayload, match="nested too deeply"):
            await mp.submit("mail", "send", {"to": deep})


def test_threads_submit_by_name_too() -> None:
    """With the signature of the async twin."""
    mp = Millpond()
    pool = mp.pool("mail")

    @pool.task
    async def double(number: int) -> int:
        return number * 2

    with mp.sync as sync:
        assert 14 == sync.submit("mail", "double", {"number": 7}).get(timeout=20)
