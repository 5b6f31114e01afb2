"""A SQLite store where others can write: its files are private, theirs are not trusted."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond import Millpond
from millpond.cli.doctor import risks
from millpond.errors import UnsafePlace
from millpond.store import private_files
from millpond.store.private_files import made_private, opened, sharing_of

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-16")]

Give = Callable[[Path], None]
ANOTHER_USER = 12345


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Give what makes a file another user's: root gives it away, others become another user."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, ANOTHER_USER, ANOTHER_USER, follow_symlinks=False)
        else:
            mine = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: mine + 1)

    return give


def mode(path: Path) -> int:
    """The rights of a file."""
    return path.stat().st_mode & 0o777


def allow_all_users(folder: Path, rights: int = 0o1777) -> None:
    """Let all users make files in a folder, but not replace those of others, as in /tmp."""
    folder.chmod(rights)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder."""
    return list(folder.iterdir())


def store(path: Path) -> Millpond:
    """Return an application with a worker on a file."""
    mp = Millpond(f"sqlite:///{path}", work=True)
    mp.pool("p")
    return mp


async def test_all_files_of_a_store_are_private(tmp_path: Path) -> None:
    """Whatever the umask allows: payloads are in them."""
    before = os.umask(0)
    try:
        async with store(tmp_path / "work.db"):
            modes = {file.name: mode(file) for file in files_in(tmp_path)}
    finally:
        os.umask(before)
    folders = {name for name in modes if name.endswith(("-alive", "-wake"))}
    assert {"work.db-alive", "work.db-wake"} == folders
    assert {"work.db", "work.db-wal", "work.db-shm"} <= set(modes)
    assert dict.fromkeys(modes, 0o600) | dict.fromkeys(folders, 0o700) == modes


@pytest.mark.parametrize("ending", ["-alive", "-wake"])
async def test_a_folder_that_another_user_made_is_refused(
    tmp_path: Path, ending: str, give_away: Give
) -> None:
    """A stranger's lock files would bury workers that live."""
    folder = tmp_path / f"work.db{ending}"
    folder.mkdir(mode=0o700)
    give_away(folder)
    with pytest.raises(UnsafePlace, match=r"MILL-091.*remove it") as caught:
        async with store(tmp_path / "work.db"):
            pass
    assert str(folder) == caught.value.path


@pytest.mark.parametrize("ending", ["-writers", "-wal", "-shm", "-journal", "-alive", "-wake"])
async def test_a_symbolic_link_beside_a_store_is_refused(tmp_path: Path, ending: str) -> None:
    """What it points to is neither written nor locked."""
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / f"work.db{ending}").symlink_to(target)
    with pytest.raises(UnsafePlace, match="symbolic link"):
        async with store(tmp_path / "work.db"):
            pass
    assert "precious" == target.read_text()


@pytest.mark.parametrize("ending", ["-writers", "-wal"])
async def test_a_file_that_another_user_made_is_refused(
    tmp_path: Path, ending: str, give_away: Give
) -> None:
    """Its owner could keep the store from being written, or write it."""
    file = tmp_path / f"work.db{ending}"
    file.touch(0o600)
    give_away(file)
    with pytest.raises(UnsafePlace, match="belongs to user"):
        async with store(tmp_path / "work.db"):
            pass


async def test_a_folder_in_which_all_users_may_rename_is_refused(tmp_path: Path) -> None:
    """With the sticky bit, as /tmp has it, it is fine."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UnsafePlace, match="chmod o-w"):
        async with store(folder / "work.db"):
            pass
    folder.chmod(0o1777)
    async with store(folder / "work.db"):
        pass


@pytest.mark.parametrize("rights", [0o777, 0o2777])
async def test_a_volume_open_to_all_users_is_used_with_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rights: int,
) -> None:
    """As Kubernetes makes an emptyDir; with fsGroup it has the setgid bit, too."""
    allow_all_users(tmp_path, rights)
    monkeypatch.setattr(private_files, "is_volume", lambda folder: folder == tmp_path)
    async with store(tmp_path / "work.db"):
        pass
    assert 0o600 == mode(tmp_path / "work.db")
    assert 1 == sum("chmod o-w" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("beside", ["", "-alive", "-writers"])
async def test_a_stranger_in_a_volume_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_away: Give, beside: str
) -> None:
    """Another user made the store there, or a file beside it."""
    found = tmp_path / f"work.db{beside}"
    if beside == "-alive":
        found.mkdir(0o700)
    else:
        found.touch(0o600)
    give_away(found)
    allow_all_users(tmp_path, 0o777)
    monkeypatch.setattr(private_files, "is_volume", lambda _: True)
    with pytest.raises(UnsafePlace, match="belongs to user"):
        async with store(tmp_path / "work.db"):
            raise AssertionError


def test_a_volume_is_what_is_mounted(tmp_path: Path) -> None:
    """An ordinary folder is no volume."""
    assert private_files.is_volume(Path("/"))
    assert not private_files.is_volume(tmp_path)


async def test_a_database_of_before_that_others_may_read_is_used(tmp_path: Path) -> None:
    """It keeps its mode, and doctor names it."""
    path = tmp_path / "work.db"
    async with store(path):
        pass
    path.chmod(0o644)
    async with store(path):
        pass
    assert 0o644 == mode(path)
    assert [one for one in risks(path, (9, 9, 9)) if "chmod 600" in one]


@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
async def test_a_store_that_another_user_made_in_an_open_folder_is_refused(
    tmp_path: Path, give_away: Give, *, link: bool
) -> None:
    """In a folder like /tmp the store may belong to a stranger, who could read the payloads."""
    path, elsewhere = tmp_path / "work.db", tmp_path / "elsewhere.db"
    if link:
        path.symlink_to(elsewhere)
    else:
        path.touch(0o666)
    give_away(path)
    allow_all_users(tmp_path)
    with pytest.raises(UnsafePlace, match="any user may make files"):
        async with store(path):
            raise AssertionError
    assert not elsewhere.exists()


async def test_users_of_one_group_may_share_a_store(tmp_path: Path, give_away: Give) -> None:
    """Where the database may be written by its group, a member's files beside it are trusted."""
    path = tmp_path / "work.db"
    async with store(path):
        pass
    path.chmod(0o660)
    folder = tmp_path / "work.db-alive"
    group = path.stat().st_gid
    give_away(folder)
    if os.geteuid() == 0:
        os.chown(folder, ANOTHER_USER, group)
    async with store(path):
        pass


def test_a_file_is_checked_by_its_descriptor(tmp_path: Path, give_away: Give) -> None:
    """The name may be changed between the check and the opening."""
    file = tmp_path / "lock"
    os.close(opened(file, os.O_RDWR | os.O_CREAT, sharing_of(tmp_path / "none")))
    assert 0o600 == mode(file)
    assert not made_private(file)
    file.chmod(0o666)
    with pytest.raises(UnsafePlace, match="may be written by users"):
        opened(file, os.O_RDWR, sharing_of(tmp_path / "none"))
    file.chmod(0o600)
    give_away(file)
    with pytest.raises(UnsafePlace, match="belongs to user"):
        opened(file, os.O_RDWR, sharing_of(tmp_path / "none"))


def test_doctor_says_that_others_may_read_a_store(tmp_path: Path) -> None:
    """Such as a store of an older release, or one whose mode an operator changed."""
    path = tmp_path / "work.db"
    path.touch(0o600)
    assert not any("payloads" in line for line in risks(path, (9, 9, 9)))
    path.chmod(0o644)
    (said,) = risks(path, (9, 9, 9))
    assert "chmod 600" in said
