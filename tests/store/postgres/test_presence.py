"""Where workers of one host see each other on PostgreSQL: only in a folder that is theirs alone."""

import os
import tempfile
from pathlib import Path

import pytest

from millpond.store.postgres.presence import presence_of
from millpond.store.sqlite.presence import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="there are no such locks here")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that would be used, in a temporary one that others can write."""
    tmp_path.chmod(0o777)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"millpond-{os.geteuid()}"


@pytest.mark.rows("TR-06")
def test_a_folder_is_made_that_only_this_user_can_enter(place: Path) -> None:
    """Two stores of one server see each other there, and those of another do not."""
    one, same, other = presence_of("store"), presence_of("store"), presence_of("another")
    assert one is not None
    assert same is not None
    assert other is not None
    one.appear("me")
    assert 0o700 == place.stat().st_mode & 0o777
    assert (True, False) == (same.is_alive("me"), other.is_alive("me"))
    one.leave("me")
    assert not same.is_alive("me")


@pytest.mark.rows("TR-06")
def test_a_link_that_another_user_made_is_not_followed(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would lead to lock files of a stranger; leases then show which workers are gone."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    assert presence_of("store") is None
    assert "it is not a private folder" in caplog.text
    assert "when its lease expires" in caplog.text


@pytest.mark.rows("TR-06")
@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750])
def test_a_folder_that_others_can_enter_is_not_used(place: Path, mode: int) -> None:
    """Any user who can write there could free or hold the locks of others."""
    place.mkdir()
    place.chmod(mode)
    assert presence_of("store") is None


@pytest.mark.rows("TR-06")
def test_a_folder_of_another_user_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other user made it under our name before we did."""
    place.mkdir(mode=0o700)
    ours = os.geteuid()
    first = iter([ours])
    # The name is made from our own number; the folder turns out to be of another.
    monkeypatch.setattr(os, "geteuid", lambda: next(first, ours + 1))
    assert presence_of("store") is None
