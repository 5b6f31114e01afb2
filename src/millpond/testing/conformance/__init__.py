"""The suite every store must pass: subclass `StoreConformance` and say how to make a store.

It needs pytest and nothing else: its tests are plain functions, so no plugin and no particular
event loop is asked for. It speaks the store protocol only, with explicit moments and entropy.
"""

import pkgutil

import pytest

# Before they are imported: a failed assert then shows its two sides, as in a test of one's own.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for _, part, _ in pkgutil.iter_modules(__path__))
)

from millpond.testing.conformance.lab import Lab as Lab  # noqa: E402
from millpond.testing.conformance.scenario import StoreSuite as StoreSuite  # noqa: E402
from millpond.testing.conformance.scenario import scenario as scenario  # noqa: E402
from millpond.testing.conformance.suite import StoreConformance as StoreConformance  # noqa: E402

__all__ = ["Lab", "StoreConformance", "StoreSuite", "scenario"]
