"""Servers that tests may break, and a proxy that breaks the network."""

import logging
from collections.abc import Iterator

import pytest
from verify.servers.fault_proxy import FaultProxy
from verify.servers.postgres import OwnServer, Server, find_programs


@pytest.fixture(scope="session")
def own(postgres: Server) -> Iterator[OwnServer]:
    """Start a server, whose roles and settings the tests may change."""
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
    """Give a proxy between clients and that server."""
    with FaultProxy(own.port) as between:
        yield between


class OutageLog:
    """The log messages of a store that becomes unusable and usable again."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog

    @property
    def away(self) -> int:
        """Return how often the log says that the store cannot be used."""
        return sum("the store cannot be used" in line for line in self._lines)

    @property
    def back(self) -> int:
        """Return how often the log says that the store can be used again."""
        return sum("the store can be used again" in line for line in self._lines)

    @property
    def _lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def outage_log(caplog: pytest.LogCaptureFixture) -> OutageLog:
    """Give the log messages about outages of the store."""
    return OutageLog(caplog)
