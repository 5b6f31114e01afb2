"""What both halves of the claim spike share: the task shapes, the reference model, tables."""

from __future__ import annotations

import heapq
import json
import re
import statistics
import zlib
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

ONE_TURN = 2**20
COMPLETED, RETRY = 1, 0
DRY, ELIGIBLE, AT_LIMIT, WAITING = 0, 1, 2, 3


@dataclass(frozen=True)
class PoolSpec:
    """What a pool promises, as far as a claim is concerned."""

    name: str
    cap: int
    order: str = "fifo"
    aging_us: int = 0
    fair: bool = False
    per_key: int | None = None
    lanes: int = 0
    ordered: bool = False
    bound: int | None = None
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def blocking(self) -> bool:
        return self.ordered or self.lanes > 0

    @property
    def grouped(self) -> bool:
        return self.fair or self.blocking or self.per_key is not None

    @property
    def key_limit(self) -> int | None:
        return 1 if self.blocking else self.per_key

    def group_of(self, key: str) -> str:
        """The group a key belongs to: itself, or one of a fixed number of lanes."""
        return str(zlib.crc32(key.encode()) % self.lanes) if self.lanes else key

    def stride_of(self, group: str) -> int:
        return round(ONE_TURN / self.weights.get(group, 1.0))

    def rank_of(self, priority: int, now: int, seq: int) -> int:
        """The static sort key: lowest first, settled at submit, whatever the order."""
        if self.order == "priority":
            return now - priority * self.aging_us if self.aging_us else -priority
        return -seq if self.order == "lifo" else 0


class Task(NamedTuple):
    id: int
    key: str = ""
    priority: int = 0
    payload: bytes = b"{}"
    idem: str | None = None
    delay: int = 0


class Claim(NamedTuple):
    id: int
    attempt: int
    token: int
    payload: bytes


class Settle(NamedTuple):
    id: int
    attempt: int
    token: int
    outcome: int = COMPLETED
    delay: int = 0
    result: bytes = b'"ok"'


class Submitted(NamedTuple):
    accepted: int
    duplicates: dict[str, int]
    refused: bool


class Stepped(NamedTuple):
    claims: list[Claim]
    stale: int


class Census(NamedTuple):
    running: int
    busiest: int
    queued: int
    done: int


class Store(Protocol):
    """The verbs of the spike, on either database."""

    def submit(self, tasks: Sequence[Task], now: int, repeat: bool = False) -> Submitted: ...
    def step(self, worker: int, settles: Sequence[Settle], want: int, now: int) -> Stepped: ...
    def renew(self, worker: int, expires: int) -> None: ...
    def recover(self, worker: int, now: int) -> int: ...
    def census(self) -> Census: ...
    def places(self) -> list[tuple[int, int, int, int]]: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """A place for pools: a directory of files, or a server. `site` tells several pools apart."""

    def make(self, site: str, spec: PoolSpec) -> None: ...
    def open(self, site: str, spec: PoolSpec) -> Store: ...


@dataclass
class _Group:
    name: str
    stride: int
    state: int = DRY
    o1: int = 0
    o2: int = 0
    running: int = 0
    until: int = 0
    queue: list[tuple[int, int, int, int, int]] = field(default_factory=list)


