"""A pool as a row: its settings, its counts, and access to its keys, lanes and queue."""

from __future__ import annotations

import logging
from struct import iter_unpack, pack
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.core.adaptive import Limiter
from millpond.core.bucket import Bucket
from millpond.core.bucket import fresh as fresh_buckets
from millpond.core.lifecycle import Status
from millpond.core.log_fields import about
from millpond.core.order.backlog import needs_groups
from millpond.core.spec import PoolSpec
from millpond.errors import MillpondError, NewerPool
from millpond.store.sql.backlog import SqlBacklog
from millpond.store.sql.codec import TaskRow
from millpond.store.sql.keys import SqlKeys
from millpond.store.sql.newer_settings import understood
from millpond.store.sql.unclaimed import SqlFresh
from millpond.store.verbs.arrivals import Arrivals
from millpond.store.verbs.tables import MEASURED, PoolTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.core.task import Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

_decode_spec = msgspec.json.Decoder(PoolSpec).decode
_decode_buckets = msgspec.json.Decoder(list[Bucket]).decode
_decode_limiter = msgspec.json.Decoder(Limiter).decode
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
_decode_starved = msgspec.json.Decoder(dict[str, tuple[float, float]]).decode
_decode_hungry = msgspec.json.Decoder(dict[str, float]).decode

_DEAD = "dead"
"""The name of one more count in a pool's totals: the failed tasks that are kept."""

log = logging.getLogger("millpond.store")

D = TypeVar("D")
V = TypeVar("V")

_specs: dict[str, PoolSpec] = {}
"""Decoded settings by their text."""


def readable(decode: Callable[[D], V], stored: D, otherwise: V, whose: str) -> V:
    """Return what is stored, or something else for what cannot be read; that is logged.

    Only for what work goes on without: counts, and who waits for what.
    """
    try:
        return decode(stored)
    except (msgspec.MsgspecError, MillpondError, ValueError, TypeError) as error:
        log.error(  # noqa: TRY400 - the message says all
            "ignoring damaged stored settings of %s: %s",
            whose,
            error,
            extra=about("store.settings_damaged", reason=str(error)),
        )
        return otherwise


def spec_of(text: str) -> PoolSpec:
    """Return the settings of a stored text."""
    spec = _specs.get(text)
    if spec is None:
        if len(_specs) > 10_000:
            _specs.clear()
        spec = _specs[text] = understood(text, _decode_spec, "pool")
    return spec


def spec_text(spec: PoolSpec) -> str:
    """Return settings as text."""
    return msgspec.json.encode(spec).decode()


class SqlLanes:
    """What lanes keep for ever: the last sequence number, and how many tasks were processed."""

    def __init__(self, tables: SqlTables, pool: int) -> None:
        self._tables = tables
        self._pool = pool
        self._rows: dict[str, list[int]] = {}
        self._dirty: set[str] = set()

    def _row(self, lane: str) -> list[int]:
        """Return [sequence, processed] of a lane."""
        row = self._rows.get(lane)
        if row is None:
            arguments = (self._pool, lane)
            found = self._tables.ask("lane", arguments).fetchone()
            row = self._rows[lane] = list(found or (0, 0))
        return row

    def next_sequence(self, lane: str) -> int:
        """Return the next number of a lane, without gaps."""
        self._dirty.add(lane)
        row = self._row(lane)
        row[0] += 1
        return row[0]

    def processed(self, lane: str) -> int:
        """Return how many tasks of a lane were completed or failed."""
        return self._row(lane)[1]

    def count_processed(self, lane: str) -> None:
        """Count one more of them."""
        self._dirty.add(lane)
        self._row(lane)[1] += 1

    def write(self) -> None:
        """Write what has changed."""
        if self._dirty:
            rows = [(self._pool, lane, *self._rows[lane]) for lane in self._dirty]
            self._tables.send("save_lane", rows)
            self._dirty = set()


class SqlParked:
    """The parked tasks of a pool: their own rows have this, so all but the count is a query."""

    def __init__(self, tables: SqlTables, pool: int) -> None:
        self._tables = tables
        self._pool = pool
        self.count = 0

    def add(self, task: Task, now: float) -> None:
        """Add a task: its row says since when it is parked."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.parked_at = now
        self.count += 1

    def remove(self, task: Task) -> None:
        """Remove a task."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.parked_at = None
        self.count -= 1

    def _ask(self, name: str, *arguments: str | int) -> list[Any]:
        self._tables.write_rows()
        return [row[0] for row in self._tables.ask(name, (self._pool, *arguments)).fetchall()]

    def functions(self) -> list[str]:
        """Return the functions for which tasks wait."""
        return self._ask("parked_functions") if self.count else []

    def of(self, function: str) -> list[int]:
        """Return the tasks that need a function."""
        return self._ask("parked_of", function)

    def firsts(self, function: str, most: int) -> Iterator[int]:
        """Yield the first tasks that need a function; they are loaded at once."""
        found = self._ask("first_parked_some", function, most)
        self._tables.tasks.load(found)
        return iter(found)


