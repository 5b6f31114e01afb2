"""Opening the database: settings, and one clear error for each way it can go wrong."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.sqlite.counting import table

from millpond.errors import (
    ConfigError,
    NotADatabase,
    SQLiteTooOld,
    StoreCorrupt,
    StoreError,
    StoreFailing,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreNotWritable,
)
from millpond.store.sqlite import connect as connect_module
from millpond.store.sqlite.connect import begin, check_version, connect
from millpond.store.sqlite.errors import is_poisonous, translated


def setting(connection: sqlite3.Connection, name: str) -> object:
    """The value of a PRAGMA."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
def test_every_connection_has_the_same_settings(
    tmp_path: Path, durability: str, synchronous: int
) -> None:
    """WAL, no automatic checkpoint, no mmap; durability is how a commit reaches the disk."""
    connection = connect(tmp_path / "work.db", durability=durability)  # type: ignore[arg-type]
    found = [
        setting(connection, name)
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "mmap_size", "temp_store")
    ]
    connection.close()
    assert ["wal", synchronous, 0, 0, 2] == found


def test_transactions_are_begun_and_ended_by_hand(tmp_path: Path) -> None:
    """The driver begins nothing by itself, and the connection may move between threads."""
    connection = connect(tmp_path / "work.db")
    connection.execute("CREATE TABLE one (value)")
    connection.execute("INSERT INTO one VALUES (1)")
    assert not connection.in_transaction
    connection.close()


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    """Nothing is made for it either."""
    with pytest.raises(ConfigError, match="durability='fast'"):
        connect(tmp_path / "work.db", durability="fast")  # type: ignore[arg-type]
    assert [] == list(tmp_path.iterdir())


def test_a_name_with_odd_characters_is_a_name(tmp_path: Path) -> None:
    """What means something in SQLite's own URIs means nothing here."""
    path = tmp_path / "a b?mode=ro#c%41.db"
    connect(path).close()
    assert path.is_file()


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    """A process that died right after making the file has done no harm."""
    path = tmp_path / "work.db"
    path.touch()
    connect(path).close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """It is not made: a slip in a path should not leave folders about."""
    with pytest.raises(StoreMissing, match=r"folder .*/nowhere does not exist") as caught:
        connect(tmp_path / "nowhere" / "work.db")
    assert str(tmp_path / "nowhere" / "work.db") == caught.value.path
    assert [] == list(tmp_path.iterdir())


def test_a_missing_file_is_made_only_if_allowed(tmp_path: Path) -> None:
    """`create=False` is for callers that only read."""
    with pytest.raises(StoreMissing, match="no database at"):
        connect(tmp_path / "work.db", create=False)
    assert [] == list(tmp_path.iterdir())


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    """Nor is a socket or a device."""
    with pytest.raises(NotADatabase, match="not a file"):
        connect(tmp_path)


@pytest.mark.parametrize("content", ["hello", "not a database at all\n" * 1000])
def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """Short or long, it is refused and not touched."""
    path = tmp_path / "work.db"
    path.write_text(content)
    with pytest.raises(NotADatabase, match=f"{path} is not a SQLite database"):
        connect(path)
    assert content == path.read_text()


def test_a_damaged_database_is_found_when_it_is_opened(tmp_path: Path) -> None:
    """Its first page says that it is one, and the rest of it makes no sense."""
    path = table(tmp_path / "work.db")
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * 100 + content[200:])
    with pytest.raises(StoreCorrupt, match=f"{path} is damaged"):
        connect(path)


def test_a_database_kept_locked_is_given_up_after_a_while(tmp_path: Path) -> None:
    """Another process locks the file; the error says how long we waited."""
    path = table(tmp_path / "work.db")
    rude = sqlite3.connect(path, isolation_level=None)
    rude.execute("PRAGMA locking_mode=EXCLUSIVE")
    rude.execute("BEGIN IMMEDIATE")
    rude.execute("INSERT INTO entry (word) VALUES ('mine')")
    with pytest.raises(StoreLocked, match=f"{path} is locked") as caught:
        connect(path, patience=0.05)
    rude.close()
    assert caught.value.waited >= 0.05


def test_a_transaction_waits_for_that_of_another(tmp_path: Path) -> None:
    """And is given up after a while, with an error that names the file."""
    path = table(tmp_path / "work.db")
    first, second = connect(path), connect(path)
    second.execute("PRAGMA busy_timeout=0")
    begin(first, path)
    with pytest.raises(StoreLocked, match=str(path)):
        begin(second, path, patience=0.05)
    first.execute("ROLLBACK")
    begin(second, path, patience=0.05)
    second.execute("ROLLBACK")
    first.close()
    second.close()


def test_sqlite_must_know_returning() -> None:
    """The error names both versions."""
    check_version((3, 35, 0))
    with pytest.raises(SQLiteTooOld, match=r"3\.34\.1.*3\.35\.0") as caught:
        check_version((3, 34, 1))
    assert "3.34.1" == caught.value.found


# --- rights ----------------------------------------------------------------------------------

UNPRIVILEGED = 65534

TRY_TO_OPEN = f"""
import os, sys
from pathlib import Path
from millpond.errors import StoreError
from millpond.store.sqlite import connect as connect_module
from millpond.store.sqlite.connect import begin, connect
if os.geteuid() == 0:  # whom no mode binds
    os.setgroups([]); os.setgid({UNPRIVILEGED}); os.setuid({UNPRIVILEGED})
path = Path(sys.argv[1])
try:
    connection = connect(path, patience=0.1)
    begin(connection, path, patience=0.1)
    connection.execute("CREATE TABLE two (value)")
except StoreError as error:
    print(type(error).__name__, error.path, sep="|")
else:
    print("opened")
"""


