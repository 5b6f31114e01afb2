"""Presenting: how workers become known to the store, again after a lost lease or with more code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from millpond.core.control import Join, Leave
from millpond.core.lease import RELEASE
from millpond.runtime.fleet.closure_worker import OWN

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import ControlAnswer

log = logging.getLogger("millpond.runtime")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds until a store that was away is asked again."""

NO_FUNCTION = ""
"""No task has this name: so a worker that knows no task still sees, and reports, what it lacks."""


@cache
def _release() -> str:
    """Return the version of the library; '' where it was not installed."""
    try:
        return version("millpond")
    except PackageNotFoundError:
        return ""


class Presenting:
    """Tells the store which workers there are here, and which functions they know."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._names = 0
        self._learning = False

    def new_name(self, *, own: bool) -> str:
        """Return a name that no worker ever had."""
        self._names += 1
        return f"{self._runtime.owner}/{self._names}{OWN if own else ''}"

    async def present(self, worker: Worker, name: str) -> ControlAnswer:
        """Let a worker present itself under a name."""
        functions = self._known_to(worker)
        answer = await self._runtime.store.control(
            Join(name, worker.lease, self._runtime.owner, functions, self._signatures(worker))
        )
        if functions != self._known_to(worker):
            self.learned()
        return answer

    def _known_to(self, worker: Worker) -> tuple[str, ...] | None:
        """Return the functions that a worker knows; None = whatever may come."""
        if worker.own:
            return ()
        known = tuple(self._runtime.functions)
        return (*(known or (NO_FUNCTION,)), RELEASE) if self._runtime.shared else None

    def _signatures(self, worker: Worker) -> dict[str, str]:
        """Return a digest of what each function takes: tasks one does not fit wait for another."""
        if worker.own:
            return {}
        handlers = tuple(self._runtime.functions.items())
        digests = {name: one.takes.digest for name, one in handlers if one.takes is not None}
        return {**digests, RELEASE: _release()}

    async def again(self, worker: Worker) -> None:
        """Let a worker join under a new name; the store may be away, so as often as it takes."""
        runtime = self._runtime
        name = self.new_name(own=worker.own)
        pause = FIRST_PAUSE
        while not worker.stopping:
            sent = runtime.steady()
            try:
                answer = await self.present(worker, name)
            except Exception:  # noqa: BLE001 - a worker that does not join again is lost
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if not worker.joined:
                # It left while this was on its way: nobody would ever renew this name.
                runtime.heed(await runtime.store.control(Leave(name)))
                return
            worker.name, worker.fenced = name, False
            runtime.renewals.keep(worker, sent)
            runtime.heed(answer)
            worker.look_everywhere()
            return

    # What is learned on the way

    def learned(self) -> None:
        """More functions are known here, as whatever thread says: tell whose tasks they are.

        Until the store knows it, tasks that call them are parked.
        """
        if self._runtime.shared and not self._learning:
            self._learning = True
            # A loop that is closed has no worker left that could run them.
            with contextlib.suppress(RuntimeError):
                self._runtime.loop.call_soon_threadsafe(self._begin_to_tell)

    def _begin_to_tell(self) -> None:
        self._learning = False
        for worker in self._runtime.workers:
            if worker.joined and not worker.own:
                self._runtime.spawn(self._tell(worker, worker.name))

    async def _tell(self, worker: Worker, name: str) -> None:
        """Present a worker once more; one that was fenced joins anew with all that is known."""
        pause = FIRST_PAUSE
        while worker.joined and not worker.fenced and worker.name == name:
            try:
                self._runtime.heed(await self.present(worker, name))
                return
            except Exception as error:  # noqa: BLE001 - the store is away; its tasks wait for it
                log.warning("worker %s could not say which tasks it knows now: %s", name, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
