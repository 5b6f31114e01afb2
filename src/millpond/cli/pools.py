"""`millpond pools`: counts, waits and states of the pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.render import Column, emit, note, say, short, table
from millpond.cli.store_options import POOL, command, on_store
from millpond.core.escape import plain

if TYPE_CHECKING:
    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore


@command("pools", json="Print the pools as one JSON list.")
@click.argument("names", nargs=-1, type=POOL, metavar="[POOL]...")
@click.option("--lanes", is_flag=True, help="Also show their lanes.")
def main(names: tuple[str, ...], *, lanes: bool, as_json: bool, **where: Any) -> int:  # noqa: ANN401
    """Show the pools of a store: all, or those named.

    OLDEST is the age of the oldest waiting task. WAIT and RUN are the median and the 90th
    percentile of the latest attempts: time to start, and run time. LATER counts scheduled tasks,
    PARKED tasks that wait for a worker that knows their function, DEAD failed tasks that are still
    kept (`millpond dead` lists them). A pool or key held back by Throttled is shown with the time
    left; `millpond resume` ends the hold.
    """

    async def show(store: OpenStore) -> None:
        found = await read(store, names, lanes=lanes)
        _show(found, store.shown, as_json=as_json)

    return on_store(where, show)


async def read(store: OpenStore, names: tuple[str, ...], *, lanes: bool) -> list[Facts]:
    """Return the pools in the shape that `--json` prints."""
    from millpond.cli.json_shapes import pool_json
    from millpond.core.task import CALLBACKS

    pools = []
    for name in await store.pools(names):
        now = store.now()
        view = await store.view.pool(name, now=now)
        if view is not None:
            callbacks = await store.view.pool(name + CALLBACKS, now=now, measured=False)
            lane_views = await store.view.lanes(name) if lanes else None
            pools.append(pool_json(view, now, callbacks, lane_views))
    return pools


def _show(pools: list[Facts], place: str, *, as_json: bool) -> None:
    if as_json:
        emit(pools)
        return
    if not pools:
        note(f"no pools in {place}")
        return
    table(_COLUMNS, pools)
    for pool in pools:
        if sentences := holds(pool):
            say("", *sentences)
    for pool in pools:
        if pool.get("lane_states"):
            say("", f"lanes of {plain(pool['name'])}:")
            table(_LANE_COLUMNS, pool["lane_states"])


def holds(pool: Facts) -> list[str]:
    """Return a sentence for each hold of a pool, and how to end it."""
    name, sentences = plain(pool["name"]), []
    if pool["held_for"]:
        sentences.append(
            f"{name} is held back for {short(pool['held_for'])} more (Throttled); "
            f"millpond resume {name} ends that"
        )
    sentences += [
        f"{name}: {plain(one['unit'])} is held back for {short(one['held_for'])} more (Throttled); "
        f"millpond resume {name} --key {plain(one['unit'])} ends that"
        for one in pool["held_units"]
    ]
    return sentences


def times(quantiles: Facts) -> str:
    """Return the median and the 90th percentile."""
    if not quantiles["samples"]:
        return ""
    return f"{short(quantiles['p50'])}/{short(quantiles['p90'])}"


_COLUMNS = (
    Column("POOL", lambda pool: pool["name"]),
    Column("STATE", lambda pool: pool["state"], uncut=True),
    *(
        Column(title, cell, right=True, uncut=True, optional=title in ("WAIT", "RUN"))
        for title, cell in {
            "RUNNING": lambda pool: f"{pool['running']}/{pool['max_concurrent']}",
            "QUEUED": lambda pool: f"{pool['queued']:,}",
            "LATER": lambda pool: f"{pool['scheduled']:,}",
            "PARKED": lambda pool: f"{pool['parked']:,}",
            "OLDEST": lambda pool: short(pool["oldest_queued_age"]),
            "WAIT": lambda pool: times(pool["waits"]),
            "RUN": lambda pool: times(pool["run_times"]),
            "COMPLETED": lambda pool: f"{pool['completed']:,}",
            "DEAD": lambda pool: f"{pool['dead']:,}",
        }.items()
    ),
)


def _current(lane: Facts) -> str:
    return "" if lane["current_sequence"] is None else str(lane["current_sequence"])


_LANE_COLUMNS = (
    Column("LANE", lambda lane: lane["lane"]),
    Column("STATE", lambda lane: lane["state"]),
    Column("PENDING", lambda lane: f"{lane['pending']:,}", right=True),
    Column("PROCESSED", lambda lane: f"{lane['processed']:,}", right=True),
    Column("CURRENT", _current, right=True),
)
