"""A server whose settings tests may change, and tables that are checked at the end of a test."""

from collections.abc import Iterator

import pytest
from verify.servers.pgbouncer import Pooler
from verify.servers.postgres import OwnServer, Server, find_programs
from verify.servers.schemas import Schema, Schemas


@pytest.fixture(scope="session")
def own(postgres: Server) -> Iterator[OwnServer]:
    """Start a server, whose roles and settings the tests may change."""
    server = postgres.server if isinstance(postgres, Pooler) else postgres
    if isinstance(server, OwnServer):
        yield server
        return
    programs = find_programs()
    if programs is None:
        pytest.skip("there are no programs of PostgreSQL here to start a server with")
    with OwnServer(programs) as server:
        yield server


@pytest.fixture
def own_url(own: OwnServer) -> Iterator[str]:
    """Give the URL of an empty database there."""
    with own.database() as url:
        yield url


@pytest.fixture
def schema(postgres_schemas: Schemas) -> Iterator[Schema]:
    """Give empty tables; they must be consistent at the end of the test."""
    taken = postgres_schemas.take()
    yield taken
    wrong = taken.wrong()
    postgres_schemas.give_back(taken)
    assert [] == wrong
