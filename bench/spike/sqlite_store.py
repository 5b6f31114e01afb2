"""The verbs of the spike on SQLite: prepared point queries in one short transaction."""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import (
    AT_LIMIT,
    COMPLETED,
    DRY,
    ELIGIBLE,
    RETRY,
    WAITING,
    Census,
    Claim,
    PoolSpec,
    Settle,
    Stepped,
    Submitted,
    Task,
    load_sql,
)

HERE = Path(__file__).parent / "sqlite"
SQL = load_sql(HERE / "submit.sql") | load_sql(HERE / "lease.sql") | load_sql(HERE / "settle.sql")
PROMOTE_MOST = 1000
PLACES = "SELECT grp, seq, lane_seq, id FROM task ORDER BY grp, seq"
CENSUS = """
    SELECT (SELECT count(*) FROM lease),
           (SELECT coalesce(max(c), 0) FROM (SELECT count(*) AS c FROM lease GROUP BY grp)),
           (SELECT count(*) FROM ready) + (SELECT count(*) FROM later), (SELECT count(*) FROM done)
"""


def connect(path: str, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=60.0, cached_statements=256)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA cache_size = -65536")
    return db


def create(path: str, spec: PoolSpec) -> None:
    """A fresh file with one pool, number 1."""
    db = connect(path, "OFF")
    db.executescript((HERE / "schema.sql").read_text())
    db.execute(
        "INSERT INTO grp (id, pool, name, state, o1, o2, stride) VALUES (1, 0, '', 0, 0, 0, 0)"
    )
    db.execute(
        "INSERT INTO pool (id, name, fair, grouped, ordered, cap, per_key, bound, root)"
        " VALUES (1, ?, ?, ?, ?, ?, ?, ?, 1)",
        (spec.name, spec.fair, spec.grouped, spec.blocking, spec.cap, spec.key_limit, spec.bound),
    )
    db.close()


class _Pool:
    """The pool row of the transaction under way; saved once, at its end."""

    def __init__(self, row: Sequence[Any]) -> None:
        self.id: int = row[0]
        self.fair, self.grouped, self.ordered = bool(row[1]), bool(row[2]), bool(row[3])
        self.cap: int = row[4]
        self.per_key: int | None = row[5]
        self.bound: int | None = row[6]
        self.running, self.depth, self.next_seq, self.next_join, self.turn = row[7:12]
        self.root: int = row[12]
        self.stale = 0

    def saved(self) -> dict[str, int]:
        names = ("running", "depth", "next_seq", "next_join", "turn", "stale")
        return {"pool": self.id} | {name: getattr(self, name) for name in names}


