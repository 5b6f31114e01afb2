"""What disks do: they fill up, tear the last writes and lose files; and processes are killed."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.store.sqlite.disk import stored

from millpond.errors import StoreError, StoreLocked, StoreMissing
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.transactions import SqliteTransactor
from millpond.testing.conformance.lab import Lab

ALL = os.environ.get("FAULTS") == "all"

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork as on Linux")


def process(*words: object) -> list[str]:
    """Run a process of `disk` to its end; return what it said, line by line."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.sqlite.disk", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))},  # noqa: PTH109
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.rows("HN-21")
@pytest.mark.mounts
def test_a_full_disk_is_an_error_until_there_is_room(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing refused is stored, reading goes on."""
    said = ["StoreFull True True", *["StoreFull"] * 3, "True", "True"]
    assert said == process("fill", tmp_path)


@pytest.mark.rows("HN-21", "TRAP-10", "DE-T24")
@linux
def test_processes_killed_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    """Even after a kill during a commit the next process finds each acknowledged task."""
    assert ["True True"] == process("kill", tmp_path / "work.db", 400 if ALL else 12, 7)


# --- torn ends ----------------------------------------------------------------------------------


class Torn:
    """A file as a crash leaves it: its last commits are in the WAL only."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._copies = folder, 0
        self.commits: list[tuple[int, int]] = []
        """How long the WAL was after each task was acknowledged."""
        asyncio.run(self._make())

    async def _make(self) -> None:
        path = self._folder / "work.db"
        store = SqliteStore(path, durability="normal", inline=True)
        lab = await Lab.around(store)
        await lab.declare()
        self.first = self._wal(path).stat().st_size
        for _ in range(6):
            task = await lab.put()
            self.commits.append((self._wal(path).stat().st_size, task))
        shutil.copy(path, self._folder / "crashed.db")
        shutil.copy(self._wal(path), self._folder / "crashed.db-wal")
        await store.close()
        self.wal = (self._folder / "crashed.db-wal").read_bytes()

    @staticmethod
    def _wal(path: Path) -> Path:
        return path.with_name(f"{path.name}-wal")

    def with_wal(self, wal: bytes) -> set[int]:
        """Open a copy with this WAL and use it; return the tasks found in it."""
        self._copies += 1
        path = self._folder / f"copy{self._copies}.db"
        shutil.copy(self._folder / "crashed.db", path)
        self._wal(path).write_bytes(wal)
        found = stored(path)

        async def use() -> None:
            store = SqliteStore(path, durability="normal", inline=True)
            lab = Lab(store, now=5000.0)
            lab._serial = 1 << 50
            assert await lab.put()
            assert await lab.lease()
            await store.close()

        asyncio.run(use())
        assert len(stored(path)) == len(found) + 1
        return found

    def before(self, place: int) -> set[int]:
        """Return the tasks of commits that were whole at this length of the WAL."""
        return {task for size, task in self.commits if size <= place}


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Torn:
    """A file that was in use when its process was killed."""
    return Torn(tmp_path_factory.mktemp("torn"))


STEP = 397 if ALL else 3001


@pytest.mark.rows("TRAP-10", "HN-21")
def test_a_wal_that_was_cut_off_has_every_commit_before_the_cut(torn: Torn) -> None:
    """And nothing of the one that was cut."""
    ends = [size for size, _ in torn.commits]
    near = [end + offset for end in ends for offset in (-1, 0, 1)]
    for cut in sorted({*range(torn.first, len(torn.wal), STEP), *near}):
        assert torn.before(cut) == torn.with_wal(torn.wal[:cut]), cut


@pytest.mark.rows("TRAP-10")
def test_garbage_at_the_end_of_a_wal_is_passed_over(torn: Torn) -> None:
    """Whatever a disk wrote there last."""
    for place in range(torn.first, len(torn.wal), STEP * 2):
        spoilt = torn.wal[:place] + os.urandom(64) + torn.wal[place + 64 :]
        assert torn.before(place) == torn.with_wal(spoilt), place
    everything = torn.before(len(torn.wal))
    assert everything == torn.with_wal(torn.wal + os.urandom(5000))


def test_the_index_of_a_wal_can_be_made_again(torn: Torn, tmp_path: Path) -> None:
    """The -shm file is worth nothing after a crash: it may be missing, or be nonsense."""
    assert torn.before(len(torn.wal)) == torn.with_wal(torn.wal)
    path = tmp_path / "work.db"
    for suffix, source in (("", "crashed.db"), ("-wal", "crashed.db-wal")):
        shutil.copy(torn._folder / source, f"{path}{suffix}")
    Path(f"{path}-shm").write_bytes(os.urandom(32768))
    assert torn.before(len(torn.wal)) == stored(path)


# --- others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.real_loop
async def test_a_transaction_of_another_program_is_waited_for(tmp_path: Path, mode: str) -> None:
    """As long as it does not take too long."""
    path = tmp_path / "work.db"
    store = SqliteStore(path, durability="normal")
    lab = await Lab.around(store)
    await lab.declare()
    foreign = connect(path)
    foreign.execute(f"BEGIN {mode}")
    threading.Timer(0.3, lambda: foreign.execute("COMMIT")).start()
    tasks = await asyncio.gather(*(lab.put() for _ in range(5)))
    await store.close()
    foreign.close()
    assert set(tasks) == stored(path)


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.real_loop
async def test_a_transaction_that_does_not_end_is_an_error(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller gets the error, nothing is stored, and later submits succeed."""
    path = tmp_path / "work.db"
    impatient = partial(SqliteTransactor, patience=0.2)
    monkeypatch.setattr("millpond.store.sqlite.store.SqliteTransactor", impatient)
    store = SqliteStore(path, durability="normal")
    lab = await Lab.around(store)
    await lab.declare()
    foreign = connect(path)
    foreign.execute(f"BEGIN {mode}")
    errors = await asyncio.gather(*(lab.put() for _ in range(5)), return_exceptions=True)
    assert [StoreLocked] * 5 == [type(one) for one in errors]
    assert all("end it" in str(one) for one in errors)
    assert 0 == (await lab.pool()).queued
    foreign.execute("ROLLBACK")
    task = await lab.put()
    await store.close()
    foreign.close()
    assert {task} == stored(path)


def delete(path: Path) -> None:
    """Delete a database with all that is beside it."""
    for beside in path.parent.glob(f"{path.name}*"):
        beside.unlink()


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
@pytest.mark.real_loop
async def test_a_file_deleted_under_us_is_found_out(tmp_path: Path, replaced: bool) -> None:
    """A task stored after that is lost: no other process will ever see it."""
    path = tmp_path / "work.db"
    store = SqliteStore(path, durability="normal")
    lab = await Lab.around(store)
    await lab.declare()
    await lab.put()
    delete(path)
    if replaced:
        connect(path).close()
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await lab.put()
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, StoreMissing) or replaced
    assert replaced == path.exists()
    await store.close()
