"""`millpond submit POOL FUNCTION JSON`: submit a task by name, without its code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.render import answer, bare, note
from millpond.cli.store_options import DURATION, POOL, command, on_store, operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore
    from millpond.pool.handle import Handle


@command("submit", json="Print the task, and with --wait its result, as one JSON document.")
@click.argument("pool", type=POOL)
@click.argument("function")
@click.argument("arguments", required=False, metavar="[JSON]")
@click.option("--key", help="Key of the task; the function's own key= is not known here.")
@click.option("--priority", type=int, help="Priority: higher starts first.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label; repeatable.")
@click.option("--delay", type=DURATION, metavar="TIME", help="Start it after this time.")
@click.option("--expires-in", type=DURATION, metavar="TIME", help="Do not start it after this.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Time for one attempt.")
@click.option("--attempts", type=click.IntRange(1), metavar="N", help="Run it at most N times.")
@click.option("--idempotency-key", help="Submitted again with this key, it is the same task.")
@click.option("--wait", type=DURATION, metavar="TIME", help="Wait this long for its result.")
def main(pool: str, function: str, **options: Any) -> int:  # noqa: ANN401 - the options above
    """Submit a task to a POOL of a store: a FUNCTION, with arguments by name as a JSON object.

    `-` reads the JSON from stdin. The application is not loaded: a worker checks the arguments. It
    parks a task that it does not understand. Without --attempts a task has as many as its pool
    declares, or 3; a retry policy of the function does not count.
    """
    arguments = object_of(options["arguments"])

    async def send(store: OpenStore) -> int:
        (name,) = await store.pools([pool])
        handle = await store.millpond.submit(name, function, arguments, **_given(options))
        if not await _is_known(store, function):
            note(f"no worker that is running knows {function}; the task waits for one")
        facts = await _outcome(handle, options["wait"])
        return _report(facts, as_json=options["as_json"])

    return on_store(options, send)


def object_of(text: str | None) -> dict[str, Any]:
    """Return a JSON object, of an argument or of stdin; an empty one for none."""
    import json

    if text is None:
        return {}
    try:
        found = json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise Refusal(Exit.USAGE, f"the arguments are not JSON: {error}") from None
    if not isinstance(found, dict):
        message = 'the arguments must be an object by name, such as {"to": "ada"}'
        raise Refusal(Exit.USAGE, message)
    return found


def _given(options: dict[str, Any]) -> Any:  # noqa: ANN401 - options of a submit
    """Return the options of the submit that were given."""
    from millpond.core.backoff import Retry

    names = ("key", "priority", "delay", "expires_in", "timeout", "idempotency_key")
    given = {name: options[name] for name in names if options[name] is not None}
    if options["labels"]:
        given["labels"] = labels_of(options["labels"])
    if options["attempts"] is not None:
        given["retry"] = Retry(attempts=options["attempts"])
    return {**given, "submitted_by": operator()}


def labels_of(given: Sequence[str]) -> dict[str, str]:
    """Return the labels in a list of NAME=VALUE."""
    for one in given:
        if "=" not in one:
            raise Refusal(Exit.USAGE, f"--label {one!r} is not NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


async def _is_known(store: OpenStore, function: str) -> bool:
    from millpond.cli.workers import all_workers

    async for view in all_workers(store):
        if view.functions is None or function in view.functions:
            return True
    return False


async def _outcome(handle: Handle[Any], wait: float | None) -> Facts:
    """Return the task, and if `wait` is given how it ended."""
    import asyncio

    if wait is not None:
        try:
            await asyncio.wait_for(handle.wait(), wait)
        except TimeoutError:
            message = f"task {handle.id} is stored; it did not end within {wait:g} s"
            raise Refusal(Exit.NOTHING, message) from None
    facts: Facts = {
        "id": str(handle.id),
        "pool": handle.pool,
        "status": str(handle.status),
        "duplicate": handle.duplicate,
    }
    if wait is not None:
        facts["result"] = await handle if facts["status"] == "completed" else None
        facts["error"] = None if handle.error is None else str(handle.error)
    return facts


def _report(facts: Facts, *, as_json: bool) -> int:
    answer(bare(facts), f"{facts['id']}  {_sentence(facts)}", as_json=as_json)
    is_bad = facts["status"] in ("failed", "cancelled", "rejected")
    return Exit.NOTHING if is_bad else Exit.CLEAN


def _sentence(facts: Facts) -> str:
    import json

    if facts.get("error"):
        return f"{facts['status']}: {facts['error']}"
    if "result" in facts and facts["status"] == "completed":
        return f"completed: {json.dumps(facts['result'])}"
    again = "; its idempotency key was known" if facts["duplicate"] else ""
    return f"{facts['status']} in {facts['pool']}{again}"
