"""`millpond pause`, `resume`, `resize`, `purge`, `cancel` and `redrive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.iterate_tasks import (
    TaskSelection,
    content_options,
    iterate_tasks,
    key,
    selection_options,
)
from millpond.cli.render import answer, counted, emit, note, say
from millpond.cli.store_options import (
    DURATION,
    POOL,
    TASK_ID,
    command,
    confirm,
    on_store,
    operator,
    yes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.cli.open_store import OpenStore
    from millpond.core.control import Command
    from millpond.store.protocol import PoolView

_JSON = "Print the result as one JSON document."

REDRIVEN = ("failed", "cancelled", "parked")
"""The states that a redrive queues again."""

NARROWING = ("key", "function", "labels", "error", "older_than", "newer_than")
"""Options that select some tasks of a pool."""

AT_ONCE = 500
"""Most tasks per transaction, so that other writers get a turn in between."""

pool = click.argument("pool", type=POOL)
lane = click.option("--lane", help="Only this lane.")


@command("pause", json=_JSON)
@pool
@lane
@key
def pause(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Stop starting tasks of a pool, or of one of its lanes or keys; running tasks go on.

    New tasks are still accepted, and wait.
    """
    from millpond.core.control import Pause

    return _pause_or_resume(options, Pause, "paused: no more of its tasks start")


