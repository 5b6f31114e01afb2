"""Where the file is: behind links, for a process that goes elsewhere, and once it is gone."""

from pathlib import Path

import pytest

from millpond.core.control import Register
from millpond.errors import StoreMissing
from millpond.store.sqlite import SqliteStore, checkpoint
from millpond.store.sqlite.connect import connect
from millpond.testing.conformance.lab import Lab

pytestmark = pytest.mark.real_loop


def names_in(folder: Path) -> list[str]:
    """Return the names of what is in a folder."""
    return [file.name for file in folder.iterdir()]


async def test_a_process_may_change_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened later, such as for renewals, is the same file."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    store = SqliteStore(Path("work.db"), owner="me")
    monkeypatch.chdir(there)
    await store.control(Register("me/1", 30.0, "me"))
    renewer = store.renewer()

    assert renewer.renew("me/1", 30.0).alive

    renewer.close()
    await store.close()
    assert [] == names_in(there)


async def test_a_link_leads_to_the_files_beside_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that opens the link shares the writers' lock and the WAL with the others."""
    monkeypatch.setattr(checkpoint, "LARGE", 64 * 1024)
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    store = SqliteStore(link, durability="normal", owner="me")
    lab = await Lab.around(store)
    await lab.declare()
    for _ in range(100):
        await lab.put(options=bytes(1000))
    wal = (tmp_path / "real.db-wal").stat().st_size
    await store.close()

    assert 200 * 1024 > wal
    assert ["link.db"] == [name for name in names_in(tmp_path) if name.startswith("link")]


async def test_a_removed_file_takes_no_writes_and_is_not_made_again(
    tmp_path: Path,
) -> None:
    """No other process would ever find a task written to it."""
    store = SqliteStore(tmp_path / "work.db", owner="me")
    lab = await Lab.around(store)
    await lab.declare()
    for name in ("work.db", "work.db-wal", "work.db-shm"):
        (tmp_path / name).unlink()

    with pytest.raises(StoreMissing, match="was removed while it was open"):
        await lab.put()
    with pytest.raises(StoreMissing):
        await store.view.pool("pool")
    with pytest.raises(StoreMissing):
        store.renewer().renew("me/1", 30.0)

    await store.close()
    assert "work.db" not in names_in(tmp_path)


async def test_a_file_that_replaced_the_store_is_used(tmp_path: Path) -> None:
    """Such as a backup: other processes that open it find all later writes."""
    path, backup = tmp_path / "work.db", tmp_path / "backup.db"
    store = SqliteStore(path, owner="me")
    lab = await Lab.around(store)
    await lab.declare()
    copied = connect(path)
    copied.execute("VACUUM INTO ?", (str(backup),))
    copied.close()
    lost = await lab.put()
    for name in ("work.db", "work.db-wal", "work.db-shm"):
        (tmp_path / name).unlink()
    backup.rename(path)
    kept = await lab.put()

    assert ("unknown", "queued") == await store.view.status((lost, kept))

    other = SqliteStore(path, owner="you")
    assert ("unknown", "queued") == await other.view.status((lost, kept))
    await other.close()
    await store.close()
