"""The tests that every store passes, for a store of your own: `pytest test_a_store.py`."""

import subprocess
import sys

from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store
from millpond.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    """The reference, held to its own word."""

    async def make_store(self) -> Store:
        """Return a fresh store, and keep every audit record."""
        return MemoryStore(audit_limit=None)


if __name__ == "__main__":  # a few of the tests, as an example
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    sys.exit(subprocess.call([*command, "-k", "submit"]))  # noqa: S603 - our own command
