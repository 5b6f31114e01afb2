"""`make torture-triggers`: schedules and triggers of a fleet that is killed; 1 if one is wrong."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from verify.torture.place import place_of
from verify.torture.plan import Orders
from verify.triggers.course import SHORT, WHOLE, Course


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make torture-triggers ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--store", choices=("sqlite", "postgres", "pgbouncer"), default="sqlite")
    parser.add_argument("--url", help="a store that is there; without it a new one of the kind")
    parser.add_argument("--short", action="store_true", help="some dozens of events, 5 seconds")
    parser.add_argument("--seconds", type=float, help="for how long processes are hurt")
    parser.add_argument("--events", type=int, dest="tasks")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="millpond-sources-"))
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    chosen = {
        name: getattr(given, name)
        for name in ("seconds", "tasks")
        if getattr(given, name) is not None
    }
    begun = time.monotonic()
    with place_of(given.store, given.url, home) as place:
        asked = {**place.orders, **(SHORT if given.short else WHOLE), **chosen}
        orders = Orders(home=str(home), seed=seed, **asked)
        print(
            f"seed {seed}: {orders.tasks:,} events, {orders.seconds:g} s, files in {home}",
            flush=True,
        )
        report = Course(orders, place).run()
    print("\n".join(report.lines()))
    print(f"{given.store}, seed {seed}, {time.monotonic() - begun:.0f} s")
    if report.clean:
        shutil.rmtree(home)
    else:
        print(f"kept: {home}")
    return not report.clean


if __name__ == "__main__":
    sys.exit(main())
