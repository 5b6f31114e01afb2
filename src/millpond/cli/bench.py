"""`millpond bench`: measure the speed of a new, empty store beside the given one."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.cli.exits import Exit, Refusal
from millpond.cli.render import aligned_pairs, emit, short
from millpond.cli.store_options import command, refusal_for
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.pool.millpond import Millpond
    from millpond.store.postgres.url import Address

Given = TypeVar("Given", bound="Callable[..., Any]")


def number(name: str, default: int, text: str) -> Callable[[Given], Given]:
    """Return a decorator that adds an option with a number."""
    return click.option(
        name,
        type=click.IntRange(1),
        default=default,
        metavar="N",
        help=f"{text} (default: {default}).",
    )


@command("bench", json="Print the figures as one JSON document.")
@number("--tasks", 2000, "Number of tasks")
@number("--batch", 100, "Tasks per submit_many")
@number("--concurrency", 50, "Tasks that run at a time")
@click.option(
    "--durability",
    type=click.Choice(["full", "normal"]),
    default="full",
    help="Durability of a commit (default: full).",
)
@click.option("--memory", is_flag=True, help="Measure the store in memory instead.")
def main(*, as_json: bool, **options: Any) -> int:  # noqa: ANN401 - the options above
    """Measure how many tasks per second one process on this machine can submit and run.

    The tasks do nothing. Without --store, a temporary SQLite file is measured. With it, a new file
    in the same folder or a new schema in the same database is measured and then removed; the store
    itself is not touched.
    """
    import asyncio

    from millpond.errors import MillpondError

    try:
        with _empty_store(options) as (url, where):
            found = asyncio.run(_measure(url, options))
    except MillpondError as error:
        raise refusal_for(error) from error
    _print_figures({"store": where, **found}, as_json=as_json)
    return Exit.CLEAN


@contextlib.contextmanager
def _empty_store(options: dict[str, Any]) -> Iterator[tuple[str | None, str]]:
    """Yield the URL of an empty store in the same folder or database as the given one."""
    import os

    from millpond.cli.choose_store import APP, STORE, url_of
    from millpond.pool.store_url import place_of
    from millpond.store.url_redaction import shown

    if options["memory"]:
        yield None, "memory"
        return
    named = options["store"] or options["app"] or os.environ.get(STORE) or os.environ.get(APP)
    if not named:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
            yield f"sqlite:///{folder}/bench.db", f"a file in {folder}"
        return
    url = url_of(options["store"], options["app"])
    place = place_of(url)
    if isinstance(place, Path):
        parent = place.absolute().parent
        if not parent.is_dir():
            raise Refusal(Exit.STORE, f"there is no folder {parent}")
        with tempfile.TemporaryDirectory(prefix=".millpond-bench-", dir=parent) as beside:
            yield f"sqlite:///{beside}/bench.db", f"a file beside {shown(url)}"
    elif place is not None:
        with _temporary_schema(url, place) as beside:
            yield beside, f"a schema beside {shown(url)}"


@contextlib.contextmanager
def _temporary_schema(url: str, address: Address) -> Iterator[str]:
    """Yield the URL of a new schema, and drop it afterwards."""
    import os
    import re

    from millpond.store.postgres.connect import connect
    from millpond.store.postgres.quoting import quoted

    name = f"millpond_bench_{os.getpid()}"
    plain = re.sub(r"([?&])(schema|search_path)=[^&]*&?", r"\1", url).rstrip("?&")
    try:
        yield f"{plain}{'&' if '?' in plain else '?'}schema={name}"
    finally:
        with contextlib.closing(connect(address)) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {quoted(name)} CASCADE".encode())


async def _measure(url: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Submit tasks, run them, and return the figures."""
    from millpond.pool.millpond import Millpond

    mp = Millpond(url, work=False, durability=options["durability"])
    pool = mp.pool("bench", max_concurrent=options["concurrency"])

    @pool.task
    async def nothing(number: int) -> None:
        """Do nothing."""

    tasks, batch = options["tasks"], options["batch"]
    async with mp:
        begun = _clocks()
        for first in range(0, tasks, batch):
            some = range(first, min(first + batch, tasks))
            await pool.submit_many(nothing.each(some))
        stored = _clocks()
        async with mp.worker():
            await pool.drain()
        ended = _clocks()
        one_by_one = await _one_by_one(mp)
        view = await internals_of(mp).runtime.view.pool("bench")
    assert view is not None  # noqa: S101 - it was declared
    return {
        "tasks": tasks,
        "batch": batch,
        "concurrency": options["concurrency"],
        "durability": options["durability"],
        "submit_per_second": _rate(tasks, begun[0], stored[0]),
        "run_per_second": _rate(tasks, stored[0], ended[0]),
        "cpu_per_task": (ended[1] - begun[1]) / tasks,
        "round_trip": {"p50": one_by_one[len(one_by_one) // 2], "most": one_by_one[-1]},
        "completed": view.totals.get("completed", 0),
    }


async def _one_by_one(mp: Millpond, times: int = 50) -> list[float]:
    """Return the sorted times from submit to result of single tasks."""
    pool = mp.get_pool("bench")
    took = []
    async with mp.worker():
        for number in range(times):
            begun = time.perf_counter()
            await (await pool.submit(mp.tasks["nothing"].bind(number)))
            took.append(time.perf_counter() - begun)
    return sorted(took)


def _clocks() -> tuple[float, float]:
    """Return the time, and the CPU time that this process has used."""
    return time.perf_counter(), time.process_time()


def _rate(count: int, begun: float, ended: float) -> float:
    return count / max(ended - begun, 1e-9)


def _print_figures(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    trip = found["round_trip"]
    aligned_pairs(
        [
            ("store", f"{found['store']}, durability {found['durability']}"),
            (
                "submit",
                f"{found['submit_per_second']:,.0f} tasks/s, in batches of {found['batch']}",
            ),
            (
                "run",
                f"{found['run_per_second']:,.0f} tasks/s, {found['concurrency']} at a time",
            ),
            (
                "one by one",
                f"{short(trip['p50'])} from submit to result, {short(trip['most'])} at most",
            ),
            ("processor", f"{found['cpu_per_task'] * 1e6:,.0f} µs per task in this process"),
        ]
    )
