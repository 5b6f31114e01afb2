"""The report: one log record a minute of what the pools did, while they do anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import PoolView

log = logging.getLogger("millpond.report")

EVERY = 60.0


class Report:
    """Tells of pools in which something happened; with nothing to tell it sets no timer."""

    __slots__ = ("_runtime", "_told", "timer")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: dict[str, dict[str, int]] = {}
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """See to it that the next report comes, if it has not been seen to already."""
        if self.timer is None:
            self.timer = self._runtime.loop.call_later(EVERY, self._due)

    def stop(self) -> None:
        """Report no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _due(self) -> None:
        self.timer = None
        if log.isEnabledFor(logging.INFO):
            self._runtime.spawn(self._tell())

    async def _tell(self) -> None:
        lines: dict[str, str] = {}
        for pool in list(self._runtime.declared):
            view = await self._runtime.view.pool(pool, measured=False)
            if view is not None and self._has_news(pool, view):
                lines[pool] = self._line(pool, view)
                self._told[pool] = dict(view.totals)
        if lines:
            text = "; ".join(f"{pool}: {line}" for pool, line in lines.items())
            log.info("%s", text, extra={"pools": tuple(lines)})
            self.begin()

    def _has_news(self, pool: str, view: PoolView) -> bool:
        return bool(view.running or view.queued or view.totals != self._told.get(pool, {}))

    def _line(self, pool: str, view: PoolView) -> str:
        before = self._told.get(pool, {})
        ended = {s: n - before.get(s, 0) for s, n in view.totals.items()}
        told = [f"{n} {s!s}" for s, n in ended.items() if n]
        told += [f"{view.running} running", f"{view.queued} queued"]
        return ", ".join(told)
