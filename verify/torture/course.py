"""The course of a torture: make the store, hurt the fleet, gather the evidence, judge it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.task import CALLBACKS
from millpond.pool.internals import internals_of
from verify.torture.auditor import audit
from verify.torture.evidence import Evidence, gather
from verify.torture.fleet import Fleet
from verify.torture.ledger import Ledger
from verify.torture.member import LEDGER, ORDERS
from verify.torture.report import Report, report
from verify.torture.supervisor import Child, Supervisor, Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from millpond.pool.millpond import Millpond
    from verify.torture.place import Place
    from verify.torture.plan import Orders

EVIDENCE = "evidence.msgpack"

SHORT: dict[str, Any] = {
    "tasks": 600,
    "seconds": 9.0,
    "workers": 3,
    "submitters": 2,
    "lease": 2.0,
    "kill_every": 0.9,
    "freeze_every": 3.0,
    "poisoned": 1,
    "poison_attempts": 2,
    "patience": 30.0,
    "called_off": 30,
    "cut_every": 1.5,
    "crashes": 0,
    "idlers": 0,
}
"""What the suite has time for."""


def torture(orders: Orders, *, whole: bool, place: Place | None = None) -> Report:
    """Torture a fleet as ordered and return what came of it; its files stay in its home.

    Only a place that can count is left to idle workers in the end.
    """
    home = Path(orders.home)
    ledger = Ledger(home / LEDGER)
    try:
        # Whoever opens a store first makes it; here, before anybody is hurt.
        with_store(orders, ledger, _nothing)
        orders = msgspec.structs.replace(orders, began=time.monotonic())
        (home / ORDERS).write_bytes(msgspec.json.encode(orders))
        Supervisor(orders, ledger, place=place).run(lambda: with_store(orders, ledger, is_idle))
        if place is not None and orders.idlers:
            place.begin_to_count()
            idlers = [Child("idler", number) for number in range(orders.idlers)]
            Supervisor(orders, ledger, children=idlers).rest(place.counted)
    except Unfinished as unfinished:
        what = f"{unfinished}; {with_store(orders, ledger, _what_is_left)}"
        return msgspec.structs.replace(judged(orders, whole=whole), unfinished=what, clean=False)
    finally:
        ledger.close()
        if place is not None:
            place.keep_log(home)
    return judged(orders, whole=whole)


def judged(orders: Orders, *, whole: bool) -> Report:
    """Return the report of a torture by the files in its home: its store may be gone by then."""
    kept = Path(orders.home) / EVIDENCE
    if not kept.exists():
        kept.write_bytes(msgspec.msgpack.encode(_gathered(orders)))
    evidence = msgspec.msgpack.decode(kept.read_bytes(), type=Evidence)
    seconds = max(line.mono for line in evidence.lines) - orders.began
    return report(orders, audit(evidence), seconds, whole=whole)


def _gathered(orders: Orders) -> Evidence:
    """Return what the store and the ledger say."""
    ledger = Ledger(Path(orders.home) / LEDGER)

    async def read(mp: Millpond) -> Evidence:
        return await gather(mp, orders, Path(orders.home) / LEDGER)

    try:
        evidence: Evidence = with_store(orders, ledger, read)
    finally:
        ledger.close()
    return evidence


def with_store(
    orders: Orders, ledger: Ledger, ask: Callable[[Millpond], Coroutine[Any, Any, Any]]
) -> Any:  # noqa: ANN401 - what the question gives
    """Open the store as everybody does, ask it something, and close it again."""

    async def opened() -> Any:  # noqa: ANN401
        mp = Fleet(orders, ledger).mp
        async with mp:
            return await ask(mp)

    return asyncio.run(opened())


async def _nothing(_mp: Millpond) -> None:
    return None


async def _what_is_left(mp: Millpond) -> str:
    """Return in words what has not ended, and why."""
    left = await mp.unsettled()
    told = [f"task {one.id} of pool {one.pool}: {await mp.why(one.id)}" for one in left[:5]]
    return "; ".join([f"{len(left)} tasks are left", *told])


async def is_idle(mp: Millpond) -> bool:
    """Return whether nothing is queued or running, callbacks neither."""
    for pool in mp.pools():
        for name in (pool.name, pool.name + CALLBACKS):
            view = await internals_of(mp).runtime.view.pool(name, measured=False)
            if view is not None and view.queued + view.running:
                return False
    return True
