"""`millpond audit`: what happened, as JSON Lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit
from millpond.cli.store_options import DURATION, POOL, TASK_ID, carry_out, command

if TYPE_CHECKING:
    from millpond.cli.open_store import Reached
    from millpond.core.audit import Record

KINDS = (
    "submit",
    "claim",
    "dequeue",
    "drop",
    "retry",
    "settle",
    "cancel",
    "lease_expired",
    "control",
)


@command("audit", json=None)
@click.option("--pool", "pools", type=POOL, multiple=True, help="Of this pool only.")
@click.option("--task", type=TASK_ID, metavar="ID", help="Of this task only.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    metavar="KIND",
    multiple=True,
    help=f"Of this kind only: {', '.join(KINDS)}.",
)
@click.option("--since", type=DURATION, metavar="AGE", help="Not older than this, such as 10m.")
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="POSITION",
    help="Behind this position, which is that of the last line read before.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on.")
@click.option("--new", is_flag=True, help="Nothing that has happened so far; with --follow.")
@click.option(
    "--every",
    type=DURATION,
    default=0.5,
    metavar="SECONDS",
    help="How often to look for more, with --follow (default: 0.5).",
)
def main(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Print the audit as JSON Lines, oldest first.

    Each line is one arrow that a task took, or one order that somebody gave; `position` counts them
    all, ever. How long they are kept is up to the application.
    """
    from millpond.cli.open_store import reached

    async def tell() -> int:
        async with reached(asked["store"], asked["app"]) as here:
            reading = Reading(here, asked, await here.pools(asked["pools"]))
            await reading.skip()
            await reading.tell()
        return Exit.CLEAN

    return carry_out(tell())


class Reading:
    """How far somebody has read."""

    def __init__(self, here: Reached, asked: dict[str, Any], pools: list[str]) -> None:
        self._here = here
        self._asked = asked
        self._pools = frozenset(pools) if asked["pools"] else None
        self._kinds = frozenset(asked["kinds"]) or None
        self._position: int = asked["after"]
        since = asked["since"]
        self._since = None if since is None else here.now() - since
        if asked["new"]:
            self._since = here.now()
        self._left: int | None = asked["limit"]

    async def skip(self) -> None:
        """Pass over what was told before the one task that is asked about was there."""
        task: int | None = self._asked["task"]
        found = None if task is None else await self._here.view.task(task)
        if found is not None:
            self._since = max(self._since or 0.0, found.submitted_at)

    async def tell(self) -> None:
        """Print what there is, and go on if that was asked for."""
        import asyncio

        while True:
            await self._catch_up()
            if not self._asked["follow"] or self._left == 0:
                return
            sys.stdout.flush()
            await asyncio.sleep(max(self._asked["every"], 0.05))

    async def _catch_up(self) -> None:
        while self._left != 0:
            task: int | None = self._asked["task"]
            page = await self._here.view.audit(after=self._position, since=self._since)
            if page.next == self._position:
                return
            first = page.next - len(page.records) + 1
            for position, record in enumerate(page.records, first):
                if self._meant(record, task) and self._left != 0:
                    self._print(record, position)
            self._position = page.next

    def _meant(self, record: Record, task: int | None) -> bool:
        return (
            (task is None or record.task == task)
            and (self._pools is None or record.pool in self._pools)
            and (self._kinds is None or record.kind in self._kinds)
        )

    def _print(self, record: Record, position: int) -> None:
        from millpond.cli.json_shapes import of_record
        from millpond.cli.render import emit

        emit(of_record(record, position), one_line=True)
        if self._left is not None:
            self._left -= 1