class SqliteStore:
    def __init__(self, path: str, spec: PoolSpec, synchronous: str = "FULL") -> None:
        self.db = connect(path, synchronous)
        self.spec = spec
        self.random = random.SystemRandom()

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def _transaction(self) -> Iterator[_Pool]:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            pool = _Pool(self.db.execute(SQL["pool"], {"pool": 1}).fetchone())
            yield pool
            self.db.execute(SQL["save_pool"], pool.saved())
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # -- submit

    def submit(self, tasks: Sequence[Task], now: int, repeat: bool = False) -> Submitted:
        with self._transaction() as pool:
            known = self._known_keys(pool, tasks)
            seen = self._known_ids(tasks) if repeat else set()
            fresh: list[Task] = []
            for task in tasks:
                if task.id in seen or (task.idem is not None and task.idem in known):
                    continue
                if task.idem is not None:
                    known[task.idem] = task.id
                fresh.append(task)
            duplicates = {t.idem: known[t.idem] for t in tasks if t.idem and known[t.idem] != t.id}
            if pool.bound is not None and pool.depth + len(fresh) > pool.bound:
                return Submitted(0, duplicates, True)
            self._insert(pool, fresh, now)
        return Submitted(len(fresh), duplicates, False)

    def _known_keys(self, pool: _Pool, tasks: Sequence[Task]) -> dict[str, int]:
        keys = [task.idem for task in tasks if task.idem is not None]
        if not keys:
            return {}
        return dict(self.db.execute(SQL["known_keys"], {"pool": pool.id, "keys": json.dumps(keys)}))

    def _known_ids(self, tasks: Sequence[Task]) -> set[int]:
        ids = json.dumps([task.id for task in tasks])
        return {row[0] for row in self.db.execute(SQL["known_ids"], {"ids": ids})}

    def _insert(self, pool: _Pool, tasks: Sequence[Task], now: int) -> None:
        names = [self.spec.group_of(t.key) for t in tasks] if pool.grouped else []
        groups = self._groups(pool, names)
        task_rows, ready_rows, later_rows, idem_rows = [], [], [], []
        best: dict[int, tuple[int, int] | None] = {}  # in order of mention
        for i, task in enumerate(tasks):
            seq, lane_seq = pool.next_seq, 0
            pool.next_seq += 1
            gid = pool.root
            if pool.grouped:
                group = groups[names[i]]
                gid, group[2] = group[0], group[2] + 1
                lane_seq = group[2]
            rank = self.spec.rank_of(task.priority, now, seq)
            due = now + task.delay if task.delay else 0
            task_rows.append(
                (task.id, pool.id, gid, rank, seq, lane_seq, task.priority, now, task.payload)
            )
            if due and not pool.ordered:
                later_rows.append((pool.id, due, seq, gid, rank, task.id, 0, 1))
                best.setdefault(gid, None)
            else:
                ready_rows.append((gid, rank, seq, task.id, 0, 1, due))
                best[gid] = min(best.get(gid) or (rank, seq), (rank, seq))
            if task.idem is not None:
                idem_rows.append((pool.id, task.idem, task.id))
        run = self.db.executemany
        run(SQL["add_task"], task_rows)
        run(SQL["add_ready"], ready_rows)
        run(SQL["add_later"], later_rows)
        run(SQL["add_idem"], idem_rows)
        pool.depth += len(tasks)
        if pool.ordered:
            run(SQL["set_tail"], [(tail, gid) for gid, _, tail in groups.values()])
        if pool.grouped:
            states = {gid: state for gid, state, _ in groups.values()}
            self._arrived(pool, {g: b for g, b in best.items() if b is not None}, states, now)

    def _groups(self, pool: _Pool, names: Sequence[str]) -> dict[str, list[int]]:
        """Group rows by name: [id, state, tail]; the missing ones are made, in order of mention."""
        if not names:
            return {}
        wanted = dict.fromkeys(names)
        found = self.db.execute(
            SQL["groups"], {"pool": pool.id, "names": json.dumps(list(wanted))}
        ).fetchall()
        groups = {name: [gid, state, tail] for name, gid, state, tail in found}
        for name in wanted:
            if name not in groups:
                made = self.db.execute(
                    SQL["new_group"],
                    {"pool": pool.id, "name": name, "stride": self.spec.stride_of(name)},
                )
                groups[name] = [made.lastrowid or 0, DRY, 0]
        return groups

    def _arrived(
        self, pool: _Pool, best: dict[int, tuple[int, int]], states: dict[int, int], now: int
    ) -> None:
        """Tasks became ready in these groups: dry ones enter, others may move up."""
        for gid, (rank, seq) in best.items():
            if states[gid] == DRY:
                self._enter(pool, gid, now)
            elif states[gid] == ELIGIBLE and not pool.fair:
                self.db.execute(SQL["move_up"], {"grp": gid, "rank": rank, "seq": seq})

    def _enter(self, pool: _Pool, gid: int, now: int) -> None:
        """A group below its limit takes its place among the eligible, if its head is ready."""
        head = self.db.execute(SQL["head"], {"grp": gid}).fetchone()
        if head is None:
            self.db.execute(SQL["leave"], {"grp": gid, "state": DRY, "due": 0})
        elif head[2] > now:
            self.db.execute(SQL["leave"], {"grp": gid, "state": WAITING, "due": head[2]})
        elif pool.fair:
            args = {"grp": gid, "turn": pool.turn, "join": pool.next_join}
            self.db.execute(SQL["enter_fair"], args)
            pool.next_join += 1
        else:
            self.db.execute(SQL["enter_by_head"], {"grp": gid, "rank": head[0], "seq": head[1]})

    # -- settle + lease

    def step(self, worker: int, settles: Sequence[Settle], want: int, now: int) -> Stepped:
        """Settle the last batch and lease the next: one transaction, one commit."""
        with self._transaction() as pool:
            if settles:
                self._settle(pool, settles, now)
            self._promote(pool, now)
            n = min(want, pool.cap - pool.running)
            token = self.random.getrandbits(62)
            claim = self._claim_grouped if pool.grouped else self._claim_plain
            claims = claim(pool, worker, token, n, now) if n > 0 else []
        return Stepped(claims, pool.stale)

    def _settle(self, pool: _Pool, settles: Sequence[Settle], now: int) -> None:
        ids = json.dumps([s.id for s in settles])
        held = {row[0]: row for row in self.db.execute(SQL["held"], {"ids": ids})}
        good: list[tuple[Settle, Sequence[int]]] = []
        for settle in settles:
            row = held.pop(settle.id, None)
            if row is not None and (row[1], row[2]) == (settle.attempt, settle.token):
                good.append((settle, row))
        pool.stale += len(settles) - len(good)
        ids = json.dumps([s.id for s, _ in good])
        states: dict[int, int] = {}
        if pool.grouped:
            states = dict(self.db.execute(SQL["count_down"], {"ids": ids}).fetchall())
        self.db.execute(SQL["drop_leases"], {"ids": ids})
        self.db.executemany(
            SQL["add_done"],
            [
                (s.id, pool.id, s.outcome, s.attempt, row[6], row[7], now, s.result)
                for s, row in good
                if s.outcome == COMPLETED
            ],
        )
        pool.running -= len(good)
        returned = self._put_back(pool, good, now)
        if pool.grouped:
            self._freed(pool, [row[3] for _, row in good], states, returned, now)

    def _put_back(
        self, pool: _Pool, good: Sequence[tuple[Settle, Sequence[int]]], now: int
    ) -> dict[int, tuple[int, int]]:
        """Retries rejoin at their old place: now, or when due. Answers what became ready."""
        returned: dict[int, tuple[int, int]] = {}
        for settle, (_, attempt, _, gid, rank, seq, _, _) in good:
            if settle.outcome != RETRY:
                continue
            due = now + settle.delay if settle.delay else 0
            if due and not pool.ordered:
                row = (pool.id, due, seq, gid, rank, settle.id, attempt, 0)
                self.db.execute(SQL["add_later"], row)
            else:
                self.db.execute(SQL["add_ready"], (gid, rank, seq, settle.id, attempt, 0, due))
                returned[gid] = min(returned.get(gid, (rank, seq)), (rank, seq))
        return returned

    def _freed(
        self,
        pool: _Pool,
        touched: Iterable[int],
        states: dict[int, int],
        returned: dict[int, tuple[int, int]],
        now: int,
    ) -> None:
        for gid in dict.fromkeys(touched):
            if states[gid] == AT_LIMIT or (states[gid] == DRY and gid in returned):
                self._enter(pool, gid, now)
            elif gid in returned:
                self._arrived(pool, {gid: returned[gid]}, states, now)

    def _promote(self, pool: _Pool, now: int) -> None:
        args = {"pool": pool.id, "now": now, "most": PROMOTE_MOST}
        if pool.ordered:
            for (gid,) in self.db.execute(SQL["due_groups"], args).fetchall():
                self._enter(pool, gid, now)
            return
        due = self.db.execute(SQL["due_tasks"], args).fetchall()
        if not due:
            return
        self.db.executemany(SQL["drop_later"], [(pool.id, row[0], row[1]) for row in due])
        self.db.executemany(
            SQL["add_ready"], [(gid, rank, seq, i, a, f, 0) for _, seq, gid, rank, i, a, f in due]
        )
        if pool.grouped:
            best: dict[int, tuple[int, int]] = {}
            for _, seq, gid, rank, *_ in due:
                best[gid] = min(best.get(gid, (rank, seq)), (rank, seq))
            rows = self.db.execute(
                "SELECT id, state FROM grp WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(best)),),
            )
            self._arrived(pool, best, dict(rows.fetchall()), now)

    def _claim_plain(self, pool: _Pool, worker: int, token: int, n: int, now: int) -> list[Claim]:
        args = {"grp": pool.root, "n": n, "worker": worker, "token": token, "now": now}
        rows = self.db.execute(SQL["plain_head"], args).fetchall()
        if not rows:
            return []
        self.db.execute(SQL["plain_lease"], args)
        last = rows[-1]
        self.db.execute(SQL["plain_delete"], {"grp": pool.root, "rank": last[0], "seq": last[1]})
        pool.running += len(rows)
        pool.depth -= sum(row[4] for row in rows)
        return [Claim(row[2], row[3] + 1, token, row[5]) for row in rows]

    def _claim_grouped(self, pool: _Pool, worker: int, token: int, n: int, now: int) -> list[Claim]:
        """Merge the first n eligible groups by place; nothing behind them can be reached."""
        members = self.db.execute(SQL["members"], {"pool": pool.id, "n": n}).fetchall()
        merge = _Merge(self.db, pool, members, n)
        rows = merge.run()
        if not rows:
            return []
        self.db.executemany(
            SQL["lease_one"],
            [(i, worker, a + 1, token, gid, r, s, now) for gid, r, s, i, a, _ in rows],
        )
        self.db.executemany(SQL["take_one"], [(gid, r, s) for gid, r, s, *_ in rows])
        self.db.executemany(SQL["served"], merge.updates())
        pool.running += len(rows)
        pool.depth -= sum(row[5] for row in rows)
        ids = json.dumps([row[3] for row in rows])
        payloads = dict(self.db.execute(SQL["payloads"], {"ids": ids}).fetchall())
        return [Claim(row[3], row[4] + 1, token, payloads[row[3]]) for row in rows]

    # -- look, renew, recover

    def census(self) -> Census:
        """One snapshot of who runs what."""
        self.db.execute("BEGIN")
        row = self.db.execute(CENSUS).fetchone()
        self.db.execute("COMMIT")
        return Census(*row)

    def places(self) -> list[tuple[int, int, int, int]]:
        """Group, seq, sequence in the lane, id: of every task."""
        rows: list[tuple[int, int, int, int]] = self.db.execute(PLACES).fetchall()
        return rows

    def renew(self, worker: int, expires: int) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(SQL["renew"], {"worker": worker, "expires": expires})
        self.db.execute("COMMIT")

    def recover(self, worker: int, now: int) -> int:
        """Everything a lost worker held rejoins at its old place; the attempt stays spent."""
        with self._transaction() as pool:
            held = self.db.execute(SQL["leases_of"], {"worker": worker}).fetchall()
            self._settle(pool, [Settle(i, a, token, RETRY) for i, a, token in held], now)
        return len(held)


