"""Where bench/soak.py puts its load: a SQLite file or a PostgreSQL server; what may grow there."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import psycopg
from verify.servers.postgres import Server, serve

MEGABYTE = 1e6


class Bound(NamedTuple):
    """By how much something may grow: by a part of what it was, or by so much."""

    part: float = 0.02
    slack: float = 0.0


class Ground(ABC):
    """A place for a store."""

    url: str
    minutes: float
    """How long a whole run takes."""
    bounds: ClassVar[Mapping[str, Bound]] = {}
    """Of what may grow by more than usual."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_error: object) -> None:
        """Remove all there is."""

    @abstractmethod
    def read(self) -> dict[str, float]:
        """Return what there is now, by name."""


class SqliteGround(Ground):
    """A file in a folder of its own."""

    minutes = 10.0

    def __init__(self, folder: Path | None, _minutes: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-soak-", dir=folder))
        self._path = self._folder / "soak.db"
        self.url = f"sqlite:///{self._path}"

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._folder)

    def read(self) -> dict[str, float]:
        """Return the size of the file with its WAL."""
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return {"file and WAL, MB": size / MEGABYTE}


_READ = """\
SELECT (SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'millpond'),
       (SELECT sum(pg_table_size(oid)) FROM pg_class
         WHERE relkind = 'r' AND relnamespace = 'millpond'::regnamespace),
       (SELECT sum(pg_relation_size(oid)) FROM pg_class
         WHERE relkind = 'i' AND relnamespace = 'millpond'::regnamespace),
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),
       (SELECT sum(j.value::bigint) FROM millpond.millpond_pool, json_each_text(totals::json) AS j
         WHERE j.key IN ('completed', 'failed', 'cancelled'))"""


class PostgresGround(Ground):
    """A database of its own on a server as it comes; in a short run vacuum comes sooner, too."""

    minutes = 60.0
    bounds: ClassVar[Mapping[str, Bound]] = {
        # Dead rows come and go: the half of what vacuum lets pile up, whatever the mean is.
        "dead rows": Bound(0.1, 20_000.0),
        # Of what grows in steps of a page the first are not always the last.
        "tables, MB": Bound(0.05, 1.0),
        "indexes, MB": Bound(0.05, 1.0),
        # The first write to a page after a checkpoint writes the full page.
        "log per task, KB": Bound(0.1),
    }

    def __init__(self, _folder: Path | None, minutes: float) -> None:
        part = min(minutes / self.minutes, 1.0)
        self._window = max(round(300 * part), 30)
        """Seconds from one checkpoint to the next: so many samples share one."""
        self._server: Server = serve(
            {
                "autovacuum_naptime": f"{max(round(60 * part), 1)}s",
                "checkpoint_timeout": f"{self._window}s",
            }
        )
        self._database = self._server.database()
        self.url = self._database.__enter__()
        self._watching = psycopg.connect(self.url, autocommit=True)
        self._written: list[tuple[float, float]] = []
        """Bytes of log and ended tasks so far, at the latest samples."""

    def __exit__(self, *error: object) -> None:
        self._watching.close()
        self._database.__exit__(None, None, None)
        self._server.close()

    def read(self) -> dict[str, float]:
        """Return how much is dead, how large all is, and what a task writes to the log."""
        (row,) = self._watching.execute(_READ).fetchall()
        dead, tables, indexes, log, ended = (float(value or 0) for value in row)
        self._written = [*self._written[-self._window :], (log, ended)]
        log_before, ended_before = self._written[0]
        found = {
            "dead rows": dead,
            "tables, MB": tables / MEGABYTE,
            "indexes, MB": indexes / MEGABYTE,
        }
        tasks = ended - ended_before
        if tasks > 0:
            found["log per task, KB"] = (log - log_before) / tasks / 1e3
        return found


GROUNDS: dict[str, type[SqliteGround | PostgresGround]] = {
    "sqlite": SqliteGround,
    "postgres": PostgresGround,
}
