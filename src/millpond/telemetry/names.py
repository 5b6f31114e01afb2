"""The names of spans, metrics and attributes. All are here, because some may change.

Those that begin with `messaging.` are OpenTelemetry's conventions for messaging, which are not
stable yet; a pool is a destination, a task a message. What they have no word for is `millpond.`.
"""

from __future__ import annotations

from millpond.core.type_names import qualified_name
from millpond.pool.scope import NAMED
from millpond.runtime.jobs.outcome import RemoteError

# Attributes of OpenTelemetry's conventions.
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
POOL = "messaging.destination.name"
TASK = "messaging.message.id"
COUNT = "messaging.batch.message_count"
WORKER = "messaging.client.id"
ERROR = "error.type"

# Attributes of our own.
FUNCTION = "millpond.function"
KEY = "millpond.key"
LANE = "millpond.lane"
ATTEMPT = "millpond.attempt"
WAITED = "millpond.wait"
OUTCOME = "millpond.outcome"
REASON = "millpond.reason"
STATE = "millpond.state"
VERB = "millpond.verb"
DUPLICATE = "millpond.duplicate"

# Metrics of OpenTelemetry's conventions.
SUBMIT_SECONDS = "messaging.client.operation.duration"
SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
RUN_SECONDS = "messaging.process.duration"

# Metrics of our own.
WAIT_SECONDS = "millpond.task.wait"
REJECTED = "millpond.tasks.rejected"
LEASES_LOST = "millpond.leases.lost"
RECOVERED = "millpond.tasks.recovered"
TASKS = "millpond.pool.tasks"
ENDED = "millpond.pool.ended"
STALE = "millpond.pool.stale_settles"
OLDEST = "millpond.pool.oldest"
LIMIT = "millpond.pool.limit"
WANTED_SLOTS = "millpond.pool.wanted_slots"
DEAD = "millpond.pool.dead"
DETOURS = "millpond.store.detours"

MILLPOND = "millpond"
SUBMIT, PROCESS = "submit", "process"
SEND = "send"

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
"""The bounds of histograms: from a lookup in a cache to a job that takes an hour."""

OTHER = "~other"
"""The label of all names beyond the limit; no pool can have this name."""


def plain_name(pool: str) -> str:
    """Return the name of a pool without its scope: `reviews`, not `tenant:acme:reviews`.

    The name of a span says what is done; there may be as many tenants as there are customers.
    """
    scope, _, rest = pool.partition(":")
    return rest.partition(":")[2] if scope in NAMED else pool


def kind_of(error: object) -> str:
    """Return the type of an error; for one from another process, its type there."""
    if isinstance(error, RemoteError):
        return error.kinds[0]
    return qualified_name(type(error)) if isinstance(error, BaseException) else "error"


class Few:
    """Bounds the number of labels: the first names keep theirs, all others share OTHER."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the name, or OTHER beyond the limit."""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name
