"""`make torture-triggers`: schedules and triggers of a fleet that is killed; 1 if one is wrong."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from verify.torture.plan import Settings
from verify.torture.store_setup import setup_for
from verify.triggers.run import SHORT, WHOLE, TriggerTorture


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
    with setup_for(given.store, given.url, home) as place:
        chosen_settings = {**place.settings, **(SHORT if given.short else WHOLE), **chosen}
        settings = Settings(home=str(home), seed=seed, **chosen_settings)
        print(
            f"seed {seed}: {settings.tasks:,} events, {settings.seconds:g} s, files in {home}",
            flush=True,
        )
        report = TriggerTorture(settings, place).run()
    print("\n".join(report.lines()))
    print(f"{given.store}, seed {seed}, {time.monotonic() - begun:.0f} s")
    if report.clean:
        shutil.rmtree(home)
    else:
        print(f"kept: {home}")
    return not report.clean


if __name__ == "__main__":
    sys.exit(main())
