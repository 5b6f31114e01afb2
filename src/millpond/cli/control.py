"""Orders: `millpond pause`, `resume`, `resize`, `purge`, `cancel` and `redrive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.iterate_tasks import Chosen, choosing, walk
from millpond.cli.store_options import (
    DURATION,
    POOL,
    TASK_ID,
    carry_out,
    command,
    confirm,
    operator,
    yes,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from millpond.cli.open_store import Reached
    from millpond.core.control import Command
    from millpond.store.protocol import PoolView

_JSON = "Print what was done as one JSON document."

REDRIVEN = ("failed", "cancelled", "parked")
"""What a redrive queues again."""

AT_ONCE = 500
"""How many tasks one order names, at most: others have their turn in between."""

pool = click.argument("pool", type=POOL)
lane = click.option("--lane", help="Only this lane.")
key = click.option("--key", help="Only this key.")


@command("pause", json=_JSON)
@pool
@lane
@key
def pause(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Start nothing more, of a pool or of one lane or key of it; what runs goes on.

    What is submitted is taken as before, and waits.
    """
    from millpond.core.control import Pause

    return _switched(asked, Pause, "paused: nothing more of it starts")


@command("resume", json=_JSON)
@pool
@lane
@key
def resume(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Start work again, of a pool or of one lane or key of it."""
    from millpond.core.control import Resume

    return _switched(asked, Resume, "resumed")


def _switched(
    asked: dict[str, Any], order: Callable[[str, str | None, str | None], Command], done: str
) -> int:
    from millpond.cli.open_store import reached

    pool, lane, key = asked["pool"], asked["lane"], asked["key"]

    async def switch() -> int:
        async with reached(asked["store"], asked["app"]) as here:
            view, unit = await _meant(here, pool, lane, key)
            await here.runtime.control.order(order(view.spec.name, unit, operator()))
            after = await here.pool(view.spec.name)
        _told(
            {
                "pool": after.spec.name,
                "unit": unit,
                "paused": after.paused,
                "paused_units": list(after.paused_units),
            },
            f"{_name(after, unit)} {done}",
            as_json=asked["as_json"],
        )
        if unit is not None and after.paused and not asked["as_json"]:
            _note(f"the pool {after.spec.name} itself is paused")
        return Exit.CLEAN

    return carry_out(switch())


async def _meant(
    here: Reached, pool: str, lane: str | None, key: str | None
) -> tuple[PoolView, str | None]:
    """Return a pool, and the lane or key of it, that an order is about."""
    from millpond.pool.lane_or_key import unit_of

    view = await here.pool(pool)
    return view, unit_of(view.spec, view.spec.name, lane, key)


def _name(view: PoolView, unit: str | None) -> str:
    """Return what an order was about, in words."""
    if unit is None:
        return view.spec.name
    return f"{'lane' if view.spec.strict else 'key'} {unit} of {view.spec.name}"


def _told(document: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    from millpond.cli.render import emit, say
    from millpond.cli.terminal_text import plain

    if as_json:
        emit(document)
    else:
        say(plain(sentence))


def _note(sentence: str) -> None:
    from millpond.cli.render import note

    note(sentence)


@command("resize", json=_JSON)
@pool
@click.argument("limit", type=click.IntRange(0), required=False, metavar="[N]")
@click.option("--reset", is_flag=True, help="As the application declares it.")
@click.option(
    "--revision",
    type=int,
    metavar="R",
    help="The number of this change: refused unless it is above the one in force.",
)
def resize(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Let at most N tasks of a pool run at a time; 0 pauses it.

    A lower limit is reached as work ends: nothing is stopped. It stays, whatever the application
    declares, until --reset.
    """
    from millpond.cli.open_store import reached
    from millpond.core.control import Resize

    limit, reset = asked["limit"], asked["reset"]
    if (limit is None) != reset:
        raise Refusal(Exit.USAGE, "say either N, how many may run, or --reset")

    async def change() -> int:
        async with reached(asked["store"], asked["app"]) as here:
            before = await here.pool(asked["pool"])
            order = Resize(before.spec.name, limit, asked["revision"], operator())
            await here.runtime.control.order(order)
            after = await here.pool(before.spec.name)
        now, declared = after.spec.max_concurrent, after.declared.max_concurrent
        _told(
            {
                "pool": after.spec.name,
                "before": before.spec.max_concurrent,
                "max_concurrent": now,
                "declared_max_concurrent": declared,
                "running": after.running,
                "revision": after.revision,
            },
            f"{after.spec.name}: at most {now} at a time, {before.spec.max_concurrent} before"
            f"{'' if now == declared else f', {declared} declared'}"
            f"{f'; {after.running} run still' if after.running > now else ''}"
            f" (revision {after.revision})",
            as_json=asked["as_json"],
        )
        return Exit.CLEAN

    return carry_out(change())


@command("purge", json=_JSON)
@pool
@lane
@key
@yes
def purge(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Cancel everything that waits in a pool, or in one lane or of one key; what runs goes on."""
    from millpond.cli.open_store import reached
    from millpond.cli.render import counted
    from millpond.core.control import Purge

    async def cancel_waiting() -> int:
        async with reached(asked["store"], asked["app"]) as here:
            view, unit = await _meant(here, asked["pool"], asked["lane"], asked["key"])
            name = _name(view, unit)
            waiting = counted(view.queued, "task waits", "tasks wait")
            confirm(f"Cancel all that waits in {name} ({waiting} in the pool)?", yes=asked["yes"])
            order = Purge(view.spec.name, unit, by=operator())
            count = (await here.runtime.control.order(order)).count
        _told(
            {"pool": view.spec.name, "unit": unit, "cancelled": count},
            f"{counted(count, 'task')} of {name} cancelled",
            as_json=asked["as_json"],
        )
        return Exit.CLEAN

    return carry_out(cancel_waiting())


@command("cancel", json=_JSON)
@click.argument("tasks", nargs=-1, type=TASK_ID, metavar="[ID]...")
@click.option("--pool", type=POOL, help="Instead of ids: all tasks of this pool.")
@lane
@key
@click.option("--older-than", type=DURATION, metavar="AGE", help="Submitted at least so long ago.")
@click.option("--interrupt", is_flag=True, help="Interrupt handlers that run, not only tell them.")
@yes
def cancel(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Cancel tasks: some by their ids, or all of a pool, or of a lane or key of it.

    What waits is cancelled at once. What runs is told, and is not tried again; a handler that
    returns all the same has completed.
    """
    if bool(asked["tasks"]) == (asked["pool"] is not None):
        raise Refusal(Exit.USAGE, "say which: ids of tasks, or --pool")
    narrowed = [name for name in ("lane", "key", "older_than") if asked[name] is not None]
    if asked["tasks"] and narrowed:
        option = narrowed[0].replace("_", "-")
        raise Refusal(Exit.USAGE, f"--{option} narrows a --pool; a task by its id needs none")
    return carry_out(_cancel_some(asked) if asked["tasks"] else _cancel_all(asked))


async def _cancel_some(asked: dict[str, Any]) -> int:
    from millpond.cli.open_store import reached
    from millpond.cli.render import counted

    tasks: Sequence[int] = list(dict.fromkeys(asked["tasks"]))
    async with reached(asked["store"], asked["app"]) as here:
        before = await here.view.status(tasks)
        live = [t for t, was in zip(tasks, before, strict=True) if was in ("queued", "running")]
        if live:
            confirm(f"Cancel {counted(len(live), 'task')}?", yes=asked["yes"])
        for at in range(0, len(live), AT_ONCE):
            some = tuple(live[at : at + AT_ONCE])
            await here.runtime.control.cancel(some, interrupt=asked["interrupt"], by=operator())
        after = await here.view.status(tasks)
    return _done(tasks, before, after, live, "cancel", as_json=asked["as_json"])


def _done(
    tasks: Sequence[int],
    before: Sequence[str],
    after: Sequence[str],
    able: Sequence[int],
    order: str,
    *,
    as_json: bool,
) -> int:
    """Tell what became of tasks that were named; those that are unknown make it a failure."""
    from millpond.cli.render import emit, say

    told = [
        {"id": str(task), "before": was, "after": becomes}
        for task, was, becomes in zip(tasks, before, after, strict=True)
    ]
    if as_json:
        emit({"order": order, "tasks": told})
    else:
        say(*(f"{one['id']}  {_became(one['before'], one['after'], order)}" for one in told))
    failed = set(tasks) - set(able) if order == "redrive" else set()
    failed |= {t for t, was in zip(tasks, before, strict=True) if was in ("unknown", "expired")}
    if order == "redrive":
        failed |= {t for t, now in zip(tasks, after, strict=True) if now in ("failed", "cancelled")}
    return Exit.NOTHING if failed else Exit.CLEAN


def _became(before: str, after: str, order: str) -> str:
    if before == "unknown":
        return "unknown: no such task"
    if before == "expired":
        return "ended, and no longer kept"
    if order == "cancel" and after == "running":
        return "running: told to stop"
    if before == after:
        return f"{before}: left as it is"
    return f"{after}, was {before}"


async def _cancel_all(asked: dict[str, Any]) -> int:
    from millpond.cli.open_store import reached
    from millpond.cli.render import counted
    from millpond.core.control import CancelAll

    async with reached(asked["store"], asked["app"]) as here:
        view, unit = await _meant(here, asked["pool"], asked["lane"], asked["key"])
        name, age = _name(view, unit), asked["older_than"]
        which = "" if age is None else f" that are older than {age:g} s"
        live = f"{view.running} running and {view.queued} waiting in the pool"
        confirm(f"Cancel all tasks of {name}{which} ({live})?", yes=asked["yes"])
        before = None if age is None else here.now() - age
        order = CancelAll(view.spec.name, before, unit, interrupt=asked["interrupt"], by=operator())
        answer = await here.runtime.control.order(order)
    running = len(answer.cancelled)
    _told(
        {
            "pool": view.spec.name,
            "unit": unit,
            "cancelled": answer.count - running,
            "told_to_stop": running,
        },
        f"{counted(answer.count - running, 'task')} of {name} cancelled"
        + (f", {running} that run told to stop" if running else ""),
        as_json=asked["as_json"],
    )
    return Exit.CLEAN


@command("redrive", json=_JSON)
@click.argument("tasks", nargs=-1, type=TASK_ID, metavar="[ID]...")
@choosing(state=False)
@click.option("--cancelled", is_flag=True, help="With --pool: the cancelled instead of the failed.")
@click.option("--parked", is_flag=True, help="With --pool: the parked instead of the failed.")
@yes
def redrive(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Queue failed or cancelled tasks again, at the tail and with a new budget of attempts.

    Some by their ids, or all that failed of a pool (--pool), narrowed by key and age. A parked
    task goes back to its place, and every worker may try it again.
    """
    if asked["cancelled"] and asked["parked"]:
        raise Refusal(Exit.USAGE, "say which: --cancelled or --parked")
    if bool(asked["tasks"]) == bool(asked["pools"]):
        raise Refusal(Exit.USAGE, "say which: ids of tasks, or --pool")
    return carry_out(_redrive_some(asked) if asked["tasks"] else _redrive_all(asked))


async def _redrive_some(asked: dict[str, Any]) -> int:
    from millpond.cli.open_store import reached

    tasks: Sequence[int] = list(dict.fromkeys(asked["tasks"]))
    async with reached(asked["store"], asked["app"]) as here:
        before = await here.view.status(tasks)
        parked = {t for t in tasks if (found := await here.view.task(t)) and found.parked}
        before = tuple(
            "parked" if t in parked else was for t, was in zip(tasks, before, strict=True)
        )
        able = [t for t, was in zip(tasks, before, strict=True) if was in REDRIVEN]
        await _redriven(here, able)
        after = await here.view.status(tasks)
    return _done(tasks, before, after, able, "redrive", as_json=asked["as_json"])


async def _redrive_all(asked: dict[str, Any]) -> int:
    from millpond.cli.open_store import reached
    from millpond.cli.render import counted

    state = "cancelled" if asked["cancelled"] else "parked" if asked["parked"] else "failed"
    chosen = Chosen(
        pools=asked["pools"],
        state=state,
        key=asked["key"],
        older_than=asked["older_than"],
        newer_than=asked["newer_than"],
        callbacks=asked["callbacks"],
    )
    async with reached(asked["store"], asked["app"]) as here:
        tasks = [task async for task in _ids(here, chosen)]
        pools = ", ".join(await here.pools(asked["pools"]))
        found = f"{len(tasks):,} {state} {'task' if len(tasks) == 1 else 'tasks'} of {pools}"
        if tasks:
            confirm(f"Queue {found} again?", yes=asked["yes"])
        count = await _redriven(here, tasks)
    left = len(tasks) - count
    _told(
        {"pools": pools.split(", "), "found": len(tasks), "redriven": count},
        f"{counted(count, 'task')} of {pools} queued again"
        + (f", {left} cannot be: their code or their key is gone" if left else ""),
        as_json=asked["as_json"],
    )
    return Exit.NOTHING if left else Exit.CLEAN


async def _ids(here: Reached, chosen: Chosen) -> AsyncIterator[int]:
    async for task, _ in walk(here, chosen):
        yield task.new.id


async def _redriven(here: Reached, tasks: Sequence[int]) -> int:
    """Queue tasks again; return how many."""
    from millpond.core.control import Redrive

    count = 0
    for at in range(0, len(tasks), AT_ONCE):
        order = Redrive(tuple(tasks[at : at + AT_ONCE]), by=operator())
        count += (await here.runtime.control.order(order)).count
    return count
