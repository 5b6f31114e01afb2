"""`make simulate`: live through thousands of seeded histories and say how much they covered.

Histories of simulated workers around a store come first, then live ones: real Millponds that share
a store which fails them (`--live` = only those). Some of either are retold on SQLite, by one store
and by two and three that take turns (`--turns 1` = each of them; `--postgres` = on a server, too).

It fails when a promise breaks, and also when the histories did not try hard enough: a simulation
that never takes an arrow proves nothing about it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.testing.simulation.history import Verb, save
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.seeded import (
    Broken,
    Lived,
    memory_store,
    same_story,
    shrink,
    simulate,
)
from millpond.testing.simulation.world import FAULTS
from verify.live import FAULTS as LIVE_FAULTS
from verify.live import simulate_live
from verify.servers.postgres import serve
from verify.servers.schemas import InlinePostgresStore, Schemas
from verify.servers.sqlite_files import InlineStore, TakingTurns, fresh_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.store.sql.store import SqlStore

RETOLD_EVERY = 20
"""Of so many histories one is retold on a file: by one store, and by several that take turns."""

STORES_IN_TURN = (1, 2, 3)
"""How many stores share a file, or a schema, when a history is retold."""


class Retelling(msgspec.Struct, frozen=True):
    """Which histories are retold, and where besides a file."""

    every: int = RETOLD_EVERY
    server: str | None = None
    """The URL of an empty database of PostgreSQL; None = on files only."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of world: how to live through one, and how much of it is enough."""

    name: str
    simulate: Callable[[int], Lived]
    kinds_of_fault: tuple[str, ...]
    histories: int
    verbs: int
    actors: int
    arrows: int
    faults: float


STORE = Kind(
    name="store",
    simulate=simulate,
    kinds_of_fault=FAULTS,
    histories=10_000,
    verbs=200,
    actors=3,
    arrows=100,
    faults=0.05,
)

LIVE = Kind(
    name="live",
    simulate=simulate_live,
    kinds_of_fault=LIVE_FAULTS,
    histories=1_000,
    verbs=200,
    actors=1,
    arrows=10,
    faults=0.10,
)

KINDS = {kind.name: kind for kind in (STORE, LIVE)}


class Report(msgspec.Struct, kw_only=True):
    """One history as the table counts it, or what broke in it."""

    seed: int
    verbs: int = 0
    workers: int = 0
    producers: int = 0
    faults: frozenset[str] = frozenset()
    arrows: dict[tuple[Status | None, Transition], int] = {}
    broken: str | None = None


def live(kind: str, retelling: Retelling, seed: int) -> Report:
    """Live through one history; retell every so-manieth on other stores (I12)."""
    try:
        lived = KINDS[kind].simulate(seed)
        if seed % retelling.every == 0:
            asyncio.run(retold(lived.history))
            if retelling.server is not None:
                asyncio.run(retold_on_a_server(lived.history, schemas_of(retelling.server)))
            if kind == LIVE.name:
                lived_on_a_file(seed, lived)
    except Broken as broken:
        return Report(seed=seed, broken=str(broken))
    except Violated as violated:
        return Report(seed=seed, broken=f"seed {seed}: {violated}")
    return counted(lived)


async def retold(history: list[Verb], counts: Sequence[int] = STORES_IN_TURN) -> None:
    """I12: on a file, and on one that several processes use in turn, it is the same story."""
    for count in counts:
        with fresh_file() as path:
            await replay_in_turns(history, [InlineStore(path) for _ in range(count)])


async def retold_on_a_server(
    history: list[Verb], schemas: Schemas, counts: Sequence[int] = STORES_IN_TURN
) -> None:
    """I12: the same in tables of a server."""
    for count in counts:
        schema = schemas.take()
        await replay_in_turns(history, [InlinePostgresStore(schema) for _ in range(count)])
        schemas.give_back(schema)


async def replay_in_turns(history: list[Verb], stores: Sequence[SqlStore[Any, Any]]) -> None:
    """I12: stores that take turns verb by verb answer as one in memory, and leave sound rows."""
    turns = TakingTurns(stores, verbs_each=1)
    try:
        await same_story(history, memory_store(), turns)
        wrong = await stores[0].repair()
        if wrong:
            raise Violated("I12", f"the rows of {len(stores)} stores do not fit together: {wrong}")
    finally:
        await turns.close()


@cache
def schemas_of(url: str) -> Schemas:
    """Return tables for the histories of this process, kept until it ends."""
    return Schemas(url, prefix=f"millpond_{os.getpid()}_")


def lived_on_a_file(seed: int, lived: Lived) -> None:
    """I12 for whole processes: on a file they live the very same history."""
    with fresh_file() as path:
        again = simulate_live(seed, lambda: InlineStore(path))
    if again.history != lived.history:
        raise Violated("I12", "the same processes lived another history on a file")


def counted(lived: Lived) -> Report:
    """Return what the table needs of a history."""
    return Report(
        seed=lived.seed,
        verbs=lived.verbs,
        workers=lived.workers,
        producers=lived.producers,
        faults=lived.faults,
        arrows=lived.arrows,
    )


