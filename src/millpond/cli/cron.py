"""`millpond cron`: show, pause, resume and remove the schedules of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.render import Column, answer, emit, note, short, table
from millpond.cli.store_options import command, confirm, on_store, yes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore
    from millpond.pool.schedules.stored import ScheduleInfo


@command("cron", json="Print the schedules as one JSON list.")
@click.argument("names", nargs=-1, metavar="[SCHEDULE]...")
@click.option("--pause", "order", flag_value="pause", help="Pause these schedules.")
@click.option("--resume", "order", flag_value="resume", help="Resume these schedules.")
@click.option(
    "--fire",
    "order",
    flag_value="fire",
    help="Fire these schedules once more, now; their next firings stay as they are.",
)
@click.option(
    "--remove",
    "order",
    flag_value="remove",
    help="Remove these schedules until an application declares them again.",
)
@yes
def main(names: tuple[str, ...], order: str | None, **options: Any) -> int:  # noqa: ANN401
    """Show the schedules of a store, all or those named, the next to fire first.

    After --remove, an application that still declares a schedule restores it when it opens the
    store. --pause lasts. --fire also fires a paused schedule.
    """
    if order is not None and not names:
        raise Refusal(Exit.USAGE, f"--{order} needs the name of a schedule")

    async def show(store: OpenStore) -> int:
        found = await _named(store, names)
        if order == "remove":
            confirm(f"Remove {len(found)} schedule(s)?", yes=options["yes"])
        if order is not None:
            answers = await _carry_out(store, order, [one.id for one in found])
            if order == "fire":
                _show_fired(answers, as_json=options["as_json"])
                return Exit.CLEAN
            found = [] if order == "remove" else await _named(store, names)
        _show(found, store, as_json=options["as_json"])
        return Exit.CLEAN

    return on_store(options, show)


async def _named(store: OpenStore, names: Sequence[str]) -> list[ScheduleInfo]:
    """Return the named schedules, or all."""
    from millpond.pool.schedules.stored import schedules

    found = await schedules(store.runtime, list(names) or None)
    missing = set(names) - {one.id for one in found}
    if missing:
        raise Refusal(Exit.NOTHING, f"no schedule {min(missing)!r} in {store.shown}")
    return found


async def _carry_out(store: OpenStore, order: str, names: Sequence[str]) -> dict[str, Any]:
    """Carry out an order; return what each schedule answered."""
    from millpond.core.control import Pause, Resume
    from millpond.pool.internals import internals_of
    from millpond.pool.schedules.firing import CRON
    from millpond.pool.schedules.stored import fire, remove

    orders: dict[str, Callable[[str], Awaitable[object]]] = {
        "pause": lambda name: store.runtime.control.order(Pause(CRON, name)),
        "resume": lambda name: store.runtime.control.order(Resume(CRON, name)),
        "fire": lambda name: fire(store.runtime, name, internals_of(store.millpond).events.as_task),
        "remove": lambda name: remove(store.runtime, name),
    }
    return {name: await orders[order](name) for name in names}


def _show_fired(fired: dict[str, list[int]], *, as_json: bool) -> None:
    """Print the tasks that each schedule submitted."""
    shown = {name: [str(task) for task in tasks] for name, tasks in fired.items()}
    answer(
        [{"id": name, "tasks": tasks} for name, tasks in shown.items()],
        *(f"{name} fired: {' '.join(tasks)}" for name, tasks in shown.items()),
        as_json=as_json,
    )


def _show(found: list[ScheduleInfo], store: OpenStore, *, as_json: bool) -> None:
    if as_json:
        emit([facts(one, store.now()) for one in found])
        return
    if not found:
        note(f"no schedules in {store.shown}")
        return
    table(_COLUMNS, [facts(one, store.now()) for one in found])


def facts(one: ScheduleInfo, now: float) -> Facts:
    """Return a schedule in the shape that `--json` prints."""
    import msgspec

    schedule: Facts = msgspec.structs.asdict(one)
    late = one.next_at + one.grace < now
    state = "paused" if one.paused else "late" if late else "waiting"
    return {**schedule, "state": state, "due_in": one.next_at - now}


def _pace(schedule: Facts) -> str:
    if schedule["every"]:
        return f"every {schedule['every']:g} s"
    return f"{schedule['expression']} {schedule['tz']}"


def _does(schedule: Facts) -> str:
    does = f"{schedule['task']} into {schedule['into']}" if schedule["task"] else ""
    emits = f"emits {schedule['emits']}" if schedule["emits"] else ""
    return ", ".join(filter(None, (does, emits)))


def _at(moment: float, zone: str) -> str:
    """Return a time in a time zone."""
    from datetime import datetime

    from millpond.errors import BadSchedule
    from millpond.pool.schedules.timetable import zone_of

    try:
        place = zone_of(zone)
    except BadSchedule:
        # The machine that declared the schedule knows this zone; this one does not.
        place = zone_of("UTC")
    return datetime.fromtimestamp(moment, place).strftime("%Y-%m-%d %H:%M:%S %z")


_COLUMNS = (
    Column("SCHEDULE", lambda one: one["id"]),
    Column("STATE", lambda one: one["state"], uncut=True),
    Column("NEXT", lambda one: _at(one["next_at"], one["tz"]), uncut=True),
    Column("IN", lambda one: short(max(one["due_in"], 0.0)), right=True, uncut=True),
    Column("WHEN", _pace),
    Column("DOES", _does),
    Column("MISSED", lambda one: one["missed"], uncut=True, optional=True),
)
