"""Migrations: each once, whole, in order; and files that are not ours to change are not changed."""

import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import MigrationNeeded, SchemaChanged, SchemaTooNew, StoreError
from millpond.store.sqlite.connect import begin, connect
from millpond.store.sqlite.migrate import Migration, known_migrations, migrate, statements
from millpond.store.sqlite.store import SqliteStore

ROOT = Path(__file__).parents[3]

FIRST = Migration(1, "first", "CREATE TABLE one (value);")
SECOND = Migration(2, "second", "ALTER TABLE one ADD COLUMN more; CREATE TABLE two (value);")
BROKEN = Migration(2, "broken", "CREATE TABLE two (value); CREATE TABLE one (value);")


def tables(path: Path) -> list[str]:
    """The tables in the file, by name."""
    connection = connect(path)
    try:
        question = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        return [name for (name,) in connection.execute(question)]
    finally:
        connection.close()


def migrated(path: Path, *migrations: Migration, allowed: bool = True) -> int:
    """Open, migrate, close; return the version in force."""
    connection = connect(path)
    try:
        return migrate(connection, path, migrations=migrations, allowed=allowed)
    finally:
        connection.close()


def test_a_new_file_gets_all_migrations_in_order(tmp_path: Path) -> None:
    """It records each with its digest."""
    path = tmp_path / "work.db"
    assert 2 == migrated(path, FIRST, SECOND)
    assert ["millpond_schema", "one", "two"] == tables(path)
    connection = connect(path)
    noted = connection.execute("SELECT version, name, digest FROM millpond_schema").fetchall()
    connection.close()
    assert [(1, "first", FIRST.digest), (2, "second", SECOND.digest)] == noted


def test_an_older_file_gets_only_the_missing_migrations(tmp_path: Path) -> None:
    """The rows in its tables stay."""
    path = tmp_path / "work.db"
    migrated(path, FIRST)
    connection = connect(path)
    connection.execute("INSERT INTO one VALUES (7)")
    connection.close()
    assert 2 == migrated(path, FIRST, SECOND)
    connection = connect(path)
    assert [(7, None)] == connection.execute("SELECT * FROM one").fetchall()
    connection.close()


