"""The memory store passes the suite that every store must pass."""

from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store
from millpond.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    """The reference, held to its own word."""

    async def make_store(self) -> Store:
        """Return a fresh memory store that keeps its whole audit."""
        return MemoryStore(audit_limit=None)
