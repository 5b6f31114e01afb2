"""share != key on SQLite: a ring of shares, and inside a share the eligible keys by their head.

No new table: a share is a group of the pool, a key is a group of the share (`grp.pool` names the
share), so the same partial index serves both levels. A key is limited within its share. Proved
against a model, then timed.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from common import (
    AT_LIMIT,
    DRY,
    ELIGIBLE,
    ONE_TURN,
    Claim,
    PoolSpec,
    Settle,
    Task,
    median,
    print_table,
)
from measure import PAYLOAD, run_steps
from proofs import expect
from sqlite_store import SQL, SqliteStore, _Pool, create

INSIDE = 1_000_000
INNER = """
    SELECT id, o1, o2, running FROM grp
     WHERE pool = ? AND state = 1 AND (o1, o2) > (?, ?) ORDER BY o1, o2 LIMIT ?
"""
FROM_HEAD = """
    SELECT rank, seq, id, attempt, fresh FROM ready
     WHERE grp = ? AND (rank, seq) >= (?, ?) ORDER BY rank, seq LIMIT 2
"""
PARENTS = """
    SELECT k.id, s.id, s.state FROM grp AS k JOIN grp AS s ON s.id = k.pool - 1000000
     WHERE k.id IN (SELECT value FROM json_each(?))
