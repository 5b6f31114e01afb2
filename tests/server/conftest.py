"""The three kinds of stores, for tests that must hold on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import stores
from verify.servers.schemas import Schemas


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[stores.Places | None]:
    """Give where stores are made; None = in memory."""
    if request.param == "memory":
        yield None
        return
    made: stores.Places
    if request.param == "sqlite":
        made = stores.Files(tmp_path)
    else:
        schemas: Schemas = request.getfixturevalue("postgres_schemas")
        made = stores.Servers(schemas)
    yield made
    made.close()
