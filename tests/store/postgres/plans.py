"""What the server does for a statement: the plans it makes, and the rows and pages it touches.

Plans are read from the server's log, where `debug_print_plan` writes every one that is made, also
those of statements within functions, which EXPLAIN does not show. They are written as the server
keeps them: a tree of nodes in braces, each with its fields.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from verify.servers.postgres import OwnServer

_ENTRY = re.compile(r"^\S+ \S+ \S+ \[(\d+)\] ([A-Z]+):  ", re.MULTILINE)
_SCAN = re.compile(r"\{([A-Z]*SCAN) .*?:(?:scan\.)?scanrelid (\d+)")
_TABLE = re.compile(r":relid (\d+)")
IDLE_SESSION = "idle session"
"""The application name of sessions that stay open and read no tables of a store."""
COUNTS_AT_ONCE, COLLECTED_WITHIN = 150_000, 1.5
_GONE = 30.0
"""Seconds after which sessions that were closed must be gone."""


class Plan(NamedTuple):
    """How the server does one statement."""

    statement: str
    scans: tuple[tuple[str, int], ...]
    """How tables are read, each with the table's number."""


def plans_in(log: str) -> Iterator[Plan]:
    """Yield the plans in a log."""
    found = list(_ENTRY.finditer(log))
    entries = [
        (entry[1], entry[2], log[entry.end() : after.start() if after else len(log)].strip())
        for entry, after in zip(found, [*found[1:], None], strict=True)
    ]
    for at, (process, level, text) in enumerate(entries):
        if (level, text) != ("LOG", "plan:"):
            continue
        parts = {}
        for other, part, said in entries[at + 1 :]:
            if other != process or part not in ("DETAIL", "CONTEXT", "STATEMENT"):
                break
            parts[part] = said
        yield Plan(parts.get("CONTEXT", parts["STATEMENT"]), tuple(_scans(parts["DETAIL"])))


def _scans(tree: str) -> Iterator[tuple[str, int]]:
    tree = " ".join(tree.split())  # long lines are broken
    tables = [_TABLE.search(entry) for entry in _entries_of(tree, ":rtable (")]
    for scan in _SCAN.finditer(tree):
        table = tables[int(scan[2]) - 1] if int(scan[2]) else None
        if table is not None:
            yield scan[1], int(table[1])


def _entries_of(tree: str, name: str) -> Iterator[str]:
    """Yield the nodes of a list; what is in a text is written with a backslash before it."""
    start = depth = 0
    at = tree.find(name) + len(name)
    if at < len(name):
        return
    while tree[at] != ")" or depth:
        if tree[at] == "\\":
            at += 1
        elif tree[at] == "{":
            start, depth = (at if not depth else start), depth + 1
        elif tree[at] == "}":
            depth -= 1
            if not depth:
                yield tree[start : at + 1]
        at += 1


@dataclass
class Seen:
    """The plans made and the rows and pages read in a database while it was watched."""

    plans: list[Plan] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    """How many rows were read, by table; also rows that an index led to and a filter dropped."""
    pages: Counter[str] = field(default_factory=Counter)
    full_scans: Counter[str] = field(default_factory=Counter)
    """How often a table was read as a whole."""

    def read_whole(self) -> dict[str, set[str]]:
        """Return the statements that are planned to read a table as a whole, by table."""
        found: dict[str, set[str]] = {}
        for plan in self.plans:
            for how, table in plan.scans:
                if how == "SEQSCAN" and table in self.names:
                    found.setdefault(self.names[table], set()).add(plan.statement)
        return found


_COUNTS = """
SELECT t.relid, t.relname, t.seq_scan,
       t.seq_tup_read + coalesce(t.idx_tup_fetch, 0)
       + coalesce((SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes AS i
                    WHERE i.relid = t.relid), 0)::bigint,
       coalesce(p.heap_blks_read + p.heap_blks_hit, 0)
       + coalesce(p.idx_blks_read + p.idx_blks_hit, 0)
  FROM pg_stat_user_tables AS t JOIN pg_statio_user_tables AS p USING (relid)
"""


@contextmanager
def watched(server: OwnServer, connection: psycopg.Connection) -> Iterator[Seen]:
    """Give the work of other sessions in the connection's database; it is filled in at the end."""
    seen = Seen()
    ((database,),) = connection.execute("SELECT quote_ident(current_database())").fetchall()
    connection.execute(f"ALTER DATABASE {database} SET debug_print_plan = on")
    connection.execute(f"ALTER DATABASE {database} SET debug_pretty_print = off")
    _wait_until_alone(connection)
    before = {row[0]: row[2:] for row in _counted(connection)}
    before_log = len(server.log)
    yield seen
    _wait_until_alone(connection)
    seen.plans = list(plans_in(server.log[before_log:]))
    for table, name, *counts in _counted(connection):
        seen.names[table] = name
        differences = (now - then for now, then in zip(counts, before[table], strict=True))
        seen.full_scans[name], seen.rows[name], seen.pages[name] = differences


def _counted(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Return the server's own counts; before PostgreSQL 15 a process collects them later."""
    if connection.info.server_version < COUNTS_AT_ONCE:
        time.sleep(COLLECTED_WITHIN)  # nothing shows when it has
    else:
        # The server also delays the counts of this session, unless they are flushed.
        connection.execute("SELECT pg_stat_force_next_flush()")
    return connection.execute(_COUNTS).fetchall()


def _wait_until_alone(connection: psycopg.Connection) -> None:
    """Wait until the other sessions are gone: the server has counted their work by then."""
    deadline = time.monotonic() + _GONE
    others = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'autovacuum worker') "
        "AND application_name <> %s"
    )
    while connection.execute(others, [IDLE_SESSION]).fetchone():
        assert time.monotonic() < deadline, "sessions of others are still there"
