"""`millpond doctor`: looks at a store, and says what is wrong or risky and what to do."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.cli.choose_store import APP, STORE, url_of
from millpond.cli.exits import OF_AN_OPERATOR, Exit, Refusal
from millpond.cli.terminal_text import plain
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

WAL_MENDED = (3, 51, 3)
"""The first SQLite in which a checkpoint cannot race with a writer that begins the WAL anew."""

LARGE_WAL = 64 << 20

_OF_A_SUBMITTER = (
    "the user may submit by the function submit, ask by the function status what became of it, and "
    "sees no table: have the owner, a worker or a reader look at the rest"
)


class Findings(msgspec.Struct, kw_only=True):
    """What was found out about a store."""

    store: str
    wrong: list[str]
    risky: list[str]
    facts: dict[str, Any]
    """What it is, in the shape that `--json` prints."""
    notes: list[str]
    """The same for people."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    codes = "\n".join(f"  {code:<3}  {told}" for code, told in OF_AN_OPERATOR.items())
    options = argparse.ArgumentParser(
        prog="millpond doctor",
        description="Look at a store and say what is wrong or risky, and what to do. It reads "
        "every row and changes nothing. Of a server it also tells who keeps dead rows from being "
        "removed. Exit code 0: nothing is wrong; 1: something is.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument(
        "url",
        nargs="?",
        metavar="STORE",
        help="where the pools are kept, such as sqlite:///work.db or postgresql://host/db",
    )
    options.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_argument(
        "--store",
        metavar="URL",
        help=f"the same as STORE (default: what --app names, then ${STORE})",
    )
    options.add_argument(
        "--app",
        metavar="MODULE:NAME",
        help=f"an application: its store is meant (default: ${APP})",
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Look, tell, and return 1 if something is wrong."""
    asked = parser().parse_args(arguments)
    url = url_of(asked.url or asked.store, asked.app)
    try:
        place = place_of(url)
        assert place is not None  # noqa: S101 - a URL is never memory
        found = of_file(place.absolute()) if isinstance(place, Path) else of_server(url, place)
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from error
    if asked.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(_document(found)), indent=2) + "\n")
    else:
        _tell(found)
    return Exit.BROKE if found.wrong else Exit.CLEAN


def _document(found: Findings) -> dict[str, Any]:
    return {
        "store": found.store,
        "well": not found.wrong,
        "wrong": found.wrong,
        "risky": found.risky,
        **found.facts,
    }


def _tell(found: Findings) -> None:
    for line in found.notes:
        _say(line)
    for line in found.wrong:
        _say(f"wrong: {line}")
    for line in found.risky:
        _say(f"risky: {line}")
    if not found.wrong and found.facts.get("role") != "submitter":
        _say(f"{found.store}: every row fits together")


# A file


def of_file(path: Path) -> Findings:
    """Return what is to be said of a file."""
    return Findings(
        store=str(path),
        wrong=examined(path),
        risky=[*risks(path, sqlite3.sqlite_version_info), *_of_the_clock(path)],
        facts={"kind": "sqlite", "sqlite": sqlite3.sqlite_version},
        notes=[],
    )


def _of_the_clock(path: Path) -> list[str]:
    """Return what is to be said of the store's time; a damaged file is told of elsewhere."""
    try:
        connection = connect_to_look(path)
        try:
            meta = connection.execute(SQLITE.sql["meta"]).fetchone()
        finally:
            connection.close()
    except (MillpondError, *DATABASE_ERRORS):
        return []
    return list(clock_risks(meta, time.time(), str(path)))


def examined(path: Path) -> list[str]:
    """Return what is wrong with a store; refuse what is none of ours."""
    try:
        connection = connect_to_look(path)
        try:
            return _examined(connection, path)
        finally:
            connection.close()
    except StoreCorrupt as damage:
        return [str(damage)]


def _examined(connection: sqlite3.Connection, path: Path) -> list[str]:
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
    message = f"{place} is a database without tables of Millpond; no Millpond has opened it yet"
    return Refusal(Exit.STORE, message)


def risks(path: Path, version: tuple[int, ...]) -> Iterator[str]:
    """Yield what may go wrong one day, each with what to do about it."""
    if version < WAL_MENDED:
        found, mended = (".".join(map(str, one)) for one in (version, WAL_MENDED))
        yield (
            f"this Python uses SQLite {found}; before {mended} a checkpoint that runs beside a "
            "writer can, very rarely, damage a file. Millpond never lets that happen by itself; "
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
            "emptied; find out who holds one open"
        )


# A server


def of_server(url: str, address: Address) -> Findings:
    """Return what is to be said of a server and the tables there."""
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
            return Findings(store=place, wrong=[], risky=[], facts=facts, notes=[_OF_A_SUBMITTER])
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
    may = {"owner": "owns the store", "reader": "may read the store, and change nothing in it"}
    yield f"user {seen.user} {may.get(str(seen.role), 'has all rights that workers need')}"
    if not seen.sees_others:
        yield (
            "what sessions of other users do cannot be seen: "
            f"GRANT pg_read_all_stats TO {seen.user} lets it"
        )
    if seen.lock is not None:
        yield findings(seen.lock)
    dead = sum(table.dead for table in seen.tables)
    live, size = (sum(getattr(t, name) for t in seen.tables) for name in ("live", "bytes"))
    yield f"{live:,} rows and {dead:,} dead ones, {size / (1 << 20):,.1f} MiB with indexes"
    if seen.detours:
        told = ", ".join(f"{one.verb}: {one.reason} {one.count:,}" for one in seen.detours[:10])
        yield f"verbs that left the fast path: {told}"
    if not seen.pins:
        yield "nobody pins the horizon: dead rows can be removed"
        return
    oldest = seen.pins[0]
    age = "" if oldest.seconds is None else f", for {oldest.seconds:.1f} s"
    behind = "" if oldest.transactions is None else f", {oldest.transactions:,} transactions back"
    yield f"the horizon is pinned by {oldest.kind} {oldest.name} ({oldest.who}){age}{behind}"


def _say(line: str) -> None:
    sys.stdout.write(plain(line) + "\n")
