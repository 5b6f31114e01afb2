"""The worker process: open the store, run a worker until a signal, drain, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.exit_process import blocking_threads, exit_within
from millpond.cli.exits import Exit, Refusal
from millpond.cli.idle import until_idle
from millpond.cli.signals import StopSignals
from millpond.cli.supervise.health_answer import Address, Health
from millpond.cli.supervise.heartbeat import READY, STALLED_AFTER, Heartbeat, StatusPipe
from millpond.cli.supervise.systemd import Systemd, SystemdListener
from millpond.core.escape import plain
from millpond.core.log_fields import about
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of
from millpond.pool.store_url import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.pool.millpond import Millpond
    from millpond.runtime.worker.worker import Worker

log = logging.getLogger("millpond.cli")

CHECK_EVERY = 1.0
"""Seconds between two checks that the worker is alive."""

EXIT_WITHIN = 5.0
"""Seconds for the process to end once the worker is done."""

CLOSE_WITHIN = 1.0
"""Seconds to cancel the opening of a store."""

NAMED = 8
"""How many pools the first log line names."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `millpond worker`."""

    app: str
    pools: tuple[str, ...] | None
    concurrency: int | None
    once: bool
    grace: float
    health: Address | None = None


async def serve(mp: Millpond, options: WorkerOptions) -> Exit:
    """Run tasks until a signal, or until idle; return the exit code."""
    try:
        code = await _serve(mp, options)
    except Refusal as refusal:
        exit_within(EXIT_WITHIN, refusal.code, refusal.message)
        raise
    exit_within(EXIT_WITHIN, code, f"{blocking_threads()} did not end; exiting anyway")
    return code


async def _serve(mp: Millpond, options: WorkerOptions) -> Exit:
    stop = StopSignals(asyncio.get_running_loop())
    stop.listen()
    # Only the worker of this command runs, even if the application sets work=True.
    internals_of(mp).owner.work = False
    code: Exit | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            heartbeat = await stack.enter_async_context(_heartbeat(options, stop))
            worker = await _start(mp, options, stop, stack)
            if worker is None:
                return Exit.CLEAN
            heartbeat.follow(worker)
            await _wait_until_over(worker, stop, once=options.once)
            heartbeat.drain()
            code = await _drain(worker, stop, options.grace)
    except (Exception, SystemExit) as error:
        if code is None:
            raise
        # The worker has stored its results; only closing the application's resources failed.
        log.warning(
            "closing failed: %s",
            error,
            exc_info=error,
            extra=about("worker.close_failed", reason=str(error)),
        )
    return code


@contextlib.asynccontextmanager
async def _heartbeat(options: WorkerOptions, stop: StopSignals) -> AsyncIterator[Heartbeat]:
    """Report the state of the process to probes, systemd and a parent process."""
    heartbeat = Heartbeat()
    parent = StatusPipe.from_environment(
        lambda: stop.receive("the parent process is gone", time.monotonic())
    )
    if parent is not None:
        heartbeat.add_listener(parent.send)
    heartbeat.add_listener(SystemdListener(Systemd.from_environment()))
    server = None
    if options.health is not None:
        from millpond.cli.supervise.health_server import HealthServer

        server = HealthServer(options.health, lambda: health_of(heartbeat))
        server.start()
    writing = asyncio.ensure_future(heartbeat.keep_writing())
    try:
        yield heartbeat
    finally:
        writing.cancel()
        if server is not None:
            server.close()


def health_of(heartbeat: Heartbeat) -> Health:
    """Return the health of a single worker process."""
    beat, live = heartbeat.beat, heartbeat.age < STALLED_AFTER
    return Health(
        live=live,
        ready=live and beat.state == READY,
        state=beat.state if live else "stalled",
        running=beat.running,
    )


