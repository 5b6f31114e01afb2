"""`millpond task ID`: show one task with its attempts and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.render import Column, aligned_pairs, answer, bare, emit, moment, say, short, table
from millpond.cli.store_options import TASK_ID, command, on_store
from millpond.core.escape import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore
    from millpond.core.audit import Record
    from millpond.core.task import Task


@command("task", json="Print one JSON document: the task, its attempts and its history.")
@click.argument("task", type=TASK_ID, metavar="ID")
@click.option("--why", is_flag=True, help="Only print why it is not running.")
@click.option("--payload", is_flag=True, help="Also show its arguments and result.")
def main(task: int, *, why: bool, payload: bool, as_json: bool, **where: Any) -> int:  # noqa: ANN401
    """Show one task: status, attempts with their times, latest error, history.

    Attempts and history are read from the audit log, which is kept for a week unless the
    application says otherwise. The store keeps only the latest error.
    """

    async def show(store: OpenStore) -> None:
        if why:
            await _say_why(store, task, as_json=as_json)
        else:
            await _show(store, task, payload=payload, as_json=as_json)

    return on_store(where, show)


async def _say_why(store: OpenStore, task: int, *, as_json: bool) -> None:
    reason = await store.why(task)
    answer({"id": str(task), "why": reason}, reason, as_json=as_json)


async def _show(store: OpenStore, task: int, *, payload: bool, as_json: bool) -> None:
    from millpond.cli.json_shapes import record_json, task_json
    from millpond.core.lifecycle import Status
    from millpond.server.shapes import attempts

    found = await store.view.task(task)
    if found is None:
        raise store.runtime.waiting.unknown(task)
    records = await history(store, found)
    now, why = store.now(), await store.why(task)
    facts = task_json(found, now)
    runs = bare(attempts(records, now, running=found.status is Status.RUNNING))
    if payload:
        facts |= _contents(found)
    if as_json:
        shown = [record_json(record) for record in records]
        emit({"task": facts, "why": why, "attempts": runs, "history": shown})
    else:
        _print(facts, why, runs, records, found)


async def history(store: OpenStore, task: Task) -> list[Record]:
    """Return the audit records of a task."""
    records: list[Record] = []
    position = -1
    since = task.submitted_at
    page = await store.view.audit(since=since, task=task.new.id)
    while page.next != position:
        records += page.records
        position = page.next
        page = await store.view.audit(after=position, since=since, task=task.new.id)
    return records


def _contents(task: Task) -> Facts:
    """Return the arguments and the result of a task."""
    return {
        "arguments": _decoded(task.new.call.payload),
        "result": None if task.result is None else _decoded(task.result),
    }


def _decoded(stored: bytes) -> Any:  # noqa: ANN401 - whatever it is
    import msgspec

    try:
        return msgspec.json.decode(stored) if stored else None
    except msgspec.DecodeError:
        return stored.decode("utf-8", "replace")


def _print(
    facts: Facts, why: str, runs: Sequence[Facts], records: Sequence[Record], task: Task
) -> None:
    from millpond.runtime.error_info import read

    aligned_pairs(list(_lines(facts, why)))
    if runs:
        say("", "attempts")
        table(_ATTEMPT_COLUMNS, runs)
    error = read(task.error)
    if error is not None:
        text = error.traceback or str(error)
        say("", "latest error", *plain(text, lines=True).rstrip("\n").splitlines())
    if records:
        say("", "history")
        table(_HISTORY_COLUMNS, records)


def _lines(facts: Facts, why: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values to print for a task; empty values are left out."""
    import json

    yield "task", facts["id"]
    yield "function", facts["function"]
    yield "pool", facts["pool"]
    yield "status", facts["state"]
    if why != facts["state"]:
        yield "why", why
    yield "key", facts["key"] or ""
    yield "labels", ", ".join(f"{name}={value}" for name, value in facts["labels"].items())
    yield "lane", "" if facts["lane"] is None else f"{facts['lane']}, number {facts['sequence']}"
    yield "priority", str(facts["priority"] or "")
    given_back = facts["runs"] - facts["attempt"]
    uncharged = f" ({given_back} more given back)" if given_back else ""
    yield "attempts", f"{facts['attempt']} of {facts['attempts']}{uncharged}"
    yield "idempotency", facts["idempotency_key"] or ""
    yield "run", facts["run"] or ""
    yield "submitted", f"{moment(facts['submitted_at'])} by {facts['submitted_by']}"
    if facts["due"] != facts["submitted_at"]:
        yield "due", moment(facts["due"])
    yield "started", moment(facts["started_at"])
    yield "ended", moment(facts["finished_at"])
    yield "waited", short(facts["waited"])
    yield "ran", short(facts["ran"])
    yield "worker", facts["worker"] or ""
    if facts["progress"]:
        fraction, text = facts["progress"]
        yield "progress", f"{fraction:.0%} {text}"
    for name in ("arguments", "result"):
        if name in facts:
            yield name, json.dumps(facts[name])


def _detail(record: Record) -> str:
    """Return the last column of a history row."""
    from millpond.core.lifecycle import Transition

    parts = [record.reason or ""]
    if record.event is Transition.LEASE:
        parts.append(f"attempt {record.attempt} by {record.worker}")
    if record.event in (Transition.RETRY, Transition.SUBMIT) and record.due > record.at:
        parts.append(f"due in {short(record.due - record.at)}")
    return ", ".join(filter(None, parts))


_ATTEMPT_COLUMNS = (
    Column("ATTEMPT", lambda run: str(run["attempt"]), right=True),
    Column("STARTED", lambda run: moment(run["started_at"])),
    Column("WAITED", lambda run: short(run["waited"]), right=True),
    Column("RAN", lambda run: short(run["ran"]), right=True),
    Column("OUTCOME", lambda run: ": ".join(filter(None, (run["outcome"], run["reason"])))),
    Column("WORKER", lambda run: run["worker"] or ""),
)
_HISTORY_COLUMNS = (
    Column("WHEN", lambda record: f"{moment(record.at)}.{int(record.at % 1 * 1000):03}"),
    Column("WHAT", lambda record: str(record.event or record.detail or record.kind)),
    Column("THEN", lambda record: str(record.after or "")),
    Column("DETAIL", _detail),
)
