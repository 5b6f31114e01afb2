"""`make cron`: a thousand schedules over a year, with deaths; ends with 1 if a firing is wrong."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.store.memory import MemoryStore
from verify.cron_year.year import Year, live_through
from verify.servers.sqlite_files import InlineStore, fresh_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.store.protocol import Store


@contextmanager
def stores(kind: str) -> Iterator[Callable[[Callable[[], float]], Store]]:
    """Yield a function that makes the chosen store."""
    if kind == "memory":
        yield lambda clock: MemoryStore(clock=clock)
        return
    with fresh_file() as path:
        yield lambda clock: InlineStore(path, clock)


def main() -> int:
    """Simulate a year and print the result."""
    options = argparse.ArgumentParser(prog="make cron ARGS=...", description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--schedules", type=int, default=1_000)
    options.add_argument("--days", type=float, default=365.0)
    options.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parsed = options.parse_args()
    # Dying processes have much to say, each time the same.
    logging.getLogger("millpond").addHandler(logging.NullHandler())
    logging.getLogger("millpond").propagate = False
    year = Year(seed=parsed.seed, schedules=parsed.schedules, days=parsed.days)
    began = time.process_time()
    with stores(parsed.store) as make:
        lived = live_through(year, make)
    took = time.process_time() - began
    deaths = ", ".join(f"{count} {how}" for how, count in sorted(lived.deaths.items()))
    print(
        f"seed {parsed.seed}: {lived.fired:,} firings of {lived.schedules:,} schedules in "
        f"{year.days:g} days; {lived.processes} processes, {sum(lived.deaths.values())} deaths "
        f"({deaths}); {lived.stale} settlements refused, {lived.duplicates} duplicates; "
        f"{took:.0f} s of CPU"
    )
    for one in lived.wrong[:20]:
        print(f"  wrong: {one}")
    if not lived.wrong:
        print("each firing that the oracle expects was stored once, and done once; no other was")
    return bool(lived.wrong)


if __name__ == "__main__":
    sys.exit(main())
