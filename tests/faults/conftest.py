"""Servers that tests may break, and a network that breaks by itself."""

import logging
from collections.abc import Iterator

import pytest
from verify.servers.fault_proxy import FaultProxy
from verify.servers.postgres import OwnServer, Server, find_programs


@pytest.fixture(scope="session")
def own(postgres: Server) -> Iterator[OwnServer]:
    """Give a server that was started here: roles, settings and all of it are ours."""
    if isinstance(postgres, OwnServer):
        yield postgres
        return
    programs = find_programs()
    if programs is None:
        pytest.skip("there are no programs of PostgreSQL here to start a server with")
    with OwnServer(programs) as server:
        yield server


@pytest.fixture
def direct(own: OwnServer) -> Iterator[str]:
    """Give the URL of an empty database by TCP, as it is without the proxy."""
    with own.database() as url:
        yield own.tcp(url)


@pytest.fixture
def proxy(own: OwnServer) -> Iterator[FaultProxy]:
    """Give what stands between a client and that server."""
    with FaultProxy(own.port) as between:
        yield between


class Told:
    """What the log says of a store that is away, and back."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog

    @property
    def away(self) -> int:
        """How often it was told that the store cannot be used."""
        return sum("the store cannot be used" in line for line in self._lines)

    @property
    def back(self) -> int:
        """How often it was told that it can be used again."""
        return sum("the store can be used again" in line for line in self._lines)

    @property
    def _lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """Give what the log says."""
    return Told(caplog)