def test_a_file_that_is_up_to_date_is_only_read(tmp_path: Path) -> None:
    """So opening does not wait for another process that writes."""
    path = tmp_path / "work.db"
    migrated(path, FIRST)
    writer = connect(path)
    begin(writer, path)
    assert 1 == migrated(path, FIRST)
    assert 1 == migrated(path, FIRST, allowed=False)
    writer.close()


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Not even the statements before the one that failed."""
    path = tmp_path / "work.db"
    migrated(path, FIRST)
    with pytest.raises(StoreError, match="table one already exists"):
        migrated(path, FIRST, BROKEN)
    assert ["millpond_schema", "one"] == tables(path)
    assert 2 == migrated(path, FIRST, SECOND)


@pytest.mark.parametrize("crash", [lambda path: path.touch(), lambda path: connect(path).close()])
def test_a_half_created_file_opens_fine(tmp_path: Path, crash: Callable[[Path], None]) -> None:
    """A process that died between making the file and filling it has done no harm."""
    path = tmp_path / "work.db"
    crash(path)
    assert 1 == migrated(path, FIRST)


def test_migrating_can_be_forbidden(tmp_path: Path) -> None:
    """The error names both versions, and nothing is changed."""
    path = tmp_path / "work.db"
    with pytest.raises(MigrationNeeded, match="has no tables of Millpond and this") as caught:
        migrated(path, FIRST, SECOND, allowed=False)
    assert (0, 2) == (caught.value.found, caught.value.needed)
    assert [] == tables(path)
    migrated(path, FIRST)
    with pytest.raises(MigrationNeeded, match="has schema 1 and this release needs schema 2"):
        migrated(path, FIRST, SECOND, allowed=False)
    assert ["millpond_schema", "one"] == tables(path)


def test_a_store_that_may_not_migrate_makes_no_file(tmp_path: Path) -> None:
    """Nor a journal beside it."""
    with pytest.raises(MigrationNeeded, match="migrate=False"):
        SqliteStore(tmp_path / "work.db", may_migrate=False, inline=True)
    assert [] == list(tmp_path.iterdir())


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """An older release does not touch what it does not know."""
    path = tmp_path / "work.db"
    migrated(path, FIRST, SECOND)
    with pytest.raises(SchemaTooNew, match=r"schema 2.*none above 1") as caught:
        migrated(path, FIRST)
    assert (2, 1) == (caught.value.found, caught.value.known)
    assert ["millpond_schema", "one", "two"] == tables(path)


def test_a_migration_that_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    """Its number says the same and its text does not: the tables are not what they seem."""
    path = tmp_path / "work.db"
    migrated(path, FIRST)
    other = Migration(1, "first", "CREATE TABLE one (value, other);")
    with pytest.raises(SchemaChanged, match="migration 1") as caught:
        migrated(path, other, SECOND)
    assert 1 == caught.value.version
    assert ["millpond_schema", "one"] == tables(path)


def test_the_users_own_tables_are_left_alone(tmp_path: Path) -> None:
    """Users keep their own data in the same file."""
    path = tmp_path / "work.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name)")
    connection.execute("INSERT INTO customers VALUES ('acme')")
    connection.commit()
    connection.close()
    migrated(path, FIRST)
    assert ["customers", "millpond_schema", "one"] == tables(path)


def test_of_many_that_open_at_once_one_migrates(tmp_path: Path) -> None:
    """The others wait and find it done; none fails."""
    path = tmp_path / "work.db"
    together = threading.Barrier(6)
    found: list[object] = []

    def opening() -> None:
        together.wait()
        try:
            found.append(migrated(path, FIRST, SECOND))
        except Exception as error:  # noqa: BLE001 - the thread has no caller
            found.append(error)

    threads = [threading.Thread(target=opening) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [2] * 6 == found


OPENING = """
import sys
from pathlib import Path
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.migrate import migrate
path = Path(sys.argv[1])
input()
print(migrate(connect(path), path))
"""


def test_processes_that_open_at_once_all_succeed(tmp_path: Path) -> None:
    """One switches the file to WAL and migrates it while the others open it."""
    path = tmp_path / "work.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    versions = [process.communicate(timeout=30)[0].strip() for process in processes]
    assert [str(known_migrations()[-1].version)] * 4 == versions


# --- the files -----------------------------------------------------------------------------------


def test_our_migrations_are_numbered_without_gaps() -> None:
    """And the first is tagged: the tests of later upgrades start from it."""
    known = known_migrations()
    assert list(range(1, len(known) + 1)) == [migration.version for migration in known]
    assert "-- schema-1" == known[0].text.splitlines()[0]


def test_our_tables_carry_our_name(tmp_path: Path) -> None:
    """So that they never meet a user's."""
    path = tmp_path / "work.db"
    migrated(path, *known_migrations())
    assert [] == [name for name in tables(path) if not name.startswith("millpond_")]


def test_the_migrations_are_in_the_wheel(tmp_path: Path) -> None:
    """A store that cannot make its tables is found out on another machine otherwise."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "src/millpond/store"
    wanted = {file.relative_to(ROOT / "src").as_posix() for file in folder.rglob("*.sql")}
    assert wanted
    assert wanted <= shipped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A; B;", ["A;", "B;"]),
        ("A;\n-- over; and out\n", ["A;"]),
        ("A;\nB", ["A;", "B"]),
        ("-- one; two\nA;", ["-- one; two\nA;"]),
        ("INSERT INTO t VALUES ('a;b');", ["INSERT INTO t VALUES ('a;b');"]),
        ("/* x; y */ A;", ["/* x; y */ A;"]),
        (
            "CREATE TRIGGER t AFTER INSERT ON x BEGIN DELETE FROM y; DELETE FROM z; END; A;",
            ["CREATE TRIGGER t AFTER INSERT ON x BEGIN DELETE FROM y; DELETE FROM z; END;", "A;"],
        ),
    ],
)
def test_statements_end_where_sqlite_says(text: str, expected: list[str]) -> None:
    """A semicolon in a literal, a comment or a trigger's body is no end."""
    assert expected == list(statements(text))
