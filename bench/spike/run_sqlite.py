"""The claim spike on SQLite: prove, explain, measure. See README.md."""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys
import tempfile
from pathlib import Path

import measure
import proofs
from common import PoolSpec, Settle, print_table, write_json
from sqlite_store import SQL, SqliteStore, create

BACKLOG = ("ready", "later", "task", "grp", "done", "idem")


class SqliteBackend:
    """One file per site."""

    def __init__(self, home: Path, synchronous: str) -> None:
        self.home, self.synchronous = home, synchronous

    def path(self, site: str) -> Path:
        return self.home / f"{self.synchronous}-{site}.db"

    def make(self, site: str, spec: PoolSpec) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path(site)}{suffix}").unlink(missing_ok=True)
        create(str(self.path(site)), spec)

    def open(self, site: str, spec: PoolSpec) -> SqliteStore:
        return SqliteStore(str(self.path(site)), spec, self.synchronous)

    def settle_in(self, site: str) -> None:
        """After a preload: the log goes into the file, so no timed run pays for it."""
        db = sqlite3.connect(self.path(site))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()

    def log_bytes(self, site: str) -> int | None:
        return None


def explain(
    backend: SqliteBackend, sizes: list[int], keys: int, show: bool
) -> list[dict[str, object]]:
    """Plans of every statement, and the virtual machine's work for one fused step of 100."""
    rows: list[dict[str, object]] = []
    for spec in (PoolSpec("fifo", 100), PoolSpec("fair", 100, fair=True, per_key=2)):
        for size in sizes:
            backend.make("explain", spec)
            store = backend.open("explain", spec)
            measure.fill(store, size, keys, 0)
            for name, statement in SQL.items():
                check_plan(store.db, name, statement, show and size == max(sizes) and spec.fair)
            rows.append({"pool": spec.name, "queued": size, "vm steps": vm_steps(store)})
            store.close()
    for pool in ("fifo", "fair"):
        work = [int(str(row["vm steps"])) for row in rows if row["pool"] == pool]
        if max(work) > 2 * min(work):
            raise proofs.Failed(f"{pool}: a step works harder with the backlog: {work}")
    return rows


def check_plan(db: sqlite3.Connection, name: str, statement: str, show: bool) -> None:
    marks = statement.count("?")
    args: object = (0,) * marks if marks else dict.fromkeys(_names(statement), "[]")
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", args)]  # type: ignore[arg-type]
    if show:
        print(f"{name}:", *plan, sep="\n    ")
    for line in plan:
        words = line.split()
        if "SCAN" in words and words[words.index("SCAN") + 1] in BACKLOG:
            raise proofs.Failed(f"{name} scans: {line}")
        if "TEMP B-TREE FOR ORDER BY" in line:
            raise proofs.Failed(f"{name} sorts: {line}")


def _names(statement: str) -> list[str]:
    return re.findall(r":(\w+)", statement)


def vm_steps(store: SqliteStore) -> int:
    claims = store.step(1, [], 100, 2).claims
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    store.db.set_progress_handler(tick, 10)
    store.step(1, [Settle(c.id, c.attempt, c.token) for c in claims], 100, 2)
    store.db.set_progress_handler(None, 0)
    return ticks * 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    measure.add_options(parser)
    parser.add_argument("--synchronous", nargs="+", default=["FULL", "NORMAL"])
    options = measure.parse(parser)
    report: dict[str, object] = {"sqlite": sqlite3.sqlite_version}
    with tempfile.TemporaryDirectory(prefix="claim-spike-", dir=options.dir) as home:
        backend = SqliteBackend(Path(home), "NORMAL")
        try:
            if not options.skip_proofs:
                report["proofs"] = proofs.prove(backend, options.histories, options.tasks)
            report["work"] = explain(backend, options.sizes, max(options.keys), options.plans)
        except proofs.Failed as failure:
            print(f"FAILED: {failure}")
            return 1
        print_table("Work of one fused step of 100", report["work"])  # type: ignore[arg-type]
        for synchronous in options.synchronous:
            backend = SqliteBackend(Path(home), synchronous)
            report[synchronous] = measure.measure(backend, options, f"SQLite {synchronous}")
    write_json(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
