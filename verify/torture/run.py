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
from verify.torture.member import LEDGER, SETTINGS
from verify.torture.report import Report, report
from verify.torture.supervisor import Child, Supervisor, Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from millpond.pool.millpond import Millpond
    from verify.torture.plan import Settings
    from verify.torture.store_setup import StoreSetup

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
    "cancels": 30,
    "cut_every": 1.5,
    "crashes": 0,
    "idlers": 0,
}
"""What the suite has time for."""


def torture(settings: Settings, *, full: bool, place: StoreSetup | None = None) -> Report:
    """Torture a fleet with these settings and return the report; its files stay in its home.

    Only a place that can count is left to idle workers in the end.
    """
    home = Path(settings.home)
    ledger = Ledger(home / LEDGER)
    try:
        # The first process that opens a store creates it: do it here, before any fault.
        with_store(settings, ledger, _nothing)
        settings = msgspec.structs.replace(settings, began=time.monotonic())
        (home / SETTINGS).write_bytes(msgspec.json.encode(settings))
        Supervisor(settings, ledger, place=place).run(lambda: with_store(settings, ledger, is_idle))
        if place is not None and settings.idlers:
            place.start_counting()
            idlers = [Child("idler", number) for number in range(settings.idlers)]
            Supervisor(settings, ledger, children=idlers).rest(place.counted)
    except Unfinished as unfinished:
        what = f"{unfinished}; {with_store(settings, ledger, _what_is_left)}"
        return msgspec.structs.replace(judged(settings, full=full), unfinished=what, clean=False)
    finally:
        ledger.close()
        if place is not None:
            place.keep_log(home)
    return judged(settings, full=full)


def judged(settings: Settings, *, full: bool) -> Report:
    """Return the report of a torture by the files in its home: its store may be gone by then."""
    kept = Path(settings.home) / EVIDENCE
    if not kept.exists():
        kept.write_bytes(msgspec.msgpack.encode(_gathered(settings)))
    evidence = msgspec.msgpack.decode(kept.read_bytes(), type=Evidence)
    seconds = max(line.mono for line in evidence.lines) - settings.began
    return report(settings, audit(evidence), seconds, full=full)


def _gathered(settings: Settings) -> Evidence:
    """Return what the store and the ledger say."""
    ledger = Ledger(Path(settings.home) / LEDGER)

    async def read(mp: Millpond) -> Evidence:
        return await gather(mp, settings, Path(settings.home) / LEDGER)

    try:
        evidence: Evidence = with_store(settings, ledger, read)
    finally:
        ledger.close()
    return evidence


def with_store(
    settings: Settings, ledger: Ledger, ask: Callable[[Millpond], Coroutine[Any, Any, Any]]
) -> Any:  # noqa: ANN401 - what the question gives
    """Open the store, run a function on it, and close it again."""

    async def opened() -> Any:  # noqa: ANN401
        mp = Fleet(settings, ledger).mp
        async with mp:
            return await ask(mp)

    return asyncio.run(opened())


async def _nothing(_mp: Millpond) -> None:
    return None


async def _what_is_left(mp: Millpond) -> str:
    """Return in words what has not ended, and why."""
    left = await mp.unsettled()
    found = [f"task {one.id} of pool {one.pool}: {await mp.why(one.id)}" for one in left[:5]]
    return "; ".join([f"{len(left)} tasks are left", *found])


async def is_idle(mp: Millpond) -> bool:
    """Return whether nothing is queued or running, callbacks neither."""
    for pool in mp.pools():
        for name in (pool.name, pool.name + CALLBACKS):
            view = await internals_of(mp).runtime.view.pool(name, measured=False)
            if view is not None and view.queued + view.running:
                return False
    return True
