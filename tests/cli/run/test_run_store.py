"""Where runs are kept, for how long, and which of them is resumed."""

import os
import shutil
from pathlib import Path

import pytest

from millpond.cli.exits import Exit, Refusal
from millpond.cli.run import run_store as places
from millpond.cli.run.run_store import RunIdentity, RunStore
from millpond.cli.run.template import Template

DAY = 86_400.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "millpond" / "run"


def made(command: str, moment: float) -> RunStore:
    """Make a run of a command that was started at a moment."""
    about = RunIdentity(command=(command,), folder="/", started_at=moment)
    place = places.fresh(about)
    place.create(about)
    place.file.touch()
    os.utime(place.file, (moment, moment))
    return place


def test_a_run_is_resumed_by_the_same_command_in_the_same_folder(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest of them; with another command, shell or folder it is another run."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    about = RunIdentity.of(Template(["echo"]))
    first, second = places.fresh(about), None
    first.create(about)
    later = RunIdentity.of(Template(["echo"]))
    second = places.fresh(later)
    second.create(later)
    found = places.latest(RunIdentity.of(Template(["echo"])))
    assert found is not None
    assert second.file == found.file
    assert places.latest(RunIdentity.of(Template(["echo", "-n"]))) is None
    assert places.latest(RunIdentity.of(Template(["echo"], shell=True))) is None
    monkeypatch.chdir(two)
    assert places.latest(RunIdentity.of(Template(["echo"]))) is None


def test_old_runs_are_cleared_out_but_for_those_at_work(state: Path) -> None:
    """Beyond a month, or beyond the latest twenty of a command."""
    now = 100 * DAY
    old, at_work, young = made("old", now - 31 * DAY), made("busy", now - 31 * DAY), made("x", now)
    many = [made("many", now - number) for number in range(25, 0, -1)]
    at_work.lock()
    places.clear_out(RunIdentity(command=("many",), folder="/"), now)
    assert not old.file.exists()
    assert at_work.file.exists()
    assert young.file.exists()
    assert [False] * 5 + [True] * 20 == [one.file.exists() for one in many]
    at_work.unlock()


def test_only_the_owner_can_read_a_stored_run(state: Path) -> None:
    """Commands and output may be secret."""
    place = made("x", 0.0)
    for folder in (place.file.parent, place.folder, place.outputs):
        assert 0o700 == folder.stat().st_mode & 0o777


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """By its name, with why."""
    (tmp_path / "file").touch()
    about = RunIdentity(command=("x",), folder="/")
    with pytest.raises(Refusal, match=r"cannot store a run at .*file/x\.db") as refused:
        RunStore(tmp_path / "file" / "x.db").create(about)
    assert Exit.STORE == refused.value.code


def test_a_run_with_a_damaged_identity_file_is_refused(tmp_path: Path) -> None:
    """It is refused, not overwritten."""
    place = RunStore(tmp_path / "x.db")
    place.create(RunIdentity(command=("x",), folder="/"))
    (place.folder / "about.json").write_text("{")
    with pytest.raises(Refusal, match=r"about\.json cannot be read"):
        place.identity()
    shutil.rmtree(place.folder)
    assert place.identity() is None
