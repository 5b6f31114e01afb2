"""The stores of runs. A run is a SQLite file, and a folder beside it.

Without `--store` each run has a folder in the user's state folder, named by a digest of the command
and the working directory. `--resume` finds the latest with the same digest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
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

if sys.platform != "win32":
    import fcntl

FILE = "run.db"
BESIDE = ".run"
"""Suffix of the folder beside a store."""

KEPT_FOR = 30 * 86_400.0
"""Seconds for which runs in the state folder are kept."""

KEPT_OF_A_COMMAND = 20
"""How many runs of one command are kept in the state folder."""


class RunNotFound(Exception):
    """There is no such run, or no such item in the run."""


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a run. A run can only be resumed with the same command."""

    command: tuple[str, ...]
    shell: bool = False
    replace: str = "{}"
    folder: str
    """The working directory: relative paths depend on it."""
    started_at: float = 0.0

    @classmethod
    def of(cls, template: Template) -> RunIdentity:
        """Return the identity of a command started here and now."""
        return cls(
            command=tuple(map(_storable, template.command)),
            shell=template.shell,
            replace=_storable(template.replace),
            folder=_storable(os.getcwd()),  # noqa: PTH109 - only the text is needed
            started_at=time.time(),
        )

    @property
    def digest(self) -> str:
        """Return the digest that all runs of this command in this folder share."""
        encoded = msgspec.json.encode((self.command, self.shell, self.replace, self.folder))
        return blake2b(encoded, digest_size=6).hexdigest()


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class RunStore:
    """The store of one run, and the folder beside it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.folder = file.with_name(file.name + BESIDE)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The URL of the store."""
        from urllib.parse import quote

        return f"sqlite:///{quote(str(self.file))}"

    @property
    def outputs(self) -> Path:
        """The folder of output that is not in the store."""
        return self.folder / "output"

    @property
    def ledger(self) -> Path:
        """The file that lists the running commands."""
        return self.folder / "at-work"

    def identity(self) -> RunIdentity | None:
        """Return the identity of the run; None if there is no run here."""
        try:
            return msgspec.json.decode((self.folder / "about.json").read_bytes(), type=RunIdentity)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            message = f"{self.folder / 'about.json'} cannot be read: {error}"
            raise Refusal(Exit.STORE, message) from None

    def create(self, identity: RunIdentity) -> None:
        """Create a new run here. Only its owner may read its files."""
        try:
            # One by one: parents that mkdir creates are readable for all.
            for folder in (self.file.parent, self.folder, self.outputs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._must_be_ours()
            (self.folder / "about.json").write_bytes(msgspec.json.encode(identity))
        except OSError as error:
            message = f"cannot store a run at {self.file}: {error.strerror}"
            raise Refusal(Exit.STORE, message) from None

    def lock(self) -> None:
        """Lock this run until this process ends."""
        self._must_be_ours()
        self._lock = opened(self.folder / "lock", os.O_RDWR | os.O_CREAT, sharing_of(self.file))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            message = f"another millpond run (process {who or 'unknown'}) is running {self.file}"
            raise Refusal(Exit.STORE, message) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _must_be_ours(self) -> None:
        """Refuse folders that another user created: commands are read from them."""
        try:
            for folder in (self.folder, self.outputs):
                check(folder, sharing_of(self.file))
        except UnsafePlace as error:
            raise Refusal(Exit.STORE, str(error)) from None

    def unlock(self) -> None:
        """Unlock this run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_locked(self) -> bool:
        """Whether a process has locked this run."""
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
    """Return the folder of all runs without --store."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # The XDG convention says to ignore a relative path.
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        message = "no home folder to store runs in: give --store, or set XDG_STATE_HOME"
        raise Refusal(Exit.STORE, message) from None
    return base / "millpond" / "run"


def all_runs() -> list[RunStore]:
    """Return the runs in the state folder, oldest first."""
    with contextlib.suppress(OSError):
        found = [one for one in state_folder().iterdir() if (one / (FILE + BESIDE)).is_dir()]
        return [RunStore(one / FILE) for one in sorted(found, key=_stamp)]
    return []


def _stamp(folder: Path) -> str:
    return folder.name.partition("-")[2]


def fresh(identity: RunIdentity) -> RunStore:
    """Return the store of a new run in the state folder."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(identity.started_at))
    part = int(identity.started_at % 1 * 1_000_000)
    return RunStore(state_folder() / f"{identity.digest}-{stamp}.{part:06}-{os.getpid()}" / FILE)


def latest(identity: RunIdentity) -> RunStore | None:
    """Return the store of the latest run of this command in the state folder."""
    found = [store for store in all_runs() if _digest(store) == identity.digest]
    return found[-1] if found else None


def _digest(store: RunStore) -> str:
    return store.file.parent.name.partition("-")[0]


def clear_out(identity: RunIdentity, now: float) -> None:
    """Remove old runs: of this command all but the latest, and all that are older than a month."""
    stores = all_runs()
    same = [store for store in stores if _digest(store) == identity.digest]
    old = {store.file for store in same[:-KEPT_OF_A_COMMAND]}
    for store in stores:
        with contextlib.suppress(OSError):
            is_old = store.file in old or store.file.stat().st_mtime < now - KEPT_FOR
            if is_old and not store.is_locked:
                shutil.rmtree(store.file.parent)


def chosen(path: str) -> RunStore:
    """Return the store that `--store` names: a file, or the URL of one."""
    if "://" in path and not path.startswith("sqlite:///"):
        message = "--store: a run is kept in a SQLite file; give its path"
        raise Refusal(Exit.USAGE, message)
    from millpond.store.sqlite.url import path_of

    file = path_of(path) if path.startswith("sqlite:///") else Path(path)
    return RunStore(file.absolute())


def check_identity(store: RunStore, identity: RunIdentity) -> None:
    """Refuse to resume a run of another command."""
    found = store.identity()
    if found is None or found.digest == identity.digest:
        return
    was = " ".join(found.command)
    where = "" if found.folder == identity.folder else f", started in {found.folder}"
    message = f"{store.file} is a run of another command: {was}{where}; resume it with that"
    raise Refusal(Exit.USAGE, message)


def with_identity(stores: list[RunStore]) -> Iterator[tuple[RunStore, RunIdentity]]:
    """Yield runs with their identities; skip those that cannot be read."""
    for store in stores:
        with contextlib.suppress(Refusal):
            identity = store.identity()
            if identity is not None:
                yield store, identity
