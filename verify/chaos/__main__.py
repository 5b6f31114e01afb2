"""`make chaos`: inject the faults one after another; the fleet must recover from each."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
import psycopg

from verify.chaos.faults import chosen
from verify.chaos.fleet import Unfinished
from verify.chaos.load import Load
from verify.chaos.report import complaints, report, table
from verify.chaos.scenario import scenario
from verify.servers.postgres import OwnServer, find_programs

CONNECTIONS = "40"
"""What the server takes in all; the rest is as PostgreSQL has it."""


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--only", help="words of the names of scenarios, with commas between")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each part lasts")
    parser.add_argument("--offered", type=float, default=0.5, help="part of the capacity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the report to this file, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the files, also if all is well")
    return parser.parse_args()


def main() -> int:
    """Run from the command line."""
    given = options()
    programs = find_programs()
    names = list(chosen(given.only))
    if programs is None or not names:
        why = "there is no PostgreSQL here" if programs is None else "no scenario has such a name"
        print(why, file=sys.stderr)
        return 2
    verdicts, failed = [], False
    load = Load(url="", home="", offered=given.offered)
    with OwnServer(programs, {"max_connections": CONNECTIONS}) as server:
        with psycopg.connect(server.url) as connection:
            version = f"PostgreSQL {connection.info.server_version // 10_000}"
        for name in names:
            home = tempfile.mkdtemp(prefix="millpond-chaos-")
            with server.database() as url:
                load = msgspec.structs.replace(load, url=url, home=home)
                try:
                    verdict = scenario(name, server, load, seconds=given.seconds, seed=given.seed)
                except Unfinished as unfinished:
                    print(f"{name}: {unfinished}; kept: {home}", flush=True)
                    failed = True
                    continue
            verdicts.append(verdict)
            wrong = "; ".join(complaints(verdict))
            print(f"{name}: {wrong or 'as it should be'}", flush=True)
            if wrong or given.keep:
                print(f"  kept: {home}")
            else:
                shutil.rmtree(home)
    print("\n".join(table(verdicts)))
    result = report(version, given.seconds, load, verdicts)
    if given.report is not None:
        given.report.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return 0 if result.clean and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
