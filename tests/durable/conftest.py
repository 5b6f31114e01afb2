"""What durable pools are tested on: a file, and tables on a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from verify.servers.schemas import Schema

KINDS = ["sqlite", "postgres"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | Schema]:
    """Give where a store is to be, for a `Fleet`: it does every verb on the caller's thread."""
    if request.param == "sqlite":
        yield tmp_path / "work.db"
        return
    schemas = request.getfixturevalue("postgres_schemas")
    schema = schemas.take()
    yield schema
    wrong = schema.wrong()
    schemas.give_back(schema)
    assert [] == wrong


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a store that is not there yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    given: str = request.getfixturevalue("postgres_url")
    return given
