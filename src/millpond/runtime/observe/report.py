"""The report: one log record a minute with the counts of each pool, while tasks run or wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from millpond.core.spec import PoolSpec
    from millpond.runtime.environment import Environment
    from millpond.store.protocol import PoolView

log = logging.getLogger("millpond.report")

EVERY = 60.0


class Report(Service):
    """Logs the pools whose counts changed. While nothing happens it sets no timer."""

    _env: Environment
    _specs: Mapping[str, PoolSpec]
    _last_totals: dict[str, dict[str, int]] = {}
    timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Set the timer of the next report, unless it is set."""
        if self.timer is None:
            self.timer = self._env.loop.call_later(EVERY, self._due)

    def stop(self) -> None:
        """Stop reporting."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _due(self) -> None:
        self.timer = None
        if log.isEnabledFor(logging.INFO):
            self._env.spawn(self._log())

    async def _log(self) -> None:
        lines: dict[str, str] = {}
        for pool in list(self._specs):
            view = await self._env.view.pool(pool, measured=False)
            if view is None:
                continue
            if view.running or view.queued or view.totals != self._last_totals.get(pool, {}):
                lines[pool] = self._line(pool, view)
                self._last_totals[pool] = dict(view.totals)
        if lines:
            text = "; ".join(f"{pool}: {line}" for pool, line in lines.items())
            log.info("%s", text, extra=about("pools.reported", pools=tuple(lines)))
            self.begin()

    def _line(self, pool: str, view: PoolView) -> str:
        before = self._last_totals.get(pool, {})
        ended = {status: count - before.get(status, 0) for status, count in view.totals.items()}
        counts = [f"{count} {status!s}" for status, count in ended.items() if count]
        counts += [f"{view.running} running", f"{view.queued} queued"]
        return ", ".join(counts)
