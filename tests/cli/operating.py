"""A store with something of everything, and `millpond` called on it within this process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millpond import GiveUp, Millpond, Outcome, Retry, fair_round_robin
from millpond.cli import main as command

EVIL = "\x1b[2J\x9b31m\u202e\r"
"""What would clear the screen, change colours, turn text round and go back to its beginning."""


class Answer(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as a program reads it."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The same of JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """What stands in a plain table, below its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


Call = Callable[..., Answer]


def caller(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return what calls the command."""

    def call(*line: object) -> Answer:
        capsys.readouterr()
        try:
            code = command.main([str(word) for word in line])
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


def app(url: str) -> Millpond:
    """Return an application with three pools of different kinds."""
    mp = Millpond(url)
    mail = mp.pool("mail", max_concurrent=4, max_per_key=2)
    reviews = mp.pool("reviews", max_concurrent=2, queue=fair_round_robin("tenant"))
    hooks = mp.pool("hooks", lanes=2)

    @mail.task(key="to", retry=Retry(attempts=2, initial=0.001))
    async def send(to: str) -> str:
        if to.startswith("bad"):
            raise ValueError(f"no such address {to}{EVIL}")
        return f"sent to {to}"

    @reviews.task(key="tenant")
    async def review(number: int, tenant: str) -> int:
        return number

    @mp.task
    async def notify(outcome: Outcome, whom: str) -> None:
        raise GiveUp(f"{whom} does not answer")

    @hooks.task(key="key")
    async def hook(key: str) -> None:
        pass

    return mp


async def filled(mp: Millpond) -> None:
    """Let some tasks end, well and badly, and others wait, for a worker or for their time."""
    mail, reviews, hooks = mp.pools()
    send, review, hook = (mp.tasks[name] for name in ("send", "review", "hook"))
    async with mp:
        await mail.submit_many(send.each(["ada", "bad1", "bob", f"bad{EVIL}"]))
        await hooks.submit_many(hook.each("abcd"))
        notify = mp.tasks["notify"].bind(whom="ops")
        await mail.submit(send.bind("cleo"), on_complete=notify)
        async with mp.worker(pools=["mail"]):
            await mail.drain()
        await reviews.submit_many(review.bind(n, "acme" if n % 3 else "bolt") for n in range(6))
        await reviews.submit(review.bind(9, "acme"), delay=3600)


def fill(folder: Path) -> str:
    """Return the URL of a new file with all of that."""
    url = f"sqlite:///{folder}/work.db"
    asyncio.run(filled(app(url)))
    return url
