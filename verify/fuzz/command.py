"""`make fuzz`: thousands of generated histories on PostgreSQL, compared with the memory store.

A history that diverges is shrunk and written to a file, which `--replay FILE` plays again. Kept
under tests/store/postgres/found/, it is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from verify.fuzz.concurrent import play_concurrently
from verify.fuzz.differential import ACTS, Diverged, Played, load, play, replay, save
from verify.fuzz.inbox import play_inbox
from verify.fuzz.kinds import KINDS
from verify.fuzz.shrink import shrink
from verify.servers.postgres import serve
from verify.servers.schemas import Schema, Schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES = ("turns", "concurrent", "inbox")
"""Stores in turns; connections at the same time; and callers' own transactions beside them."""


_AT_ONCE = 40
"""How many histories are played on one server before what came of them is counted."""


class Job(msgspec.Struct, frozen=True):
    """Histories of one kind, by their seeds."""

    mode: str
    kind: str
    first: int
    count: int
    acts: int
    folder: str


class Report(msgspec.Struct):
    """The results of the histories of one kind."""

    mode: str
    kind: str
    histories: int = 0
    verbs: int = 0
    steps_taken: int = 0
    steps_refused: int = 0
    diverged: list[str] = []
    """What each that diverged says, and where it was written to."""


def run(job: Job) -> Report:
    """Play the histories of a job on a server of its own."""
    report = Report(job.mode, job.kind)
    with serve() as server, server.database() as url, Schemas(url) as schemas:
        for seed in range(job.first, job.first + job.count):
            run_one(job, seed, schemas, report)
    return report


def run_one(job: Job, seed: int, schemas: Schemas, report: Report) -> None:
    """Play one history; write down one that diverges."""
    schema = schemas.take()
    report.histories += 1
    try:
        played = asyncio.run(_played(job, schema, seed))
    except Diverged as diverged:
        schemas.give_back(schema)
        report.diverged.append(_kept(job, seed, diverged, schemas))
    except Exception:  # noqa: BLE001 - whatever it is, the next history is played
        report.diverged.append(f"{job.mode} {job.kind} {seed}: {traceback.format_exc(limit=-3)}")
        schemas.give_back(schema)
    else:
        schemas.give_back(schema)
        report.verbs += played.verbs
        report.steps_taken += played.steps_taken
        report.steps_refused += played.steps_refused


async def _played(job: Job, schema: Schema, seed: int) -> Played:
    match job.mode:
        case "concurrent":
            return await play_concurrently(schema, job.kind, seed, acts=job.acts)
        case "inbox":
            return await play_inbox(schema, job.kind, seed, acts=job.acts)
        case _:
            return await play(schema, job.kind, seed, acts=job.acts)


def _kept(job: Job, seed: int, diverged: Diverged, schemas: Schemas) -> str:
    """Write a history that diverged to a file; return a message."""
    said = f"{job.mode} {job.kind} seed {seed}: {diverged.what}"
    if job.mode != "turns":
        return said
    file = Path(job.folder) / f"{job.kind}-{seed}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(save(diverged.history))
    file.write_bytes(save(shrink(schemas, diverged.history)))
    return f"{said}\n        make fuzz ARGS='--replay {file}'"


def replay_file(file: Path) -> int:
    """Play a history that was written down, and say whether it diverges."""
    history = load(file.read_bytes())
    with serve() as server, server.database() as url, Schemas(url) as schemas:
        schema = schemas.take()
        try:
            asyncio.run(replay(schema, history))
        except Diverged as diverged:
            for turn in history:
                verb = turn.verb
                print(f"  store {turn.store} at {verb.now:<12.7g} {verb.name:8} {verb.asked}")
            print(f"DIVERGED  {diverged.what}")
            return 1
        schemas.give_back(schema)
    print(f"{len(history)} verbs: no divergence")
    return 0


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """Share the histories out over the kinds, in parts that take about a minute."""
    kinds = [given.kind] if given.kind else list(KINDS)
    modes = [given.mode] if given.mode else list(MODES)
    share = {"turns": 0.8, "concurrent": 0.1, "inbox": 0.1}
    for mode in modes:
        part = 1.0 if len(modes) == 1 else share[mode]
        each = max(int(given.histories * part / len(kinds)), 1)
        for kind in kinds:
            for first in range(given.seed, given.seed + each, _AT_ONCE):
                count = min(_AT_ONCE, given.seed + each - first)
                yield Job(mode, kind, first, count, given.acts, str(given.folder))


def show(reports: list[Report], seconds: float) -> None:
    """Print the number of played histories, by mode and kind."""
    print(f"{'mode':12}{'kind':20}{'histories':>10}{'verbs':>10}{'by server':>11}{'diverged':>10}")
    totals: Counter[str] = Counter()
    for mode, kind in dict.fromkeys((one.mode, one.kind) for one in reports):
        some = [one for one in reports if (one.mode, one.kind) == (mode, kind)]
        histories, verbs = sum(o.histories for o in some), sum(o.verbs for o in some)
        taken, bad = sum(o.steps_taken for o in some), sum(len(o.diverged) for o in some)
        print(f"{mode:12}{kind:20}{histories:>10,}{verbs:>10,}{taken:>11,}{bad:>10,}")
        totals.update(histories=histories, verbs=verbs, taken=taken, bad=bad)
    print(
        f"{'all':32}{totals['histories']:>10,}{totals['verbs']:>10,}{totals['taken']:>11,}"
        f"{totals['bad']:>10,}   in {seconds:.0f} s"
    )
    for report in reports:
        for said in report.diverged:
            print(f"\nDIVERGED  {said}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--histories", type=int, default=4000, help="how many, of all kinds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of each kind")
    parser.add_argument("--kind", choices=list(KINDS), help="only pools of this kind")
    parser.add_argument("--mode", choices=MODES, help="stores in turns, at once, or the inbox")
    parser.add_argument("--acts", type=int, default=ACTS, help="how long a history is")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="where to write what")
    parser.add_argument("--seconds", type=float, default=None, help="stop after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=Path, help="play a history that was written down")
    given = parser.parse_args()
    if given.replay is not None:
        return replay_file(given.replay)
    started, reports = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for report in pool.imap_unordered(run, list(jobs(given))):
            reports.append(report)
            if given.seconds is not None and time.monotonic() - started > given.seconds:
                break
    show(sorted(reports, key=lambda one: (one.mode, one.kind)), time.monotonic() - started)
    return 1 if any(report.diverged for report in reports) else 0
