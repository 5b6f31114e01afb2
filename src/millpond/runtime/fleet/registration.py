"""Registration: make workers known to the store, again after a lost lease or with new functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import cache
from typing import TYPE_CHECKING

from millpond.core.control import Deregister, Register
from millpond.core.lease import RELEASE
from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.fleet.closure_worker import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.renew import Renewals
    from millpond.runtime.fleet.session import SessionKeeper
    from millpond.runtime.jobs.job import Handler, WorkerProtocol
    from millpond.store.protocol import ControlAnswer

log = logging.getLogger("millpond.runtime")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds until a store that failed is asked again, doubling."""

NO_FUNCTION = ""
"""No task has this name: a worker without functions still sees, and reports, what it lacks."""


@cache
def _release() -> str:
    """Return the version of the library; '' where it was not installed."""
    # It takes a tenth of the time in which this package is imported.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("millpond")
    except PackageNotFoundError:
        return ""


class Registration(Service):
    """Registers the workers of this process and their functions with the store."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _answers: Answers
    _renewals: Renewals
    _functions: Mapping[str, Handler]
    _session: SessionKeeper
    _names: int = 0
    _updating: bool = False

    def new_name(self, *, own: bool) -> str:
        """Return a name that no worker ever had."""
        self._names += 1
        mark = self._session.mark_of()
        return f"{self._env.owner}/{self._names}{mark}{OWN if own else ''}"

    async def register(self, worker: WorkerProtocol) -> None:
        """Register a worker for the first time, and keep its lease from now on."""
        sent = self._env.steady()
        self._answers.apply(await self._join(worker, worker.name))
        worker.joined = True
        self._renewals.keep(worker, sent)

    def stop_renewing(self, worker: WorkerProtocol) -> None:
        """Stop renewing the leases of a worker."""
        self._renewals.drop(worker)

    def register_again(self, worker: WorkerProtocol) -> None:
        """Register a worker that the store has lost, under a new name, in the background."""
        self._env.spawn(self._register_again(worker))

    async def deregister(self, worker: WorkerProtocol) -> None:
        """Remove a worker from the store."""
        self._answers.apply(await self._env.store.control(Deregister(worker.name)))

    async def _join(self, worker: WorkerProtocol, name: str) -> ControlAnswer:
        """Send the registration of a worker under a name."""
        functions = self._known_to(worker)
        answer = await self._env.store.control(
            Register(name, worker.lease, self._env.owner, functions, self._signatures(worker))
        )
        if functions != self._known_to(worker):
            self.functions_added()
        return answer

    def _known_to(self, worker: WorkerProtocol) -> tuple[str, ...] | None:
        """Return the functions that a worker knows; None = it takes any task."""
        if worker.own:
            return ()
        known = tuple(self._functions)
        return (*(known or (NO_FUNCTION,)), RELEASE) if self._env.shared else None

    def _signatures(self, worker: WorkerProtocol) -> dict[str, str]:
        """Return a digest of each function's parameters: tasks that do not fit wait for another."""
        if worker.own:
            return {}
        handlers = tuple(self._functions.items())
        digests = {name: one.takes.digest for name, one in handlers if one.takes is not None}
        return {**digests, RELEASE: _release()}

    async def _register_again(self, worker: WorkerProtocol) -> None:
        name = self.new_name(own=worker.own)
        pause = FIRST_PAUSE
        while not worker.stopping:
            sent = self._env.steady()
            try:
                answer = await self._join(worker, name)
            except Exception:  # noqa: BLE001 - a worker that is not registered gets no work
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if not worker.joined:
                # It left while this was under way: nothing would ever renew this name.
                self._answers.apply(await self._env.store.control(Deregister(name)))
                return
            worker.registered_as(name)
            self._renewals.keep(worker, sent)
            self._answers.apply(answer)
            worker.look_everywhere()
            return

    # Functions that are registered later

    def functions_added(self) -> None:
        """Register the workers once more, with functions that were added; any thread may call.

        Until the store knows them, tasks that call them are parked.
        """
        if self._env.shared and not self._updating:
            self._updating = True
            # A closed loop has no worker left that could run them.
            with contextlib.suppress(RuntimeError):
                self._env.loop.call_soon_threadsafe(self._update_workers)

    def _update_workers(self) -> None:
        self._updating = False
        for worker in self._workers:
            if worker.joined and not worker.own:
                self._env.spawn(self._update(worker, worker.name))

    async def _update(self, worker: WorkerProtocol, name: str) -> None:
        """Register a worker once more; one that lost its registration does so by itself."""
        pause = FIRST_PAUSE
        while worker.joined and not worker.fenced and worker.name == name:
            try:
                self._answers.apply(await self._join(worker, name))
                return
            except Exception as error:  # noqa: BLE001 - the store is away; its tasks wait
                log.warning(
                    "could not register the new functions of worker %s: %s",
                    name,
                    error,
                    extra=about("worker.update_failed", worker=name, reason=type(error).__name__),
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
