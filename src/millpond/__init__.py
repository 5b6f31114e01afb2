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
from millpond.core.errors import BulkheadRejected, ConfigError, MillpondError, StaleRevision
from millpond.core.gate import RejectReason

__all__ = [
    "Bulkhead",
    "BulkheadRejected",
    "Capacity",
    "ConfigError",
    "HookEvent",
    "Leftover",
    "MillpondError",
    "Permit",
    "RejectReason",
    "Rejection",
    "StaleRevision",
    "Stats",
    "adaptive",
]
