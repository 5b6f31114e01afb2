"""Print tables and figures for people, JSON for programs.

On a terminal a table is drawn and cut to the terminal's width. Into a pipe it is plain lines, not
cut. Names, keys and messages go through `plain` first, so a terminal does not obey them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millpond.core.escape import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STYLES: Mapping[str, str] = {
    "queued": "blue",
    "scheduled": "blue",
    "parked": "magenta",
    "held": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "rejected": "yellow",
    "waiting": "yellow",
    "idle": "dim",
    "saturated": "cyan bold",
    "paused": "magenta",
    "processing": "cyan",
    "closed": "dim",
}
"""Colours of states."""


WIDE = 100
"""A terminal this wide has room for all columns."""

MIN_WIDTH = 8
"""A name is never cut shorter than this."""


class Column(NamedTuple):
    """A column of a table: its title, and the text of its cell for one thing listed."""

    title: str
    cell: Callable[[Any], str]
    """A word of STYLES has its colour."""
    right: bool = False
    uncut: bool = False
    """Never cut, however narrow the terminal."""
    optional: bool = False
    """Left out on a narrow terminal."""


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def console() -> Console:
    """Return a console that interprets no markup."""
    from rich.console import Console

    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False)


def table(columns: Sequence[Column], listed: Iterable[object]) -> None:
    """Write a table with a row for each thing listed."""
    shown = [[plain(column.cell(one)) for column in columns] for one in listed]
    if on_terminal():
        pen = console()
        pen.print(drawn(columns, shown, pen.width))
    else:
        say(*aligned(columns, shown))


def drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table drawn for a terminal `width` characters wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    kept = [n for n, column in enumerate(columns) if width >= WIDE or not column.optional]
    cut = fitted(
        [columns[n] for n in kept],
        [max(len(columns[n].title), *(len(row[n]) for row in rows)) for n in kept],
        width - 2 * len(kept) - 1,
    )
    for n, most in zip(kept, cut, strict=True):
        justify: Literal["left", "right"] = "right" if columns[n].right else "left"
        least = most if columns[n].uncut else None
        made.add_column(columns[n].title, justify=justify, no_wrap=True, min_width=least)
    for row in rows:
        made.add_row(*(coloured(clipped(row[n], most)) for n, most in zip(kept, cut, strict=True)))
    return made


def fitted(columns: Sequence[Column], longest: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns. Columns that may be cut share the room the others leave."""
    widths = list(longest)
    loose = [n for n, column in enumerate(columns) if not column.uncut]
    left = room - sum(width for n, width in enumerate(widths) if n not in loose)
    for done, n in enumerate(sorted(loose, key=lambda n: widths[n])):
        # The narrow ones first: the others share the room they leave.
        share = max(left // (len(loose) - done), MIN_WIDTH)
        widths[n] = min(widths[n], share)
        left -= widths[n]
    return widths


def clipped(text: str, most: int) -> str:
    """Return the text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def coloured(text: str) -> Text:
    """Return the text, coloured if STYLES has it."""
    from rich.text import Text

    return Text(text, style=STYLES.get(text, ""))


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as plain lines."""
    lines = [[column.title for column in columns], *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def say(*lines: str) -> None:
    """Write lines to stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def note(line: str) -> None:
    """Write a remark to stderr: it is not part of the output."""
    sys.stderr.write(f"{plain(line)}\n")


def emit(document: object, *, one_line: bool = False) -> None:
    """Write JSON in ASCII, so a terminal obeys no control characters."""
    sys.stdout.write(json.dumps(document, indent=None if one_line else 2) + "\n")


def answer(document: object, *lines: str, as_json: bool) -> None:
    """Write a document for programs, or lines for people."""
    if as_json:
        emit(document)
    else:
        say(*map(plain, lines))


def bare(value: object) -> Any:  # noqa: ANN401 - whatever JSON can say
    """Return a value as JSON types; NaN and infinity become null."""
    import msgspec

    return _safe(msgspec.to_builtins(value))


def _safe(value: Any) -> Any:  # noqa: ANN401 - see above
    if isinstance(value, dict):
        return {key: _safe(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def moment(at: float | None) -> str:
    """Return a time in the local time zone."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def short(seconds: float | None) -> str:
    """Return a duration in a few characters: 42ms, 3.2s, 5m03s, 2h05m, 4d."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{rest:02}m" if hours < 48 else f"{hours // 24}d"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 task, 2 tasks."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def aligned_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Write names with their values; leave out those without a value."""
    shown = [(name, plain(value)) for name, value in pairs if value]
    width = max(len(name) for name, _ in shown)
    if not on_terminal():
        say(*(f"{name:<{width}}  {value}" for name, value in shown))
        return
    from rich.text import Text

    pen = console()
    for name, value in shown:
        pen.print(Text(f"{name:<{width}}  ", style="dim") + coloured(value))
