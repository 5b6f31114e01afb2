"""`make mutants-sql`: break the SQL on purpose, one guard at a time; each break must be noticed.

A mutant is a piece of the text of the server's functions and its replacement. The mutated function
replaces the sound one, and histories run on the server and on the memory store until the two
differ. A mutant that no history notices breaks a guard that no test checks.
"""

import argparse
import asyncio
import re
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from psycopg import Error as DatabaseError
from tests.store.postgres.sql_histories import run_on_both
from tests.store.postgres.sql_scenes import SCENES
from verify.servers.postgres import serve
from verify.servers.schemas import Schema, Schemas

from millpond.errors import MillpondError
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.server_functions import sources, versioned

SEEDS = 6


class Mutant(NamedTuple):
    """One break: its name, the text of the SQL, its replacement, and what should notice it."""

    name: str
    old: str
    new: str
    notices: tuple[str, ...]


_LIST = Path(__file__).with_suffix(".toml")
MUTANTS = tuple(
    Mutant(one["name"], one["old"], one["new"], tuple(one["notices"]))
    for one in tomllib.loads(_LIST.read_text("utf-8"))["mutant"]
)

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

_FUNCTION = re.compile(r"^CREATE FUNCTION .*?^(?:END )?\$(?:body)?\$;", re.DOTALL | re.MULTILINE)


def function_with(mutant: Mutant) -> str:
    """Return the sound function that a mutant breaks; it must have the text just once."""
    text = "\n".join(sources().values())
    found: list[str] = [one for one in _FUNCTION.findall(text) if mutant.old in one]
    if len(found) != 1 or found[0].count(mutant.old) != 1:
        message = f"{mutant.name}: its text stands {text.count(mutant.old)} times"
        raise LookupError(message)
    return found[0]


def install(schema: Schema, function: str) -> None:
    """Put a function in the place of the one of its name."""
    connection = schema.connection()
    made = versioned(function).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
    place = quoted(schema.address.schema)
    connection.driver.execute(f"SET search_path = {place}; {made}; RESET search_path".encode())
    connection.close()
    # Statements prepared with the function before must not be used again.
    schema.hang_up()


def noticed(schema: Schema, mutant: Mutant, seeds: Iterable[int] = range(SEEDS)) -> str | None:
    """Install a mutant; return what noticed it, or None; restore the sound function."""
    sound = function_with(mutant)
    install(schema, sound.replace(mutant.old, mutant.new))
    try:
        for seed in seeds:
            for who in mutant.notices:
                if not holds(schema, who, seed):
                    return f"{who}, seed {seed}"
                if who in SCENES and seed:
                    break
    finally:
        install(schema, sound)
    return None


def holds(schema: Schema, who: str, seed: int) -> bool:
    """Run a history on both stores; return whether they agree, and leave empty tables."""
    try:
        asyncio.run(SCENES[who](schema) if who in SCENES else run_on_both(schema, who, seed))
        return not schema.wrong()
    except (AssertionError, MillpondError, DatabaseError, LookupError, ValueError):
        return False
    finally:
        schema.empty()


def main() -> int:
    """Hunt every mutant, or those that are named."""
    parser = argparse.ArgumentParser(prog="make mutants-sql", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), help="hunt this one")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many histories of each kind")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.only or mutant.name in given.only]
    survivors = []
    with serve() as server, server.database() as url, Schemas(url) as schemas:
        schema = schemas.take()
        for who in dict.fromkeys(who for mutant in chosen for who in mutant.notices):
            if not holds(schema, who, 0):
                print(f"the sound functions do not hold: {who}")  # noqa: T201 - a command
                return 2
        for mutant in chosen:
            started = time.monotonic()
            found = noticed(schema, mutant, range(given.seeds))
            seconds = time.monotonic() - started
            print(f"{mutant.name:34}{found or 'SURVIVED':28}{seconds:6.1f} s", flush=True)  # noqa: T201 - a command
            survivors += [] if found else [mutant.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants of SQL were noticed")  # noqa: T201 - a command
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
