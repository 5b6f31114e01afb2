"""`millpond doctor`: check a store, and report problems and risks with their remedies."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.cli.choose_store import APP, STORE, url_of
from millpond.cli.exits import OPERATOR_EXITS, Exit, Refusal
from millpond.core.escape import plain
from millpond.errors import MigrationNeeded, MillpondError, MissingRights, StoreCorrupt
from millpond.pool.store_url import place_of
from millpond.store.sql.store_time import clock_risks
from millpond.store.sqlite.connect import connect_to_look
from millpond.store.sqlite.consistency import check_tables
from millpond.store.sqlite.dialect import SQLITE
from millpond.store.sqlite.errors import DATABASE_ERRORS, translated
from millpond.store.sqlite.migrate import migrate
from millpond.store.url_redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.store.postgres.health import Health
    from millpond.store.postgres.url import Address

WAL_FIXED = (3, 51, 3)
"""The first SQLite in which a checkpoint cannot race with a writer that restarts the WAL."""

LARGE_WAL = 64 << 20

_SUBMITTER_NOTE = (
    "this user may call the functions submit and status, and may read no table: run doctor as the "
    "owner, a worker or a reader to check the rest"
)


class Findings(msgspec.Struct, kw_only=True):
    """The findings about a store."""

    store: str
    wrong: list[str]
    risky: list[str]
    facts: dict[str, Any]
    """Further fields of the JSON document."""
    notes: list[str]
    """The same facts as sentences."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    codes = "\n".join(f"  {code:<3}  {meaning}" for code, meaning in OPERATOR_EXITS.items())
    options = argparse.ArgumentParser(
        prog="millpond doctor",
        description="Check a store and report problems and risks, with what to do about them. It "
        "reads every row and changes nothing. On a server it also reports which session keeps dead "
        "rows from being removed. Exit code 0: no problem; 1: a problem was found.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument(
        "url",
        nargs="?",
        metavar="STORE",
        help="URL of the store, such as sqlite:///work.db or postgresql://host/db",
    )
    options.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_argument(
        "--store",
        metavar="URL",
        help=f"the same as STORE (default: the store of --app, then ${STORE})",
    )
    options.add_argument(
        "--app",
        metavar="MODULE:NAME",
        help=f"use the store of this application (default: ${APP})",
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Check, report, and return 1 if a problem was found."""
    parsed = parser().parse_args(arguments)
    url = url_of(parsed.url or parsed.store, parsed.app)
    try:
        place = place_of(url)
        assert place is not None  # noqa: S101 - a URL is never memory
        found = (
            check_sqlite(place.absolute()) if isinstance(place, Path) else check_server(url, place)
        )
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from error
    if parsed.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(_document(found)), indent=2) + "\n")
    else:
        _print_findings(found)
    return Exit.BROKE if found.wrong else Exit.CLEAN


def _document(found: Findings) -> dict[str, Any]:
    return {
        "store": found.store,
        "well": not found.wrong,
        "wrong": found.wrong,
        "risky": found.risky,
        **found.facts,
    }


def _print_findings(found: Findings) -> None:
    for line in found.notes:
        _say(line)
    for line in found.wrong:
        _say(f"wrong: {line}")
    for line in found.risky:
        _say(f"risky: {line}")
    if not found.wrong and found.facts.get("role") != "submitter":
        _say(f"{found.store}: all rows are consistent")


# A file


def check_sqlite(path: Path) -> Findings:
    """Return the findings about a SQLite file."""
    return Findings(
        store=str(path),
        wrong=check_rows(path),
        risky=[*risks(path, sqlite3.sqlite_version_info), *_clock_risks(path)],
        facts={"kind": "sqlite", "sqlite": sqlite3.sqlite_version},
        notes=[],
    )


def _clock_risks(path: Path) -> list[str]:
    """Return the risks of the store's clock; none if the file is damaged."""
    try:
        with contextlib.closing(connect_to_look(path)) as connection:
            meta = connection.execute(SQLITE.sql["meta"]).fetchone()
    except (MillpondError, *DATABASE_ERRORS):
        return []
    return list(clock_risks(meta, time.time(), str(path)))


def check_rows(path: Path) -> list[str]:
    """Return the problems of a file; refuse a file that is not a Millpond store."""
    try:
        with contextlib.closing(connect_to_look(path)) as connection:
            return _check_rows(connection, path)
    except StoreCorrupt as damage:
        return [str(damage)]


def _check_rows(connection: sqlite3.Connection, path: Path) -> list[str]:
    try:
        migrate(connection, path, allowed=False)
    except MigrationNeeded as error:
        if error.found:
            raise
        raise _no_tables(str(path)) from error
    try:
        connection.execute("BEGIN")
        return check_tables(connection)
    except DATABASE_ERRORS as error:
        raise translated(error, path) from error


def _no_tables(place: str) -> Refusal:
    message = f"{place} has no Millpond tables: no Millpond has opened it yet"
    return Refusal(Exit.STORE, message)


def risks(path: Path, version: tuple[int, ...]) -> Iterator[str]:
    """Yield the risks of a file, each with its remedy."""
    if version < WAL_FIXED:
        found, fixed = (".".join(map(str, one)) for one in (version, WAL_FIXED))
        yield (
            f"this Python uses SQLite {found}; before {fixed} a checkpoint that runs beside a "
            "writer can, very rarely, damage a file. Millpond itself prevents that; "
            "your own connections to the file should set PRAGMA wal_autocheckpoint=0"
        )
    mode = path.stat().st_mode & 0o777 if path.exists() else 0
    if mode & 0o077 and os.name == "posix":
        yield (
            f"{path} has mode {mode:04o}: other users may read the payloads in it; "
            f"chmod 600 {path} {path}-wal {path}-shm, unless they share the store"
        )
    wal = f"{path}-wal"
    size = os.stat(wal).st_size if os.path.exists(wal) else 0  # noqa: PTH110, PTH116
    if size >= LARGE_WAL:
        yield (
            f"{wal} has {size >> 20} MiB: a transaction that reads for long keeps it from being "
            "emptied; find the process that holds one open"
        )


# A server


def check_server(url: str, address: Address) -> Findings:
    """Return the findings about a server and its tables."""
    from millpond.store.postgres import health

    place = shown(url)
    try:
        seen, wrong = health.examine(address)
    except MigrationNeeded as error:
        if error.found:
            raise
        raise _no_tables(str(address)) from error
    except (MissingRights, StoreCorrupt) as error:
        facts = {"kind": "postgresql"}
        if isinstance(error, MissingRights) and health.submits_only(address):
            facts["role"] = "submitter"
            return Findings(store=place, wrong=[], risky=[], facts=facts, notes=[_SUBMITTER_NOTE])
        return Findings(store=place, wrong=[str(error)], risky=[], facts=facts, notes=[])
    return Findings(
        store=place,
        wrong=wrong,
        risky=list(health.risks(seen)),
        facts={"kind": "postgresql", **msgspec.to_builtins(seen)},
        notes=list(_notes(seen)),
    )


def _notes(seen: Health) -> Iterator[str]:
    from millpond.store.postgres.health import findings

    yield f"PostgreSQL {seen.server}, schema {seen.schema} of version {seen.version}"
    may = {"owner": "owns the store", "reader": "may read the store, but not change it"}
    yield f"user {seen.user} {may.get(str(seen.role), 'has the rights of a worker')}"
    if not seen.sees_others:
        yield (
            f"user {seen.user} cannot see the sessions of other users; "
            f"GRANT pg_read_all_stats TO {seen.user} allows it"
        )
    if seen.lock is not None:
        yield findings(seen.lock)
    dead = sum(table.dead for table in seen.tables)
    live, size = (sum(getattr(t, name) for t in seen.tables) for name in ("live", "bytes"))
    yield f"{live:,} rows and {dead:,} dead ones, {size / (1 << 20):,.1f} MiB with indexes"
    if seen.detours:
        detours = ", ".join(f"{one.verb}: {one.reason} {one.count:,}" for one in seen.detours[:10])
        yield f"verbs that left the fast path: {detours}"
    if not seen.pins:
        yield "no session pins the horizon: dead rows can be removed"
        return
    oldest = seen.pins[0]
    age = "" if oldest.seconds is None else f", for {oldest.seconds:.1f} s"
    behind = "" if oldest.transactions is None else f", {oldest.transactions:,} transactions back"
    yield f"the horizon is pinned by {oldest.kind} {oldest.name} ({oldest.who}){age}{behind}"


def _say(line: str) -> None:
    sys.stdout.write(plain(line) + "\n")
