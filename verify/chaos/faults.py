"""The faults: each is begun, lasts for some seconds, and is over when its function returns."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verify.chaos.fleet import Fleet
    from verify.chaos.load import Load
    from verify.servers.postgres import OwnServer

KILL_EVERY, END_EVERY = 2.0, 0.25
"""Seconds between two workers that are killed, and between two sessions that are ended."""

AWAY = 2.0
"""Seconds for which a server that is restarted is away."""

OVERLOAD, BURST = 1.5, 5.0
"""Overload as a multiple of the capacity; a burst as seconds of load."""

READERS = 4

_OURS = b"""
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'millpond%'
"""


class Scene(NamedTuple):
    """What a fault happens to."""

    fleet: Fleet
    server: OwnServer
    load: Load
    seconds: float
    dice: random.Random


def worker_kill(scene: Scene) -> None:
    """One worker is killed, and started again: its lock file or its session shows the death."""
    victim = scene.fleet.busiest()
    scene.fleet.kill(victim)
    scene.fleet.start(victim)


def repeated_kills(scene: Scene) -> None:
    """Kill the busiest worker again and again, and restart it at once."""
    until = time.monotonic() + scene.seconds
    while time.monotonic() < until:
        victim = scene.fleet.busiest()
        scene.fleet.kill(victim)
        scene.fleet.start(victim)
        time.sleep(KILL_EVERY)


def restart_fast(scene: Scene) -> None:
    """The server is stopped as an administrator would, and started again."""
    scene.server.stop()
    time.sleep(AWAY)
    scene.server.start()


def restart_immediate(scene: Scene) -> None:
    """The server is stopped in the middle of what it does, and recovers when it is started."""
    scene.server.crash()
    time.sleep(AWAY)
    scene.server.start()


def backend_kill(scene: Scene) -> None:
    """Sessions of the fleet are ended by the administrator, four in a second."""
    until = time.monotonic() + scene.seconds
    with psycopg.connect(scene.load.url, autocommit=True) as connection:
        while time.monotonic() < until:
            found = connection.execute(_OURS).fetchall()
            if found:
                connection.execute("SELECT pg_terminate_backend(%s)", scene.dice.choice(found))
            time.sleep(END_EVERY)


def pool_exhaustion(scene: Scene) -> None:
    """Others take every connection that the server has; what the fleet had is ended."""
    url = scene.load.url
    with contextlib.ExitStack() as held, psycopg.connect(url, autocommit=True) as administrator:
        until = time.monotonic() + scene.seconds
        while time.monotonic() < until:
            _take_all(url, held)
            administrator.execute(b"SELECT pg_terminate_backend(pid) FROM (" + _OURS + b") ours")


def _take_all(url: str, held: contextlib.ExitStack) -> None:
    """Take connections until there are none, and for a moment more."""
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        try:
            held.enter_context(psycopg.connect(url, application_name="a crowd"))
        except psycopg.OperationalError:
            time.sleep(0.02)


def idle_in_transaction(scene: Scene) -> None:
    """A session holds a transaction open: no dead rows are removed meanwhile."""
    with psycopg.connect(scene.load.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        time.sleep(scene.seconds)
        connection.rollback()


def active_readers(scene: Scene) -> None:
    """Four sessions read the whole tables again and again, each time in a snapshot of its own."""
    over = threading.Event()
    readers = [
        threading.Thread(target=_read_all, args=(scene.load.url, over)) for _ in range(READERS)
    ]
    for reader in readers:
        reader.start()
    time.sleep(scene.seconds)
    over.set()
    for reader in readers:
        reader.join()


def _read_all(url: str, over: threading.Event) -> None:
    tables = (b"millpond_task", b"millpond_live", b"millpond_lease", b"millpond_ended")
    with psycopg.connect(url) as connection:
        while not over.is_set():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            for table in tables:
                connection.execute(b"SELECT count(*) FROM millpond." + table)
            # The snapshot stays for longer than the questions take.
            over.wait(1.0)
            connection.rollback()


def overload(scene: Scene) -> None:
    """More is submitted than can be done, for as long as it lasts."""
    scene.fleet.send_order(f"rate {OVERLOAD * scene.load.capacity}")
    time.sleep(scene.seconds)
    scene.fleet.send_order(f"rate {scene.load.rate}")


def burst(scene: Scene) -> None:
    """Much is submitted at once, and the rest goes on."""
    scene.fleet.send_order(f"burst {round(BURST * scene.load.rate)}")


FAULTS: dict[str, Callable[[Scene], None]] = {
    "worker kill": worker_kill,
    "repeated kills": repeated_kills,
    "postgres restart, fast": restart_fast,
    "postgres restart, immediate": restart_immediate,
    "backend kill": backend_kill,
    "pool exhaustion": pool_exhaustion,
    "idle in transaction": idle_in_transaction,
    "active readers": active_readers,
    "sustained overload": overload,
    "burst": burst,
}
"""Nine scenarios; one of them in two ways."""


def chosen(only: str | None) -> Iterator[str]:
    """Yield the names that begin with one of the words, or all."""
    words = [word.strip() for word in (only or "").split(",") if word.strip()]
    return (name for name in FAULTS if not words or any(word in name for word in words))
