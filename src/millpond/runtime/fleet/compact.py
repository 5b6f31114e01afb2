"""Compaction: the leader has small tables copied without dead rows, where the store can do that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.environment import Environment
    from millpond.runtime.observe.outage import Outages

log = logging.getLogger("millpond.maintenance")

COMPACT_EVERY = 2.0
"""Seconds between two looks at the small tables of a store, while it is active."""


class Compactor(Service):
    """Looks at the small tables now and then, beside the rounds of maintenance."""

    _env: Environment
    _outages: Outages
    _looking: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._looked_at = self._env.steady()

    def compact(self) -> None:
        """Start a look if it is time; it may wait for its turn to write, which a round must not."""
        env = self._env
        if env.shared_store.compact is None or self._looking is not None:
            return
        if env.steady() >= self._looked_at + COMPACT_EVERY:
            self._looked_at = env.steady()
            self._looking = env.spawn(self._look())

    async def _look(self) -> None:
        compact = self._env.shared_store.compact
        assert compact is not None  # noqa: S101 - or it would not have been started
        try:
            copied = await compact()
        except Exception as error:
            if not self._outages.failed(self._look, error):
                log.exception(
                    "copying small tables failed; trying again later",
                    extra=about("compact.failed", reason=type(error).__name__),
                )
        else:
            self._outages.worked(self._look)
            if copied:
                log.info(
                    "copied %s without dead rows, which an open transaction keeps",
                    ", ".join(copied),
                    extra=about("compact.copied"),
                )
        finally:
            self._looking = None
