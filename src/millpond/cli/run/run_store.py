"""Places: where runs are kept. A run is a store, and a folder beside it.

Without `--store` each run has a folder of its own in the user's state folder, named by a digest
of the command and where it was started; `--resume` finds the latest of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.exits import Exit, Refusal
from millpond.errors import UnsafePlace
from millpond.store.private_files import check, opened, sharing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.cli.run.template import Template

FILE = "run.db"
BESIDE = ".run"
"""What the folder beside a store is called, behind the store's own name."""

KEPT_FOR = 30 * 86_400.0
"""Seconds for which runs in the state folder are kept."""

KEPT_OF_A_COMMAND = 20
"""How many runs of one command are kept there."""


class NothingThere(Exception):
    """There is no such run, or no such item in it."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is of; a run can only be resumed with the same."""

    command: tuple[str, ...]
    shell: bool = False
    replace: str = "{}"
    folder: str
    """Where it was started: relative names mean other files elsewhere."""
    started_at: float = 0.0

    @classmethod
    def of(cls, template: Template) -> About:
        """Return what is kept of a command, here and now."""
        return cls(
            command=tuple(map(_storable, template.command)),
            shell=template.shell,
            replace=_storable(template.replace),
            folder=_storable(os.getcwd()),  # noqa: PTH109 - the text is all that is wanted
            started_at=time.time(),
        )

    @property
    def digest(self) -> str:
        """Return the name that all runs of this command here have in common."""
        told = msgspec.json.encode((self.command, self.shell, self.replace, self.folder))
        return blake2b(told, digest_size=6).hexdigest()


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class Place:
    """The store of one run, and the folder beside it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.folder = file.with_name(file.name + BESIDE)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The store as Millpond names it."""
        from urllib.parse import quote

        return f"sqlite:///{quote(str(self.file))}"

    @property
    def outputs(self) -> Path:
        """Where output is kept that is not in the store."""
        return self.folder / "output"

    @property
    def ledger(self) -> Path:
        """Where the commands at work are noted."""
        return self.folder / "at-work"

    def about(self) -> About | None:
        """Return what this is a run of; None if there is no run here."""
        try:
            return msgspec.json.decode((self.folder / "about.json").read_bytes(), type=About)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            message = f"{self.folder / 'about.json'} cannot be read: {error}"
            raise Refusal(Exit.STORE, message) from None

    def make(self, about: About) -> None:
        """Make a new run here; what is made for it is for nobody else to read."""
        try:
            # Each by itself: the parents that mkdir makes on its way are for all to read.
            for folder in (self.file.parent, self.folder, self.outputs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._must_be_ours()
            (self.folder / "about.json").write_bytes(msgspec.json.encode(about))
        except OSError as error:
            message = f"no run can be kept at {self.file}: {error.strerror}"
            raise Refusal(Exit.STORE, message) from None

    def take(self) -> None:
        """See to it that nobody else is at this run, until this process ends."""
        self._must_be_ours()
        self._lock = opened(self.folder / "lock", os.O_RDWR | os.O_CREAT, sharing_of(self.file))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            message = f"another millpond run (process {who or 'unknown'}) is at {self.file}"
            raise Refusal(Exit.STORE, message) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _must_be_ours(self) -> None:
        """Refuse folders that somebody else made here before: commands are read from them."""
        try:
            for folder in (self.folder, self.outputs):
                check(folder, sharing_of(self.file))
        except UnsafePlace as error:
            raise Refusal(Exit.STORE, str(error)) from None

    def let_go(self) -> None:
        """Let others have this run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_taken(self) -> bool:
        """Whether somebody is at this run."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False


def state_folder() -> Path:
    """Return the folder of all runs that were given no place."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # A relative one is to be ignored, says the convention.
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        message = "you have no home folder to keep runs in: give --store, or set XDG_STATE_HOME"
        raise Refusal(Exit.STORE, message) from None
    return base / "millpond" / "run"


def all_runs() -> list[Place]:
    """Return the runs in the state folder, oldest first."""
    with contextlib.suppress(OSError):
        found = [one for one in state_folder().iterdir() if (one / (FILE + BESIDE)).is_dir()]
        return [Place(one / FILE) for one in sorted(found, key=_stamp)]
    return []


def _stamp(folder: Path) -> str:
    return folder.name.partition("-")[2]


def fresh(about: About) -> Place:
    """Return the place of a new run in the state folder."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(about.started_at))
    part = int(about.started_at % 1 * 1_000_000)
    return Place(state_folder() / f"{about.digest}-{stamp}.{part:06}-{os.getpid()}" / FILE)


def latest(about: About) -> Place | None:
    """Return the latest run of this command in the state folder."""
    found = [place for place in all_runs() if _digest(place) == about.digest]
    return found[-1] if found else None


def _digest(place: Place) -> str:
    return place.file.parent.name.partition("-")[0]


def clear_out(about: About, now: float) -> None:
    """Remove old runs: those of this command beyond the latest, and all beyond a month."""
    places = all_runs()
    same = [place for place in places if _digest(place) == about.digest]
    old = {place.file for place in same[:-KEPT_OF_A_COMMAND]}
    for place in places:
        with contextlib.suppress(OSError):
            is_old = place.file in old or place.file.stat().st_mtime < now - KEPT_FOR
            if is_old and not place.is_taken:
                shutil.rmtree(place.file.parent)


def chosen(path: str) -> Place:
    """Return the place that `--store` names: a file, or the URL of one."""
    if "://" in path and not path.startswith("sqlite:///"):
        message = "--store: a run is kept in a SQLite file; give its path"
        raise Refusal(Exit.USAGE, message)
    from millpond.store.sqlite.url import path_of

    file = path_of(path) if path.startswith("sqlite:///") else Path(path)
    return Place(file.absolute())


def resumed(place: Place, about: About) -> None:
    """Object to a run that is of another command."""
    found = place.about()
    if found is None or found.digest == about.digest:
        return
    was = " ".join(found.command)
    where = "" if found.folder == about.folder else f", started in {found.folder}"
    message = f"{place.file} is a run of another command: {was}{where}; resume it with that"
    raise Refusal(Exit.USAGE, message)


def described(places: list[Place]) -> Iterator[tuple[Place, About]]:
    """Yield runs together with what they are of, but for those that cannot be read."""
    for place in places:
        with contextlib.suppress(Refusal):
            about = place.about()
            if about is not None:
                yield place, about
