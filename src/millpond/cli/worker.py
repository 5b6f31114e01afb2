"""`millpond worker module:app`: run the tasks of an application until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.cli import logs
from millpond.cli.choose_store import STORE
from millpond.cli.exits import WORKER_EXITS, Exit, Refusal
from millpond.core.log_fields import about
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.cli.supervise.health_answer import Address
    from millpond.pool.millpond import Millpond

log = logging.getLogger("millpond.cli")

GRACE, GRACE_OF_RELOAD = 30.0, 1.0

MOST_PROCESSES = 256

HEALTH_PORT = "MILLPOND_HEALTH_PORT"
"""The environment variable with the address of the health endpoint."""

USAGE = """\
millpond worker [--pools A,B] [--concurrency N] [--processes N] [--once]
                       [--grace SECONDS] [--reload] [--reload-dir FOLDER]
                       [--health-port [HOST:]PORT] [--store URL] [--log-level LEVEL] APP"""

SIGNALS = """\
signals:
  The first SIGTERM, SIGINT (Ctrl-C) or SIGHUP drains: the worker starts no more tasks, and running
  tasks have --grace seconds to end; then it gives them back without counting the attempt. A second
  signal gives them back now. A third signal exits at once. With --processes or --reload, the parent
  process passes signals on."""


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
        help="run at most N tasks at a time in each process, over all pools (default: as many as "
        "each pool allows)",
    )
    options.add_argument(
        "--processes",
        type=process_count,
        metavar="N",
        help="run N worker processes; one that ends is started again (default: 1, without a parent "
        "process)",
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
        metavar="SECONDS",
        help=f"time for running tasks to end after the first signal (default: {GRACE:g}; with "
        f"--reload {GRACE_OF_RELOAD:g})",
    )
    options.add_argument(
        "--reload",
        action="store_true",
        help="for development: restart when a .py, .toml or .env file changes",
    )
    options.add_argument(
        "--reload-dir",
        action="append",
        type=folder,
        metavar="FOLDER",
        help="with --reload: watch this folder (default: the current one); may be repeated",
    )
    options.add_argument(
        "--health-port",
        type=address,
        metavar="[HOST:]PORT",
        help="answer health probes over HTTP: /live, /ready and /health (default: "
        f"${HEALTH_PORT}, or none; the default host is 127.0.0.1)",
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


def process_count(text: str) -> int:
    """Return a number of processes."""
    count = whole_number(text)
    if count > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"{count} is more than {MOST_PROCESSES} processes")
    return count


def folder(text: str) -> Path:
    """Return a folder that exists."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def address(text: str) -> Address:
    """Return the address of the health endpoint."""
    from millpond.cli.supervise.health_answer import Address

    try:
        return Address.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST:]PORT") from None


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
    """Run the worker, or the parent of worker processes, and return the exit code."""
    options = parser()
    parsed = options.parse_args(arguments)
    if parsed.reload_dir and not parsed.reload:
        options.error("--reload-dir goes with --reload")
    if parsed.once and parsed.reload:
        options.error("--once and --reload exclude each other")
    if parsed.grace is None:
        parsed.grace = GRACE_OF_RELOAD if parsed.reload else GRACE
    if parsed.health_port is None and os.environ.get(HEALTH_PORT):
        parsed.health_port = _address_of_environment()
    if parsed.processes is not None or parsed.reload:
        return _supervise(parsed)
    return _serve(parsed)


def _address_of_environment() -> Address:
    try:
        return address(os.environ[HEALTH_PORT])
    except argparse.ArgumentTypeError as error:
        raise Refusal(Exit.USAGE, f"${HEALTH_PORT}: {error}") from None


def _serve(parsed: argparse.Namespace) -> int:
    """Run one worker in this process."""
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
        health=parsed.health_port,
    )
    collector.tune_garbage_collection()
    threads.switch_threads_quickly()
    return asyncio.run(serve(mp, options))


def _supervise(parsed: argparse.Namespace) -> int:
    """Run worker processes, and restart those that end."""
    if os.name != "posix":
        raise Refusal(Exit.USAGE, "--processes and --reload need a POSIX system")
    from millpond.cli.supervise.file_watcher import FileWatcher
    from millpond.cli.supervise.health_server import HealthServer
    from millpond.cli.supervise.supervisor import Supervisor, SupervisorOptions
    from millpond.cli.supervise.systemd import Systemd

    logs.set_up(parsed.log_level)
    watcher = FileWatcher(parsed.reload_dir or [Path.cwd()]) if parsed.reload else None
    options = SupervisorOptions(
        command=command_of_child(parsed),
        processes=parsed.processes or 1,
        once=parsed.once,
        grace=parsed.grace,
    )
    supervisor = Supervisor(options, Systemd.from_environment(), watcher)
    # The processes answer to their parent, which has the port.
    os.environ.pop(HEALTH_PORT, None)
    if parsed.health_port is None:
        return supervisor.run()
    server = HealthServer(parsed.health_port, supervisor.health)
    server.start()
    try:
        return supervisor.run()
    finally:
        server.close()


def command_of_child(parsed: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line of one worker process."""
    options = [f"--grace={parsed.grace!r}"]
    given = vars(parsed) | {"pools": parsed.pools and ",".join(parsed.pools)}
    options += [
        f"--{name.replace('_', '-')}={given[name]}"
        for name in ("pools", "concurrency", "store", "log_level")
        if given[name] is not None
    ]
    if parsed.once:
        options.append("--once")
    return (sys.executable, "-m", "millpond", "worker", *options, "--", parsed.app)


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
