"""`millpond top`: the pools of a store, live."""

from __future__ import annotations

import sys
from typing import Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.render import emit, on_terminal
from millpond.cli.store_options import DURATION, POOL, carry_out, command


@command("top", json="Print each poll as a line of JSON instead; keys do nothing.")
@click.argument("names", nargs=-1, type=POOL, metavar="[POOL]...")
@click.option(
    "--every",
    type=DURATION,
    default=1.0,
    metavar="SECONDS",
    help="Poll this often (default: 1).",
)
@click.option("--looks", type=click.IntRange(1), metavar="N", help="Exit after N polls.")
def main(names: tuple[str, ...], *, every: float, as_json: bool, **options: Any) -> int:  # noqa: ANN401
    """Watch the pools of a store live: running, queued, rates, age of the oldest task.

    Keys: up and down (or k and j) select a pool and show its lanes; p pauses it, r resumes it, +
    and - change its limit, q quits. Rates are tasks per second.
    """
    left: int | None = options.pop("looks")
    every = max(every, 0.1)
    if as_json:
        return carry_out(_print(names, every, left, options))
    if not (on_terminal() and sys.stdin.isatty()):
        raise Refusal(Exit.USAGE, "millpond top needs a terminal; use --json elsewhere")
    if sys.platform == "win32":
        raise Refusal(Exit.USAGE, "millpond top cannot read keys on Windows; use --json")
    return carry_out(_show(names, every, left, options))


async def _print(
    names: tuple[str, ...], every: float, left: int | None, where: dict[str, Any]
) -> int:
    import asyncio

    from millpond.cli.open_store import open_store
    from millpond.cli.poll_view import PoolPoller

    async with open_store(**where) as store:
        poller = PoolPoller(store, names)
        while True:
            await poller.poll()
            emit(poller.document(), one_line=True)
            sys.stdout.flush()
            left = None if left is None else left - 1
            if left == 0:
                return Exit.CLEAN
            await asyncio.sleep(every)


async def _show(
    names: tuple[str, ...], every: float, left: int | None, where: dict[str, Any]
) -> int:
    from millpond.cli.open_store import open_store
    from millpond.cli.top_screen import TopScreen

    async with open_store(**where) as store:
        await TopScreen(store, names, every, left).run()
    return Exit.CLEAN
