"""Renew: keep everything that a worker holds for some seconds more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.protocol import RenewAnswer
from millpond.store.verbs.prefetch import wanted_pools

if TYPE_CHECKING:
    from millpond.store.verbs.tables import Tables


def renew(tables: Tables, worker: str, lease: float, now: float) -> RenewAnswer:
    """Renew all leases of a worker; a worker that was declared dead has none."""
    row = tables.workers.get(worker)
    if row is None:
        return RenewAnswer(alive=False)
    tables.renew(row, lease, now)
    cancelled, interrupted = tables.stop_requests_of(row)
    return RenewAnswer(
        alive=True,
        cancelled=cancelled,
        interrupted=interrupted,
        give_back=wanted_pools(tables, row, now) if row.ahead else (),
    )
