"""`make capacity`: measure costs, check the model against real fleets, and look further."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from verify.capacity.measure import costs_of, did, flush_time, server
from verify.capacity.model import Carried, Costs, Fleet, Site, carried

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verify.servers.postgres import OwnServer

SLOW = 0.002
"""Seconds by which the slow disk is slower."""

CHECKED = (1, 2, 4, 8, 16)
"""Processes of the real fleets."""

SLOTS, HANDLER = 10, 0.05

FURTHER = (10, 100, 1000)
"""Workers of the fleets that are only simulated."""

SERVERS = (2, 8, 32)
"""Cores of the servers that are only simulated."""


def compare(
    where: OwnServer, costs: Costs, site: Site, fleets: Sequence[Fleet], seconds: float
) -> float:
    """Print each fleet as measured and as simulated; return by how much they are apart at most."""
    worst = 1.0
    for fleet in fleets:
        real = did(where, fleet, seconds=seconds).rate
        model = carried(fleet, costs, site).rate
        worst = max(worst, real / model, model / real)
        what = f"{fleet.processes} workers" if fleet.slots else f"{fleet.processes} submit"
        print(
            f"  {what:<12} measured {real:8,.0f}/s   model {model:8,.0f}/s   {model / real:5.2f} x"
        )
    return worst


def look_further(submit: Costs, work: Costs) -> None:
    """Print what larger fleets would do on larger servers, each process on a core of its own."""
    print("\nsimulated: workers with 10 slots and 50 ms handlers, 2 ms flush, 0.5 ms network")
    for cores in SERVERS:
        for pools in (1, 8):
            for workers in FURTHER:
                fleet = Fleet(workers, SLOTS, HANDLER, pools)
                found = carried(fleet, work, Site(cores, workers, SLOW, 0.0005), seconds=3.0)
                show(f"{cores} cores, {pools} pools, {workers} workers", fleet, found)
    print("\nsimulated: processes that submit one task at a time, the same server")
    for cores in SERVERS:
        for workers in FURTHER:
            fleet = Fleet(workers)
            found = carried(fleet, submit, Site(cores, workers, SLOW, 0.0005), seconds=3.0)
            show(f"{cores} cores, 1 pool, {workers} processes", fleet, found)


def show(what: str, fleet: Fleet, found: Carried) -> None:
    """Print one line of a table."""
    share = (
        f"{found.rate / (fleet.processes * SLOTS / HANDLER):4.0%} of slots" if fleet.slots else ""
    )
    print(
        f"  {what:<34} {found.rate:8,.0f}/s  call {found.median * 1e3:6.1f} ms  "
        f"lock {found.lock:4.0%}  counts {found.counts:4.0%}  server {found.server:4.0%}  {share}"
    )


def main() -> int:
    """Measure, compare, look further."""
    options = argparse.ArgumentParser(prog="make capacity", description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    options.add_argument(
        "--within", type=float, default=0.0, help="fail if further apart, as in 1.5"
    )
    given = options.parse_args()
    cores = os.cpu_count() or 1
    load, _, _ = os.getloadavg()
    print(f"{cores} cores, load {load:.1f} at the start")
    with server(0.0) as ordinary:
        submit, work = costs_of(ordinary, seconds=given.seconds)
    for name, costs in (("submit", submit), ("worker's call", work)):
        parts = "  ".join(f"{part} {value * 1e6:.0f}" for part, value in costs._asdict().items())
        print(f"microseconds of a {name}: {parts}")
    with server(SLOW) as slow:
        site = Site(cores, None, flush_time(slow))
        print(f"a flush takes {site.flush * 1e3:.1f} ms")
        workers = [Fleet(count, SLOTS, HANDLER) for count in CHECKED]
        worst = max(
            compare(slow, submit, site, [Fleet(count) for count in CHECKED], given.seconds),
            compare(slow, work, site, workers, given.seconds),
        )
    print(f"model and measurement are apart by at most {worst:.2f} x")
    look_further(submit, work)
    return 1 if given.within and worst > given.within else 0


if __name__ == "__main__":
    sys.exit(main())
