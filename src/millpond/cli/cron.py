"""`millpond cron`: the schedules of a store, when each fires next; switching them off and on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import carry_out, command, confirm, yes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import Reached
    from millpond.pool.schedules.stored import ScheduleInfo


@command("cron", json="Print the schedules as one JSON list.")
@click.argument("names", nargs=-1, metavar="[SCHEDULE]...")
@click.option("--pause", "order", flag_value="pause", help="Let them fire no more, for now.")
@click.option("--resume", "order", flag_value="resume", help="Let them fire again.")
@click.option("--remove", "order", flag_value="remove", help="Let them end, until declared again.")
@yes
def main(names: tuple[str, ...], order: str | None, **asked: Any) -> int:  # noqa: ANN401
    """Show the schedules of a store, all or those that are named: which fires next comes first.

    What an application still declares it brings back after --remove, when it opens the store again;
    --pause lasts.
    """
    from millpond.cli.open_store import reached

    if order is not None and not names:
        raise Refusal(Exit.USAGE, f"--{order} needs the name of a schedule")

    async def show() -> int:
        async with reached(asked["store"], asked["app"]) as here:
            found = await _meant(here, names)
            if order == "remove":
                confirm(f"End {len(found)} schedule(s)?", yes=asked["yes"])
            if order is not None:
                await _carry_out(here, order, [one.id for one in found])
                found = [] if order == "remove" else await _meant(here, names)
            _show(found, here, as_json=asked["as_json"])
        return Exit.CLEAN

    return carry_out(show())


async def _meant(here: Reached, names: Sequence[str]) -> list[ScheduleInfo]:
    """Return the schedules that were named, or all."""
    from millpond.pool.schedules.stored import schedules

    found = await schedules(here.runtime, list(names) or None)
    missing = set(names) - {one.id for one in found}
    if missing:
        raise Refusal(Exit.NOTHING, f"no schedule {min(missing)!r} is armed in {here.shown}")
    return found


async def _carry_out(here: Reached, order: str, names: Sequence[str]) -> None:
    from millpond.core.control import Pause, Resume
    from millpond.pool.schedules.firing import CRON
    from millpond.pool.schedules.stored import remove

    orders: dict[str, Callable[[str], Awaitable[object]]] = {
        "pause": lambda name: here.runtime.control.order(Pause(CRON, name)),
        "resume": lambda name: here.runtime.control.order(Resume(CRON, name)),
        "remove": lambda name: remove(here.runtime, name),
    }
    for name in names:
        await orders[order](name)


def _show(found: list[ScheduleInfo], here: Reached, *, as_json: bool) -> None:
    from millpond.cli.render import Column, emit, note, table

    if as_json:
        emit([facts(one, here.now()) for one in found])
        return
    if not found:
        note(f"no schedules in {here.shown}")
        return
    columns = [
        Column("SCHEDULE"),
        Column("STATE", whole=True),
        Column("NEXT", whole=True),
        Column("IN", right=True, whole=True),
        Column("WHEN"),
        Column("DOES"),
        Column("MISSED", whole=True, optional=True),
    ]
    table(columns, [row(facts(one, here.now())) for one in found])


def facts(one: ScheduleInfo, now: float) -> Facts:
    """Return what is told of a schedule."""
    import msgspec

    told: Facts = msgspec.structs.asdict(one)
    late = one.next_at + one.grace < now
    state = "paused" if one.paused else "late" if late else "waiting"
    return {**told, "state": state, "due_in": one.next_at - now}


def row(told: Facts) -> list[str]:
    """Return a schedule as a line of a table."""
    from millpond.cli.render import short

    does = f"{told['task']} into {told['into']}" if told["task"] else ""
    emits = f"emits {told['emits']}" if told["emits"] else ""
    pace = f"every {told['every']:g} s" if told["every"] else f"{told['expression']} {told['tz']}"
    return [
        told["id"],
        told["state"],
        _at(told["next_at"], told["tz"]),
        short(max(told["due_in"], 0.0)),
        pace,
        ", ".join(filter(None, (does, emits))),
        told["missed"],
    ]


def _at(moment: float, zone: str) -> str:
    """Return a moment as the clocks of a zone show it."""
    from datetime import datetime

    from millpond.errors import BadSchedule
    from millpond.pool.schedules.timetable import zone_of

    try:
        place = zone_of(zone)
    except BadSchedule:
        # Known to whoever declared it, and not on this machine.
        place = zone_of("UTC")
    return datetime.fromtimestamp(moment, place).strftime("%Y-%m-%d %H:%M:%S %z")
