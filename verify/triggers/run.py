"""The course: arm the schedules, hurt the fleet, wait until all is done, and judge."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.control import Pause
from millpond.pool.internals import internals_of
from millpond.pool.schedules.firing import CRON
from verify.torture.auditor import Check
from verify.torture.ledger import Ledger, read
from verify.torture.member import LEDGER, SETTINGS
from verify.torture.supervisor import Child, Supervisor, Unfinished
from verify.triggers.fleet import Fleet
from verify.triggers.judge import facts_of, gather, judged

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from verify.torture.plan import Settings
    from verify.torture.store_setup import StoreSetup
    from verify.triggers.judge import Evidence

WHOLE: dict[str, Any] = {
    "tasks": 400,
    "seconds": 90.0,
    "workers": 4,
    "submitters": 2,
    "concurrency": 30,
    "lease": 4.0,
    "kill_every": 1.5,
    "freeze_every": 10.0,
    "idlers": 0,
    "patience": 400.0,
}

SHORT: dict[str, Any] = {
    **WHOLE,
    "tasks": 15,
    "seconds": 2.5,
    "workers": 2,
    "submitters": 1,
    "kill_every": 0.7,
    "freeze_every": 2.5,
    "lease": 2.0,
    "crashes": 0,
    "patience": 90.0,
    "stalled": 60.0,
}
"""What the suite has time for."""

BEHIND = 3.0
"""Seconds by which a schedule may be late after the last fault: then it has caught up."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to."""

    checks: list[Check]
    facts: dict[str, int]
    unfinished: str | None = None

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        return self.unfinished is None and not any(check.broken for check in self.checks)

    def lines(self) -> list[str]:
        """Return the table, line by line."""
        lines = [f"{'promise':62}{'checked':>10}{'broken':>8}"]
        for check in self.checks:
            lines.append(f"{check.name:62}{check.seen:>10,}{len(check.broken):>8,}")
            lines += [f"    BROKEN  {broken}" for broken in check.broken[:5]]
        lines += [f"{name:62}{value:>10,}" for name, value in self.facts.items()]
        if self.unfinished is not None:
            lines.append(f"UNFINISHED  {self.unfinished}")
        return [*lines, "clean" if self.clean else "BROKEN"]


class TriggerTorture:
    """One run of it, on one store."""

    def __init__(self, settings: Settings, place: StoreSetup) -> None:
        self._home = Path(settings.home)
        self._place = place
        self._ledger = Ledger(self._home / LEDGER)
        self.settings = settings
        self.evidence: Evidence | None = None
        """The evidence, once it is collected."""

    def run(self) -> Report:
        """Inject faults into a fleet with these settings, and return the report."""
        unfinished = None
        try:
            # The schedules begin here, before the first fault.
            armed_at: float = self._ask(_now)
            self.settings = msgspec.structs.replace(self.settings, began=time.monotonic())
            (self._home / SETTINGS).write_bytes(msgspec.json.encode(self.settings))
            try:
                self._supervisor().run(lambda: bool(self._ask(_all_done)))
            except Unfinished as error:
                unfinished = str(error)
            return self._ask(lambda fleet: self._judged(fleet, armed_at, unfinished))  # type: ignore[no-any-return]
        finally:
            self._ledger.close()
            self._place.keep_log(self._home)

    def _supervisor(self) -> Supervisor:
        settings = self.settings
        places = [Child("worker", number) for number in range(settings.workers)]
        places += [Child("submitter", number) for number in range(settings.submitters)]
        return Supervisor(
            settings, self._ledger, children=places, command=self._member, place=self._place
        )

    def _member(self, role: str, number: int) -> list[str]:
        program = "verify.triggers.member"
        lines = [self.settings.home, role, str(number), str(os.getpid())]
        return [sys.executable, "-m", program, *lines]

    async def _judged(self, fleet: Fleet, armed_at: float, unfinished: str | None) -> Report:
        lines, _ = read(self._home / LEDGER)
        evidence = self.evidence = await gather(fleet.mp, self.settings, armed_at, lines)
        return Report(checks=judged(evidence), facts=facts_of(evidence), unfinished=unfinished)

    def _ask(self, ask: Callable[[Fleet], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
        """Open the store, run a function on it, and close it again."""

        async def opened() -> Any:  # noqa: ANN401
            fleet = Fleet(self.settings, self._ledger)
            async with fleet.mp:
                return await ask(fleet)

        return asyncio.run(opened())


async def _now(fleet: Fleet) -> float:
    return internals_of(fleet.mp).runtime.clock()


async def _all_done(fleet: Fleet) -> bool:
    """Return whether the schedules have caught up, and all that they and the triggers made ended.

    Once they have caught up they are paused: what is to be judged comes to an end.
    """
    mp = fleet.mp
    view = internals_of(mp).runtime.view
    cron = await view.pool(CRON, measured=False)
    assert cron is not None
    if not cron.paused:
        late = internals_of(mp).runtime.clock() - BEHIND
        if any(one.next_at < late for one in await mp.schedules()):
            return False
        await internals_of(mp).runtime.control.order(Pause(CRON))
        return False
    if fleet.late_is_due:
        await fleet.open_late()
    return not cron.running and not await fleet.redrive() and not await mp.unsettled()
