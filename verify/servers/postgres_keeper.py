"""The keeper of a PostgreSQL server: a process of its own that ends the server with its owner.

It is run as a script, with the standard library alone, so that it starts at once. Its argument is
what to do as JSON (see `postgres.py`), its input is orders, a line each, and it answers each with
a line. When its input ends, however its owner ended, it stops the server and removes its folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PATIENCE = 60.0
_LONG_ENOUGH = 10.0
_POLL_EVERY = 0.02
_TRIES = 5

_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
_UNPRIVILEGED = "nobody"


class Failed(Exception):
    """The server cannot be started; the text says why."""


class Way(NamedTuple):
    """How PostgreSQL's programs are run: as who, from where."""

    name: str
    binaries: Path
    prefix: tuple[str, ...] = ()
    user: str | None = None
    copies: bool = False


def ways(binaries: Path) -> Iterator[Way]:
    """Yield how to run a server here, the least intrusive first: it refuses to run as root.

    In a user namespace root is another user, and needs no rights of others. Where the system
    forbids that, an account without rights does, on a copy of the programs if it may not read them.
    """
    if os.geteuid() != 0:
        yield Way("as this user", binaries)
        return
    if shutil.which(_NAMESPACE[0]):
        yield Way("in a user namespace", binaries, prefix=_NAMESPACE)
    yield Way(f"as {_UNPRIVILEGED}", binaries, user=_UNPRIVILEGED)
    yield Way(f"as {_UNPRIVILEGED}, copied", binaries, user=_UNPRIVILEGED, copies=True)


def copied(binaries: Path, home: Path) -> Path:
    """Copy an installation to a world-readable folder, with the libraries of its package."""
    installed = binaries.parent
    package = installed.parent
    target = home / "programs" / package.name / installed.name
    shutil.copytree(installed, target, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, home / "programs" / libraries.name)
    return target / binaries.name


