"""Two choices on SQLite, timed against what was rejected: the table shape, and how claimers wait.

The one-table shape is the usual one: a status column, partial indexes, UPDATE to move a task. It
has the fence and the history, but no groups, bound or idempotency: the comparison favours it.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import PoolSpec, Task, median, print_table
from measure import run_steps
from sqlite_store import SqliteStore, _Pool, connect, create

ONE_TABLE = """
    CREATE TABLE task (
        id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, status INTEGER NOT NULL,
        attempt INTEGER NOT NULL, token INTEGER, worker INTEGER, submitted_at INTEGER,
        started_at INTEGER, finished_at INTEGER, result BLOB, payload BLOB);
    CREATE INDEX task_ready ON task (seq) WHERE status = 0;
    CREATE INDEX task_running ON task (worker) WHERE status = 1;
    CREATE INDEX task_finished ON task (finished_at) WHERE status = 2;
"""
INSERT = """
    INSERT INTO task (id, seq, status, attempt, submitted_at, payload) VALUES (?, ?, 0, 0, 1, ?)
"""
CLAIM = """
    UPDATE task SET status = 1, attempt = attempt + 1, token = ?, worker = 1, started_at = 2
     WHERE id IN (SELECT id FROM task WHERE status = 0 ORDER BY seq LIMIT ?)
    RETURNING id, attempt, payload
"""
SETTLE = """
    UPDATE task SET status = 2, finished_at = 2, result = ?
     WHERE id = ? AND status = 1 AND attempt = ? AND token = ?
"""
COUNT, BATCH, ROUNDS = 20_000, 100, 5
fork = multiprocessing.get_context("fork")


class LockedStore(SqliteStore):
    """Waits in the kernel for a lock file, instead of in SQLite's sleep-and-retry."""

    def __init__(self, path: str, spec: PoolSpec) -> None:
        super().__init__(path, spec)
        self.lock = Path(f"{path}.lock").open("w")  # noqa: SIM115

    @contextmanager
    def _transaction(self) -> Iterator[_Pool]:
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            with super()._transaction() as pool:
                yield pool
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)


def one_table(home: Path, payload: bytes) -> float:
    path = home / "one.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    db = connect(str(path), "FULL")
    db.executescript(ONE_TABLE)
    db.execute("BEGIN")
    db.executemany(INSERT, ((i, i, payload) for i in range(1, COUNT + 1)))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    started = time.perf_counter()
    rows: list[tuple[int, int, bytes]] = []
    while True:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(SETTLE, [(b'{"ok": true}', i, attempt, 7) for i, attempt, _ in rows])
        rows = db.execute(CLAIM, (7, BATCH)).fetchall()
        db.execute("COMMIT")
        if not rows:
            break
    rate = COUNT / (time.perf_counter() - started)
    db.close()
    return rate


def split(home: Path, payload: bytes) -> float:
    store = loaded(home, SqliteStore, payload)
    started = time.perf_counter()
    run_steps(store, 1, BATCH, COUNT)
    rate = COUNT / (time.perf_counter() - started)
    store.close()
    return rate


def loaded(home: Path, kind: Callable[[str, PoolSpec], SqliteStore], payload: bytes) -> SqliteStore:
    path = home / "split.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    spec = PoolSpec("fifo", 400)
    create(str(path), spec)
    store = kind(str(path), spec)
    for at in range(0, COUNT, 1000):
        store.submit([Task(at + i + 1, payload=payload) for i in range(1000)], 1)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store


def four(home: Path, kind: Callable[[str, PoolSpec], SqliteStore], batch: int) -> float:
    loaded(home, kind, b"{}").close()
    quota = COUNT // 4 if batch == 100 else COUNT // 16

    def work() -> None:
        store = kind(str(home / "split.db"), PoolSpec("fifo", 400))
        run_steps(store, 1, batch, quota)
        store.close()

    processes = [fork.Process(target=work) for _ in range(4)]
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return 4 * quota / (time.perf_counter() - started)


def main() -> int:
    cells: dict[str, Callable[[Path], float]] = {
        "one table, 70 B": lambda home: one_table(home, b"x" * 70),
        "split, 70 B": lambda home: split(home, b"x" * 70),
        "one table, 4 KB": lambda home: one_table(home, b"x" * 4096),
        "split, 4 KB": lambda home: split(home, b"x" * 4096),
        "4 claimers x 100, busy handler": lambda home: four(home, SqliteStore, 100),
        "4 claimers x 100, lock file": lambda home: four(home, LockedStore, 100),
        "4 claimers x 10, busy handler": lambda home: four(home, SqliteStore, 10),
        "4 claimers x 10, lock file": lambda home: four(home, LockedStore, 10),
    }
    rates: dict[str, list[float]] = {name: [] for name in cells}
    with tempfile.TemporaryDirectory(prefix="claim-spike-") as home:
        for _ in range(ROUNDS):
            for name, cell in cells.items():
                rates[name].append(cell(Path(home)))
    rows: list[dict[str, object]] = [
        {
            "what": name,
            "tasks/s": f"{median(v):,.0f}",
            "from": f"{min(v):,.0f}",
            "to": f"{max(v):,.0f}",
        }
        for name, v in rates.items()
    ]
    print_table(f"SQLite {sqlite3.sqlite_version} FULL, plain fifo, {COUNT} queued", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