def opened_by_a_user(path: Path) -> str:
    """What a user meets at `path`: this one, or one without rights if this is root."""
    done = subprocess.run(
        [sys.executable, "-c", TRY_TO_OPEN, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return done.stdout.strip()


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """Give a folder that all users may write in, below folders that all users may enter."""
    for folder in tmp_path.parents[: len(tmp_path.parents) - 2]:
        if folder.owner() == tmp_path.owner():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    tmp_path.chmod(0o1777)
    return tmp_path


def test_a_user_with_the_rights_may_open(open_folder: Path) -> None:
    """The trial below measures rights, and not something else."""
    assert "opened" == opened_by_a_user(open_folder / "work.db")


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_file_that_may_not_be_written_is_refused(open_folder: Path, mode: int) -> None:
    """Also one that may be read: WAL needs to write even for reading."""
    path = table(open_folder / "work.db")
    path.chmod(mode)
    assert f"StoreNotWritable|{path}" == opened_by_a_user(path)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_may_not_be_written_is_refused(open_folder: Path, mode: int) -> None:
    """A new file cannot be made in it, and an old one cannot have its WAL beside it."""
    path = table(open_folder / "work.db")
    path.chmod(0o666)
    open_folder.chmod(mode)
    assert f"StoreNotWritable|{path}" == opened_by_a_user(path)
    assert f"StoreNotWritable|{open_folder / 'new.db'}" == opened_by_a_user(open_folder / "new.db")
    open_folder.chmod(0o1777)


READ_ONLY_DISK = """
import sys
from pathlib import Path
from tests.mounts import mount_read_only
from millpond.errors import StoreError
from millpond.store.sqlite.connect import connect
mount_read_only(Path(sys.argv[1]))
for name in ("work.db", "new.db"):
    try:
        connect(Path(sys.argv[1]) / name, patience=0.1)
    except StoreError as error:
        print(type(error).__name__)
    else:
        print("opened")
"""


@pytest.mark.mounts
def test_a_disk_mounted_read_only_is_refused(tmp_path: Path) -> None:
    """Even root cannot write there."""
    table(tmp_path / "work.db")
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ["StoreNotWritable", "StoreNotWritable"] == done.stdout.split()


# --- the table of errors -----------------------------------------------------------------------


def spoken(code: int, name: str) -> sqlite3.Error:
    """An error as SQLite raises it."""
    error = sqlite3.OperationalError("said SQLite")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SQLITE_BUSY_SNAPSHOT", StoreLocked),
        ("SQLITE_LOCKED", StoreLocked),
        ("SQLITE_READONLY_DBMOVED", StoreNotWritable),
        ("SQLITE_PERM", StoreNotWritable),
        ("SQLITE_CANTOPEN", StoreNotWritable),
        ("SQLITE_NOTADB", NotADatabase),
        ("SQLITE_FULL", StoreFull),
        ("SQLITE_CORRUPT_INDEX", StoreCorrupt),
        ("SQLITE_IOERR_FSYNC", StoreFailing),
        ("SQLITE_PROTOCOL", StoreFailing),
        ("SQLITE_NOMEM", StoreFailing),
        ("SQLITE_CONSTRAINT_CHECK", StoreError),
    ],
)
def test_errors_of_sqlite_become_errors_of_millpond(
    tmp_path: Path, code: str, kind: type[StoreError]
) -> None:
    """Extended codes count as what they extend; the file and SQLite's own name are in the text."""
    path = tmp_path / "work.db"
    error = spoken(getattr(sqlite3, code), code)
    ours = translated(error, path)
    assert kind is type(ours)
    assert error is ours.__cause__
    assert str(path) == vars(ours)["path"]
    assert str(path) in str(ours)
    assert f"({code}: said SQLite)" in str(ours)


def test_a_disk_error_carries_the_name_sqlite_has_for_it(tmp_path: Path) -> None:
    """Reports about disks need it."""
    ours = translated(spoken(sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE"), tmp_path / "w.db")
    assert isinstance(ours, StoreFailing)
    assert "SQLITE_IOERR_WRITE" == ours.sqlite


def test_a_connection_is_not_trusted_after_some_errors() -> None:
    """A disk error spoils it, a broken constraint does not; nor does what is not SQLite's."""
    assert is_poisonous(spoken(sqlite3.SQLITE_IOERR_READ, "SQLITE_IOERR_READ"))
    assert is_poisonous(sqlite3.OperationalError("who knows"))
    assert not is_poisonous(spoken(sqlite3.SQLITE_CONSTRAINT, "SQLITE_CONSTRAINT"))
    assert not is_poisonous(ValueError("not SQLite's"))


def test_a_forked_child_does_not_close_its_parents_connection(tmp_path: Path) -> None:
    """Closing there would act on the parent's files without the parent's locks."""
    path = table(tmp_path / "work.db")
    connection = connect(path)
    begin(connection, path)
    connection.execute("INSERT INTO entry (word) VALUES ('ours')")
    child = os.fork()
    if child == 0:
        os._exit(0 if connection in connect_module._THE_PARENTS else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    other = connect(path)
    other.execute("PRAGMA busy_timeout=0")
    with pytest.raises(StoreLocked):
        begin(other, path, patience=0.0)
    connection.execute("COMMIT")
    assert [("ours",)] == other.execute("SELECT word FROM entry").fetchall()
    connection.close()
    other.close()
