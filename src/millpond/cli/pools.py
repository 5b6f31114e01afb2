"""`millpond pools`: what runs and what waits, pool by pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit
from millpond.cli.store_options import POOL, carry_out, command

if TYPE_CHECKING:
    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import Reached


_RIGHT = ("RUNNING", "QUEUED", "LATER", "PARKED", "OLDEST", "WAIT", "RUN", "COMPLETED", "DEAD")


@command("pools", json="Print the pools as one JSON list.")
@click.argument("names", nargs=-1, type=POOL, metavar="[POOL]...")
@click.option("--lanes", is_flag=True, help="Show their lanes, too.")
def main(names: tuple[str, ...], *, lanes: bool, as_json: bool, **where: Any) -> int:  # noqa: ANN401
    """Show the pools of a store, all or those that are named.

    OLDEST is how long the first of those that wait has waited; WAIT and RUN are the seconds that
    half and nine in ten of the latest attempts waited for a start, and ran. LATER are due later,
    PARKED wait for a worker that knows their function, DEAD failed for good and are still kept
    (`millpond dead` lists them). A pool or key that a Throttled holds back says so, and for how
    long; `millpond resume` ends the hold.
    """
    from millpond.cli.open_store import reached

    async def show() -> int:
        async with reached(**where) as here:
            found = await read(here, names, lanes=lanes)
            _show(found, here.shown, as_json=as_json)
        return Exit.CLEAN

    return carry_out(show())


async def read(here: Reached, names: tuple[str, ...], *, lanes: bool) -> list[Facts]:
    """Return what is told of pools."""
    from millpond.cli.json_shapes import of_pool
    from millpond.core.task import CALLBACKS

    told = []
    for name in await here.pools(names):
        now = here.now()
        view = await here.view.pool(name, now=now)
        if view is not None:
            callbacks = await here.view.pool(name + CALLBACKS, now=now, measured=False)
            found = await here.view.lanes(name) if lanes else None
            told.append(of_pool(view, now, callbacks, found))
    return told


def _show(pools: list[Facts], place: str, *, as_json: bool) -> None:
    from millpond.cli.render import Column, emit, note, say, table

    if as_json:
        emit(pools)
        return
    if not pools:
        note(f"no pools in {place}")
        return
    columns = [
        Column(
            title,
            right=title in _RIGHT,
            whole=title != "POOL",
            optional=title in ("WAIT", "RUN"),
        )
        for title in ("POOL", "STATE", *_RIGHT)
    ]
    table(columns, [row(pool) for pool in pools])
    for pool in pools:
        if said := holds(pool):
            say("", *said)
    for pool in pools:
        if pool.get("lane_states"):
            _show_lanes(pool)


def row(pool: Facts) -> list[str]:
    """Return a pool as a line of a table."""
    from millpond.cli.render import short

    return [
        pool["name"],
        pool["state"],
        f"{pool['running']}/{pool['max_concurrent']}",
        f"{pool['queued']:,}",
        f"{pool['scheduled']:,}",
        f"{pool['parked']:,}",
        short(pool["oldest_queued_age"]),
        times(pool["waits"]),
        times(pool["run_times"]),
        f"{pool['completed']:,}",
        f"{pool['dead']:,}",
    ]


def holds(pool: Facts) -> list[str]:
    """Return a sentence for each hold of a pool, and how to end it."""
    from millpond.cli.render import short
    from millpond.cli.terminal_text import plain

    name, said = plain(pool["name"]), []
    if pool["held_for"]:
        said.append(
            f"{name} is held back for {short(pool['held_for'])} more (Throttled); "
            f"millpond resume {name} ends that"
        )
    said += [
        f"{name}: {plain(one['unit'])} is held back for {short(one['held_for'])} more (Throttled); "
        f"millpond resume {name} --key {plain(one['unit'])} ends that"
        for one in pool["held_units"]
    ]
    return said


def times(quantiles: Facts) -> str:
    """Return how long half and nine in ten took."""
    from millpond.cli.render import short

    if not quantiles["samples"]:
        return ""
    return f"{short(quantiles['p50'])}/{short(quantiles['p90'])}"


def _show_lanes(pool: Facts) -> None:
    from millpond.cli.render import Column, say, table
    from millpond.cli.terminal_text import plain

    say("", f"lanes of {plain(pool['name'])}:")
    columns = [
        Column("LANE"),
        Column("STATE"),
        Column("PENDING", right=True),
        Column("PROCESSED", right=True),
        Column("CURRENT", right=True),
    ]
    rows = [
        [
            lane["lane"],
            lane["state"],
            f"{lane['pending']:,}",
            f"{lane['processed']:,}",
            "" if lane["current_sequence"] is None else str(lane["current_sequence"]),
        ]
        for lane in pool["lane_states"]
    ]
    table(columns, rows)
