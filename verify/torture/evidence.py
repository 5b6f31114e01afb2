"""The evidence of a torture: what the ledger, the audit and the rows of the store say."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from millpond.core.audit import Record
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import CALLBACKS, Task
from millpond.core.ticks import MICROSECONDS
from millpond.pool.internals import internals_of
from verify.torture.ledger import AnyEntry, Entry, read
from verify.torture.plan import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.pool.millpond import Millpond

L = TypeVar("L", bound=Entry)

PAGE = 1_000


class Evidence(msgspec.Struct, kw_only=True):
    """All there is to judge by. Pure data: it can be made up, and doctored."""

    settings: Settings
    specs: dict[str, PoolSpec]
    """The pools as declared, the queues of their callbacks too."""
    lines: list[AnyEntry]
    torn: int = 0
    records: list[Record]
    """The audit, in the order of the store."""
    rows: dict[int, Task]
    """Every task that the store holds in the end."""
    stale_settles: dict[str, int] = {}
    """How many settles of each pool the store refused because they came too late."""

    def of(self, kind: type[L]) -> Iterator[L]:
        """Yield the lines of a kind, in the order in which they were written."""
        return (line for line in self.lines if isinstance(line, kind))


async def gather(mp: Millpond, settings: Settings, ledger: Path) -> Evidence:
    """Read everything, once the fleet has come to rest."""
    view = internals_of(mp).runtime.view
    lines, torn = read(ledger)
    evidence = Evidence(
        settings=settings, specs={}, lines=lines, torn=torn, records=[], rows={}, stale_settles={}
    )
    for pool in mp.pools():
        evidence.specs[pool.name] = pool.spec
        evidence.specs[pool.name + CALLBACKS] = callbacks_of(pool.spec)
        for name in (pool.name, pool.name + CALLBACKS):
            seen = await view.pool(name, measured=False)
            if seen is not None:
                evidence.stale_settles[name] = seen.stale_settles
            after: int | None = 0
            while after is not None:
                page = await view.tasks(name, after=after, limit=PAGE)
                evidence.rows.update((task.new.id, task) for task in page.tasks)
                after = page.next
    evidence.records = [record async for record in mp.audit()]
    return evidence


def callbacks_of(spec: PoolSpec) -> PoolSpec:
    """Return the limits of the queue of a pool's callbacks."""
    return PoolSpec(name=spec.name + CALLBACKS, max_concurrent=spec.max_callbacks, order=fifo())


def from_zero(records: list[Record]) -> list[Record]:
    """Return records with times that begin at 0: sums of small numbers lose no microseconds."""
    if not records:
        return []
    start = _ticks(records[0].at)

    def moved(moment: float) -> float:
        return (_ticks(moment) - start) / MICROSECONDS

    return [
        msgspec.structs.replace(record, at=moved(record.at), due=moved(record.due))
        for record in records
    ]


def _ticks(moment: float) -> int:
    return round(moment * MICROSECONDS)
