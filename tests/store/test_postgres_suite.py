"""The PostgreSQL store passes the suite that every store must pass, as it is."""

import pytest
from verify.servers.schemas import Schemas

from millpond.store.protocol import Store
from millpond.testing.conformance import StoreConformance

# In a seeded world a server is asked ten thousand times, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)


class TestPostgresStore(StoreConformance):
    """Held to the same word as the memory store."""

    schemas: Schemas

    @pytest.fixture(autouse=True)
    def _on_a_server(self, postgres_schemas: Schemas) -> None:
        self.schemas = postgres_schemas

    async def make_store(self) -> Store:
        """Return a store on empty tables."""
        return self.schemas.fresh()
