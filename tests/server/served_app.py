"""A process that serves a Millpond in memory, whose pools any request may change."""

from __future__ import annotations

import asyncio
import sys

from tests.server.test_reading import shop

from millpond import Millpond, bounded
from millpond.server import app
from millpond.server.serving import serve


def announce(url: str) -> None:
    """Say where it listens."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until a signal says otherwise."""
    mp = Millpond()
    shop(mp)
    mp.cron("hourly", every=3600.0, into="orders", task=mp.tasks["pay"].bind(1))
    mp.trigger("on-paid", on="paid", into="orders", task=mp.tasks["pay"])
    mp.pool("full", backpressure=bounded(2, "fail_submitter"))
    made = app(mp, allow_actions=True, max_rate=1_000_000, max_clients=20)
    asyncio.run(serve(made, "127.0.0.1", 0, announce))


if __name__ == "__main__":
    main()