class Keeper:
    """One server: where it lives, how it is run, and its process while it runs."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._home = Path(tempfile.mkdtemp(prefix="millpond-pg-"))
        self._data = self._home / "data"
        self._log = self._home / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._way = Way("not at all", Path())

    def make(self) -> dict[str, object]:
        """Make the cluster in the first way that works, and start it; return where it is."""
        refusals = []
        for way in ways(Path(self._options["binaries"])):
            try:
                self._make(way)
                break
            except (Failed, OSError) as error:
                refusals.append(f"{way.name}: {error}")
                shutil.rmtree(self._data, ignore_errors=True)
        else:
            raise Failed("; ".join(refusals))
        self.start()
        return {"folder": str(self._home), "port": self._port, "way": self._way.name}

    def _make(self, way: Way) -> None:
        if way.copies:
            way = way._replace(binaries=copied(way.binaries, self._home))
        self._way = way
        if way.user is not None:
            os.chown(self._home, pwd.getpwnam(way.user).pw_uid, -1)
        original = self._options.get("copy_of")
        if original is None:
            self._run("initdb", *self._new_cluster())
        else:
            place = ("-h", original["folder"], "-p", str(original["port"]))
            self._run("pg_basebackup", *place, "-U", self._options["user"], "-R", "-c", "fast")

    def _new_cluster(self) -> Sequence[str]:
        """Return the options of `initdb`: who comes by TCP has a password."""
        secret = self._home / "password"
        secret.write_text(self._options["password"])
        if self._way.user is not None:
            os.chown(secret, pwd.getpwnam(self._way.user).pw_uid, -1)
        return (
            *("--username", self._options["user"], "--pwfile", str(secret)),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
            *("--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        )

    def _run(self, program: str, *options: str) -> None:
        command = [*self._way.prefix, str(self._way.binaries / program), "-D", str(self._data)]
        done = subprocess.run(  # noqa: S603 - its own programs
            [*command, *options],
            check=False,
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            **self._as_who(),
        )
        if done.returncode:
            raise Failed(f"{program} failed: {done.stdout.decode(errors='replace').strip()}")

    def _as_who(self) -> dict[str, Any]:
        """Return the options of `subprocess` that make a process run as the account it needs."""
        if self._way.user is None:
            return {}
        account = pwd.getpwnam(self._way.user)
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def start(self) -> None:
        """Start the server, at the port it had before, and wait until it takes connections."""
        if self._process is not None:
            return
        for attempt in range(_TRIES):
            port = self._port or free_port()
            if self._started(port):
                self._port = port
                return
            if "Address already in use" not in self._said() and attempt:
                break
        raise Failed(f"the server does not start: {self._said()}")

    def _started(self, port: int) -> bool:
        settings = {"port": port, "unix_socket_directories": self._home} | self._options["settings"]
        options = [f"--{name}={value}" for name, value in settings.items()]
        # If the keeper is killed, the kernel sends the server a signal.
        parent_death = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        program = str(self._way.binaries / "postgres")
        with self._log.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - its own program
                [*self._way.prefix, *parent_death, program, "-D", str(self._data), *options],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._options.get("environment", {})},
                **self._as_who(),
            )
        until = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < until:
            if is_ready(self._data / "postmaster.pid", process.pid):
                self._process = process
                return True
            time.sleep(_POLL_EVERY)
        process.kill()
        process.wait()
        return False

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-2000:].strip()
        return "it said nothing"

    def stop(self) -> None:
        """Stop the server as it should be stopped: connections are ended, nothing is lost."""
        self._end(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)

    def crash(self) -> None:
        """Stop it in the middle of whatever it does; the next start recovers."""
        self._end(signal.SIGQUIT, signal.SIGKILL)

    def _end(self, *signals: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number in signals:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LONG_ENOUGH)
                return

    def freeze(self) -> None:
        """Freeze every process of the server: its port is open and does not answer."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is not None:
            for pid in family(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def remove(self) -> None:
        """Stop the server and leave nothing behind."""
        self.thaw()
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def obey(self, owner: int) -> None:
        """Carry out orders until the owner has exited."""
        orders: dict[bytes, Callable[[], None]] = {
            b"start": self.start,
            b"stop": self.stop,
            b"crash": self.crash,
            b"freeze": self.freeze,
            b"thaw": self.thaw,
        }
        for order in lines(owner):
            try:
                orders[order]()
                answer({})
            except (Failed, OSError) as error:
                answer({"error": str(error)})


def is_ready(pid_file: Path, pid: int) -> bool:
    """Return whether a starting server says that it takes connections, in the eighth line."""
    with contextlib.suppress(OSError):
        said = pid_file.read_text().splitlines()
        return len(said) > 7 and said[0] == str(pid) and said[7].strip() in {"ready", "standby"}
    return False


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def family(parent: int) -> list[int]:
    """Return a process and its children, by Linux's own list."""
    found = [parent]
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        found += map(int, children.split())
    return found


def lines(owner: int) -> Iterator[bytes]:
    """Yield what the owner says, until it ends.

    The end of the input may not come: a child that the owner forked has the other end too.
    """
    said = b""
    while os.getppid() == owner:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        more = os.read(0, 4096)
        if not more:
            return
        *complete, said = (said + more).split(b"\n")
        yield from complete


def answer(document: Mapping[str, object]) -> None:
    """Send an answer to the owner, which may have exited."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(document).encode() + b"\n")


def main() -> int:
    """Keep one server."""
    owner = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP):
        # What a terminal sends goes to the owner too, and its end is the end. Not SIG_IGN, which
        # the server would inherit.
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    keeper = Keeper(json.loads(sys.argv[1]))
    try:
        answer(keeper.make())
        keeper.obey(owner)
    except (Failed, OSError) as error:
        answer({"error": str(error)})
        return 1
    finally:
        keeper.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
