"""`millpond audit`: print the audit log as JSON Lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.render import emit
from millpond.cli.store_options import DURATION, POOL, TASK_ID, command, on_store

if TYPE_CHECKING:
    from millpond.cli.open_store import OpenStore
    from millpond.core.audit import Record

KINDS = (
    "submit",
    "update",
    "claim",
    "dequeue",
    "drop",
    "retry",
    "settle",
    "cancel",
    "lease_expired",
    "control",
)


@command("audit", json=None)
@click.option("--pool", "pools", type=POOL, multiple=True, help="Only this pool.")
@click.option("--task", type=TASK_ID, metavar="ID", help="Only this task.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    metavar="KIND",
    multiple=True,
    help=f"Only this kind: {', '.join(KINDS)}.",
)
@click.option(
    "--since", type=DURATION, metavar="AGE", help="Only records newer than this, such as 10m."
)
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="POSITION",
    help="Start after this position, such as that of the last line you read.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Print at most N lines.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records and print them.")
@click.option("--new", is_flag=True, help="With --follow: skip the records that exist already.")
@click.option(
    "--every",
    type=DURATION,
    default=0.5,
    metavar="SECONDS",
    help="With --follow: poll this often (default: 0.5).",
)
def main(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Print the audit log as JSON Lines, oldest first.

    Each line is one change of a task's status, or one operator command. `position` numbers the
    records. The application sets how long records are kept.
    """

    async def print_records(store: OpenStore) -> None:
        reader = AuditReader(store, options, await store.pools(options["pools"]))
        await reader.skip()
        await reader.print_records()

    return on_store(options, print_records)


class AuditReader:
    """Reads the audit from a position, and prints the records that match."""

    def __init__(self, store: OpenStore, options: dict[str, Any], pools: list[str]) -> None:
        self._store = store
        self._options = options
        self._pools = frozenset(pools) if options["pools"] else None
        self._kinds = frozenset(options["kinds"]) or None
        self._position: int = options["after"]
        since = options["since"]
        self._since = None if since is None else store.now() - since
        if options["new"]:
            self._since = store.now()
        self._left: int | None = options["limit"]

    async def skip(self) -> None:
        """Skip the records from before the task was submitted, if one task is selected."""
        task: int | None = self._options["task"]
        found = None if task is None else await self._store.view.task(task)
        if found is not None:
            self._since = max(self._since or 0.0, found.submitted_at)

    async def print_records(self) -> None:
        """Print the records; with --follow, poll for more."""
        import asyncio

        while True:
            await self._print_new()
            if not self._options["follow"] or self._left == 0:
                return
            sys.stdout.flush()
            await asyncio.sleep(max(self._options["every"], 0.05))

    async def _print_new(self) -> None:
        while self._left != 0:
            task: int | None = self._options["task"]
            page = await self._store.view.audit(after=self._position, since=self._since)
            if page.next == self._position:
                return
            first = page.next - len(page.records) + 1
            for position, record in enumerate(page.records, first):
                if self._matches(record, task) and self._left != 0:
                    self._print(record, position)
            self._position = page.next

    def _matches(self, record: Record, task: int | None) -> bool:
        return (
            (task is None or record.task == task)
            and (self._pools is None or record.pool in self._pools)
            and (self._kinds is None or record.kind in self._kinds)
        )

    def _print(self, record: Record, position: int) -> None:
        from millpond.cli.json_shapes import record_json

        emit(record_json(record, position), one_line=True)
        if self._left is not None:
            self._left -= 1
