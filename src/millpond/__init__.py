"""Work pools for Python: bounded, fair, and honest about what they refuse."""

from importlib import import_module

# Written here, because reading the installed package's metadata takes longer than everything else
# that `millpond --version` does. So does importing `typing` for a name that is always False.
__version__ = "0.1.0.dev0"
TYPE_CHECKING = False

if TYPE_CHECKING:
    from millpond.bulkhead import (
        Bulkhead,
        Capacity,
        HookEvent,
        Leftover,
        Permit,
        PermitRejection,
        Stats,
    )
    from millpond.core.adaptive import adaptive
    from millpond.core.admit import Reason
    from millpond.core.backoff import Retry
    from millpond.core.event import Event
    from millpond.core.gate import RejectReason
    from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
    from millpond.core.lifecycle import Status
    from millpond.core.rate import Rate
    from millpond.core.rejection import Rejection
    from millpond.core.spec import (
        bounded,
        fail_fast,
        fair_round_robin,
        fifo,
        lifo,
        priority,
        ring_buffer,
    )
    from millpond.errors import (
        AlreadyOpen,
        BadPayload,
        BatchTooLarge,
        BulkheadRejected,
        ConfigConflict,
        ConfigError,
        IdempotencyConflict,
        MillpondError,
        NoCapacity,
        NotOpen,
        NotSupported,
        NotWaiting,
        PoolClosed,
        PoolFull,
        RunFailed,
        RunOverBudget,
        StaleRevision,
        Stuck,
        TaskCancelled,
        TaskFailed,
        TaskRejected,
        UnknownTask,
        WouldDeadlock,
    )
    from millpond.pool.context import Context, SyncContext
    from millpond.pool.events.receipt import Emission, EventInfo, Receipt
    from millpond.pool.events.trigger import Trigger
    from millpond.pool.handle import Handle, SyncHandle
    from millpond.pool.middleware import Middleware
    from millpond.pool.millpond import Millpond
    from millpond.pool.options import Options
    from millpond.pool.outcome import Outcome, RunOutcome
    from millpond.pool.pool import Pool
    from millpond.pool.rejection import SubmitRejection
    from millpond.pool.runs.report import RunReport
    from millpond.pool.runs.run import Run
    from millpond.pool.snapshot import LaneStatus, Snapshot, TaskInfo
    from millpond.pool.sync_millpond import SyncMillpond
    from millpond.pool.sync_pool import SyncPool
    from millpond.pool.task import BoundCall, TaskFunction
    from millpond.runtime.error_info import ErrorInfo
    from millpond.runtime.jobs.batch_call import Failed
    from millpond.runtime.jobs.job import CancelReason
    from millpond.runtime.observe.hooks import DeadLetter, Empty, Observed
    from millpond.runtime.retention import Keep

__all__ = [
    "AlreadyOpen",
    "BadPayload",
    "BatchTooLarge",
    "BoundCall",
    "Bulkhead",
    "BulkheadRejected",
    "CancelReason",
    "Cancelled",
    "Capacity",
    "ConfigConflict",
    "ConfigError",
    "Context",
    "DeadLetter",
    "Emission",
    "Empty",
    "ErrorInfo",
    "Event",
    "EventInfo",
    "Failed",
    "GiveUp",
    "Handle",
    "HookEvent",
    "IdempotencyConflict",
    "Keep",
    "LaneStatus",
    "Leftover",
    "Middleware",
    "Millpond",
    "MillpondError",
    "NoCapacity",
    "NotOpen",
    "NotSupported",
    "NotWaiting",
    "Observed",
    "Options",
    "Outcome",
    "Permit",
    "PermitRejection",
    "Pool",
    "PoolClosed",
    "PoolFull",
    "Rate",
    "Reason",
    "Receipt",
    "RejectReason",
    "Rejection",
    "Retry",
    "RetryLater",
    "Run",
    "RunFailed",
    "RunOutcome",
    "RunOverBudget",
    "RunReport",
    "Snapshot",
    "StaleRevision",
    "Stats",
    "Status",
    "Stuck",
    "SubmitRejection",
    "SyncContext",
    "SyncHandle",
    "SyncMillpond",
    "SyncPool",
    "TaskCancelled",
    "TaskFailed",
    "TaskFunction",
    "TaskInfo",
    "TaskRejected",
    "Throttled",
    "Trigger",
    "UnknownTask",
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

# Each name is imported on first use: a child process that runs one handler, or a command that
# prints its version, imports only what it needs.
_HOME = {
    name: module
    for module, names in {
        "millpond.bulkhead": (
            "Bulkhead",
            "Capacity",
            "HookEvent",
            "Leftover",
            "Permit",
            "PermitRejection",
            "Stats",
        ),
        "millpond.core.adaptive": ("adaptive",),
        "millpond.core.admit": ("Reason",),
        "millpond.core.backoff": ("Retry",),
        "millpond.errors": (
            "AlreadyOpen",
            "BadPayload",
            "BatchTooLarge",
            "BulkheadRejected",
            "ConfigConflict",
            "ConfigError",
            "IdempotencyConflict",
            "MillpondError",
            "NoCapacity",
            "NotOpen",
            "NotSupported",
            "NotWaiting",
            "PoolClosed",
            "PoolFull",
            "RunFailed",
            "RunOverBudget",
            "StaleRevision",
            "Stuck",
            "TaskCancelled",
            "TaskFailed",
            "TaskRejected",
            "UnknownTask",
            "WouldDeadlock",
        ),
        "millpond.core.event": ("Event",),
        "millpond.core.gate": ("RejectReason",),
        "millpond.core.lifecycle": ("Status",),
        "millpond.core.rate": ("Rate",),
        "millpond.core.rejection": ("Rejection",),
        "millpond.core.spec": (
            "bounded",
            "fail_fast",
            "fair_round_robin",
            "fifo",
            "lifo",
            "priority",
            "ring_buffer",
        ),
        "millpond.core.handler_signals": ("Cancelled", "GiveUp", "RetryLater", "Throttled"),
        "millpond.pool.context": ("Context", "SyncContext"),
        "millpond.pool.events.receipt": ("Emission", "EventInfo", "Receipt"),
        "millpond.pool.handle": ("Handle", "SyncHandle"),
        "millpond.pool.middleware": ("Middleware",),
        "millpond.pool.millpond": ("Millpond",),
        "millpond.pool.options": ("Options",),
        "millpond.pool.outcome": ("Outcome", "RunOutcome"),
        "millpond.pool.pool": ("Pool",),
        "millpond.pool.rejection": ("SubmitRejection",),
        "millpond.pool.runs.report": ("RunReport",),
        "millpond.pool.runs.run": ("Run",),
        "millpond.pool.snapshot": ("LaneStatus", "Snapshot", "TaskInfo"),
        "millpond.pool.sync_millpond": ("SyncMillpond",),
        "millpond.pool.sync_pool": ("SyncPool",),
        "millpond.pool.task": ("BoundCall", "TaskFunction"),
        "millpond.pool.events.trigger": ("Trigger",),
        "millpond.runtime.jobs.batch_call": ("Failed",),
        "millpond.runtime.error_info": ("ErrorInfo",),
        "millpond.runtime.observe.hooks": ("DeadLetter", "Empty", "Observed"),
        "millpond.runtime.jobs.job": ("CancelReason",),
        "millpond.runtime.retention": ("Keep",),
    }.items()
    for name in names
}


if not TYPE_CHECKING:  # a type checker would take it for leave to import any name

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
