"""Which rows the tests show, and on which stores: a list that grows by itself and never shrinks.

pytest collects the suite and runs nothing. `docs/reference/conformance/shown.toml` is the list:
`make docs` adds rows and stores to it, and only an edit by hand removes one.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

STORES = ("memory", "sqlite", "postgres")
LIST = "docs/reference/conformance/shown.toml"
HEAD = """\
# The rows that tests show, and the stores they show them on; a row without a store needs none.
# `make docs` adds to this list and removes nothing. A test fails when a test for one of these rows
# or stores is gone. To give up a promise on a store, delete it here by hand.
"""

HOMES = {
    "tests/cli/": "sqlite",
    "tests/durable/": "sqlite",
    "tests/pool/": "memory",
    "tests/pool/transactions/": "sqlite",
    "tests/pool/events/test_trigger_transactions.py": "sqlite",
    "tests/runtime/": "memory",
    "tests/simulation/": "memory",
    "tests/simulation/test_on_files.py": "sqlite",
    "tests/store/sqlite/": "sqlite",
    "tests/store/test_memory_store.py": "memory",
    "tests/store/test_postgres_suite.py": "postgres",
    "tests/store/test_sqlite_suite.py": "sqlite",
    "tests/telemetry/": "memory",
    "tests/testing/": "memory",
    "tests/webhooks/": "memory",
}
"""The store that tests below a path use, where neither a parameter nor a fixture names it."""

_OUTPUT = "MILLPOND_ROWS_TO"

Shown = dict[str, set[str]]


def rows_of(item: pytest.Item) -> list[str]:
    """Return the rows that a collected test names."""
    marked = [row for mark in item.iter_markers("rows") for row in mark.args]
    # The suite for stores needs no plugin, so it keeps the rows on the function.
    return marked + list(getattr(getattr(item, "function", None), "rows", ()))


def home_of(path: str) -> set[str]:
    """Return the store of the longest path in HOMES that leads to this file."""
    homes = [home for home in HOMES if path.startswith(home)]
    return {HOMES[max(homes, key=len)]} if homes else set()


def stores_of(item: pytest.Item, again: Mapping[str, set[str]]) -> set[str]:
    """Return the stores a collected test runs on; `again` names files that run on others too."""
    if mark := item.get_closest_marker("stores"):
        return set(mark.args)
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {value for value in given if isinstance(value, str)} & set(STORES)
    if not named and "postgres" in getattr(item, "fixturenames", ()):
        named = {"postgres"}
    path = item.nodeid.partition("::")[0]
    if named:
        return named
    elsewhere = set() if item.get_closest_marker("memory") else again.get(path, set())
    return home_of(path) | elsewhere


def of_items(items: Iterable[pytest.Item], root: Path) -> Shown:
    """Return the rows that these tests show, each with its stores."""
    again = files_run_again(root)
    found: Shown = defaultdict(set)
    for item in items:
        if rows := rows_of(item):
            stores = stores_of(item, again)
            for row in rows:
                found[row] |= stores
    return dict(found)


def files_run_again(root: Path) -> dict[str, set[str]]:
    """Return the files that `make test` runs on other stores, as the Makefile says."""
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    dry_run = subprocess.run(
        ["make", "--no-print-directory", "-n", "test"],  # noqa: S607 - make is what runs us
        cwd=root,
        env=plain,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, set[str]] = defaultdict(set)
    for line in dry_run.stdout.splitlines():
        if store := re.search(r"MILLPOND_STORE=(\w+)", line):
            for file in re.findall(r"tests/\S+\.py", line):
                found[file].add(store[1])
    return found


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the collected tests, for `collected` in the process that started this one."""
    found = of_items(session.items, session.config.rootpath)
    text = json.dumps({row: sorted(stores) for row, stores in found.items()})
    Path(os.environ[_OUTPUT]).write_text(text, "utf-8")


def collected(root: Path) -> Shown:
    """Return the rows that the whole suite shows, each with its stores."""
    kept = {name: value for name, value in os.environ.items() if not _concerns_tests(name)}
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tools.shown"],
            cwd=root,
            env={**kept, _OUTPUT: file.name},
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise RuntimeError(f"pytest cannot collect the suite:\n{run.stdout}{run.stderr}")
        return {row: set(stores) for row, stores in json.loads(file.read()).items()}


def _concerns_tests(name: str) -> bool:
    return name.startswith(("MILLPOND_", "PYTEST_"))


def listed(root: Path) -> Shown:
    """Return what the list says."""
    text = tomllib.loads((root / LIST).read_text("utf-8"))
    return {row: set(stores) for row, stores in text["shown"].items()}


def lost(old: Shown, new: Shown) -> list[str]:
    """Return a sentence for each row or store of the list that no test shows any more."""
    rows = [f"{row} has no test any more" for row in old if row not in new]
    stores = [
        f"{row} is no longer shown on {store}"
        for row, before in old.items()
        for store in STORES
        if row in new and store in before - new[row]
    ]
    return rows + stores


def grown(old: Shown, new: Shown) -> Shown:
    """Return the list with all that tests show now; nothing leaves it."""
    return {row: old.get(row, set()) | new.get(row, set()) for row in old | new}


def text_of(shown: Shown, order: Iterable[str]) -> str:
    """Return the list as a file, in the order of the rows."""
    lines = [f"{row} = {json.dumps(in_order(shown[row]))}" for row in order if row in shown]
    return "\n".join([HEAD, "[shown]", *lines, ""])


def in_order(stores: set[str]) -> list[str]:
    """Return stores from the smallest to the largest."""
    return [store for store in STORES if store in stores]
