"""The state of one worker, which its parts share, and the services that they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millpond.core.service import Service
from millpond.runtime.batching import bytes_of, fitting
from millpond.runtime.jobs.job import Handler, Where
from millpond.runtime.worker.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.settle import Settlement
    from millpond.core.spec import PoolSpec
    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Closure, Job, WorkerProtocol
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.observe.outage import Outages
    from millpond.runtime.session_times import ProcessSession
    from millpond.runtime.waiting.results import Waiting
    from millpond.runtime.worker.announce import Announcer

MOST_AT_ONCE = 1000
"""How many tasks one lease asks for, and one settle ends, at most."""

STUCK_AFTER = 1.0
"""Seconds after a request to stop at which a handler that goes on counts as stuck."""

NO_CODE = Handler("", Where.LOOP, lambda _: None, lambda _: b"")
"""The body of a job that is given back without a run."""


class Registrar(Protocol):
    """Registers workers with the store."""

    async def register(self, worker: WorkerProtocol, /) -> None:
        """Register a worker, and keep its lease."""

    def register_again(self, worker: WorkerProtocol, /) -> None:
        """Register a worker under a new name, in the background."""

    def stop_renewing(self, worker: WorkerProtocol, /) -> None:
        """Stop renewing the leases of a worker."""

    async def deregister(self, worker: WorkerProtocol, /) -> None:
        """Remove a worker from the store."""


class WorkerServices(Service):
    """The services of the runtime that a worker uses."""

    runtime: object
    """The runtime itself, for the code of handlers."""
    env: Environment
    answers: Answers
    announcer: Announcer
    waiting: Waiting
    outages: Outages
    hooks: Hooks
    registrar: Registrar
    functions: Mapping[str, Handler]
    retries: Mapping[str, Policy]
    closures: Mapping[int, Closure]
    specs: Mapping[str, PoolSpec]
    """The pools that this process has declared."""
    found_work: Callable[[str], None]
    """Called with a pool of which something was leased."""
    stalled: Callable[[str], None]
    """Called with the name of a worker whose turn the store does not answer."""
    session: ProcessSession
    report_progress: Callable[[Job, float, str], None]
    """Called with the progress that a handler in a process reports."""


def _nothing() -> None:
    """Do nothing."""


class WorkerState(Service):
    """What a worker knows about itself and its jobs."""

    services: WorkerServices
    name: str
    pools: frozenset[str] | None
    concurrency: int | None
    lease: float
    resources: Any = None
    own: bool = False
    """Whether it runs only closures of this process."""
    jobs: dict[int, Job] = {}
    """Running jobs, by task."""
    stuck_since: dict[Job, float] = {}
    """Jobs whose handlers go on after their timeout, and when it was over."""
    ended: list[tuple[Settlement, Job, Any]] = []
    """Settlements that the store has not got yet, with what the handler returned or raised."""
    stopping: bool = False
    joined: bool = False
    """Whether it is registered."""
    fenced: bool = False
    """Whether the store has lost it; it leases nothing until it is registered again."""
    late: bool = False
    """Whether it could not renew in time; it leases nothing until it has renewed."""
    unsure: bool = False
    """Whether an answer was lost: the store may hold leases for it that it does not know."""

    def __post_init__(self) -> None:
        self.env = self.services.env
        self.loop = self.services.env.loop
        self.retries = self.services.retries
        self.became_busy: Callable[[], None] = _nothing
        """Called when it gets work after it had none."""
        self.tally = Tally()

    @property
    def runtime(self) -> object:
        """The runtime it belongs to, for the code of handlers."""
        return self.services.runtime

    def take_ended(self) -> list[tuple[Settlement, Job, Any]]:
        """Take as many settlements as fit into one verb."""
        ended = self.ended
        count = fitting(ended, _size, MOST_AT_ONCE) if len(ended) > 1 else len(ended)
        if count == len(ended):
            self.ended = []
            return ended
        self.ended = ended[count:]
        return ended[:count]

    @property
    def may_lease(self) -> bool:
        """Whether it may ask for work: it is registered, and its leases hold."""
        return not (self.stopping or self.fenced or self.late)


def mark_unsure(ended: list[tuple[Settlement, Job, Any]]) -> None:
    """Note that the store may or may not have settled these attempts."""
    for _, job, _ in ended:
        job.unsure = True
        job.left_slot = False


def _size(ended: tuple[Settlement, Job, Any]) -> int:
    return bytes_of(ended[0])
