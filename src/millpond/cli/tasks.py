"""`millpond tasks` and `millpond dead`: tasks in pages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Exit
from millpond.cli.iterate_tasks import Chosen, choosing, walk
from millpond.cli.store_options import carry_out, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from millpond.cli.open_store import Reached
    from millpond.core.task import Task

AT_ONCE = 50
"""How many are printed where nobody turns pages."""

_JSON = "Print one JSON document: the tasks, and where to go on from."

limit = click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"At most so many (default: {AT_ONCE}; all with --ids; on a terminal, page by page).",
)
after = click.option("--after", metavar="PLACE", help="Go on behind the last page.")
ids = click.option("--ids", is_flag=True, help="Print their ids only, one on a line.")


@command("tasks", json=_JSON)
@choosing()
@limit
@after
@ids
def main(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Show tasks, pool by pool, each in the order of its queue.

    On a terminal they come page by page. Elsewhere, and with --limit, one page is printed; what
    follows is had with --after.
    """
    return _listed(asked, _row, _COLUMNS)


@command("dead", json=_JSON)
@choosing(state=False)
@limit
@after
@ids
def dead(**asked: Any) -> int:  # noqa: ANN401 - the options above
    """Show the tasks that failed for good, and of what.

    `millpond task ID` tells more of one, `millpond redrive` queues them again.
    """
    return _listed({**asked, "state": "failed"}, _dead_row, _DEAD_COLUMNS)


_COLUMNS = ("ID", "POOL", "STATUS", "FUNCTION", "KEY", "ATTEMPT", "AGE", "WAITED", "RAN")
_DEAD_COLUMNS = ("ID", "POOL", "FUNCTION", "KEY", "ATTEMPT", "ENDED", "ERROR")
_RIGHT = ("ATTEMPT", "AGE", "WAITED", "RAN", "ENDED")
_WHOLE = ("ID", "STATUS", *_RIGHT)
"""What a narrow terminal does not cut: names are known without their ends."""


def _row(task: Task, now: float) -> list[str]:
    from millpond.cli.json_shapes import ran, view_of, waited
    from millpond.cli.render import short

    return [
        str(task.new.id),
        task.new.pool,
        view_of(task, now),
        task.new.call.function,
        task.new.key or "",
        f"{task.attempt}/{task.new.attempts}",
        short(now - task.submitted_at),
        short(waited(task, now)),
        short(ran(task, now)),
    ]


def _dead_row(task: Task, now: float) -> list[str]:
    from millpond.cli.render import short
    from millpond.runtime.error_info import read

    return [
        str(task.new.id),
        task.new.pool,
        task.new.call.function,
        task.new.key or "",
        f"{task.attempt}/{task.new.attempts}",
        f"{short(now - (task.finished_at or now))} ago",
        str(read(task.error) or task.reason or ""),
    ]


def _listed(
    asked: dict[str, Any], row: Callable[[Task, float], list[str]], titles: tuple[str, ...]
) -> int:
    from millpond.cli.open_store import reached
    from millpond.cli.render import on_terminal

    where = {name: asked.pop(name) for name in ("store", "app")}
    as_json, only_ids, most = asked.pop("as_json"), asked.pop("ids"), asked.pop("limit")
    chosen = Chosen(**asked)
    turns = on_terminal() and sys.stdin.isatty() and most is None and not (as_json or only_ids)

    async def show() -> int:
        async with reached(**where) as here:
            listing = Listing(here, walk(here, chosen), row, titles)
            if turns:
                await listing.turn_pages()
            else:
                size = most or (sys.maxsize if only_ids else AT_ONCE)
                await listing.one_page(size, as_json=as_json, only_ids=only_ids)
            if chosen.state == "failed" and not (chosen.callbacks or as_json or only_ids):
                await _tell_of_callbacks(here, chosen)
        return Exit.CLEAN

    return carry_out(show())


async def _tell_of_callbacks(here: Reached, chosen: Chosen) -> None:
    """Say that callbacks failed as well: nobody waits for those."""
    from millpond.cli.render import note

    async for _ in walk(here, chosen._replace(callbacks=True, after=None)):
        note("callbacks failed, too: --callbacks shows them")
        return


class Listing:
    """Tasks on their way to whoever reads."""

    def __init__(
        self,
        here: Reached,
        tasks: AsyncIterator[tuple[Task, str]],
        row: Callable[[Task, float], list[str]],
        titles: tuple[str, ...],
    ) -> None:
        from millpond.cli.render import Column

        self._here = here
        self._tasks = tasks
        self._row = row
        optional = ("WAITED", "RAN") if "ERROR" not in titles else ("KEY",)
        self._columns = [
            Column(t, right=t in _RIGHT, whole=t in _WHOLE, optional=t in optional) for t in titles
        ]
        self._ahead: tuple[Task, str] | None = None

    async def _page(self, size: int) -> list[tuple[Task, str]]:
        """Return the next of them; one more is read, to know whether there are any."""
        page = [] if self._ahead is None else [self._ahead]
        self._ahead = None
        async for found in self._tasks:
            if len(page) == size:
                self._ahead = found
                break
            page.append(found)
        return page

    async def one_page(self, size: int, *, as_json: bool, only_ids: bool) -> None:
        """Print some, and how to see more."""
        from millpond.cli.json_shapes import of_task
        from millpond.cli.render import emit, note, say

        page = await self._page(size)
        following = page[-1][1] if self._ahead is not None else None
        if as_json:
            now = self._here.now()
            emit({"tasks": [of_task(task, now) for task, _ in page], "next": following})
            return
        if only_ids:
            say(*(str(task.new.id) for task, _ in page))
        else:
            self._print(page)
        if following is not None:
            note(f"more: --after {following}")

    async def turn_pages(self) -> None:
        """Print a screen full of them at a time, until there are no more or it is enough."""
        while True:
            self._print(await self._page(_screen_full()))
            if self._ahead is None or not more():
                return

    def _print(self, page: list[tuple[Task, str]]) -> None:
        from millpond.cli.render import note, table

        if not page:
            note(f"no such tasks in {self._here.shown}")
            return
        now = self._here.now()
        table(self._columns, [self._row(task, now) for task, _ in page])


def _screen_full() -> int:
    """Return how many rows fit, beside a head and the question whether to go on."""
    import shutil

    return max(shutil.get_terminal_size().lines - 5, 5)


def more() -> bool:
    """Ask whether to show another page."""
    from millpond.cli.keyboard import one_key

    sys.stderr.write("-- more: Enter, enough: q -- ")
    sys.stderr.flush()
    key = one_key()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
    return key not in ("q", "Q", "\x1b", "\x04", "")
