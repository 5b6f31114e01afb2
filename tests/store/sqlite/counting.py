"""A tiny unit of work over one table of its own: what tests of the writer write."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from millpond.store.sqlite.connect import connect


class Entries:
    """Gathers words and writes them at the end, as the store's own unit does with rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.added: list[str] = []

    def add(self, word: str) -> int:
        """Add a word; answer how many there are with it."""
        self.added.append(word)
        known: int = self.connection.execute("SELECT count(*) FROM entry").fetchone()[0]
        return known + len(self.added)

    def committed(self) -> None:
        """Hear that it is stored."""

    def write(self) -> None:
        """Send the words to the database."""
        self.connection.executemany(
            "INSERT INTO entry (word) VALUES (?)", [(word,) for word in self.added]
        )


def adding(word: str) -> Callable[[Entries], int]:
    """A job that adds a word."""
    return lambda unit: unit.add(word)


def table(path: Path) -> Path:
    """Make a database with the table in it."""
    connection = connect(path)
    connection.execute("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, word TEXT)")
    connection.close()
    return path


def words(path: Path) -> list[str]:
    """What another connection finds in the table, in order."""
    connection = connect(path)
    try:
        return [word for (word,) in connection.execute("SELECT word FROM entry ORDER BY id")]
    finally:
        connection.close()
