"""Connections that work on one schema at the same time: no trace to compare, so counts decide.

Each connection has a thread, a player and workers of its own. Who comes first is up to the server,
so what is judged is what must hold in any order: no more than the limits run at any place of the
audit, what the tables say of each other fits, and in the end nothing is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status
from verify.fuzz.differential import Diverged, FastPathStore, Played, answer_of
from verify.fuzz.kinds import POOL, spec_of
from verify.fuzz.player import Player
from verify.fuzz.streams import Streams

if TYPE_CHECKING:
    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.testing.simulation.history import Verb
    from verify.servers.schemas import Schema

CONNECTIONS = 3
_HIGHEST = 9
"""An operator of a generated history resizes the pool to this at most."""


class _Connection(threading.Thread):
    """One process of a fleet: its store, its player, and what went wrong in it."""

    def __init__(self, schema: Schema, kind: str, seed: int, number: int, acts: int) -> None:
        super().__init__(name=f"connection-{number}")
        self.store = FastPathStore(schema)
        self.verbs = 0
        self.failed: BaseException | None = None
        self._acts = acts
        streams = Streams(kind, seed, "connection", number)
        spec = spec_of(kind, Streams(kind, seed))
        self.player = Player(streams, spec, self._do, number=number)

    async def _do(self, verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
        self.verbs += 1
        return await answer_of(self.store, verb)

    def run(self) -> None:
        """Play; keep an exception for the thread that joins."""
        try:
            asyncio.run(self._play())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that judges
            self.failed = error

    async def _play(self) -> None:
        await self.player.begin(declare=False)
        for _ in range(self._acts):
            await self.player.act()


async def play_concurrently(schema: Schema, kind: str, seed: int, *, acts: int) -> Played:
    """Let several connections play at once; raise Diverged where what must hold does not."""
    fleet = [_Connection(schema, kind, seed, number, acts) for number in range(CONNECTIONS)]
    first = fleet[0]
    try:
        await first.player.begin()
        for one in fleet:
            one.start()
        for one in fleet:
            one.join()
            if one.failed is not None:
                raise one.failed
        first.player.now = max(one.player.now for one in fleet)
        _recounted(schema)
        for one in fleet[1:]:
            one.player.now = first.player.now
            await one.player.leave()
        if not await first.player.settle_down():
            raise Diverged("tasks were left in an idle pool", [])
        page = await first.store.view.audit(limit=1_000_000)
        _within_limits(first.player.spec, page.records)
        _recounted(schema)
    finally:
        for one in fleet:
            await one.store.close()
    return Played(
        kind=kind,
        seed=seed,
        verbs=sum(one.verbs for one in fleet),
        steps_taken=sum(one.store.taken for one in fleet),
        steps_refused=sum(one.store.refused for one in fleet),
    )


def _recounted(schema: Schema) -> None:
    wrong = schema.wrong()
    if wrong:
        raise Diverged(f"the tables do not fit together: {wrong}", [])


def _within_limits(spec: PoolSpec, records: tuple[Record, ...]) -> None:
    """Object to a place of the audit at which more run than any limit allows."""
    running: dict[int, str | None] = {}
    units: Counter[str] = Counter()
    for one in records:
        if one.pool != POOL or one.task is None or one.after is None:
            continue
        unit = one.lane if one.lane is not None else one.key
        if one.task in running and one.after is not Status.RUNNING:
            units[running.pop(one.task) or ""] -= 1
        elif one.task not in running and one.after is Status.RUNNING:
            running[one.task] = unit
            units[unit or ""] += 1
            limit = spec.unit_limit
            if unit is not None and limit is not None and units[unit] > limit:
                raise Diverged(f"{units[unit]} of key {unit!r} run, of {limit}", [])
            if len(running) > max(spec.most_concurrent, _HIGHEST):
                raise Diverged(f"{len(running)} run, of {spec.most_concurrent}", [])
