"""Checkpoints: they bound the size of the WAL, whatever reads and writes go on."""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.sqlite.counting import Entries, adding, table

from millpond.store.sql.writer import Writer
from millpond.store.sqlite import checkpoint as checkpoint_module
from millpond.store.sqlite.checkpoint import Checkpointer
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.transactions import SqliteTransactor

LARGE = 64 * 1024


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as large is small here."""
    monkeypatch.setattr(checkpoint_module, "LARGE", LARGE)
    monkeypatch.setattr(checkpoint_module, "HUGE", 4 * LARGE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table to write to."""
    return table(tmp_path / "work.db")


@pytest.fixture
def writer(path: Path) -> Iterator[Writer[Entries]]:
    """A writer that needs no disk."""
    opening = lambda: connect(path, durability="normal")
    one = Writer(SqliteTransactor(path, opening, Entries))
    yield one
    one.close()


def wal(path: Path) -> int:
    """Bytes of WAL."""
    return path.with_name(f"{path.name}-wal").stat().st_size


def reading(path: Path) -> sqlite3.Connection:
    """A connection in the middle of a transaction that reads."""
    reader = connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entry").fetchone()
    return reader


PAGE = "x" * 4000


def test_a_large_wal_is_emptied_by_the_writer(path: Path, writer: Writer[Entries]) -> None:
    """It does so between two groups; the pages are in the database then."""
    highest = 0
    for _ in range(200):
        writer.do_now(adding(PAGE))
        highest = max(highest, wal(path))
    assert LARGE / 2 < highest < 3 * LARGE
    assert 201 == writer.do_now(adding(PAGE))


def test_readers_that_come_and_go_do_not_stop_checkpoints(
    path: Path, writer: Writer[Entries]
) -> None:
    """There is always one that reads, and none that reads for long."""
    over = threading.Event()
    reads = [0, 0]

    def reading_on(number: int) -> None:
        reader = connect(path)
        while not over.is_set():
            reader.execute("BEGIN")
            for _ in range(3):
                reader.execute("SELECT count(*), sum(length(word)) FROM entry").fetchone()
            reader.execute("COMMIT")
            reads[number] += 1
        reader.close()

    threads = [threading.Thread(target=reading_on, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    highest = 0
    for _ in range(250):
        writer.do_now(adding(PAGE))
        highest = max(highest, wal(path))
    over.set()
    for thread in threads:
        thread.join()
    assert min(reads) > 0
    # All of it would be more than 2 MiB.
    assert highest < 1024 * 1024


def test_a_reader_without_a_pause_does_not_stop_checkpoints(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the WAL each time SQLite checks, but each time at a later place."""
    monkeypatch.setattr(checkpoint_module, "_WAIT", 3.0)
    monkeypatch.setattr(checkpoint_module, "_WAIT_LONG", 3.0)
    over = threading.Event()

    def reading_on() -> None:
        reader = connect(path)
        while not over.is_set():
            reader.execute("SELECT count(*), sum(length(word)) FROM entry").fetchone()
        reader.close()

    connection, checkpointer = connect(path, durability="normal"), Checkpointer(path)
    thread = threading.Thread(target=reading_on)
    thread.start()
    emptied = []
    for _ in range(5):
        for _ in range(30):
            connection.execute("INSERT INTO entry (word) VALUES (?)", (PAGE,))
        emptied.append(checkpointer.checkpoint(connection))
    over.set()
    thread.join()
    connection.close()
    assert [True] * 5 == emptied


def filled(path: Path, connection: sqlite3.Connection, pages: int) -> sqlite3.Connection:
    """Fill the WAL behind the back of a reader, which is returned."""
    connection.execute("INSERT INTO entry (word) VALUES ('first')")
    reader = reading(path)
    for _ in range(pages):
        connection.execute("INSERT INTO entry (word) VALUES (?)", (PAGE,))
    return reader


def test_a_reader_that_stays_is_reported_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be done about it but to say so; when it leaves, the WAL is emptied."""
    monkeypatch.setattr(checkpoint_module, "_WAIT_LONG", 0.001)
    monkeypatch.setattr(checkpoint_module, "_AGAIN_AFTER", 0.0)
    connection = connect(path)
    reader = filled(path, connection, 100)
    checkpointer = Checkpointer(path)
    with caplog.at_level(logging.WARNING):
        assert [False] * 3 == [checkpointer.checkpoint(connection) for _ in range(3)]
    assert 1 == len([record for record in caplog.records if "cannot be emptied" in record.message])
    reader.close()
    assert checkpointer.due()
    assert checkpointer.checkpoint(connection)
    assert 0 == wal(path)
    assert not checkpointer.due()
    connection.close()


def test_a_refused_try_is_not_repeated_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in the way costs a try now and then, not one per commit."""
    monkeypatch.setattr(checkpoint_module, "_WAIT", 0.001)
    monkeypatch.setattr(checkpoint_module, "_WAIT_LONG", 0.001)
    connection = connect(path)
    reader = filled(path, connection, 30)
    checkpointer = Checkpointer(path)
    assert checkpointer.due()
    assert not checkpointer.checkpoint(connection)
    refused = wal(path)
    assert refused > LARGE
    tries = []
    while wal(path) < refused + 2 * LARGE:
        connection.execute("INSERT INTO entry (word) VALUES ('more')")
        if checkpointer.due():
            tries.append(wal(path) - refused)
            checkpointer.checkpoint(connection)
    assert 2 >= len(tries)
    assert tries[0] >= LARGE
    reader.close()
    connection.close()


def test_a_wal_that_another_process_emptied_is_left_alone(path: Path) -> None:
    """Two processes see a large WAL; the second to get the lock finds a small one."""
    connection = connect(path)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    assert Checkpointer(path).checkpoint(connection)
    assert [] == statements
    connection.close()


def test_a_checkpoint_that_fails_is_logged_and_no_more(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The commits are safe in the WAL; the writer goes on."""
    connection = connect(path)
    for _ in range(30):
        connection.execute("INSERT INTO entry (word) VALUES (?)", (PAGE,))
    connection.execute("BEGIN IMMEDIATE")  # a checkpoint in a transaction is refused
    assert not Checkpointer(path).checkpoint(connection)
    assert "checkpoint" in caplog.text
    connection.close()
