"""`millpond top`: the pools of a store, live."""

from __future__ import annotations

import sys
from typing import Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import DURATION, POOL, carry_out, command


@command("top", json="Print each look as a line of JSON instead; no keys then.")
@click.argument("names", nargs=-1, type=POOL, metavar="[POOL]...")
@click.option(
    "--every",
    type=DURATION,
    default=1.0,
    metavar="SECONDS",
    help="How often to look (default: 1).",
)
@click.option("--looks", type=click.IntRange(1), metavar="N", help="Leave after so many looks.")
def main(names: tuple[str, ...], *, every: float, as_json: bool, **asked: Any) -> int:  # noqa: ANN401
    """Watch the pools of a store: what runs, what waits, how quick it is, how old the oldest is.

    Keys: up and down (or k and j) choose a pool, of which the lanes are shown; p pauses it, r
    resumes it, + and - change how many may run, q leaves. Rates are tasks a second.
    """
    from millpond.cli.render import on_terminal

    looks: int | None = asked.pop("looks")
    every = max(every, 0.1)
    if as_json:
        return carry_out(_print(names, every, looks, asked))
    if not (on_terminal() and sys.stdin.isatty()):
        raise Refusal(Exit.USAGE, "it needs a terminal; elsewhere, --json prints each look")
    return carry_out(_watch(names, every, looks, asked))


async def _print(
    names: tuple[str, ...], every: float, left: int | None, where: dict[str, Any]
) -> int:
    import asyncio

    from millpond.cli.open_store import reached
    from millpond.cli.poll_view import Looks
    from millpond.cli.render import emit

    async with reached(**where) as here:
        looks = Looks(here, names)
        while True:
            await looks.look()
            emit(looks.document(), one_line=True)
            sys.stdout.flush()
            left = None if left is None else left - 1
            if left == 0:
                return Exit.CLEAN
            await asyncio.sleep(every)


async def _watch(
    names: tuple[str, ...], every: float, left: int | None, where: dict[str, Any]
) -> int:
    from millpond.cli.open_store import reached
    from millpond.cli.top_screen import Watch

    async with reached(**where) as here:
        await Watch(here, names, every, left).run()
    return Exit.CLEAN
