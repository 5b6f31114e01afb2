"""The workers of this process: start one more, stop one, stop all."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.fleet.maintain import NEVER
from millpond.runtime.run_to_completion import run_to_completion
from millpond.runtime.worker.worker import Worker

if TYPE_CHECKING:
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.closure_worker import ClosureWorker
    from millpond.runtime.fleet.maintain import Maintenance
    from millpond.runtime.fleet.registration import Registration
    from millpond.runtime.fleet.session import SessionKeeper
    from millpond.runtime.worker.state import WorkerServices

log = logging.getLogger("millpond.runtime")


class LocalWorkers(Service):
    """Starts and stops the workers of this process."""

    _env: Environment
    _workers: list[Worker]
    _services: WorkerServices
    _registration: Registration
    _maintenance: Maintenance
    _closure_worker: ClosureWorker
    _session: SessionKeeper
    _lease: float
    _has_lock: bool = False
    lingering: dict[asyncio.Task[None], Worker] = {}
    """Workers that have stopped and hold tasks whose handlers have not."""

    async def start(
        self,
        *,
        pools: frozenset[str] | None = None,
        concurrency: int | None = None,
        resources: Any = None,  # noqa: ANN401 - what the user's lifespan yields
        own: bool = False,
    ) -> Worker:
        """Start one more worker; with `own` it runs only closures of this process."""
        presence = self._env.shared_store.presence
        if presence is not None and not self._has_lock:
            # Before other processes can see its workers: a free lock means that a process is dead.
            presence.appear(self._env.owner)
            self._has_lock = True
        await self._session.ready()
        worker = Worker(
            self._services,
            self._registration.new_name(own=own),
            pools=frozenset() if own else pools,
            concurrency=concurrency,
            # No other process could take over its tasks in a private store: no renewal is needed.
            lease=self._lease if self._env.shared else NEVER,
            resources=resources,
            own=own,
        )
        self._workers.append(worker)
        try:
            await worker.start()
        except BaseException:
            # Unless the Millpond was closed meanwhile, and with it this worker.
            if worker in self._workers:
                self._workers.remove(worker)
            raise
        self._maintenance.start()
        return worker

    async def stop(self, worker: Worker, grace: float = 0.0) -> None:
        """Stop a worker; its jobs get `grace` seconds, or less if this is cancelled."""
        stopping = self._env.new_task(self._retire(worker, grace))
        try:
            await run_to_completion(stopping, worker.hurry)
        finally:
            if worker in self._workers:
                self._workers.remove(worker)

    async def _retire(self, worker: Worker, grace: float) -> None:
        try:
            await self._closure_worker.take_over(worker)
        except Exception as error:  # noqa: BLE001 - the worker leaves all the same
            log.warning(
                "could not start a worker for this process's closures: %s",
                error,
                extra=about("worker.start_failed", reason=type(error).__name__),
            )
        await worker.wind_down(grace)
        if not worker.jobs or self._env.closed:
            await worker.leave()
            return
        lingering = self._env.new_task(worker.leave_when_quiet())
        self.lingering[lingering] = worker
        lingering.add_done_callback(self.lingering.pop)

    async def stop_all(self, grace: float) -> None:
        """Stop every worker, also those that wait for their handlers."""
        for worker in self._workers:
            # All of them first: none may start what another gives back.
            worker.stopping = True
        for worker in list(self._workers):
            await worker.stop(grace)
        for worker in self.lingering.values():
            worker.hurry()
        await asyncio.gather(*self.lingering)
        self._workers.clear()

    def release_lock(self) -> None:
        """Release the lock of this process, at the end."""
        presence = self._env.shared_store.presence
        if self._has_lock and presence is not None:
            presence.leave(self._env.owner)
