"""The screen of `millpond top`, and its keys."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millpond.cli.keyboard import GONE, keys
from millpond.cli.poll_view import PoolPoller
from millpond.cli.pools import times
from millpond.cli.render import STYLES, coloured, console, counted, moment, short
from millpond.core.control import Pause, Resize, Resume
from millpond.core.escape import plain
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from millpond.cli.open_store import OpenStore
    from millpond.cli.poll_view import PoolHistory
    from millpond.core.control import Command

_BARS = "▁▂▃▄▅▆▇█"
_BAR = 10
_PAST = 14
_LONG_NAME = 24
_WIDE = 118
"""A terminal this wide also shows rates of the past, waits and run times."""

_AROUND = 8
"""Lines that are always used: two above, four of the table, a gap and a foot."""

_HELP = "↑↓ select  p pause  r resume  +- limit  q quit"


class TopScreen:
    """Polls the store, draws, and handles keys."""

    def __init__(
        self, store: OpenStore, names: tuple[str, ...], every: float, left: int | None
    ) -> None:
        self._store = store
        self._poller = PoolPoller(store, names)
        self._every = every
        self._left = left
        self._selected: str | None = None
        self._message = ""
        self._trouble = ""

    async def run(self) -> None:
        """Run until q is pressed, or `left` polls are done."""
        pen = console()
        loop = asyncio.get_running_loop()
        with keys() as keys_pressed, Live(console=pen, screen=True, auto_refresh=False) as live:
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(signal.SIGWINCH, lambda: self._draw(live, pen))
            try:
                await self._loop(keys_pressed, live, pen)
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)

    async def _loop(self, keys_pressed: asyncio.Queue[str], live: Live, pen: Console) -> None:
        while True:
            await self._poll()
            self._draw(live, pen)
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    return
            if not await self._handle_keys(keys_pressed, live, pen):
                return

    async def _handle_keys(
        self, keys_pressed: asyncio.Queue[str], live: Live, pen: Console
    ) -> bool:
        """Handle keys until the next poll is due; return False to quit."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._every
        while (left := until - loop.time()) > 0:
            try:
                key = await asyncio.wait_for(keys_pressed.get(), left)
            except TimeoutError:
                return True
            if key in ("q", "Q", "\x03", "\x04", GONE):
                return False
            if await self._press(key):
                return True
            self._draw(live, pen)
        return True

    async def _poll(self) -> None:
        try:
            await self._poller.poll(self._selected)
            self._trouble = ""
        except MillpondError as error:
            # Keep polling: the store may come back.
            self._trouble = str(error)
        names = list(self._poller.pools)
        if self._selected not in names:
            self._selected = names[0] if names else None
            if self._selected is not None:
                with contextlib.suppress(MillpondError):
                    await self._poller.poll(self._selected)

    # Keys

    async def _press(self, key: str) -> bool:
        """Handle one key; return whether to poll the store now."""
        self._message = ""
        if key in ("up", "k", "down", "j"):
            return self._move(-1 if key in ("up", "k") else 1)
        if self._selected is None or key not in ("p", "r", "+", "-", "=", "_"):
            return False
        pool = self._poller.pools[self._selected].now
        limit = pool["max_concurrent"]
        orders: dict[str, tuple[Command, str]] = {
            "p": (Pause(self._selected), "paused"),
            "r": (Resume(self._selected), "resumed"),
            "+": (Resize(self._selected, limit + 1), f"at most {limit + 1} at a time"),
            "-": (Resize(self._selected, max(limit - 1, 1)), f"at most {max(limit - 1, 1)}"),
        }
        order, message = orders[{"=": "+", "_": "-"}.get(key, key)]
        await self._order(order, f"{self._selected} {message}")
        return True

    def _move(self, by: int) -> bool:
        names = list(self._poller.pools)
        if self._selected is None:
            return False
        place = min(max(names.index(self._selected) + by, 0), len(names) - 1)
        self._selected = names[place]
        return True

    async def _order(self, order: Command, message: str) -> None:
        try:
            await self._store.runtime.control.order(order)
            self._message = message
        except MillpondError as error:
            self._message = str(error)

    # The screen

    def _draw(self, live: Live, pen: Console) -> None:
        live.update(self._screen(pen), refresh=True)

    def _screen(self, pen: Console) -> RenderableType:
        seen = self._poller.pools
        lanes = self._lanes(pen)
        below = 0 if lanes is None else lanes.row_count + 1
        room = max(pen.height - _AROUND - below, 1)
        first = self._first_row(room)
        rows = list(seen.items())[first : first + room]
        parts: list[RenderableType] = [self._head(pen), self._table(rows, wide=pen.width >= _WIDE)]
        if lanes is not None:
            parts += [Text(f" lanes of {plain(self._selected or '')}", style="bold"), lanes]
        gap = Text("\n" * max(room - len(rows) - 1, 0))
        return Group(*parts, gap, self._foot(pen))

    def _first_row(self, room: int) -> int:
        """Return the index of the first pool on the screen, so that the selected one is on it."""
        names = list(self._poller.pools)
        place = names.index(self._selected) if self._selected in names else 0
        return max(min(place - room // 2, len(names) - room), 0)

    def _head(self, pen: Console) -> Text:
        pools = self._poller.pools.values()
        done = sum(seen.rates.completed for seen in pools)
        summary = (
            f"{counted(self._poller.workers, 'worker')}, "
            f"{sum(seen.now['running'] for seen in pools):,} running, "
            f"{sum(seen.now['queued'] for seen in pools):,} queued, {_rate(done) or '0'} done/s"
        )
        clock = moment(self._poller.at or None)[11:]
        head = Text(" millpond top ", style="bold reverse")
        head.append(f" {plain(self._store.shown)}", style="bold")
        line = Text(f" {summary}")
        line.append(" " * max(pen.width - len(summary) - len(clock) - 2, 1) + clock, style="dim")
        head.truncate(pen.width)
        return Text("\n").join((head, line))

    def _table(self, rows: list[tuple[str, PoolHistory]], *, wide: bool) -> Table:
        made = Table(
            box=SIMPLE_HEAD, header_style="bold", pad_edge=True, padding=(0, 1, 0, 0), expand=True
        )
        longest = max((len(name) for name, _ in rows), default=0)
        made.add_column("POOL", no_wrap=True, ratio=1, min_width=min(longest, _LONG_NAME))
        made.add_column("STATE", no_wrap=True)
        made.add_column("RUNNING", no_wrap=True, min_width=_BAR if wide else None)
        for title in ("QUEUED", "OLDEST", "IN/S", "DONE/S", "FAIL/S"):
            made.add_column(title, justify="right", no_wrap=True)
        if wide:
            made.add_column("DONE/S BEFORE", no_wrap=True, min_width=_PAST)
            made.add_column("WAIT", justify="right", no_wrap=True)
            made.add_column("RUN", justify="right", no_wrap=True)
        made.add_column("DEAD", justify="right", no_wrap=True)
        for name, seen in rows:
            style = "reverse" if name == self._selected else ""
            made.add_row(*_cells(name, seen, wide=wide), style=style)
        return made

    def _lanes(self, pen: Console) -> Table | None:
        """Return the lanes of the selected pool, in as many columns as fit."""
        seen = self._poller.pools.get(self._selected or "")
        if seen is None or not seen.lanes:
            return None
        across = max(pen.width // 28, 1)
        most = max(pen.height // 3, 2) * across
        made = Table.grid(padding=(0, 2, 0, 1), expand=False, pad_edge=True)
        shown = seen.lanes[:most]
        cells = [_lane(lane) for lane in shown]
        if len(seen.lanes) > most:
            cells[-1] = Text(f"and {len(seen.lanes) - most + 1} more", style="dim")
        for at in range(0, len(cells), across):
            made.add_row(*cells[at : at + across])
        return made

    def _foot(self, pen: Console) -> Text:
        if self._trouble:
            text = Text(f" {plain(self._trouble)}", style="bold red")
        else:
            text = Text(f" {_HELP}", style="dim")
            if self._message:
                text.append(f"   {plain(self._message)}", style="not dim bold")
            elif not self._poller.pools:
                text.append("   no pools yet", style="not dim bold")
        text.truncate(pen.width - 1, overflow="ellipsis")
        return text


def _cells(name: str, seen: PoolHistory, *, wide: bool) -> list[Text]:
    pool, rates = seen.now, seen.rates
    cells = [
        Text(plain(name)),
        _state(pool),
        _bar(pool["running"], pool["max_concurrent"], wide=wide),
        Text(f"{pool['queued']:,}"),
        Text(short(pool["oldest_queued_age"])),
        Text(_rate(rates.submitted)),
        Text(_rate(rates.completed), style="green"),
        Text(_rate(rates.failed), style="red"),
    ]
    if wide:
        cells += [
            Text(_sparks(list(seen.past)[-_PAST:]), style="green"),
            Text(times(pool["waits"])),
            Text(times(pool["run_times"])),
        ]
    return [*cells, Text(f"{pool['dead']:,}" if pool["dead"] else "")]


def _state(pool: dict[str, Any]) -> Text:
    """Return the state of a pool, the time left of a hold, and its parked tasks."""
    text = coloured(pool["state"])
    if pool["state"] == "held":
        text.append(f" {short(pool['held_for'])}")
    elif pool["held_units"]:
        text.append(f" {len(pool['held_units'])} held", style=STYLES["held"])
    if pool["parked"]:
        text.append(f" {pool['parked']:,} parked", style=STYLES["parked"])
    return text


def _bar(running: int, limit: int, *, wide: bool) -> Text:
    """Return a bar of how much of the limit is in use."""
    figures = f"{running}/{limit}"
    if not wide:
        return Text(figures)
    filled = 0 if not running else max(round(_BAR * min(running / max(limit, 1), 1.0)), 1)
    bar = Text("█" * filled, style=STYLES["running"])
    bar.append("░" * (_BAR - filled), style="dim")
    bar.append(f" {figures}")
    return bar


def _rate(per_second: float) -> str:
    if not per_second:
        return ""
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def _sparks(past: list[float]) -> str:
    """Return rates as a row of bars; the highest rate is a full bar."""
    most = max(past, default=0.0)
    if not most:
        return ""
    return "".join(_BARS[round(one / most * (len(_BARS) - 1))] if one else " " for one in past)


def _lane(lane: dict[str, object]) -> Text:
    state = str(lane["state"])
    mark = {"processing": "▶", "paused": "‖"}.get(state, "·")
    text = Text(f"{mark} {plain(str(lane['lane']))}", style=STYLES.get(state, ""))
    text.truncate(14, overflow="ellipsis")
    text.append(f" {lane['pending']} waiting", style="" if lane["pending"] else "dim")
    return text
