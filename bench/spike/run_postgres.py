"""The claim spike on PostgreSQL: prove, explain, measure. See README.md."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import measure
import proofs
from common import PoolSpec, Settle, print_table, write_json
from pg_store import STEP, PgStore, find_binaries, server

READS = """
    select relname::text, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
      from pg_stat_xact_user_tables order by 1
"""
SMALL = {"pool", "worker", "holding", "pstate", "inlog"}
AUTO_EXPLAIN = """
    load 'auto_explain';
    set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
    set auto_explain.log_analyze = on; set auto_explain.log_timing = off;
    set client_min_messages = log
"""


class PgBackend:
    """One database per site."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.admin: PgStore | None = None

    def dsn_of(self, site: str) -> str:
        return self.dsn.replace("/postgres?", f"/{site.replace('-', '_')}?")

    def make(self, site: str, spec: PoolSpec) -> None:
        admin = PgStore(self.dsn, spec)
        name = site.replace("-", "_")
        if not admin.run("select from pg_database where datname = $1", name):
            admin.script(f"create database {name}")
        admin.close()
        store = self.open(site, spec)
        store.create()
        store.close()

    def open(self, site: str, spec: PoolSpec) -> PgStore:
        return PgStore(self.dsn_of(site), spec)

    def settle_in(self, site: str) -> None:
        store = self.open(site, PoolSpec("", 0))
        store.script("vacuum analyze")
        store.script("checkpoint")
        store.close()

    def log_bytes(self, site: str) -> int | None:
        if self.admin is None:
            self.admin = PgStore(self.dsn, PoolSpec("", 0))
        sql = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
        answer: int = self.admin.run(sql)[0][0]
        return answer

    def close(self) -> None:
        if self.admin is not None:
            self.admin.close()


def warm(store: PgStore) -> list[Settle]:
    """Enough steps for the session to have its final plans; what is held after them."""
    store.renew(1, measure.FOREVER)
    settles: list[Settle] = []
    for _ in range(8):
        claims = store.step(1, settles, 50, 2).claims
        settles = [Settle(c.id, c.attempt, c.token) for c in claims]
    return settles


def one_step(store: PgStore, settles: list[Settle], prefix: str = "") -> list[Any]:
    return store.run(
        prefix + STEP,
        1,
        [s.id for s in settles],
        [s.attempt for s in settles],
        [s.token for s in settles],
        [s.outcome for s in settles],
        None,
        [s.result for s in settles],
        50,
        1,
        2,
        2**62,
    )


def explain(backend: PgBackend, sizes: list[int], keys: int, show: bool) -> list[dict[str, object]]:
    """Rows and pages that one fused step of 50 really reads, with the plans of a warm session."""
    rows: list[dict[str, object]] = []
    for spec in (PoolSpec("fifo", 50), PoolSpec("fair", 50, fair=True, per_key=2)):
        for size in sizes:
            backend.make("explain", spec)
            store = backend.open("explain", spec)
            measure.fill(store, size, keys, 0)
            store.close()
            backend.settle_in("explain")
            store = backend.open("explain", spec)
            settles = warm(store)
            rows.append({"pool": spec.name, "queued": size} | reads_of(store, settles))
            if show and size == max(sizes):
                print_plans(store, settles)
            store.close()
    for pool in ("fifo", "fair"):
        work = [int(str(row["pages"])) for row in rows if row["pool"] == pool]
        if max(work) > 2 * min(work):
            raise proofs.Failed(f"{pool}: a step reads more pages with the backlog: {work}")
    return rows


def reads_of(store: PgStore, settles: list[Settle]) -> dict[str, object]:
    store.script("begin")
    before = {row[0]: row for row in store.run(READS)}
    lines = [row[0] for row in one_step(store, settles, "explain (analyze, buffers, timing off) ")]
    after = store.run(READS)
    store.script("rollback")
    pages = sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", " ".join(lines[:2])))
    texts = []
    for table, scans, rows in after:
        _, old_scans, old_rows = before.get(table, (table, 0, 0))
        if table in SMALL or rows == old_rows:
            continue
        texts.append(f"{table} {rows - old_rows}")
        if scans > old_scans or rows - old_rows > 500:
            raise proofs.Failed(f"a step of 50 reads {rows - old_rows} rows of {table}")
    return {"pages": pages, "rows read by index": ", ".join(texts)}


def print_plans(store: PgStore, settles: list[Settle]) -> None:
    """Every statement inside the function, where the server has auto_explain."""
    try:
        store.script(AUTO_EXPLAIN)
    except asyncpg.PostgresError:
        print("(auto_explain is not in this build: rows and pages above are the evidence)")
        return
    store.db.add_log_listener(lambda _, message: print(message.message, "\n"))
    store.script("begin")
    one_step(store, settles)
    store.script("rollback")
    store.script("set client_min_messages = notice")


def pinned(backend: PgBackend, seconds: float) -> list[dict[str, object]]:
    """Tasks/s per window while another transaction, with an xid, stays open: does the claim rot?"""
    rows: list[dict[str, object]] = []
    specs = [
        (1, PoolSpec("fifo", 100)),
        (1, PoolSpec("fair", 100, fair=True, per_key=100)),
        (1000, PoolSpec("fair", 100, fair=True, per_key=2)),
    ]
    for keys, spec, held in [(k, s, held) for k, s in specs for held in (True, False)]:
        backend.make("pin", spec)
        store, holder = backend.open("pin", spec), backend.open("pin", spec)
        used = 20_000
        measure.fill(store, used, keys, 0)
        store.renew(1, measure.FOREVER)
        store.script("vacuum analyze")
        if held:
            holder.script("begin isolation level repeatable read; select txid_current()")
        row: dict[str, object] = {"pool": spec.name, "keys": keys, "held open": held}
        for window in range(1, 6):
            spent, count = 0.0, 0
            until = time.perf_counter() + seconds / 5
            while time.perf_counter() < until:
                started = time.perf_counter()
                got = measure.run_steps(store, 1, 100, 5000)
                spent += time.perf_counter() - started
                measure.fill(store, got, keys, used)
                count, used = count + got, used + got
            row[f"window {window}"] = f"{count / spent:,.0f}"
        rows.append(row | {"tasks": f"{used:,}"})
        holder.close()
        store.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    measure.add_options(parser)
    parser.add_argument("--port", type=int, default=55913)
    parser.add_argument("--pin", type=float, default=0, help="seconds beside an open transaction")
    parser.add_argument("--binaries", type=Path, help="a PostgreSQL bin directory")
    options = measure.parse(parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    report: dict[str, object] = {}
    with server(options.binaries or find_binaries(), options.port, options.dir) as dsn:
        backend = PgBackend(dsn)
        admin = PgStore(dsn, PoolSpec("", 0))
        report["postgres"] = admin.run("select version()")[0][0]
        admin.close()
        try:
            if not options.skip_proofs:
                report["proofs"] = proofs.prove(backend, options.histories, options.tasks)
            report["work"] = explain(backend, options.sizes, max(options.keys), options.plans)
        except proofs.Failed as failure:
            print(f"FAILED: {failure}")
            return 1
        print_table("Reads of one fused step of 50", report["work"])  # type: ignore[arg-type]
        if options.pin:
            report["pinned"] = pinned(backend, options.pin)
            print_table("Beside an open transaction, batch 100, tasks/s", report["pinned"])  # type: ignore[arg-type]
        if options.rounds:
            report["timed"] = measure.measure(backend, options, "PostgreSQL")
        backend.close()
    write_json(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
