"""Events and triggers: `millpond emit`, `events`, `replay` and `triggers`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.render import Column, bare, note, say, short, table
from millpond.cli.render import emit as write
from millpond.cli.store_options import DURATION, command, on_store, operator
from millpond.core.escape import plain
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore
    from millpond.pool.events.receipt import Emission, EventInfo, Receipt
    from millpond.store.protocol import PoolView

wait = click.option(
    "--wait",
    type=DURATION,
    metavar="TIME",
    help="Wait this long for its triggers to submit their tasks.",
)

_FAILED = ("failed", "cancelled")


@command("emit", json="Print the event, and with --wait its receipts, as one JSON document.")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--id", "event_id", help="Id of the event: emitted again, it is a duplicate.")
@wait
def emit(name: str, **options: Any) -> int:  # noqa: ANN401 - the options above
    """Emit an event to every trigger for this NAME.

    PAYLOAD is JSON; - reads it from stdin. The event is stored when this returns.
    """
    payload = _read(options["payload"])

    async def emitted(store: OpenStore) -> Emission:
        return await internals_of(store.millpond).events.emit_as(
            operator(), name, payload, options["event_id"]
        )

    return _send(emitted, options)


@command("replay", json="Print the event, and with --wait its receipts, as one JSON document.")
@click.argument("name")
@click.argument("event_id", metavar="ID")
@wait
def replay(name: str, event_id: str, **options: Any) -> int:  # noqa: ANN401 - the options above
    """Send the event of this NAME and ID to its triggers again.

    A trigger that submitted a task for it does not submit another; a new trigger does.
    """

    async def emitted(store: OpenStore) -> Emission:
        return await store.millpond.replay(name, event_id)

    return _send(emitted, options)


def _read(text: str | None) -> Any:  # noqa: ANN401 - whatever JSON can say
    import json

    if text is None:
        return None
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise Refusal(Exit.USAGE, f"the payload is not JSON: {error}") from None


def _send(emitted: Any, options: dict[str, Any]) -> int:  # noqa: ANN401 - a function of a store
    async def send(store: OpenStore) -> int:
        emission = await emitted(store)
        receipts = await _receipts(emission, options["wait"])
        facts: Facts = {
            "name": emission.event.name,
            "id": emission.event_id,
            "task_id": str(emission.task_id),
            "duplicate": emission.duplicate,
        }
        if receipts is not None:
            facts["receipts"] = [_receipt_facts(one) for one in receipts]
        if options["as_json"]:
            write(facts)
        else:
            _show_emission(emission, receipts)
        failed = any(one.outcome in _FAILED for one in receipts or ())
        return Exit.NOTHING if failed else Exit.CLEAN

    return on_store(options, send)


async def _receipts(emission: Emission, seconds: float | None) -> list[Receipt] | None:
    if seconds is None:
        return None
    try:
        return await emission.receipts(timeout=seconds)
    except TimeoutError:
        message = (
            f"event {emission.event_id} is stored, but not all triggers took it within "
            f"{seconds:g} s; check that a worker runs and no trigger is paused"
        )
        raise Refusal(Exit.NOTHING, message) from None


def _receipt_facts(receipt: Receipt) -> Facts:
    facts: Facts = bare(receipt)
    for name in ("task_id", "delivery_id"):
        if facts.get(name):
            facts[name] = str(facts[name])
    return facts


def _show_emission(emission: Emission, receipts: list[Receipt] | None) -> None:
    say(plain(emission.event_id))
    if emission.duplicate:
        note(f"duplicate: event {emission.event_id} of {emission.event.name} is already stored")
    if receipts is None:
        return
    if not receipts:
        note(f"no trigger is for {emission.event.name}")
        return
    table(_RECEIPT_COLUMNS, receipts)


@command("events", json="Print one JSON document: the events, and the place of the next page.")
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, metavar="N", help="Print at most N.")
@click.option(
    "--after",
    type=int,
    default=0,
    metavar="PLACE",
    help="Continue after this place of an earlier page.",
)
@click.option("--payload", "payloads", is_flag=True, help="Also show their payloads.")
def main(name: str | None, **options: Any) -> int:  # noqa: ANN401 - the options above
    """Show stored events, all or of one NAME, oldest first."""

    async def show(store: OpenStore) -> None:
        limit = options["limit"]
        found = await store.millpond.events(name, after=options["after"], limit=limit + 1)
        page, more = found[:limit], len(found) > limit
        if options["as_json"]:
            shown = [_event_facts(one, payload=options["payloads"]) for one in page]
            write({"events": shown, "next": page[-1].seq if more else None})
        else:
            _show_events(page, store, payload=options["payloads"], more=more)

    return on_store(options, show)


def _event_facts(event: EventInfo, *, payload: bool) -> Facts:
    facts: Facts = bare(event)
    facts["task_id"] = str(event.task_id)
    facts["deliveries"] = {trigger: str(task) for trigger, task in event.deliveries.items()}
    if not payload:
        del facts["payload"]
    return facts


def _show_events(page: Sequence[EventInfo], store: OpenStore, *, payload: bool, more: bool) -> None:
    import json

    if not page:
        note(
            f"no events in {store.shown}; `millpond emit NAME` or `await mp.emit(name, payload)` "
            "emits one"
        )
        return
    now = store.now()
    columns = [
        Column("EVENT", lambda one: one.name),
        Column("ID", lambda one: one.id),
        Column("STATUS", lambda one: "replayed" if one.replay else one.status),
        Column("AGE", lambda one: short(now - one.emitted_at), right=True),
        Column("BY", lambda one: one.emitted_by),
        Column("TRIGGERS", lambda one: ", ".join(one.deliveries)),
    ]
    if payload:
        columns.append(Column("PAYLOAD", lambda one: json.dumps(one.payload)))
    table(columns, page)
    if more:
        note(f"more: --after {page[-1].seq}")


@command("triggers", json="Print the triggers as one JSON list.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--remove", is_flag=True, help="Remove these triggers.")
def triggers(ids: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - the options above
    """Show the triggers of a store: the events each takes, and how many it submitted.

    WAITING counts events it has not submitted yet, FAILED its dead letters. A trigger's own pool
    is named trigger/ID: `millpond pause trigger/ID`, `millpond dead --pool trigger/ID` and
    `millpond redrive --pool trigger/ID` work as for any pool.
    """
    if options["remove"] and not ids:
        raise Refusal(Exit.USAGE, "--remove needs the ids of triggers")

    async def show(store: OpenStore) -> None:
        found = await _triggers(store, ids)
        if options["remove"]:
            for view in found:
                await _remove(store, view)
            found = await _triggers(store, ids)
        _show_triggers(found, store, as_json=options["as_json"])

    return on_store(options, show)


async def _triggers(store: OpenStore, ids: Sequence[str]) -> list[PoolView]:
    """Return the pools of triggers: the named ones, or all that are not removed."""
    from millpond.core.event import TRIGGERS
    from millpond.errors import UnknownTrigger

    known = await store.view.names(TRIGGERS)
    for name in ids:
        if TRIGGERS + name not in known:
            there = ", ".join(one.removeprefix(TRIGGERS) for one in known) or "none"
            message = f"no trigger {name!r} (there are: {there})"
            raise UnknownTrigger(message, trigger=name)
    views = [
        await store.view.pool(name, now=store.now())
        for name in ([TRIGGERS + one for one in ids] or known)
    ]
    return [
        view
        for view in views
        if view is not None and view.declared.trigger and (ids or view.declared.trigger.on)
    ]


async def _remove(store: OpenStore, view: PoolView) -> None:
    from msgspec.structs import replace

    from millpond.core.control import Declare

    assert view.declared.trigger is not None  # noqa: S101 - the pool of a trigger has one
    gone = replace(view.declared.trigger, on=())
    await store.runtime.control.order(Declare(replace(view.declared, trigger=gone)))


def _show_triggers(found: Sequence[PoolView], store: OpenStore, *, as_json: bool) -> None:
    shown = [_trigger_facts(view) for view in found]
    if as_json:
        write(shown)
        return
    if not shown:
        note(f"no triggers in {store.shown}")
        return
    table(_TRIGGER_COLUMNS, shown)


def _trigger_facts(view: PoolView) -> Facts:
    from millpond.core.event import TRIGGERS

    spec = view.declared.trigger
    assert spec is not None  # noqa: S101 - the pool of a trigger has one
    return {
        "id": view.spec.name.removeprefix(TRIGGERS),
        "state": "removed" if not spec.on else "paused" if view.paused else "active",
        "on": list(spec.on),
        "into": spec.into,
        "task": spec.task,
        "priority_from": spec.priority_from,
        "key_from": spec.key_from,
        "weight_from": spec.weight_from,
        "waiting": view.queued + view.running,
        "submitted": view.totals.get("completed", 0),
        "failed": view.totals.get("failed", 0),
        "revision": view.revision,
    }


_RECEIPT_COLUMNS = (
    Column("TRIGGER", lambda one: one.trigger),
    Column("OUTCOME", lambda one: one.outcome),
    Column("POOL", lambda one: one.pool or ""),
    Column("TASK", lambda one: str(one.task_id or "")),
    Column("REASON", lambda one: one.reason or ""),
)
_TRIGGER_COLUMNS = (
    Column("TRIGGER", lambda one: one["id"]),
    Column("STATE", lambda one: one["state"]),
    Column("ON", lambda one: ", ".join(one["on"])),
    Column("INTO", lambda one: one["into"]),
    Column("TASK", lambda one: one["task"] or ""),
    Column("WAITING", lambda one: f"{one['waiting']:,}", right=True),
    Column("SUBMITTED", lambda one: f"{one['submitted']:,}", right=True),
    Column("FAILED", lambda one: f"{one['failed']:,}", right=True),
)
