"""Serving: open the store, run a worker until told to stop, drain it, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.exit_process import leave_within, who_stays
from millpond.cli.exits import Exit, Refusal
from millpond.cli.idle import until_idle
from millpond.cli.signals import Stop
from millpond.cli.terminal_text import plain
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of
from millpond.pool.store_url import shown

if TYPE_CHECKING:
    from millpond.pool.millpond import Millpond
    from millpond.runtime.worker.worker import Worker

log = logging.getLogger("millpond.cli")

LOOK_EVERY = 1.0
"""Seconds between two looks at whether the worker is alive."""

LEAVE_WITHIN = 5.0
"""Seconds for whatever is left of the process once the worker is done."""

CLOSE_WITHIN = 1.0
"""Seconds for a store that is opened to be closed instead."""

NAMED = 8
"""How many pools the first line names."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    app: str
    pools: tuple[str, ...] | None
    concurrency: int | None
    once: bool
    grace: float


async def serve(mp: Millpond, wanted: Wanted) -> Exit:
    """Run tasks until a signal, or until idle; return how that ended."""
    try:
        code = await _serve(mp, wanted)
    except Refusal as refusal:
        leave_within(LEAVE_WITHIN, refusal.code, refusal.message)
        raise
    leave_within(LEAVE_WITHIN, code, f"{who_stays()} does not end; it leaves all the same")
    return code


async def _serve(mp: Millpond, wanted: Wanted) -> Exit:
    stop = Stop(asyncio.get_running_loop())
    stop.listen()
    # The one worker is the one that was asked for, whatever else the application does on opening.
    internals_of(mp).owner.work = False
    code: Exit | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            worker = await _started(mp, wanted, stop, stack)
            if worker is None:
                return Exit.CLEAN
            await _until_over(worker, stop, once=wanted.once)
            code = await _drained(worker, stop, wanted.grace)
    except (Exception, SystemExit) as error:
        if code is None:
            raise
        # Its work is done and told; only what it closes on the way out went wrong.
        log.warning("closing failed: %s", error, exc_info=error)
    return code


async def _started(
    mp: Millpond, wanted: Wanted, stop: Stop, stack: contextlib.AsyncExitStack
) -> Worker | None:
    """Open the store and start the worker; None if a signal was faster."""
    try:
        if not await _opened(mp, stop, stack):
            log.info("%s: stopped before the store was open", stop.name)
            return None
        worker = await stack.enter_async_context(mp.worker(wanted.pools, wanted.concurrency))
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - resources are the user's code
        message = f"the worker could not start: {type(error).__name__}: {error}"
        raise Refusal(Exit.BROKE, message, traceback.format_exc()) from None
    log.info("%s", first_line(mp, wanted))
    return worker


async def _opened(mp: Millpond, stop: Stop, stack: contextlib.AsyncExitStack) -> bool:
    """Open the store, which may have to wait for others, unless a signal comes first."""
    log.debug("opening %s", plain(shown(mp.url)))
    opening = asyncio.ensure_future(stack.enter_async_context(mp))
    asked = asyncio.ensure_future(stop.drain.wait())
    await asyncio.wait((opening, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if opening.done():
        await opening
        return True
    opening.cancel()
    await asyncio.wait((opening,), timeout=CLOSE_WITHIN)
    return False


def first_line(mp: Millpond, wanted: Wanted) -> str:
    """Return what is served, from where, and how much at once."""
    names = list(wanted.pools or (pool.name for pool in mp.pools()))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    store = "a store of its own" if mp.url is None else plain(where(mp.url))
    limit = wanted.concurrency
    most = "each pool up to its limit" if limit is None else f"at most {limit} at a time"
    return (
        f"serving {', '.join(names[:NAMED])}{more} of {plain(wanted.app)} from {store}, "
        f"{most}{', until idle' if wanted.once else ''} (pid {os.getpid()})"
    )


def where(url: str) -> str:
    """Return the URL of a store, of a file with its whole path.

    The commonest way to find a queue empty is to have started from another folder.
    """
    told = shown(url)
    if told.startswith("sqlite:///") and not told.startswith("sqlite:////"):
        return f"sqlite:///{Path.cwd()}/{told.removeprefix('sqlite:///')}"
    return told


async def _until_over(worker: Worker, stop: Stop, *, once: bool) -> None:
    """Wait for a signal or for the end of all work; object if the worker died."""
    waits: set[asyncio.Future[bool]] = {asyncio.ensure_future(stop.drain.wait())}
    if once:
        waits.add(asyncio.ensure_future(_idle(worker)))
    try:
        while not worker.stopping:
            done, _ = await asyncio.wait(
                waits, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                done.pop().result()
                return
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    message = "the worker's loop ended by itself; what it held is given back, start it again"
    raise Refusal(Exit.BROKE, message)


async def _idle(worker: Worker) -> bool:
    await until_idle(worker)
    log.info("idle: nothing is left that could start")
    return True


async def _drained(worker: Worker, stop: Stop, grace: float) -> Exit:
    """Let what runs end, for `grace` seconds or until a second signal; give back the rest."""
    if stop.drain.is_set():
        told = (
            "%s: draining, with %d running and up to %g s for that; a second signal cuts it short"
        )
        log.info(told, stop.name, len(worker.jobs), grace)
    stopping = asyncio.ensure_future(worker.stop(0.0 if stop.now.is_set() else grace))
    hurry = asyncio.ensure_future(stop.now.wait())
    await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.info("second signal: no more waiting, with %d running", len(worker.jobs))
        worker.hurry()
    hurry.cancel()
    await stopping
    held = len(worker.held())
    lost = f", {held} of which the store could not be told" if held else ""
    log.info("stopped: %s%s", worker.tally, lost)
    if held:
        return Exit.LOST
    return Exit.FORCED if stop.now.is_set() else Exit.CLEAN