@command("resume", json=_JSON)
@pool
@lane
@key
def resume(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Start tasks again, of a pool or of one of its lanes or keys."""
    from millpond.core.control import Resume

    return _pause_or_resume(options, Resume, "resumed")


def _pause_or_resume(
    options: dict[str, Any], order: Callable[[str, str | None, str | None], Command], done: str
) -> int:
    pool, lane, key = options["pool"], options["lane"], options["key"]

    async def switch(store: OpenStore) -> None:
        view, unit = await _pool_and_unit(store, pool, lane, key)
        await store.runtime.control.order(order(view.spec.name, unit, operator()))
        after = await store.pool(view.spec.name)
        answer(
            {
                "pool": after.spec.name,
                "unit": unit,
                "paused": after.paused,
                "paused_units": list(after.paused_units),
            },
            f"{_name(after, unit)} {done}",
            as_json=options["as_json"],
        )
        if unit is not None and after.paused and not options["as_json"]:
            note(f"the pool {after.spec.name} itself is paused")

    return on_store(options, switch)


async def _pool_and_unit(
    store: OpenStore, pool: str, lane: str | None, key: str | None
) -> tuple[PoolView, str | None]:
    """Return the pool, and the lane or key if one is given."""
    from millpond.pool.lane_or_key import unit_of

    view = await store.pool(pool)
    return view, unit_of(view.spec, view.spec.name, lane, key)


def _name(view: PoolView, unit: str | None) -> str:
    """Return the name of the pool, or of its lane or key."""
    if unit is None:
        return view.spec.name
    return f"{'lane' if view.spec.strict else 'key'} {unit} of {view.spec.name}"


@command("resize", json=_JSON)
@pool
@click.argument("limit", type=click.IntRange(0), required=False, metavar="[N]")
@click.option("--reset", is_flag=True, help="Use the limit that the application declares.")
@click.option(
    "--revision",
    type=int,
    metavar="R",
    help="Revision of this change; refused unless it is above the current revision.",
)
def resize(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Let at most N tasks of a pool run at a time; 0 pauses it.

    Running tasks are not stopped: a lower limit is reached as they end. The new limit overrides
    the application's until --reset.
    """
    from millpond.core.control import Resize

    limit, reset = options["limit"], options["reset"]
    if (limit is None) != reset:
        raise Refusal(Exit.USAGE, "give either N or --reset")

    async def change(store: OpenStore) -> None:
        before = await store.pool(options["pool"])
        order = Resize(before.spec.name, limit, options["revision"], operator())
        await store.runtime.control.order(order)
        after = await store.pool(before.spec.name)
        now, declared = after.spec.max_concurrent, after.declared.max_concurrent
        answer(
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
            f"{f'; {after.running} still run' if after.running > now else ''}"
            f" (revision {after.revision})",
            as_json=options["as_json"],
        )

    return on_store(options, change)


@command("purge", json=_JSON)
@pool
@lane
@key
@yes
def purge(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Cancel all waiting tasks of a pool, or of one lane or key; running tasks go on."""
    from millpond.core.control import Purge

    async def cancel_waiting(store: OpenStore) -> None:
        view, unit = await _pool_and_unit(store, options["pool"], options["lane"], options["key"])
        name = _name(view, unit)
        waiting = counted(view.queued, "task waits", "tasks wait")
        confirm(f"Cancel all waiting tasks of {name} ({waiting} in the pool)?", yes=options["yes"])
        order = Purge(view.spec.name, unit, by=operator())
        count = (await store.runtime.control.order(order)).count
        answer(
            {"pool": view.spec.name, "unit": unit, "cancelled": count},
            f"{counted(count, 'task')} of {name} cancelled",
            as_json=options["as_json"],
        )

    return on_store(options, cancel_waiting)


@command("cancel", json=_JSON)
@click.argument("tasks", nargs=-1, type=TASK_ID, metavar="[ID]...")
@click.option("--pool", type=POOL, help="Instead of ids: all tasks of this pool.")
@lane
@key
@click.option(
    "--older-than",
    type=DURATION,
    metavar="AGE",
    help="Only tasks submitted at least this long ago.",
)
@click.option(
    "--newer-than", type=DURATION, metavar="AGE", help="Only tasks submitted at most this long ago."
)
@content_options
@click.option("--waiting", is_flag=True, help="Only tasks that wait; running ones go on.")
@click.option("--interrupt", is_flag=True, help="Also interrupt running handlers.")
@yes
def cancel(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Cancel tasks: some by their ids, or all of a pool, or those of it that match the options.

    Waiting tasks are cancelled at once. Running handlers get a cancel request, and are not retried;
    a handler that returns anyway has completed.
    """
    if bool(options["tasks"]) == (options["pool"] is not None):
        raise Refusal(Exit.USAGE, "give either ids of tasks or --pool")
    if options["tasks"]:
        _refuse_narrowing(options, ("lane", *NARROWING, "waiting"))
        return on_store(options, lambda store: _cancel_some(store, options))
    is_narrow = any(options[name] for name in ("function", "labels", "error", "waiting"))
    if is_narrow or options["newer_than"] is not None:
        return on_store(options, lambda store: _cancel_matching(store, options))
    return on_store(options, lambda store: _cancel_all(store, options))


async def _cancel_some(store: OpenStore, options: dict[str, Any]) -> int:
    tasks: Sequence[int] = list(dict.fromkeys(options["tasks"]))
    before = await store.view.status(tasks)
    live = [t for t, was in zip(tasks, before, strict=True) if was in ("queued", "running")]
    if live:
        confirm(f"Cancel {counted(len(live), 'task')}?", yes=options["yes"])
    await _cancel(store, live, interrupt=options["interrupt"])
    after = await store.view.status(tasks)
    return _report_tasks(tasks, before, after, live, "cancel", as_json=options["as_json"])


def _report_tasks(
    tasks: Sequence[int],
    before: Sequence[str],
    after: Sequence[str],
    able: Sequence[int],
    order: str,
    *,
    as_json: bool,
) -> int:
    """Print the status of each task before and after; unknown ones make the command fail."""
    changes = [
        {"id": str(task), "before": was, "after": now}
        for task, was, now in zip(tasks, before, after, strict=True)
    ]
    if as_json:
        emit({"order": order, "tasks": changes})
    else:
        say(*(f"{one['id']}  {_outcome(one['before'], one['after'], order)}" for one in changes))
    failed = set(tasks) - set(able) if order == "redrive" else set()
    failed |= {t for t, was in zip(tasks, before, strict=True) if was in ("unknown", "expired")}
    if order == "redrive":
        failed |= {t for t, now in zip(tasks, after, strict=True) if now in ("failed", "cancelled")}
    return Exit.NOTHING if failed else Exit.CLEAN


def _outcome(before: str, after: str, order: str) -> str:
    if before == "unknown":
        return "unknown: no such task"
    if before == "expired":
        return "ended, and no longer kept"
    if order == "cancel" and after == "running":
        return "running: cancel requested"
    if before == after:
        return f"{before}: unchanged"
    return f"{after}, was {before}"


async def _cancel_matching(store: OpenStore, options: dict[str, Any]) -> int:
    """Cancel the tasks of a pool that match; they are read first, and cancelled by their ids."""
    states = ("queued",) if options["waiting"] else ("queued", "running")
    view, _ = await _pool_and_unit(store, options["pool"], options["lane"], options["key"])
    narrowed = {name: options[name] for name in NARROWING}
    found: dict[int, None] = {}
    for state in states:
        selection = TaskSelection(pools=(view.spec.name,), state=state, **narrowed)
        async for task, _ in iterate_tasks(store, selection):
            if options["lane"] in (None, task.lane):
                found[task.new.id] = None
    if found:
        confirm(f"Cancel {counted(len(found), 'task')} of {view.spec.name}?", yes=options["yes"])
    tasks = list(found)
    await _cancel(store, tasks, interrupt=options["interrupt"])
    after = await store.view.status(tasks)
    running = sum(status == "running" for status in after)
    answer(
        {
            "pool": view.spec.name,
            "found": len(tasks),
            "cancelled": sum(status == "cancelled" for status in after),
            "told_to_stop": running,
        },
        f"{counted(len(tasks) - running, 'task')} of {view.spec.name} cancelled"
        + (f", {running} running asked to stop" if running else ""),
        as_json=options["as_json"],
    )
    return Exit.CLEAN


async def _cancel(store: OpenStore, tasks: Sequence[int], *, interrupt: bool) -> None:
    for at in range(0, len(tasks), AT_ONCE):
        some = tuple(tasks[at : at + AT_ONCE])
        await store.runtime.control.cancel(some, interrupt=interrupt, by=operator())


async def _cancel_all(store: OpenStore, options: dict[str, Any]) -> int:
    from millpond.core.control import CancelAll

    view, unit = await _pool_and_unit(store, options["pool"], options["lane"], options["key"])
    name, age = _name(view, unit), options["older_than"]
    which = "" if age is None else f" that are older than {age:g} s"
    live = f"{view.running} running and {view.queued} waiting in the pool"
    confirm(f"Cancel all tasks of {name}{which} ({live})?", yes=options["yes"])
    before = None if age is None else store.now() - age
    order = CancelAll(view.spec.name, before, unit, interrupt=options["interrupt"], by=operator())
    cancelled = await store.runtime.control.order(order)
    running = len(cancelled.cancelled)
    answer(
        {
            "pool": view.spec.name,
            "unit": unit,
            "cancelled": cancelled.count - running,
            "told_to_stop": running,
        },
        f"{counted(cancelled.count - running, 'task')} of {name} cancelled"
        + (f", {running} running asked to stop" if running else ""),
        as_json=options["as_json"],
    )
    return Exit.CLEAN


@command("redrive", json=_JSON)
@click.argument("tasks", nargs=-1, type=TASK_ID, metavar="[ID]...")
@selection_options(state=False)
@click.option(
    "--cancelled", is_flag=True, help="With --pool: cancelled tasks instead of failed ones."
)
@click.option("--parked", is_flag=True, help="With --pool: parked tasks instead of failed ones.")
@yes
def redrive(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Queue failed or cancelled tasks again, at the tail and with a new budget of attempts.

    Give ids of tasks, or --pool for all failed tasks of a pool, narrowed by function, key, label,
    error and age. A parked task returns to its old position, and every worker may try it again.
    """
    if options["cancelled"] and options["parked"]:
        raise Refusal(Exit.USAGE, "--cancelled and --parked exclude each other")
    if bool(options["tasks"]) == bool(options["pools"]):
        raise Refusal(Exit.USAGE, "give either ids of tasks or --pool")
    if options["tasks"]:
        _refuse_narrowing(options, NARROWING)
    redriven = _redrive_some if options["tasks"] else _redrive_all
    return on_store(options, lambda store: redriven(store, options))


def _refuse_narrowing(options: dict[str, Any], names: Sequence[str]) -> None:
    """Refuse options that select tasks of a pool where ids are given."""
    for name in names:
        if options[name] not in (None, (), False):
            option = {"labels": "label"}.get(name, name).replace("_", "-")
            raise Refusal(Exit.USAGE, f"--{option} goes with --pool, not with ids")


async def _redrive_some(store: OpenStore, options: dict[str, Any]) -> int:
    tasks: Sequence[int] = list(dict.fromkeys(options["tasks"]))
    before = await store.view.status(tasks)
    parked = {t for t in tasks if (found := await store.view.task(t)) and found.parked}
    before = tuple("parked" if t in parked else was for t, was in zip(tasks, before, strict=True))
    able = [t for t, was in zip(tasks, before, strict=True) if was in REDRIVEN]
    await _redrive(store, able)
    after = await store.view.status(tasks)
    return _report_tasks(tasks, before, after, able, "redrive", as_json=options["as_json"])


async def _redrive_all(store: OpenStore, options: dict[str, Any]) -> int:
    state = "cancelled" if options["cancelled"] else "parked" if options["parked"] else "failed"
    selection = TaskSelection(
        pools=options["pools"],
        state=state,
        **{name: options[name] for name in NARROWING},
        callbacks=options["callbacks"],
    )
    tasks = [task.new.id async for task, _ in iterate_tasks(store, selection)]
    pools = ", ".join(await store.pools(options["pools"]))
    found = f"{len(tasks):,} {state} {'task' if len(tasks) == 1 else 'tasks'} of {pools}"
    if tasks:
        confirm(f"Queue {found} again?", yes=options["yes"])
    count = await _redrive(store, tasks)
    left = len(tasks) - count
    answer(
        {"pools": pools.split(", "), "found": len(tasks), "redriven": count},
        f"{counted(count, 'task')} of {pools} queued again"
        + (f"; {left} not: their code or their key is gone" if left else ""),
        as_json=options["as_json"],
    )
    return Exit.NOTHING if left else Exit.CLEAN


async def _redrive(store: OpenStore, tasks: Sequence[int]) -> int:
    """Queue tasks again; return how many."""
    from millpond.core.control import Redrive

    count = 0
    for at in range(0, len(tasks), AT_ONCE):
        order = Redrive(tuple(tasks[at : at + AT_ONCE]), by=operator())
        count += (await store.runtime.control.order(order)).count
    return count