"""


class TwoLevelStore(SqliteStore):
    """Task keys are written share/key."""

    def _insert(self, pool: _Pool, tasks: Sequence[Task], now: int) -> None:
        mentioned = list(dict.fromkeys(t.key.split("/")[0] for t in tasks))
        shares = self._groups(pool, mentioned)
        inside: dict[str, list[int]] = {}
        for name, (gid, _, _) in shares.items():
            level = _Pool((INSIDE + gid, *(0,) * 12))
            names = [t.key for t in tasks if t.key.split("/")[0] == name]
            inside |= self._groups(level, names)
        task_rows, ready_rows = [], []
        first: dict[int, tuple[int, int]] = {}
        for task in tasks:
            gid, seq = inside[task.key][0], pool.next_seq
            pool.next_seq += 1
            task_rows.append((task.id, pool.id, gid, 0, seq, 0, 0, now, task.payload))
            ready_rows.append((gid, 0, seq, task.id, 0, 1, 0))
            first.setdefault(gid, (0, seq))
        self.db.executemany(SQL["add_task"], task_rows)
        self.db.executemany(SQL["add_ready"], ready_rows)
        pool.depth += len(tasks)
        for gid, state, _ in inside.values():
            if state == DRY:
                rank, seq = first[gid]
                self.db.execute(SQL["enter_by_head"], {"grp": gid, "rank": rank, "seq": seq})
        self._enter_shares(pool, [(shares[name][0], shares[name][1]) for name in mentioned])

    def _enter_shares(self, pool: _Pool, shares: Iterable[tuple[int, int]]) -> None:
        for gid, state in shares:
            inner = (INSIDE + gid, -(2**62), 0, 1)
            if state == DRY and self.db.execute(INNER, inner).fetchone() is not None:
                args = {"grp": gid, "turn": pool.turn, "join": pool.next_join}
                self.db.execute(SQL["enter_fair"], args)
                pool.next_join += 1

    def _freed(
        self,
        pool: _Pool,
        touched: Iterable[int],
        states: dict[int, int],
        returned: dict[int, tuple[int, int]],
        now: int,
    ) -> None:
        mentioned = list(dict.fromkeys(touched))
        pool.fair = False
        for gid in mentioned:
            if states[gid] == AT_LIMIT:
                self._enter(pool, gid, now)
        pool.fair = True
        rows = self.db.execute(PARENTS, (json.dumps(mentioned),)).fetchall()
        parents = {key: (share, state) for key, share, state in rows}
        self._enter_shares(pool, dict.fromkeys(parents[gid] for gid in mentioned))

    def _claim_grouped(self, pool: _Pool, worker: int, token: int, n: int, now: int) -> list[Claim]:
        members = self.db.execute(SQL["members"], {"pool": pool.id, "n": n}).fetchall()
        chunk = 1 + -(-n // max(1, len(members)))
        shares = {m[0]: _Share(self, m, chunk, pool.per_key) for m in members}
        heap = [(m[1], m[2], m[0]) for m in members]
        rows: list[tuple[int, ...]] = []
        while heap and len(rows) < n:
            turn, join, gid = heap[0]
            share = shares[gid]
            rows.append(share.take())
            pool.turn, share.turn = turn, turn + share.stride
            if share.best() is None:
                share.state = DRY
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (share.turn, join, gid))
        leases = [(i, worker, a + 1, token, gid, r, s, now) for gid, r, s, i, a, _ in rows]
        self.db.executemany(SQL["lease_one"], leases)
        self.db.executemany(SQL["take_one"], [(gid, r, s) for gid, r, s, *_ in rows])
        for share in shares.values():
            self.db.executemany(SQL["served"], share.updates())
        pool.running += len(rows)
        pool.depth -= sum(row[5] for row in rows)
        ids = json.dumps([row[3] for row in rows])
        payloads = dict(self.db.execute(SQL["payloads"], {"ids": ids}).fetchall())
        return [Claim(row[3], row[4] + 1, token, payloads[row[3]]) for row in rows]


class _Share:
    """One share during a claim: its eligible keys by their heads, read a few at a time."""

    def __init__(
        self, store: SqliteStore, member: tuple[int, ...], chunk: int, limit: int | None
    ) -> None:
        self.db, self.chunk, self.limit = store.db, chunk, limit
        self.gid, self.turn, self.join, self.stride, _ = member
        self.state = ELIGIBLE
        self.heap: list[tuple[int, int, int]] = []
        self.keys: dict[int, list[int]] = {}
        self.changed: dict[int, None] = {}
        self.last = (-(2**62), 0)
        self.more = True

    def best(self) -> tuple[int, int, int] | None:
        while self.more and (not self.heap or self.heap[0][:2] > self.last):
            found = self.db.execute(INNER, (INSIDE + self.gid, *self.last, self.chunk)).fetchall()
            for gid, o1, o2, running in found:
                self.keys[gid] = [ELIGIBLE, o1, o2, running]
                heapq.heappush(self.heap, (o1, o2, gid))
                self.last = (o1, o2)
            self.more = len(found) == self.chunk
        return self.heap[0] if self.heap else None

    def take(self) -> tuple[int, ...]:
        best = self.best()
        if best is None:
            raise RuntimeError(f"share {self.gid} is eligible and has no eligible key")
        rank, seq, gid = best
        key = self.keys[gid]
        rows = self.db.execute(FROM_HEAD, (gid, rank, seq)).fetchall()
        key[3] += 1
        self.changed[gid] = None
        follower = rows[1] if len(rows) > 1 else None
        if follower is not None:
            key[1], key[2] = follower[0], follower[1]
        if self.limit is not None and key[3] >= self.limit:
            key[0] = AT_LIMIT
        elif follower is None:
            key[0] = DRY
        if key[0] == ELIGIBLE:
            heapq.heapreplace(self.heap, (key[1], key[2], gid))
        else:
            heapq.heappop(self.heap)
        return (gid, *rows[0])

    def updates(self) -> list[tuple[int, ...]]:
        if not self.changed:
            return []
        inner = [(*self.keys[gid], gid) for gid in self.changed]
        return [*inner, (self.state, self.turn, self.join, 0, self.gid)]


class Reference:
    """The same, one at a time, by looking at everything."""

    def __init__(self, cap: int, limit: int) -> None:
        self.cap, self.limit = cap, limit
        self.queues: dict[str, deque[tuple[int, int]]] = {}
        self.running: dict[str, int] = {}
        self.ring: dict[str, tuple[int, int]] = {}
        self.turns: dict[str, int] = {}
        self.seq = self.join = self.v = 0

    def eligible(self, share: str) -> list[str]:
        return [
            key
            for key, queue in self.queues.items()
            if key.split("/")[0] == share and queue and self.running.get(key, 0) < self.limit
        ]

    def enter(self, keys: Iterable[str]) -> None:
        for share in dict.fromkeys(key.split("/")[0] for key in keys):
            if share not in self.ring and self.eligible(share):
                self.join += 1
                self.ring[share] = (max(self.v, self.turns.get(share, 0)), self.join)

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.seq += 1
            self.queues.setdefault(task.key, deque()).append((self.seq, task.id))
        self.enter(task.key for task in tasks)

    def step(self, ended: Sequence[str], want: int) -> list[tuple[int, str]]:
        for key in ended:
            self.running[key] -= 1
        self.enter(ended)
        claims: list[tuple[int, str]] = []
        n = min(want, self.cap - sum(self.running.values()))
        while self.ring and len(claims) < n:
            share = min(self.ring, key=lambda s: self.ring[s])
            self.v, join = self.ring[share]
            key = min(self.eligible(share), key=lambda k: self.queues[k][0])
            claims.append((self.queues[key].popleft()[1], key))
            self.running[key] = self.running.get(key, 0) + 1
            self.turns[share] = self.v + ONE_TURN
            self.ring[share] = (self.turns[share], join)
            if not self.eligible(share):
                del self.ring[share]
        return claims


def prove(home: Path, histories: int) -> None:
    spec = PoolSpec("two", 9, fair=True, per_key=2)
    for seed in range(histories):
        rng = random.Random(seed)
        store, model = fresh(home, spec), Reference(9, 2)
        held: list[tuple[Claim, str]] = []
        next_id = 1
        for turn in range(60):
            batch = []
            for _ in range(rng.randrange(9)):
                batch.append(Task(next_id, f"s{rng.randrange(3)}/{rng.randrange(4)}"))
                next_id += 1
            store.submit(batch, turn)
            model.submit(batch)
            ended = rng.sample(held, rng.randrange(len(held) + 1))
            held = [pair for pair in held if pair not in ended]
            want = rng.randrange(8)
            settles = [Settle(c.id, c.attempt, c.token) for c, _ in ended]
            claims = store.step(1, settles, want, turn).claims
            wanted = model.step([key for _, key in ended], want)
            expect(f"seed {seed}, turn {turn}", [c.id for c in claims], [i for i, _ in wanted])
            held += [(c, key) for c, (_, key) in zip(claims, wanted, strict=True)]
        store.close()


def fresh(home: Path, spec: PoolSpec) -> TwoLevelStore:
    path = home / "two.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    create(str(path), spec)
    return TwoLevelStore(str(path), spec)


def rate(home: Path, shares: int, keys: int, batch: int) -> float:
    store = fresh(home, PoolSpec("two", 400, fair=True, per_key=2))
    for at in range(0, 100_000, 1000):
        names = [f"s{(at + i) % shares}/k{(at + i) % keys}" for i in range(1000)]
        store.submit([Task(at + i + 1, name, payload=PAYLOAD) for i, name in enumerate(names)], 1)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    started = time.perf_counter()
    count = run_steps(store, 1, batch, 20_000 if batch == 100 else 4_000)
    took = time.perf_counter() - started
    store.close()
    return count / took


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="claim-spike-") as name:
        home = Path(name)
        prove(home, 60)
        print("proved: two levels, 60 histories")
        rows: list[dict[str, object]] = []
        for shares, keys in ((10, 10_000), (100, 10_000), (1000, 10_000)):
            row: dict[str, object] = {"shares": shares, "keys": keys}
            for batch in (10, 100):
                row[f"1x{batch}"] = (
                    f"{median([rate(home, shares, keys, batch) for _ in range(3)]):,.0f}"
                )
            rows.append(row)
    print_table("SQLite FULL, two levels, 100,000 queued, tasks/s", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