async def _start(
    mp: Millpond, options: WorkerOptions, stop: StopSignals, stack: contextlib.AsyncExitStack
) -> Worker | None:
    """Open the store and start the worker; return None if a signal comes first."""
    try:
        if not await _open(mp, stop, stack):
            log.info(
                "%s: stopped before the store was open",
                stop.name,
                extra=about("worker.stopped", signal=stop.name),
            )
            return None
        worker = await stack.enter_async_context(mp.worker(options.pools, options.concurrency))
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - resources are the user's code
        message = f"the worker could not start: {type(error).__name__}: {error}"
        raise Refusal(Exit.BROKE, message, traceback.format_exc()) from None
    log.info("%s", first_line(mp, options), extra=about("worker.started", worker=worker.name))
    return worker


async def _open(mp: Millpond, stop: StopSignals, stack: contextlib.AsyncExitStack) -> bool:
    """Open the store; return False if a signal comes first."""
    log.debug("opening %s", plain(shown(mp.url)), extra=about("store.opening"))
    opening = asyncio.ensure_future(stack.enter_async_context(mp))
    stopped = asyncio.ensure_future(stop.drain.wait())
    await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if opening.done():
        await opening
        return True
    opening.cancel()
    await asyncio.wait((opening,), timeout=CLOSE_WITHIN)
    return False


def first_line(mp: Millpond, options: WorkerOptions) -> str:
    """Return the first log line: pools, application, store and limit."""
    names = list(options.pools or (pool.name for pool in mp.pools()))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    store = "a store of its own" if mp.url is None else plain(absolute_url(mp.url))
    limit = options.concurrency
    most = "each pool up to its limit" if limit is None else f"at most {limit} at a time"
    return (
        f"serving {', '.join(names[:NAMED])}{more} of {plain(options.app)} from {store}, "
        f"{most}{', until idle' if options.once else ''} (pid {os.getpid()})"
    )


def absolute_url(url: str) -> str:
    """Return the URL of a store, with the absolute path if it is a file.

    A worker that was started in another folder opens another file, and finds an empty queue.
    """
    url_text = shown(url)
    if url_text.startswith("sqlite:///") and not url_text.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd()}/{url_text.removeprefix('sqlite:///')}"
    return url_text


async def _wait_until_over(worker: Worker, stop: StopSignals, *, once: bool) -> None:
    """Wait for a signal, or with `once` until idle; refuse if the worker died."""
    waits: set[asyncio.Future[bool]] = {asyncio.ensure_future(stop.drain.wait())}
    if once:
        waits.add(asyncio.ensure_future(_idle(worker)))
    try:
        while not worker.stopping:
            done, _ = await asyncio.wait(
                waits, timeout=CHECK_EVERY, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                done.pop().result()
                return
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    message = "the worker's loop ended unexpectedly; its tasks were given back; start it again"
    raise Refusal(Exit.BROKE, message)


async def _idle(worker: Worker) -> bool:
    await until_idle(worker)
    log.info(
        "idle: no task is left that could start", extra=about("worker.idle", worker=worker.name)
    )
    return True


async def _drain(worker: Worker, stop: StopSignals, grace: float) -> Exit:
    """Let running tasks end, for `grace` seconds or until a second signal; give back the rest."""
    if stop.drain.is_set():
        log.info(
            "%s: draining, %d running, %g s to end; a second signal stops now",
            stop.name,
            len(worker.jobs),
            grace,
            extra=about("worker.draining", worker=worker.name, signal=stop.name),
        )
    stopping = asyncio.ensure_future(worker.stop(0.0 if stop.now.is_set() else grace))
    hurry = asyncio.ensure_future(stop.now.wait())
    await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.info(
            "second signal: stopping now, %d running",
            len(worker.jobs),
            extra=about("worker.hurried", worker=worker.name),
        )
        worker.hurry()
    hurry.cancel()
    await stopping
    held = len(worker.held())
    lost = f"; the results of {held} could not be stored" if held else ""
    log.info("stopped: %s%s", worker.tally, lost, extra=about("worker.stopped", worker=worker.name))
    if held:
        return Exit.LOST
    return Exit.FORCED if stop.now.is_set() else Exit.CLEAN
