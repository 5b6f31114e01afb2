"""`millpond tasks` and `millpond dead`: list tasks, page by page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.iterate_tasks import TaskSelection, iterate_tasks, selection_options
from millpond.cli.render import Column, emit, note, on_terminal, say, short, table
from millpond.cli.store_options import command, on_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from millpond.cli.open_store import OpenStore
    from millpond.core.task import Task

AT_ONCE = 50
"""How many to print where stdout is not a terminal."""

_JSON = "Print one JSON document: the tasks, and the place of the next page."

limit = click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"Print at most N (default: {AT_ONCE}; all with --ids; on a terminal, page by page).",
)
after = click.option(
    "--after", metavar="PLACE", help="Continue after this place of an earlier page."
)
ids = click.option("--ids", is_flag=True, help="Print only ids, one per line.")


@command("tasks", json=_JSON)
@selection_options()
@limit
@after
@ids
def main(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Show tasks, pool by pool, each in the order of its queue.

    On a terminal they come page by page. Elsewhere, and with --limit, one page is printed; --after
    prints the next.
    """
    return _list(options, _columns)


@command("dead", json=_JSON)
@selection_options(state=False)
@limit
@after
@ids
def dead(**options: Any) -> int:  # noqa: ANN401 - the options above
    """Show failed tasks (dead letters) with their errors.

    `millpond task ID` shows one in full, `millpond redrive` queues them again.
    """
    return _list({**options, "state": "failed"}, _columns_of_dead)


def _columns(now: float) -> list[Column]:
    from millpond.pool.shown_state import ran, shown_task_state, waited

    return [
        Column("ID", lambda task: str(task.new.id), uncut=True),
        Column("POOL", lambda task: task.new.pool),
        Column("STATUS", lambda task: shown_task_state(task, now), uncut=True),
        Column("FUNCTION", lambda task: task.new.call.function),
        Column("KEY", lambda task: task.new.key or ""),
        Column("ATTEMPT", _attempt, right=True, uncut=True),
        Column("AGE", lambda task: short(now - task.submitted_at), right=True, uncut=True),
        Column(
            "WAITED", lambda task: short(waited(task, now)), right=True, uncut=True, optional=True
        ),
        Column("RAN", lambda task: short(ran(task, now)), right=True, uncut=True, optional=True),
    ]


def _columns_of_dead(now: float) -> list[Column]:
    from millpond.runtime.error_info import read

    return [
        Column("ID", lambda task: str(task.new.id), uncut=True),
        Column("POOL", lambda task: task.new.pool),
        Column("FUNCTION", lambda task: task.new.call.function),
        Column("KEY", lambda task: task.new.key or "", optional=True),
        Column("ATTEMPT", _attempt, right=True, uncut=True),
        Column(
            "ENDED",
            lambda task: f"{short(now - (task.finished_at or now))} ago",
            right=True,
            uncut=True,
        ),
        Column("ERROR", lambda task: str(read(task.error) or task.reason or "")),
    ]


def _attempt(task: Task) -> str:
    return f"{task.attempt}/{task.new.attempts}"


def _list(options: dict[str, Any], columns: Callable[[float], list[Column]]) -> int:
    where = {name: options.pop(name) for name in ("store", "app")}
    as_json, only_ids, most = options.pop("as_json"), options.pop("ids"), options.pop("limit")
    selection = TaskSelection(**options)
    turns = on_terminal() and sys.stdin.isatty() and most is None and not (as_json or only_ids)

    async def show(store: OpenStore) -> None:
        listing = Listing(store, iterate_tasks(store, selection), columns)
        if turns:
            await listing.turn_pages()
        else:
            size = most or (sys.maxsize if only_ids else AT_ONCE)
            await listing.one_page(size, as_json=as_json, only_ids=only_ids)
        if selection.state == "failed" and not (selection.callbacks or as_json or only_ids):
            await _mention_failed_callbacks(store, selection)

    return on_store(where, show)


async def _mention_failed_callbacks(store: OpenStore, selection: TaskSelection) -> None:
    """Print a note if callbacks failed as well."""
    async for _ in iterate_tasks(store, selection._replace(callbacks=True, after=None)):
        note("callbacks failed, too; --callbacks lists them")
        return


class Listing:
    """Prints tasks as pages or as one document."""

    def __init__(
        self,
        store: OpenStore,
        tasks: AsyncIterator[tuple[Task, str]],
        columns: Callable[[float], list[Column]],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._columns = columns
        self._ahead: tuple[Task, str] | None = None

    async def _page(self, size: int) -> list[tuple[Task, str]]:
        """Return the next page. It reads one task ahead, to know whether there are more."""
        page = [] if self._ahead is None else [self._ahead]
        self._ahead = None
        async for found in self._tasks:
            if len(page) == size:
                self._ahead = found
                break
            page.append(found)
        return page

    async def one_page(self, size: int, *, as_json: bool, only_ids: bool) -> None:
        """Print one page, and how to get the next."""
        from millpond.cli.json_shapes import task_json

        page = await self._page(size)
        following = page[-1][1] if self._ahead is not None else None
        if as_json:
            now = self._store.now()
            emit({"tasks": [task_json(task, now) for task, _ in page], "next": following})
            return
        if only_ids:
            say(*(str(task.new.id) for task, _ in page))
        else:
            self._print(page)
        if following is not None:
            note(f"more: --after {following}")

    async def turn_pages(self) -> None:
        """Print a screen full at a time, until the end or until the user quits."""
        while True:
            self._print(await self._page(_screen_full()))
            if self._ahead is None or not more():
                return

    def _print(self, page: list[tuple[Task, str]]) -> None:
        if not page:
            note(f"no matching tasks in {self._store.shown}")
            return
        table(self._columns(self._store.now()), [task for task, _ in page])


def _screen_full() -> int:
    """Return how many rows fit, beside the head and the prompt."""
    import shutil

    return max(shutil.get_terminal_size().lines - 5, 5)


def more() -> bool:
    """Ask whether to show another page."""
    from millpond.cli.keyboard import one_key

    sys.stderr.write("-- Enter: more, q: quit -- ")
    sys.stderr.flush()
    key = one_key()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
    return key not in ("q", "Q", "\x1b", "\x04", "")
