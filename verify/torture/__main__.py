"""`make torture`: torture a store for some minutes, and prove that it kept its promises."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from verify.torture.member import SETTINGS
from verify.torture.plan import Settings
from verify.torture.report import Report, lines_of
from verify.torture.run import SHORT, judged, torture
from verify.torture.store_setup import setup_for

AT_LEISURE = {name: value for name, value in SHORT.items() if name != "patience"}
"""The settings of the short form."""


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seed", type=int, help="the seed of a torture that went wrong")
    parser.add_argument("--store", choices=("sqlite", "postgres", "pgbouncer"), default="sqlite")
    parser.add_argument("--url", help="a store that is there; without it a new one of the kind")
    parser.add_argument(
        "--deaf", action="store_true", help="processes do not use LISTEN; only on a new server"
    )
    parser.add_argument("--short", action="store_true", help="some hundreds of tasks, 20 seconds")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--seconds", type=float, help="for how long processes are hurt")
    parser.add_argument("--lease", type=float)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--report", type=Path, help="write the report to this file, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the files, also if all is well")
    parser.add_argument("--audit", type=Path, metavar="HOME", help="only judge kept files again")
    return parser.parse_args()


def main() -> int:
    """Run from the command line."""
    given = options()
    if given.audit is not None:
        settings = msgspec.json.decode((given.audit / SETTINGS).read_bytes(), type=Settings)
        return show(judged(settings, full=False), given.report)
    home = Path(tempfile.mkdtemp(prefix="millpond-torture-"))
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    named = {name: getattr(given, name) for name in ("tasks", "seconds", "lease", "workers")}
    chosen = {name: value for name, value in named.items() if value is not None}
    full = not given.short and not chosen
    with setup_for(given.store, given.url, home, listens=not given.deaf) as place:
        expected = {**place.settings, **(AT_LEISURE if given.short else {}), **chosen}
        settings = Settings(home=str(home), seed=seed, **expected)
        print(
            f"seed {seed}: {settings.tasks:,} tasks, {settings.seconds:g} s, files in {home}",
            flush=True,
        )
        result = show(torture(settings, full=full, place=place), given.report)
    if result == 0 and not given.keep:
        shutil.rmtree(home)
    else:
        print(f"kept: {home}\njudge again: python -m verify.torture --audit {home}")
    return result


def show(result: Report, file: Path | None) -> int:
    """Print the table and write the JSON; return the exit code."""
    for line in lines_of(result):
        print(line)
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
