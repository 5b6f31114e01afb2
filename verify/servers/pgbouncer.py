"""A real PgBouncer before a test server, in transaction mode: every transaction another session.

Looked for in this order: the program that MILLPOND_TEST_PGBOUNCER names; one on the PATH; that of
the system. It is no wheel, so a machine may have none: `tools/pgbouncer.sh` unpacks one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from verify.servers.postgres import PASSWORD, USER, NoServer, OwnServer, Server, database_of
from verify.servers.postgres_keeper import free_port, ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAM_VARIABLE = "MILLPOND_TEST_PGBOUNCER"

SESSIONS = 8
"""Sessions of the server for each database and user: fewer than there are clients, so they are
lent to many."""

_PATIENCE, _POLL_EVERY = 30.0, 0.02
_PLACES = "/usr/sbin:/usr/local/sbin"


def find_pgbouncer() -> Path | None:
    """Return the program; None if this machine has none."""
    named = os.environ.get(PROGRAM_VARIABLE)
    found = named or shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_PLACES)
    return Path(found) if found and Path(found).exists() else None


class Pooler(Server):
    """A server of ours, reached through PgBouncer; `server` is the same without."""

    def __init__(
        self,
        server: OwnServer,
        program: Path,
        *,
        options: str = "",
        settings: Mapping[str, str] | None = None,
        users: tuple[str, ...] = (),
    ) -> None:
        """`options` are added to every URL: what it should say of the pooler, if anything.

        Besides the superuser `users` may come in, without a password.
        """
        self.server = server
        self._options = options
        self._home = Path(tempfile.mkdtemp(prefix="millpond-pgbouncer-"))
        self.port = free_port()
        self._process = self._started(program, settings or {}, users)
        super().__init__(server.url)

    def url_of(self, database: str, user: str = USER) -> str:
        """Return the URL of a database through the pooler."""
        secret = f":{quote(PASSWORD, safe='')}" if user == USER else ""
        who = f"{quote(user, safe='')}{secret}"
        place = f"postgresql://{who}@127.0.0.1:{self.port}/{quote(database, safe='')}"
        return f"{place}?{self._options}" if self._options else place

    @contextlib.contextmanager
    def database(self, *, template: str | None = None) -> Iterator[str]:
        """Yield the URL of a new database; sessions that are kept must not be in the way."""
        if template is not None:
            self._end_sessions(template)
        with super().database(template=template) as url:
            yield url

    def _end_sessions(self, url: str) -> None:
        name = database_of(url)
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # noqa: S608 - our own name
            f"WHERE datname = '{name}'"
        )

    @property
    def log(self) -> str:
        """What the pooler wrote."""
        return (self._home / "log").read_text(errors="replace")

    def close(self) -> None:
        """Stop the pooler, and remove its roles and databases from the server."""
        self._process.kill()
        self._process.wait()
        super().close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _started(
        self, program: Path, settings: Mapping[str, str], users: tuple[str, ...]
    ) -> subprocess.Popen[bytes]:
        (self._home / "users").write_text(
            "".join(f'"{name}" "{PASSWORD}"\n' for name in (USER, *users))
        )
        (self._home / "pgbouncer.ini").write_text(self._configuration(settings))
        parent_death = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        # The first of the ways needs nothing that the others would bring.
        prefix = next(ways(program.parent)).prefix
        with (self._home / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - the program that was found
                [*prefix, *parent_death, str(program), str(self._home / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return process
            time.sleep(_POLL_EVERY)
        process.kill()
        process.wait()
        log_tail = self.log[-2000:].strip()
        shutil.rmtree(self._home, ignore_errors=True)
        raise NoServer(f"{program} does not start: {log_tail}")

    def _configuration(self, settings: Mapping[str, str]) -> str:
        values = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._home / "users"),
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "default_pool_size": str(SESSIONS),
            **settings,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in values.items())
        where = f"* = host={self.server.folder} port={self.server.port}"
        return f"[databases]\n{where}\n[pgbouncer]\n{lines}"
