"""Where bench/postgres.py has its contenders act: one server, and a fresh database for each act."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import actors
import psycopg
from actors import Answer, Director
from contender import Contender
from postgres_contenders import OURS, command, missing
from verify.servers.postgres import OwnServer, Server

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
)
"""The settings to print; the first three must be the server's defaults."""


class Actor(actors.Actor):
    """A process that acts on a database."""

    def __init__(self, contender: Contender, act: str, url: str, **given: object) -> None:
        arguments = (contender.name, act, url, json.dumps(given))
        super().__init__(f"{contender.name}, {act}", [*command(contender), *arguments])


def act(contender: Contender, name: str, url: str, **given: object) -> Answer:
    """Have one process do one act, and return its answer."""
    with Actor(contender, name, url, **given) as actor:
        return actor.ready().go().answer()


@dataclass
class Stage(Director):
    """A server on which every contender has databases of its own."""

    server: Server | None = None
    rows: frozenset[str] = frozenset()
    """The rows of the table of targets to measure; empty = all."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _filled: dict[str, str] = field(default_factory=dict)

    @property
    def there(self) -> Server:
        """The server."""
        assert self.server is not None
        return self.server

    def settings(self) -> dict[str, str]:
        """Return how the server is set up."""
        answer = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
        ((*values,),) = self._query(self.there.url, f"SELECT {answer}")
        return dict(zip(SETTINGS, values, strict=True))

    def wants(self, *rows: str) -> bool:
        """Return whether one of these rows is to be measured."""
        return not self.rows or not self.rows.isdisjoint(rows)

    def chosen(self, contender: Contender) -> bool:
        """Return whether a contender takes part: we always do."""
        if missing(contender):
            return False
        wanted = self.only.split(",")
        return contender == OURS or any(one.strip() in contender.name for one in wanted)

    # Databases

    @contextmanager
    def fresh(self, contender: Contender, count: int = 0, **given: object) -> Iterator[str]:
        """Give a database with a contender's tables and with tasks queued, as it was filled once.

        The filled tables are vacuumed and analyzed; no writes are left for others.
        """
        name = f"{contender.name} {count} {json.dumps(given, sort_keys=True)}"
        if name not in self._filled:
            self._filled[name] = self._fill(contender, count, **given)
        copy = f"bench_{next(self._numbers)}"
        # Copied by the file: a copy through the log would slow the next writer.
        self._create(copy, f'TEMPLATE "{self._filled[name]}" STRATEGY file_copy')
        try:
            self.there.execute("CHECKPOINT")
            yield self._url(copy)
        finally:
            self._drop(copy)

    def _fill(self, contender: Contender, count: int, **given: object) -> str:
        name = f"bench_{next(self._numbers)}"
        self._create(name, "TEMPLATE template0")
        answer = act(contender, "fill", self._url(name), count=count, **given)
        assert answer["stored"] == count, answer
        self._query(self._url(name), "VACUUM ANALYZE")
        return name

    def forget(self) -> None:
        """Drop the filled tables: a million tasks take room."""
        while self._filled:
            self._drop(self._filled.popitem()[1])

    def _create(self, name: str, how: str) -> None:
        self.there.execute(f'CREATE DATABASE "{name}" {how}')

    def _drop(self, name: str) -> None:
        self.there.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _url(self, database: str) -> str:
        """Return the way to a database that all contenders take: by TCP, if the server is ours."""
        server = self.there
        return (
            server.tcp_url_of(database)
            if isinstance(server, OwnServer)
            else server.url_of(database)
        )

    # What the server knows

    def written(self) -> int:
        """Return how many bytes of log the server has ever written."""
        answer = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
        ((position,),) = self._query(self.there.url, answer)
        return int(position)

    def _query(self, url: str, statement: str) -> list[tuple[str, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
