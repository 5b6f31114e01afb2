"""`millpond doctor URL`: looks at a store, and says what is wrong or risky and what to do."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from typing import TYPE_CHECKING

from millpond.cli.exits import Exit, Refusal
from millpond.cli.plain import plain
from millpond.core.errors import MigrationNeeded, MillpondError, StoreCorrupt
from millpond.store.sqlite.connect import connect_to_look
from millpond.store.sqlite.errors import DATABASE_ERRORS, translated
from millpond.store.sqlite.migrate import migrate
from millpond.store.sqlite.recount import check_tables
from millpond.store.sqlite.url import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

WAL_MENDED = (3, 51, 3)
"""The first SQLite in which a checkpoint cannot race with a writer that begins the WAL anew."""

LARGE_WAL = 64 << 20


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(
        prog="millpond doctor",
        description="Look at a store and say what is wrong or risky, and what to do. It reads "
        "every row and changes nothing. Exit code 0: nothing is wrong; 1: something is.",
        allow_abbrev=False,
    )
    options.add_argument(
        "store", metavar="STORE", help="where the pools are kept, such as sqlite:///work.db"
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Look, tell, and return 1 if something is wrong."""
    asked = parser().parse_args(arguments)
    try:
        path = path_of(asked.store).absolute()
        wrong = examined(path)
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from error
    for line in wrong:
        _say(f"wrong: {line}")
    for line in risks(path, sqlite3.sqlite_version_info):
        _say(f"risky: {line}")
    if not wrong:
        _say(f"{path}: every row fits together")
    return Exit.BROKE if wrong else Exit.CLEAN


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
        message = f"{path} is a database without tables of Millpond; no Millpond has opened it yet"
        raise Refusal(Exit.STORE, message) from error
    try:
        connection.execute("BEGIN")
        return check_tables(connection)
    except DATABASE_ERRORS as error:
        raise translated(error, path) from error


def risks(path: Path, version: tuple[int, ...]) -> Iterator[str]:
    """Yield what may go wrong one day, each with what to do about it."""
    if version < WAL_MENDED:
        found, mended = (".".join(map(str, one)) for one in (version, WAL_MENDED))
        yield (
            f"this Python uses SQLite {found}; before {mended} a checkpoint that runs beside a "
            "writer can, very rarely, damage a file. Millpond never lets that happen by itself; "
            "your own connections to the file should set PRAGMA wal_autocheckpoint=0"
        )
    wal = f"{path}-wal"
    size = os.stat(wal).st_size if os.path.exists(wal) else 0  # noqa: PTH110, PTH116
    if size >= LARGE_WAL:
        yield (
            f"{wal} has {size >> 20} MiB: a transaction that reads for long keeps it from being "
            "emptied; find out who holds one open"
        )


def _say(line: str) -> None:
    sys.stdout.write(plain(line) + "\n")
