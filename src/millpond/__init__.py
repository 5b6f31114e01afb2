"""Work pools for Python: bounded, fair, and honest about what they refuse."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from millpond.pool.sync import SyncHandle, SyncMillpond, SyncPool
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
    "SyncHandle",
    "SyncMillpond",
    "SyncPool",
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

# Each name is imported when it is first asked for: a child process that runs one handler, or a
# command that prints its version, does not pay for what it does not use.
_HOME = {
    name: module
    for module, names in {
        "millpond.bulkhead": (
            "Bulkhead",
            "Capacity",
            "HookEvent",
            "Leftover",
            "Permit",
            "Rejection",
            "Stats",
        ),
        "millpond.core.adaptive": ("adaptive",),
        "millpond.core.admit": ("Reason",),
        "millpond.core.backoff": ("Retry",),
        "millpond.core.errors": (
            "BulkheadRejected",
            "ConfigError",
            "MillpondError",
            "NoCapacity",
            "PoolFull",
            "RunFailed",
            "RunOverBudget",
            "StaleRevision",
            "Stuck",
            "TaskCancelled",
            "TaskFailed",
            "TaskRejected",
            "WouldDeadlock",
        ),
        "millpond.core.gate": ("RejectReason",),
        "millpond.core.lifecycle": ("Status",),
        "millpond.core.rate": ("Rate",),
        "millpond.core.spec": (
            "bounded",
            "fail_fast",
            "fair_round_robin",
            "fifo",
            "lifo",
            "priority",
            "ring_buffer",
        ),
        "millpond.core.wish": ("GiveUp", "RetryLater"),
        "millpond.pool.context": ("Context", "SyncContext"),
        "millpond.pool.handle": ("Handle",),
        "millpond.pool.millpond": ("Millpond",),
        "millpond.pool.outcome": ("Outcome",),
        "millpond.pool.pool": ("Pool",),
        "millpond.pool.rejection": ("Rejected",),
        "millpond.pool.run": ("RunReport",),
        "millpond.pool.sync": ("SyncHandle", "SyncMillpond", "SyncPool"),
        "millpond.pool.task": ("BoundCall", "TaskFunction"),
        "millpond.runtime.batch": ("Failed",),
        "millpond.runtime.hooks": ("DeadLetter", "Empty", "Observed"),
        "millpond.runtime.retention": ("Keep",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
