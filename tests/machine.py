"""What some tests need and not every machine has.

A test says so with a marker. Where it is absent, these tests are left out, and the report says at
its head and at its end which they are and what to do. With CI=true a skip would be a failure.
"""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tests.mounts import can_mount
from verify.servers.compiled import find_compiler
from verify.servers.pgbouncer import find_pgbouncer
from verify.servers.postgres import find_programs

SIZE_OF_QUEUE = 17
"""The first version of PostgreSQL with a setting for the size of the queue of NOTIFY."""


class Need(NamedTuple):
    """Something that a machine may lack."""

    marker: str
    is_here: Callable[[], object]
    without: str
    """Which tests are left out without it, and how to have them."""

    @property
    def line(self) -> str:
        """What a report says."""
        found = self.is_here() or f"ABSENT, {self.without}"
        return f"{self.marker}: {'here' if found is True else found}"


@cache
def version_of_postgres() -> int:
    """Return the major version of the programs that tests use; 0 if there are none."""
    programs = find_programs()
    if programs is None:
        return 0
    version = [str(programs / "postgres"), "--version"]
    said = subprocess.run(version, capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+", said)
    return int(number[0]) if number else 0


def _queue_can_be_small() -> bool:
    # Without any server these tests are not left out: they fail with all the others.
    return version_of_postgres() == 0 or version_of_postgres() >= SIZE_OF_QUEUE


def _dumps() -> bool:
    programs = find_programs()
    return programs is None or all((programs / name).exists() for name in ("pg_dump", "psql"))


def _slow_disk() -> bool:
    return find_programs() is not None and find_compiler() is not None


NEEDS = (
    Need(
        "pgbouncer",
        find_pgbouncer,
        "tests/store/postgres/test_pgbouncer.py is left out; see make test-pgbouncer",
    ),
    Need(
        "slow_disk",
        _slow_disk,
        "tests of crashes and of flushes of the log are left out; they need Linux, a C compiler "
        "(cc, gcc or clang) and the programs of PostgreSQL",
    ),
    Need(
        "compiler",
        find_compiler,
        "tests of a slow network are left out; they need Linux and a C compiler (cc, gcc or clang)",
    ),
    Need(
        "mounts",
        can_mount,
        "tests of full and of read-only disks are left out; run them as root, "
        "or allow user namespaces",
    ),
    Need(
        "small_notify_queue",
        _queue_can_be_small,
        f"tests/store/postgres/test_full_notify_queue.py is left out; "
        f"it needs PostgreSQL {SIZE_OF_QUEUE} or later",
    ),
    Need(
        "pg_dump",
        _dumps,
        "tests of restored servers are left out; they need pg_dump and psql beside initdb",
    ),
)


def absent() -> list[Need]:
    """Return what is not here."""
    return [need for need in NEEDS if not need.is_here()]
