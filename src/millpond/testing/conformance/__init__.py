"""The suite every store must pass: subclass `StoreConformance` and say how to make a store.

It needs pytest and nothing else: its tests are plain functions, so no plugin and no particular
event loop is asked for. It speaks the store protocol only, with explicit moments and entropy.
"""

import pytest

_PARTS = (
    "atomic",
    "attempts",
    "audit",
    "budgets",
    "callbacks",
    "control",
    "declare",
    "endings",
    "flow",
    "idempotency",
    "lab",
    "lanes",
    "leader",
    "lease",
    "limits",
    "order",
    "pages",
    "prefetch",
    "recover",
    "renew",
    "runs",
    "same_history",
    "search",
    "settle",
    "submit",
    "task_story",
    "triggers",
    "unfit_arguments",
    "update",
    "view",
    "wakes",
    "why",
)

# Before they are imported: a failed assert then shows its two sides, as in a test of one's own.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from millpond.testing.conformance.lab import Lab as Lab  # noqa: E402
from millpond.testing.conformance.scenario import StoreSuite as StoreSuite  # noqa: E402
from millpond.testing.conformance.scenario import scenario as scenario  # noqa: E402
from millpond.testing.conformance.suite import StoreConformance as StoreConformance  # noqa: E402

__all__ = ["Lab", "StoreConformance", "StoreSuite", "scenario"]