def live_all(
    kind: Kind, first: int, count: int, processes: int, retelling: Retelling
) -> Iterator[Report]:
    """Live through `count` histories in several processes."""
    seeds, one = range(first, first + count), partial(live, kind.name, retelling)
    if processes < 2:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=25)


class Table:
    """What all histories of a kind together covered."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.verbs: list[int] = []
        self.workers: list[int] = []
        self.producers: list[int] = []
        self.faults: Counter[str] = Counter()
        self.arrows: Counter[tuple[Status | None, Transition]] = Counter()
        self.broken: list[Report] = []

    def add(self, report: Report) -> None:
        """Count one history."""
        if report.broken is not None:
            self.broken.append(report)
            return
        self.verbs.append(report.verbs)
        self.workers.append(report.workers)
        self.producers.append(report.producers)
        self.faults.update(report.faults)
        self.arrows.update(report.arrows)

    def rows(self) -> Iterator[tuple[str, str, str, bool]]:
        """Yield each line of the table: what, how much, how much is enough, whether it is."""
        enough, histories = self.kind, len(self.verbs)
        median = statistics.median(self.verbs) if self.verbs else 0
        yield (
            f"histories of the {enough.name} kind",
            f"{histories:,}",
            f"{enough.histories:,}",
            histories >= enough.histories,
        )
        yield "verbs, median", f"{median:g}", f"{enough.verbs}", median >= enough.verbs
        yield "verbs, total", f"{sum(self.verbs):,}", "", True
        for name, counts in (("workers", self.workers), ("producers", self.producers)):
            least = min(counts, default=0)
            yield f"{name}, at least", f"{least}", f"{enough.actors}", least >= enough.actors
        for before, event in LIFECYCLE:
            count = self.arrows[before, event]
            name = f"arrow {before or 'new'} --{event}-->"
            yield name, f"{count:,}", f"{enough.arrows}", count >= enough.arrows
        for fault in enough.kinds_of_fault:
            part = self.faults[fault] / histories if histories else 0.0
            yield f"fault {fault}, in", f"{part:.1%}", f"{enough.faults:.0%}", part >= enough.faults
        yield "broken promises", f"{len(self.broken)}", "0", not self.broken


def show(table: Table, seconds: float) -> bool:
    """Print the table; return whether all of it is enough."""
    fine = True
    for what, seen, enough, met in table.rows():
        mark = "" if met else "   <- not enough"
        print(f"{what:38}{seen:>12}{enough and f'   of {enough}'}{mark}")
        fine = fine and met
    print(f"{'seconds':38}{seconds:>12.0f}")
    for report in table.broken[:5]:
        live = " --live" if table.kind is LIVE else ""
        print(f"\nBROKEN  {report.broken}\n        make simulate ARGS='--seed {report.seed}{live}'")
    return fine


def replay_one(kind: Kind, seed: int, file: Path | None) -> int:
    """Live through one history and, if it breaks a promise, print the shortest part that does."""
    try:
        lived = kind.simulate(seed)
    except Broken as broken:
        print(broken)
        shortest = shrink(broken.history)
        for verb in shortest:
            print(f"  at {verb.now:<12.6g} {verb.name:8} {verb.asked}")
        if file is not None:
            file.write_bytes(save(shortest))
        return 1
    print(f"seed {seed}: {lived.verbs} verbs, faults: {', '.join(sorted(lived.faults))}")
    return 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="live through this one history and explain it")
    parser.add_argument("--save", type=Path, help="with --seed: keep what breaks in this file")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--live", action="store_true", help="only live histories")
    parser.add_argument("--histories", type=int, help="how many; a tenth as many live ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--turns",
        type=int,
        default=RETOLD_EVERY,
        metavar="N",
        help="retell one of N histories on stores that take turns",
    )
    parser.add_argument(
        "--postgres", action="store_true", help="retell on a server of PostgreSQL, too"
    )
    given = parser.parse_args()
    if given.seed is not None:
        return replay_one(LIVE if given.live else STORE, given.seed, given.save)
    with contextlib.ExitStack() as stack:
        url = None
        if given.postgres:
            url = stack.enter_context(stack.enter_context(serve()).database())
        return 0 if all_is_fine(given, Retelling(every=given.turns, server=url)) else 1


def all_is_fine(given: argparse.Namespace, retelling: Retelling) -> bool:
    """Live through all histories that were asked for, print the tables, return whether all held."""
    fine = True
    for kind in (LIVE,) if given.live else (STORE, LIVE):
        part = 1 if kind is STORE or given.live else STORE.histories // LIVE.histories
        count = kind.histories if given.histories is None else given.histories // part
        started = time.monotonic()
        table = Table(kind)
        for report in live_all(kind, given.first, count, given.processes, retelling):
            table.add(report)
        fine = show(table, time.monotonic() - started) and fine
    return fine


if __name__ == "__main__":
    sys.exit(main())
