"""Iterate over the tasks that match a selection, pool by pool.

A place is written `SEQ:POOL`. To continue from a place skips all tasks up to it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import DURATION, POOL, TOO_LARGE, number_below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from millpond.cli.open_store import OpenStore
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
"""Every status, and the two kinds of queued."""

PAGE = 200


class TaskSelection(NamedTuple):
    """Which tasks to select."""

    pools: tuple[str, ...] = ()
    state: str | None = None
    key: str | None = None
    function: str | None = None
    labels: tuple[str, ...] = ()
    """NAME=VALUE, or NAME for any value; a task must have all of them."""
    error: str | None = None
    """A part of the type or the message of the latest error, in any case."""
    older_than: float | None = None
    newer_than: float | None = None
    callbacks: bool = False
    """Select the callbacks (on_complete) of the pools instead of their own tasks."""
    after: str | None = None


def options(*added: Callable[[Given], Given]) -> Callable[[Given], Given]:
    """Return a decorator that adds options, listed in this order."""
    return lambda function: functools.reduce(lambda made, add: add(made), reversed(added), function)


key = click.option("--key", help="Only this key.")
content_options = options(
    click.option("--function", help="Only calls of this function."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Only tasks with this label; repeatable.",
    ),
    click.option(
        "--error",
        metavar="TEXT",
        help="Only tasks whose latest error has this text in its type or message.",
    ),
)
"""Options that select tasks by what they call, carry and failed with."""


def selection_options(*, state: bool = True) -> Callable[[Given], Given]:
    """Return a decorator that adds the options that select tasks."""
    status = click.option(
        "--status",
        "state",
        type=click.Choice(STATES),
        metavar="STATUS",
        help=f"Only this status: {', '.join(STATES)}. Scheduled and parked tasks are queued, too.",
    )
    return options(
        click.option("--pool", "pools", type=POOL, multiple=True, help="Only this pool."),
        *([status] if state else []),
        key,
        content_options,
        click.option(
            "--older-than",
            type=DURATION,
            metavar="AGE",
            help="Submitted at least this long ago, such as 90s, 5m, 2h or 3d.",
        ),
        click.option(
            "--newer-than", type=DURATION, metavar="AGE", help="Submitted at most this long ago."
        ),
        click.option(
            "--callbacks", is_flag=True, help="Select callbacks (on_complete) instead of tasks."
        ),
    )


async def iterate_tasks(
    store: OpenStore, selection: TaskSelection
) -> AsyncIterator[tuple[Task, str]]:
    """Yield tasks with their places, pool by pool, each in queue order."""
    from millpond.core.lifecycle import Status
    from millpond.core.task import CALLBACKS
    from millpond.pool.shown_state import shown_task_state

    state = selection.state
    status = Status.QUEUED if state in ("scheduled", "parked") else state and Status(state)
    now = store.now()
    behind, passed = _parse_place(selection.after)
    suffix = CALLBACKS if selection.callbacks else ""
    # Failed tasks of system pools are listed too: a user does not know those pools by name.
    names = await store.pools(selection.pools, system=state == "failed")
    for pool in sorted(name + suffix for name in names):
        if behind is not None and pool < behind:
            continue
        after: int | None = passed if pool == behind else 0
        while after is not None:
            page = await store.view.tasks(
                pool,
                status=status or None,
                key=selection.key,
                since=None if selection.newer_than is None else now - selection.newer_than,
                before=None if selection.older_than is None else now - selection.older_than,
                after=after,
                limit=PAGE,
            )
            for task in page.tasks:
                if state in ("scheduled", "parked") and shown_task_state(task, now) != state:
                    continue
                if matches(task, selection):
                    yield task, f"{task.seq}:{pool}"
            after = page.next


def matches(task: Task, selection: TaskSelection) -> bool:
    """Return whether a task has the function, the labels and the error of a selection."""
    if selection.function not in (None, task.new.call.function):
        return False
    for label in selection.labels:
        name, equals, value = label.partition("=")
        if name not in task.new.labels or (equals and task.new.labels[name] != value):
            return False
    return selection.error is None or _has_error(task, selection.error)


def _has_error(task: Task, text: str) -> bool:
    from millpond.runtime.error_info import read

    error = read(task.error)
    found = f"{task.reason or ''}\n" + ("" if error is None else f"{error.type}\n{error}")
    return text.casefold() in found.casefold()


def _parse_place(place: str | None) -> tuple[str | None, int]:
    if place is None:
        return None, 0
    seq, colon, pool = place.partition(":")
    number = number_below(TOO_LARGE, seq)
    if not colon or number is None:
        raise Refusal(Exit.USAGE, f"--after {place!r} is not a place: write SEQ:POOL")
    return pool, number
