"""`millpond update ID...`: change tasks that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.store_options import DURATION, TASK_ID, command, on_store, operator
from millpond.cli.submit import labels_of, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore

MOMENT = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z", "%Y-%m-%dT%H:%M%z"])


@command("update", json="Print the tasks as one JSON document.")
@click.argument("tasks", nargs=-1, required=True, type=TASK_ID, metavar="ID...")
@click.option("--now", is_flag=True, help="Start it as soon as its pool allows.")
@click.option("--delay", type=DURATION, metavar="TIME", help="Start it after this time.")
@click.option(
    "--at", type=MOMENT, metavar="TIME", help="Start it then, such as 2026-12-24T18:00:00+01:00."
)
@click.option("--priority", type=int, help="Priority: higher starts first.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="All its labels.")
@click.option("--expires-in", type=DURATION, metavar="TIME", help="Do not start it after this.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Time for one attempt.")
@click.option("--arguments", metavar="JSON", help="Other arguments by name; `-` reads stdin.")
def main(tasks: tuple[int, ...], **options: Any) -> int:  # noqa: ANN401 - the options above
    """Change tasks that wait; those that a worker has, or that ended, stay as they are.

    A task keeps its id, its key and its place. With other arguments it has a new budget of
    attempts. --now and --delay also end the wait for a retry.
    """
    arguments = None if options["arguments"] is None else object_of(options["arguments"])
    changes = _changes(options)
    if not changes and arguments is None:
        raise Refusal(Exit.USAGE, "nothing to change: give --now, --delay, --priority or another")

    async def change(store: OpenStore) -> int:
        facts = [await _change(store, task, arguments, changes) for task in tasks]
        return _report(facts, as_json=options["as_json"])

    return on_store(options, change)


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the update that were given."""
    if sum((options["now"], options["delay"] is not None, options["at"] is not None)) > 1:
        raise Refusal(Exit.USAGE, "give one of --now, --delay and --at")
    names = ("priority", "delay", "expires_in", "timeout")
    given = {name: options[name] for name in names if options[name] is not None}
    if options["now"]:
        given["delay"] = 0.0
    if options["at"] is not None:
        given["run_at"] = options["at"]
    if options["labels"]:
        given["labels"] = labels_of(options["labels"])
    return given


async def _change(
    store: OpenStore, task: int, arguments: Mapping[str, Any] | None, changes: Mapping[str, Any]
) -> Facts:
    from millpond.errors import NotWaiting, UnknownTask
    from millpond.pool.internals import internals_of

    waiting = internals_of(store.millpond).waiting
    try:
        revision = await waiting.change(task, arguments, changes, by=operator())
    except (NotWaiting, UnknownTask) as refused:
        return {"id": str(task), "changed": False, "reason": refused.message}
    return {"id": str(task), "changed": True, "revision": revision}


def _report(facts: list[Facts], *, as_json: bool) -> int:
    from millpond.cli.render import emit, say
    from millpond.core.escape import plain

    if as_json:
        emit({"order": "update", "tasks": facts})
    else:
        say(*(plain(f"{one['id']}  {one.get('reason', 'changed')}") for one in facts))
    return Exit.CLEAN if all(one["changed"] for one in facts) else Exit.NOTHING