class Model:
    """The contract's order, one claim at a time, nothing clever. The stores must agree with it."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.groups: dict[str, _Group] = {}
        self.later: list[tuple[int, int, str, tuple[int, int, int, int, int]]] = []
        self.held: dict[int, tuple[int, str, int, int]] = {}
        self.seq, self.join, self.turn, self.running = 1, 1, 0, 0

    def submit(self, tasks: Sequence[Task], now: int) -> Submitted:
        mentioned: dict[str, None] = {}
        for task in tasks:
            name = self.spec.group_of(task.key) if self.spec.grouped else ""
            self.groups.setdefault(name, _Group(name, self.spec.stride_of(name)))
            mentioned[name] = None
            rank = self.spec.rank_of(task.priority, now, self.seq)
            self._put(name, rank, self.seq, task.id, 0, now + task.delay if task.delay else 0)
            self.seq += 1
        self._enter(mentioned, now)
        return Submitted(len(tasks), {}, False)

    def step(self, worker: int, settles: Sequence[Settle], want: int, now: int) -> Stepped:
        mentioned: dict[str, None] = {}
        stale = 0
        for settle in settles:
            held = self.held.get(settle.id)
            if held is None or held[0] != settle.attempt:
                stale += 1
                continue
            attempt, name, rank, seq = self.held.pop(settle.id)
            group = self.groups[name]
            group.running -= 1
            self.running -= 1
            mentioned[name] = None
            if group.state == AT_LIMIT:
                group.state = DRY
            if settle.outcome == RETRY:
                due = now + settle.delay if settle.delay else 0
                self._put(name, rank, seq, settle.id, attempt, due)
        self._enter(mentioned, now)
        self._promote(now)
        return Stepped(self._claim(min(want, self.spec.cap - self.running)), stale)

    def _put(self, name: str, rank: int, seq: int, task: int, attempt: int, due: int) -> None:
        row = (rank, seq, task, attempt, due)
        if due and not self.spec.blocking:
            heapq.heappush(self.later, (due, seq, name, row))
        else:
            insort(self.groups[name].queue, row)

    def _promote(self, now: int) -> None:
        mentioned: dict[str, None] = {}
        while self.later and self.later[0][0] <= now:
            _, _, name, row = heapq.heappop(self.later)
            insort(self.groups[name].queue, row)
            mentioned[name] = None
        waiting = [g for g in self.groups.values() if g.state == WAITING and g.until <= now]
        for group in sorted(waiting, key=lambda g: g.until):
            group.state = DRY
            mentioned[group.name] = None
        self._enter(mentioned, now)

    def _enter(self, names: Iterable[str], now: int) -> None:
        for name in names:
            group = self.groups[name]
            if group.state == ELIGIBLE and not self.spec.fair and group.queue:
                group.o1, group.o2 = group.queue[0][:2]
            if group.state != DRY or not group.queue:
                continue
            if group.queue[0][4] > now:
                group.state, group.until = WAITING, group.queue[0][4]
                continue
            group.state = ELIGIBLE
            if self.spec.fair:
                group.o1, group.o2 = max(self.turn, group.o1), self.join
                self.join += 1
            else:
                group.o1, group.o2 = group.queue[0][:2]

    def _claim(self, n: int) -> list[Claim]:
        claims: list[Claim] = []
        limit = self.spec.key_limit
        while len(claims) < n:
            eligible = [g for g in self.groups.values() if g.state == ELIGIBLE]
            if not eligible:
                break
            group = min(eligible, key=lambda g: (g.o1, g.o2))
            rank, seq, task, attempt, _ = group.queue.pop(0)
            claims.append(Claim(task, attempt + 1, 0, b""))
            self.held[task] = (attempt + 1, group.name, rank, seq)
            group.running += 1
            self.running += 1
            if self.spec.fair:
                self.turn = group.o1
                group.o1 += group.stride
            elif group.queue:
                group.o1, group.o2 = group.queue[0][:2]
            if limit is not None and group.running >= limit:
                group.state = AT_LIMIT
            elif not group.queue:
                group.state = DRY
        return claims


def load_sql(path: Path) -> dict[str, str]:
    """Statements of a file, by the name in the `-- name: x` line above each."""
    parts = re.split(r"^-- name: (\w+)\s*$", path.read_text(), flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: body.partition(";")[0].strip() for name, body in pairs}


def keys_for(count: int, keys: int, first: int = 0) -> list[str]:
    """Keys dealt out in turn: every key gets its share of any backlog."""
    return [f"k{(first + i) % keys}" for i in range(count)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def print_table(title: str, rows: list[dict[str, object]]) -> None:
    """A Markdown table, so that a run can be pasted into the decision record."""
    if not rows:
        return
    columns = list(rows[0])
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(row.get(c, '')) for c in columns)} |")


def write_json(path: str | None, data: object) -> None:
    text = json.dumps(data, indent=1)
    if path:
        Path(path).write_text(text + "\n")
    else:
        print(f"\n```json\n{text}\n```")
