"""The place of a torture: the store that is tortured, and what is promised of its kind only."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from millpond.store.postgres.url import is_postgres
from verify.servers.pgbouncer import Pooler, find_pgbouncer
from verify.servers.postgres import NoServer, OwnServer, Server, database_of, serve

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

IDLERS = 10
"""Workers whose questions to a server are counted while they have nothing to do."""

CUT_EVERY, CRASHES = 3.0, 3
"""Seconds between two connections that a server of ours ends, and how often it crashes."""

GENTLER = {"tasks": 10_000, "workers": 6, "kill_every": 2.5, "freeze_every": 12.0}
"""Fewer tasks, since each costs more; and more who are left alive, since it takes a lease until the
dead are known."""

CONNECTIONS = {"max_connections": "200"}
"""What a server of ours has to have beyond PostgreSQL's own settings: room for the fleet."""

SERVER_LOG = "server.log"

_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]+):")


class StatementCount(msgspec.Struct, frozen=True):
    """How many transactions and statements a store has run."""

    transactions: int
    statements: int | None
    """None = not counted."""

    def statements_since(self, before: StatementCount) -> int | None:
        """Return how many statements there were since an earlier count."""
        if self.statements is None or before.statements is None:
            return None
        return self.statements - before.statements


class StoreSetup:
    """A store that processes of one machine share: it sees at once who died."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that depend on the kind of store."""
        return {"url": self.url}

    def start_counting(self) -> None:
        """Count statements from now on, where that is possible."""

    def counted(self) -> StatementCount:
        """Return the counts until now."""
        raise NotImplementedError

    def keep_log(self, home: Path) -> None:
        """Keep what the store itself wrote, if it wrote anything that will be gone."""

    def cut(self, dice: random.Random) -> None:
        """End a connection to it."""

    def crash(self) -> None:
        """Stop it in the middle of what it does."""

    def start(self) -> None:
        """Let it come back."""


class ServerSetup(StoreSetup):
    """A database of a server: the dead are known by lock files, by sessions or by leases."""

    def __init__(
        self,
        url: str,
        server: OwnServer | None = None,
        *,
        direct: str | None = None,
        hears: bool = True,
    ) -> None:
        """`direct` is its URL for those who hurt it, where a pooler is before it.

        Without LISTEN idle workers poll all the time: nothing is promised of them.
        """
        super().__init__(url)
        self._hears = hears
        self._direct = direct or url
        self._server = server
        self._counts_statements = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that depend on the kind of store."""
        crashes = 0 if self._server is None else CRASHES
        return {
            "url": self.url,
            "sees_deaths": False,
            "cut_every": CUT_EVERY,
            "crashes": crashes,
            "hears": self._hears,
            "idlers": IDLERS if self._hears else 0,
            **GENTLER,
        }

    def start_counting(self) -> None:
        """Have every statement written to the log of the server, if it is ours."""
        if self._server is not None:
            self._server.execute("ALTER SYSTEM SET log_statement = 'all'")
            self._server.execute("SELECT pg_reload_conf()")
            self._counts_statements = True

    def counted(self) -> StatementCount:
        """Return the counts until now, without this query."""
        import psycopg  # noqa: PLC0415 - only who tortures a server needs it

        with psycopg.connect(self._direct, autocommit=True) as connection:
            expected = (
                "SELECT xact_commit + xact_rollback FROM pg_stat_database"
                " WHERE datname = current_database()"
            )
            row = connection.execute(expected).fetchone()
        transactions = 0 if row is None else int(row[0])
        return StatementCount(transactions, self._statements(expected))

    def keep_log(self, home: Path) -> None:
        """Keep what the server wrote, if it is ours."""
        if self._server is not None:
            (home / SERVER_LOG).write_text(self._server.log)

    def cut(self, dice: random.Random) -> None:
        """End one of the connections that processes of the fleet have to it."""
        import psycopg  # noqa: PLC0415 - see above

        with psycopg.connect(self._direct, autocommit=True) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name LIKE 'millpond%' ORDER BY pid"
            ).fetchall()
            if found:
                connection.execute("SELECT pg_terminate_backend(%s)", dice.choice(found))

    def crash(self) -> None:
        """Stop the server in the middle of what it does, if it is ours."""
        if self._server is not None:
            self._server.crash()

    def start(self) -> None:
        """Let the server come back."""
        if self._server is not None:
            self._server.start()

    def _statements(self, own: str) -> int | None:
        if self._server is None or not self._counts_statements:
            return None
        lines = self._server.log.splitlines()
        return sum(bool(_STATEMENT.search(line)) for line in lines if own not in line)


@contextlib.contextmanager
def setup_for(
    store: str, url: str | None, home: Path, *, listens: bool = True
) -> Iterator[StoreSetup]:
    """Yield where a torture takes place: the store that a URL names, or a new one of a kind.

    On a new server processes use LISTEN only with `listens`.
    """
    if url is not None:
        yield ServerSetup(url) if is_postgres(url) else StoreSetup(url)
    elif store == "sqlite":
        yield StoreSetup(f"sqlite:///{home}/work.db")
    else:
        # The default: a commit is on disk.
        with serve(CONNECTIONS) as server:
            if store == "postgres":
                with on(server, listens=listens) as place:
                    yield place
            else:
                with pooled(server) as pooler, on(pooler, listens=listens) as place:
                    yield place


def pooled(server: Server) -> Pooler:
    """Return a server as it is reached through PgBouncer."""
    program = find_pgbouncer()
    if program is None or not isinstance(server, OwnServer):
        raise NoServer("there is no pgbouncer here, or no server that was started for it")
    # The default makes all clients wait for 15 s after a crash of the server.
    return Pooler(server, program, settings={"default_pool_size": "20", "server_login_retry": "1"})


@contextlib.contextmanager
def on(server: Server, *, listens: bool = True) -> Iterator[StoreSetup]:
    """Yield a new database of a server, on which one hears the others or does not."""
    behind = server.server if isinstance(server, Pooler) else server
    with server.database() as url:
        direct = behind.url_of(database_of(url))
        says = _listening(past=direct if behind is not server else None, listens=listens)
        yield ServerSetup(
            url if says is None else f"{url}{'&' if '?' in url else '?'}listen={says}",
            behind if isinstance(behind, OwnServer) else None,
            direct=direct,
            hears=listens,
        )


def _listening(*, past: str | None, listens: bool) -> str | None:
    """Return what a URL says of listening, if anything; `past` is the way past a pooler.

    With a pooler, LISTEN connections go directly to the server; without `past`, no process listens.
    """
    if past is None:
        return None if listens else "0"
    return quote(past, safe="") if listens else None
