"""Walking: the tasks of some pools that fit what was asked for, one after another.

A place is told as `SEQ:POOL`; whoever goes on from there has seen all before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import DURATION, POOL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from millpond.cli.open_store import Reached
    from millpond.core.task import Task

Given = TypeVar("Given", bound="Callable[..., Any]")

STATES = (
    "queued",
    "scheduled",
    "parked",
    "running",
    "completed",
    "failed",
    "cancelled",
    "rejected",
)
"""Every status, and the two views of queued."""

PAGE = 200


class Chosen(NamedTuple):
    """Which tasks are meant."""

    pools: tuple[str, ...] = ()
    state: str | None = None
    key: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    callbacks: bool = False
    """Whether the callbacks (on_complete) of the pools are meant, and not their own tasks."""
    after: str | None = None


def choosing(*, state: bool = True) -> Callable[[Given], Given]:
    """Give a command the options that choose tasks."""

    def made(function: Given) -> Given:
        options = [
            click.option("--pool", "pools", type=POOL, multiple=True, help="Of this pool only."),
            click.option("--key", help="Of this key only."),
            click.option(
                "--older-than",
                type=DURATION,
                metavar="AGE",
                help="Submitted at least so long ago, such as 90s, 5m, 2h or 3d.",
            ),
            click.option(
                "--newer-than", type=DURATION, metavar="AGE", help="Submitted since so long ago."
            ),
            click.option(
                "--callbacks",
                is_flag=True,
                help="The callbacks (on_complete) of pools instead of their own tasks.",
            ),
        ]
        if state:
            options.insert(
                1,
                click.option(
                    "--status",
                    "state",
                    type=click.Choice(STATES),
                    metavar="STATUS",
                    help=f"Of this status only: {', '.join(STATES)}. The scheduled and the parked "
                    "are queued, too.",
                ),
            )
        for option in reversed(options):
            function = option(function)
        return function

    return made


async def walk(here: Reached, chosen: Chosen) -> AsyncIterator[tuple[Task, str]]:
    """Yield tasks with their places: pool by pool, each in the order of its queue."""
    from millpond.cli.json_shapes import view_of
    from millpond.core.lifecycle import Status
    from millpond.core.task import CALLBACKS

    state = chosen.state
    status = Status.QUEUED if state in ("scheduled", "parked") else state and Status(state)
    now = here.now()
    behind, passed = _place(chosen.after)
    suffix = CALLBACKS if chosen.callbacks else ""
    # What failed is shown wherever it did: nobody would look for it in a pool he did not make.
    names = await here.pools(chosen.pools, system=state == "failed")
    for pool in sorted(name + suffix for name in names):
        if behind is not None and pool < behind:
            continue
        after: int | None = passed if pool == behind else 0
        while after is not None:
            page = await here.view.tasks(
                pool,
                status=status or None,
                key=chosen.key,
                since=None if chosen.newer_than is None else now - chosen.newer_than,
                before=None if chosen.older_than is None else now - chosen.older_than,
                after=after,
                limit=PAGE,
            )
            for task in page.tasks:
                if state not in ("scheduled", "parked") or view_of(task, now) == state:
                    yield task, f"{task.seq}:{pool}"
            after = page.next


def _place(told: str | None) -> tuple[str | None, int]:
    if told is None:
        return None, 0
    seq, colon, pool = told.partition(":")
    if not (colon and seq.isascii() and seq.isdecimal()):
        raise Refusal(Exit.USAGE, f"--after {told!r} is no place: it is told as SEQ:POOL")
    return pool, int(seq)
