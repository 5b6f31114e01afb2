"""`millpond worker module:app`: run the tasks of an application until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import math
import os
from typing import TYPE_CHECKING

from millpond.cli import logs
from millpond.cli.choose_store import STORE
from millpond.cli.exits import WORKER_EXITS, Exit, Refusal
from millpond.core.log_fields import about
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.pool.millpond import Millpond

log = logging.getLogger("millpond.cli")

GRACE = 30.0

USAGE = """\
millpond worker [--pools A,B] [--concurrency N] [--once] [--grace SECONDS]
                       [--store URL] [--log-level LEVEL] APP"""

SIGNALS = """\
signals:
  The first SIGTERM, SIGINT (Ctrl-C) or SIGHUP drains: the worker starts no more tasks, and running
  tasks have --grace seconds to end; then it gives them back without counting the attempt. A second
  signal gives them back now. A third signal exits at once."""


def parser() -> argparse.ArgumentParser:
    """Return the command line of a worker."""
    codes = "\n".join(f"  {code:<3}  {code.meaning}" for code in WORKER_EXITS)
    options = argparse.ArgumentParser(
        prog="millpond worker",
        usage=USAGE,
        description="Run the tasks of an application until a signal stops it.",
        epilog=f"{SIGNALS}\n\nexit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument(
        "app",
        metavar="APP",
        help="module:name of a Millpond, or of a function without arguments that returns one; the "
        "name may be left out where the module has one Millpond, or calls it app or mp",
    )
    options.add_argument(
        "--pools",
        type=names,
        metavar="A,B",
        help="serve these pools only (default: all that the application declares)",
    )
    options.add_argument(
        "--concurrency",
        type=whole_number,
        metavar="N",
        help="run at most N tasks at a time, over all pools (default: as many as each pool allows)",
    )
    options.add_argument(
        "--once",
        action="store_true",
        help="exit when idle: no task of the pools runs on any worker, and no due task can start; "
        "scheduled, paused and parked tasks stay",
    )
    options.add_argument(
        "--grace",
        type=seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"time for running tasks to end after the first signal (default: {GRACE:g})",
    )
    options.add_argument(
        "--store",
        metavar="URL",
        help="use this store instead of the application's, such as sqlite:///work.db (default: the "
        f"application's own; if that is memory, ${STORE})",
    )
    options.add_argument(
        "--log-level",
        type=str.lower,
        choices=logs.LEVELS,
        metavar="LEVEL",
        help=f"{', '.join(logs.LEVELS)} (default: info); logs go to stderr, unless the application "
        "sets up its own",
    )
    return options


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("no pool is named")
    return found


def whole_number(text: str) -> int:
    """Return a number of tasks."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        message = f"{text!r} is not a whole number of 1 or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        given = float(text)
    except ValueError:
        given = math.nan
    if not (given >= 0 and math.isfinite(given)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return given


def main(arguments: Sequence[str]) -> int:
    """Run the worker, and return the exit code."""
    parsed = parser().parse_args(arguments)
    import asyncio

    from millpond.cli import gc_tuning as collector
    from millpond.cli import thread_switching as threads
    from millpond.cli.load_app import load
    from millpond.cli.worker_process import WorkerOptions, serve

    mp = load(parsed.app)
    logs.set_up(parsed.log_level)
    store = parsed.store
    if store is None and mp.url is None and internals_of(mp).owner.make_store is None:
        store = os.environ.get(STORE) or None
    if store is not None:
        _use_store(mp, store)
    _check(mp, parsed.app, parsed.pools)
    options = WorkerOptions(
        app=parsed.app,
        pools=parsed.pools,
        concurrency=parsed.concurrency,
        once=parsed.once,
        grace=parsed.grace,
    )
    collector.tune_garbage_collection()
    threads.switch_threads_quickly()
    return asyncio.run(serve(mp, options))


def _use_store(mp: Millpond, url: str) -> None:
    """Use this store instead of the application's."""
    from millpond.errors import MillpondError

    try:
        mp.url = url
    except MillpondError as error:
        raise Refusal(Exit.USAGE, f"--store: {error}") from None


def _check(mp: Millpond, app: str, pools: tuple[str, ...] | None) -> None:
    """Refuse an application that a worker cannot serve."""
    from millpond.errors import UnknownPool

    if mp.url is None and internals_of(mp).owner.make_store is None:
        raise Refusal(
            Exit.APP,
            f"{app} keeps its pools in memory, where no other process can see them: a worker "
            'process needs a store, as in Millpond("sqlite:///work.db") or --store',
        )
    if not mp.pools():
        raise Refusal(
            Exit.APP,
            f"{app} declares no pools; if other modules declare them, name those: "
            "Millpond(..., imports=[...])",
        )
    for name in pools or ():
        try:
            mp.get_pool(name)
        except UnknownPool as error:
            raise Refusal(Exit.USAGE, f"--pools: {error.message}") from None
    if not mp.tasks:
        log.warning(
            "%s has no tasks; this worker parks every task it leases",
            app,
            extra=about("worker.without_tasks", app=app),
        )
