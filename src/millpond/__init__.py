"""Work pools for Python: bounded, fair, and honest about what they refuse."""

from millpond.bulkhead import (
    Bulkhead,
    Capacity,
    HookEvent,
    Leftover,
    Permit,
    Rejection,
    Stats,
)
from millpond.core.adaptive import adaptive
from millpond.core.admit import Reason
from millpond.core.backoff import Retry
from millpond.core.errors import (
    BulkheadRejected,
    ConfigError,
    MillpondError,
    NoCapacity,
    PoolFull,
    RunFailed,
    RunOverBudget,
    StaleRevision,
    Stuck,
    TaskCancelled,
    TaskFailed,
    TaskRejected,
    WouldDeadlock,
)
from millpond.core.gate import RejectReason
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.spec import (
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)
from millpond.core.wish import GiveUp, RetryLater
from millpond.pool.context import Context, SyncContext
from millpond.pool.handle import Handle
from millpond.pool.millpond import Millpond
from millpond.pool.outcome import Outcome
from millpond.pool.pool import Pool
from millpond.pool.rejection import Rejected
from millpond.pool.run import RunReport
from millpond.pool.task import BoundCall, TaskFunction
from millpond.runtime.batch import Failed
from millpond.runtime.hooks import DeadLetter, Empty, Observed
from millpond.runtime.retention import Keep

__all__ = [
    "BoundCall",
    "Bulkhead",
    "BulkheadRejected",
    "Capacity",
    "ConfigError",
    "Context",
    "DeadLetter",
    "Empty",
    "Failed",
    "GiveUp",
    "Handle",
    "HookEvent",
    "Keep",
    "Leftover",
    "Millpond",
    "MillpondError",
    "NoCapacity",
    "Observed",
    "Outcome",
    "Permit",
    "Pool",
    "PoolFull",
    "Rate",
    "Reason",
    "RejectReason",
    "Rejected",
    "Rejection",
    "Retry",
    "RetryLater",
    "RunFailed",
    "RunOverBudget",
    "RunReport",
    "StaleRevision",
    "Stats",
    "Status",
    "Stuck",
    "SyncContext",
    "TaskCancelled",
    "TaskFailed",
    "TaskFunction",
    "TaskRejected",
    "WouldDeadlock",
    "adaptive",
    "bounded",
    "fail_fast",
    "fair_round_robin",
    "fifo",
    "lifo",
    "priority",
    "ring_buffer",
]
