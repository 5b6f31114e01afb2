"""`millpond workers`: the workers of a store, and what each runs since when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.render import Column, bare, emit, note, say, short, table
from millpond.cli.store_options import command, on_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore
    from millpond.store.protocol import Held, WorkerView


@command("workers", json="Print the workers, with what each runs, as one JSON list.")
@click.option("--tasks", is_flag=True, help="Also list the tasks that run.")
def main(*, tasks: bool, as_json: bool, **where: Any) -> int:  # noqa: ANN401
    """Show the workers of a store: what each runs, and since when.

    SEEN is the time since a worker last renewed its leases. LONGEST is the run time of its oldest
    running task; the first hundred tasks of each worker are read. A worker in state late has not
    renewed in time; other workers take its tasks over. The name of a worker begins with its host
    and process id.
    """

    async def show(store: OpenStore) -> None:
        found = await read(store)
        if as_json:
            emit(bare(found))
        else:
            _show(found, store.shown, tasks=tasks)

    return on_store(where, show)


async def read(store: OpenStore) -> list[Facts]:
    """Return the workers in the shape that `--json` prints."""
    now = store.now()
    return [_facts(view, now) async for view in all_workers(store)]


async def all_workers(store: OpenStore) -> AsyncIterator[WorkerView]:
    """Yield the workers of a store, in the order of joining."""
    page = await store.view.worker_list()
    while page:
        for view in page:
            yield view
        page = await store.view.worker_list(after=page[-1].number)


def _facts(view: WorkerView, now: float) -> Facts:
    from millpond.runtime.fleet.closure_worker import OWN

    tasks = sorted(
        (_task_facts(task, now) for task in view.holding), key=lambda task: task["started_at"] or 0
    )
    own = view.functions and [name for name in view.functions if not name.startswith("~")]
    return {
        "name": view.id,
        "state": "late" if view.expires_at < now else "live",
        "version": view.version,
        "closures_only": view.id.endswith(OWN),
        "seen_at": view.expires_at - view.lease,
        "seen_ago": max(now - (view.expires_at - view.lease), 0.0),
        "expires_at": view.expires_at,
        "lease": view.lease,
        "functions": own,
        "prefetched": view.ahead,
        "running": view.running,
        "longest": tasks[0]["running_for"] if tasks else None,
        "tasks": tasks,
    }


def _task_facts(task: Held, now: float) -> Facts:
    started = task.started_at
    return {
        "id": str(task.task),
        "pool": task.pool,
        "function": task.function,
        "key": task.key,
        "attempt": task.attempt,
        "started_at": started,
        "running_for": None if started is None else max(now - started, 0.0),
    }


def _show(found: list[Facts], shown: str, *, tasks: bool) -> None:
    if not found:
        note(f"no workers in {shown}")
        return
    table(_COLUMNS, found)
    if tasks and any(one["tasks"] for one in found):
        say("")
        table(_TASK_COLUMNS, [task | {"on": one["name"]} for one in found for task in one["tasks"]])


_COLUMNS = (
    Column("WORKER", lambda one: one["name"], uncut=True),
    Column("STATE", lambda one: one["state"], uncut=True),
    Column("SEEN", lambda one: f"{short(one['seen_ago'])} ago", right=True, uncut=True),
    Column("RUNNING", lambda one: str(one["running"]), right=True, uncut=True),
    Column("LONGEST", lambda one: short(one["longest"]), right=True, uncut=True),
    Column("AHEAD", lambda one: str(one["prefetched"]), right=True, optional=True),
    Column("POOLS", lambda one: ", ".join(dict.fromkeys(task["pool"] for task in one["tasks"]))),
)
_TASK_COLUMNS = (
    Column("ID", lambda task: task["id"], uncut=True),
    Column("POOL", lambda task: task["pool"]),
    Column("FUNCTION", lambda task: task["function"]),
    Column("KEY", lambda task: task["key"] or "", optional=True),
    Column("SINCE", lambda task: short(task["running_for"]), right=True, uncut=True),
    Column("WORKER", lambda task: task["on"], uncut=True),
)
