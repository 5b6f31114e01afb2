"""Disks that fill up or fail, and files that were cut off: a clear error, and nothing lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.sqlite.counting import Entries, adding, table, words

from millpond.core.errors import StoreFull
from millpond.store.sqlite.connect import Connection, connect
from millpond.store.sqlite.writer import Writer

LONG = "x" * 5000

WRITING = f"""
import sys
from pathlib import Path
from millpond.core.errors import StoreError
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.writer import Writer
from tests.store.sqlite.counting import Entries, adding, table, words

def story(path, worse, better):
    table(path)
    writer = Writer(path, lambda: connect(path), Entries)
    stored = [str(number) for number in range(20) if writer.do_now(adding(str(number)))]
    worse()
    errors = set()
    for number in range(2000):
        word = f"{{number}}{LONG}"
        try:
            writer.do_now(adding(word))
            stored.append(word)
        except StoreError as error:
            errors.add(type(error).__name__)
            if len(errors) and number > 100:
                break
    better()
    writer.do_now(adding("better"))
    writer.close()
    print(*sorted(errors), words(path) == [*stored, "better"])
"""

SMALL_DISK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, REC, PRIVATE = 0x20000, 16384, 1 << 18
folder = Path(sys.argv[1])
def must(done):
    if done != 0:
        print("cannot mount"); sys.exit()
must(libc.unshare(NEWNS))
must(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
must(libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=4m"))
filler = folder / "filler"
def fill():
    with filler.open("wb") as file:
        file.write(bytes(3 * 2**20))
story(folder / "work.db", fill, filler.unlink)
"""

LIMITED_FILES = """
import resource
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
story(Path(sys.argv[1]) / "work.db", lambda: limit(2**20), lambda: limit(resource.RLIM_INFINITY))
"""


def told(script: str, folder: Path) -> str:
    """What a process says that writes under a bad star."""
    done = subprocess.run(
        [sys.executable, "-c", WRITING + script, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if "cannot mount" in done.stdout:
        pytest.skip("this machine allows no mounts")
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs a disk to fill")
def test_a_full_disk_is_told_and_what_was_stored_stays(tmp_path: Path) -> None:
    """With room again it goes on, as if nothing had been."""
    assert "StoreFull True" == told(SMALL_DISK, tmp_path)


def test_a_disk_that_fails_is_told_and_what_was_stored_stays(tmp_path: Path) -> None:
    """The file may not grow any more, for a reason SQLite has no name for."""
    *errors, whole = told(LIMITED_FILES, tmp_path).split()
    assert "True" == whole
    assert errors
    assert set(errors) <= {"StoreFailing", "StoreFull", "OutcomeUnknown"}


def test_a_database_at_its_own_limit_is_full(tmp_path: Path) -> None:
    """The size limit of the database counts as its disk."""
    path = table(tmp_path / "work.db")

    def small() -> Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count=10")
        return connection

    writer = Writer(path, small, Entries)
    writer.do_now(adding("short"))
    with pytest.raises(StoreFull, match="cannot grow"):
        writer.do_now(adding(20 * LONG))
    assert 2 == writer.do_now(adding("short"))
    writer.close()


DYING = """
import os, sys
from pathlib import Path
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.writer import Writer
from tests.store.sqlite.counting import Entries, adding
path = Path(sys.argv[1])
writer = Writer(path, lambda: connect(path), Entries)
for number in range(20):
    writer.do_now(adding(str(number)))
os._exit(0)
"""


@pytest.mark.parametrize("missing", [0, 1, 100, 5000, 30_000])
def test_a_wal_cut_off_at_its_end_loses_only_that(tmp_path: Path, missing: int) -> None:
    """What is left is a beginning of what was, without a gap; the file opens and goes on."""
    path = table(tmp_path / "work.db")
    subprocess.run(
        [sys.executable, "-c", DYING, str(path)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    wal = path.with_name("work.db-wal")
    os.truncate(wal, wal.stat().st_size - missing)
    found = words(path)
    assert [str(number) for number in range(len(found))] == found
    assert (20 if missing == 0 else 12) <= len(found) <= (20 if missing == 0 else 19)
    writer = Writer(path, lambda: connect(path), Entries)
    assert len(found) + 1 == writer.do_now(adding("more"))
    writer.close()