class _Merge:
    """Serve eligible groups one by one from memory, reading only the tasks that are taken."""

    def __init__(
        self, db: sqlite3.Connection, pool: _Pool, members: list[tuple[int, ...]], n: int
    ) -> None:
        self.db, self.pool, self.n = db, pool, n
        self.limit = pool.per_key
        self.chunk = 1 + -(-n // max(1, len(members)))
        self.state = {m[0]: [ELIGIBLE, m[1], m[2], m[4]] for m in members}
        self.stride = {m[0]: m[3] for m in members}
        self.buffer: dict[int, list[tuple[int, ...]]] = {}
        self.taken: dict[int, int] = {}
        if len(members) == n:
            for gid, *row in db.execute(SQL["first_two"], {"pool": pool.id, "n": n}):
                insort(self.buffer.setdefault(gid, []), tuple(row))

    def run(self) -> list[tuple[int, ...]]:
        heap = [(s[1], s[2], gid) for gid, s in self.state.items()]
        rows: list[tuple[int, ...]] = []
        while heap and len(rows) < self.n:
            o1, _, gid = heap[0]
            rows.append((gid, *self._next(gid)))
            state = self.state[gid]
            state[3] += 1
            follower = self._peek(gid)
            if self.pool.fair:
                self.pool.turn = o1
                state[1] = o1 + self.stride[gid]
            elif follower is not None:
                state[1], state[2] = follower[0], follower[1]
            if self.limit is not None and state[3] >= self.limit:
                state[0] = AT_LIMIT
            elif follower is None:
                state[0] = DRY
            if state[0] == ELIGIBLE:
                heapq.heapreplace(heap, (state[1], state[2], gid))
            else:
                heapq.heappop(heap)
        return rows

    def updates(self) -> list[tuple[int, ...]]:
        return [(*self.state[gid], gid) for gid in self.taken]

    def _next(self, gid: int) -> tuple[int, ...]:
        row = self._peek(gid)
        if row is None:
            raise RuntimeError(f"group {gid} is eligible and has no ready task")
        self.taken[gid] = self.taken.get(gid, 0) + 1
        return row

    def _peek(self, gid: int) -> tuple[int, ...] | None:
        position = self.taken.get(gid, 0)
        buffer = self.buffer.setdefault(gid, [])
        if position >= len(buffer):
            args = {"grp": gid, "n": self.chunk, "skip": len(buffer)}
            buffer.extend(self.db.execute(SQL["group_ready"], args))
        return buffer[position] if position < len(buffer) else None
