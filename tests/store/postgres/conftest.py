"""A server that tests may bend, though the others use one that was given."""

from collections.abc import Iterator

import pytest
from verify.servers.pgbouncer import Pooler
from verify.servers.postgres import OwnServer, Server, find_programs


@pytest.fixture(scope="session")
def own(postgres: Server) -> Iterator[OwnServer]:
    """Give a server that was started here: roles, settings and all of it are ours."""
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
