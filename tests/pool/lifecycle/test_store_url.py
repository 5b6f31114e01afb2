"""Store URLs as shown to people."""

import pytest

from millpond import AlreadyOpen, Millpond
from millpond.errors import BadStoreURL
from millpond.pool.internals import internals_of
from millpond.pool.store_url import shown


@pytest.mark.rows("TR-17")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("sqlite:////var/lib/work.db", "sqlite:////var/lib/work.db"),
        ("sqlite:///work.db?key=secret", "sqlite:///work.db"),
        ("postgresql://me:secret@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:se@cr/et@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:se@cr/e?t#@host/db", "postgresql://***"),
        ("postgresql://host/db?password=se@cret", "postgresql://***"),
        ("postgresql:me:secret@host/db", "postgresql:***"),
        ("postgresql://host/db?password=secret", "postgresql://host/db"),
        ("sqlite:///me@home/work.db", "sqlite:///me@home/work.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        (None, "memory"),
    ],
)
def test_a_store_url_is_shown_without_its_secrets(url: str | None, expected: str) -> None:
    """Password and query are hidden; user, host and path stay if they can be parsed."""
    assert expected == shown(url)
    assert "secret" not in shown(url)


async def test_the_store_may_change_while_the_millpond_is_closed() -> None:
    """A URL of no known store is refused, and changes nothing."""
    mp = Millpond("sqlite:///one.db")
    mp.url = "sqlite:///other.db"
    assert "sqlite:///other.db" == mp.url
    with pytest.raises(BadStoreURL):
        mp.url = "mysql://host/db"
    assert "sqlite:///other.db" == mp.url
    mp.url = None
    async with mp:
        with pytest.raises(AlreadyOpen):
            mp.url = "sqlite:///other.db"
    assert not internals_of(mp).owner.durable