class SqlArrivals(Arrivals):
    """The live tasks of a pool in the order of their places."""

    __slots__ = ("_pool",)

    def __init__(self, pool: SqlPool) -> None:
        super().__init__()
        self._pool = pool

    def add(self, task: Task) -> None:
        """Do nothing: its row has its place."""

    def exchange(self, task: Task) -> None:
        """Do nothing: its row has its place."""

    def __iter__(self) -> Iterator[Task]:
        return iter(self._pool.tables.live(self._pool))


class SqlPool(PoolTable):
    """A pool over its row."""

    __slots__ = (
        "_measured",
        "_settings",
        "_stored",
        "dead",
        "kept",
        "measured",
        "number",
        "tables",
    )

    keys: SqlKeys
    lanes: SqlLanes
    backlog: SqlBacklog
    fresh: SqlFresh

    def __init__(self, tables: SqlTables, number: int, spec: PoolSpec, created_at: float) -> None:
        super().__init__(spec, created_at)
        self.tables = tables
        self.number = number
        self.kept = self.dead = self.measured = 0
        self._measured: list[tuple[float, float]] = []
        self._stored: Row | None = None
        self._settings: Row | None = None
        self.keys = SqlKeys(tables, number)
        self.lanes = SqlLanes(tables, number)
        self.parked = SqlParked(tables, number)
        self.arrivals = SqlArrivals(self)

    @classmethod
    def declared_now(cls, tables: SqlTables, number: int, spec: PoolSpec, now: float) -> SqlPool:
        """Return a pool that was just declared."""
        self = cls(tables, number, spec, now)
        counts = dict.fromkeys(_COUNTS, 0) | {"grouped": int(needs_groups(spec))}
        self.backlog = SqlBacklog(spec, tables, number, counts)
        self.fresh = SqlFresh(self, 0)
        return self

    @classmethod
    def read(cls, tables: SqlTables, row: Row) -> SqlPool:
        """Return the pool of a row."""
        self = cls(tables, row[0], spec_of(row[2]), row[5])
        (
            _,
            self.name,
            _,
            declared,
            self.revision,
            _,
            self.operator_limit,
            paused,
            closed,
            self.not_before,
            self.next_seq,
            self.next_lane,
            self.live,
            self.running,
            self.claimed,
            fresh,
            ready,
            later,
            self.parked.count,
            self.parked_apart,
            self.kept,
            self.stale_settles,
            self.measured,
            totals,
            grouped,
            joins,
            passed_turn,
            passed_join,
            resting,
            unit_timers,
            fading,
            tats,
            holding,
            starved,
            hungry,
            limiter,
            _,
        ) = row
        self.declared = spec_of(declared)
        self.paused, self.closed = bool(paused), bool(closed)
        whose = f"pool {self.name}"
        self.totals = readable(_decode_counts, totals, {}, whose)
        self.dead = self._dead_among(self.totals)
        self.buckets = readable(_decode_buckets, tats, fresh_buckets(self.spec.rates), whose)
        held = readable(_decode_counts, holding, None, whose)
        self.holding = self._held() if held is None else held
        self.starved = readable(_decode_starved, starved, {}, whose)
        self.hungry = readable(_decode_hungry, hungry, {}, whose)
        self.limiter = None
        if limiter:
            unused = None if self.spec.adaptive is None else Limiter(self.spec.adaptive)
            self.limiter = readable(_decode_limiter, limiter, unused, whose)
        counts = {
            "grouped": grouped,
            "ready": ready,
            "later": later,
            "unit_timers": unit_timers,
            "fading": fading,
            "joins": joins,
            "passed_turn": passed_turn,
            "passed_join": passed_join,
            "resting": resting,
        }
        self.backlog = SqlBacklog(self.spec, tables, self.number, counts)
        self.fresh = SqlFresh(self, fresh)
        self._stored, self._settings = row[7:], row[2:7]
        return self

    def _dead_among(self, totals: dict[str, int]) -> int:
        """Take the count of dead letters out of the totals; older versions stored none."""
        dead = totals.pop(_DEAD, None)
        if dead is None and Status.FAILED in totals:
            return self.count_dead()
        return dead or 0

    def _all_totals(self) -> dict[str, int]:
        """Return the totals with the count of dead letters, once there was one."""
        if Status.FAILED not in self.totals:
            return self.totals
        return {**self.totals, _DEAD: self.dead}

    def count_dead(self) -> int:
        """Count the failed tasks that are kept."""
        found: int = self.tables.ask("dead_of_pool", (self.number,)).fetchone()[0]
        return found

    def _held(self) -> dict[str, int]:
        """Count how many tasks of the pool each worker runs."""
        return dict(self.tables.ask("holding_of_pool", (self.number,)).fetchall())

    def spec_at(self, revision: int) -> PoolSpec:
        """Return the settings of a revision."""
        if revision == self.revision:
            return self.spec
        arguments = (self.number, revision)
        row = self.tables.ask("revision", arguments).fetchone()
        try:
            return self.spec if row is None else spec_of(row[0])
        except NewerPool:  # it was declared again since, in a way that is known here
            return self.spec

    def paused_units(self) -> set[str]:
        """Return the lanes or keys that are paused on their own; always a query."""
        self.tables.write_rows()
        rows = self.tables.ask("paused_units", (self.number,))
        return {row[0] for row in rows}

    def pause(self, unit: str, *, paused: bool) -> None:
        """Do nothing: the unit stores it."""

    def measure(self, waited: float, ran: float) -> None:
        """Note how long a task had waited for its start, and how long it ran."""
        self._measured.append((waited, ran))

    def measure_all(self, times: list[tuple[float, float]]) -> None:
        """Note the times of several tasks."""
        self._measured += times

    def times(self) -> tuple[list[float], list[float]]:
        """Return how long the latest attempts waited and ran."""
        waits: list[float] = []
        run_times: list[float] = []
        rows = self.tables.ask("measured", (self.number,))
        for (times,) in rows:
            for waited, ran in reversed(list(iter_unpack(">2d", times))):
                waits.append(waited)
                run_times.append(ran)
            if len(waits) >= MEASURED:
                break
        return waits[:MEASURED], run_times[:MEASURED]

    def trimmed(self) -> int:
        """Drop what the next transaction hardly needs; return how many rows stay in memory."""
        self.keys.forget()
        self.fresh.let_go()
        return self.backlog.trimmed()

    # Writing

    def write(self) -> None:
        """Write what has changed."""
        self.backlog.write()
        self.keys.write()
        self.lanes.write()
        if self._measured:
            self._write_measured()
        self._write_row()

    def _write_measured(self) -> None:
        ask = self.tables.ask
        flat = [value for pair in self._measured[-MEASURED:] for value in pair]
        self.measured += len(self._measured)
        self._measured = []
        ask(
            "add_measured",
            (self.number, self.measured, pack(f">{len(flat)}d", *flat)),
        )
        if self.measured % MEASURED < len(flat):
            ask("drop_measured", (self.number, self.measured - 2 * MEASURED))

    def _write_row(self) -> None:
        counts = self.backlog.counts()
        settings = (
            spec_text(self.spec) if self._settings is None else self._text(self.spec, 0),
            spec_text(self.declared) if self._settings is None else self._text(self.declared, 1),
            self.revision,
            self.created_at,
            self.operator_limit,
        )
        row = (
            int(self.paused),
            int(self.closed),
            self.not_before,
            self.next_seq,
            self.next_lane,
            self.live,
            self.running,
            self.claimed,
            len(self.fresh),
            counts["ready"],
            counts["later"],
            self.parked.count,
            self.parked_apart,
            self.kept,
            self.stale_settles,
            self.measured,
            _text(self._all_totals()),
            counts["grouped"],
            counts["joins"],
            counts["passed_turn"],
            counts["passed_join"],
            counts["resting"],
            counts["unit_timers"],
            counts["fading"],
            _text(self.buckets),
            _text(self.holding),
            _text(self.starved),
            _text(self.hungry),
            "" if self.limiter is None else _text(self.limiter),
            int(self.spec.has_flow_control),
        )
        ask = self.tables.ask
        is_new = self._settings is None
        if settings != self._settings:
            ask("save_pool", (self.number, self.name, *settings, *row))
            ask("add_revision", (self.number, self.revision, settings[0]))
        if row != self._stored and not is_new:
            self.tables.change("change_pool", (*row, self.number), 1)
        self._settings, self._stored = settings, row

    def _text(self, spec: PoolSpec, column: int) -> str:
        """Return settings as text; mostly the text as read."""
        assert self._settings is not None  # noqa: S101
        text: str = self._settings[column]
        return text if _specs.get(text) is spec else spec_text(spec)


_COUNTS = (
    *("grouped", "ready", "later", "unit_timers", "fading"),
    *("joins", "passed_turn", "passed_join", "resting"),
)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
