"""URLs of PostgreSQL stores: what they name, what is refused, and that no password gets out."""

import subprocess
import sys
from urllib.parse import quote

import pytest

from millpond import Millpond
from millpond.errors import BadStoreURL, DriverMissing
from millpond.store.postgres.quoting import LONGEST, qualified, quoted
from millpond.store.postgres.url import address_of, is_postgres


@pytest.mark.parametrize(
    ("url", "conninfo"),
    [
        ("postgresql://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("postgres://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("POSTGRESQL://host/db", "postgresql://host/db"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://me:p%40ss%2F@host:5433/d%20b", "postgresql://me:p%40ss%2F@host:5433/d%20b"),
        ("postgresql://h1:1,h2:2,[::1]:3/db", "postgresql://h1:1,h2:2,[::1]:3/db"),
        ("postgresql://%2Ftmp%2Fpg/db", "postgresql://%2Ftmp%2Fpg/db"),
        ("postgresql:///db?host=/tmp/pg&port=5", "postgresql:///db?host=/tmp/pg&port=5"),
        (
            "postgresql://host/db?sslmode=require&schema=s&pooler=1&connect_timeout=3",
            "postgresql://host/db?sslmode=require&connect_timeout=3",
        ),
    ],
)
def test_options_of_libpq_are_passed_on(url: str, conninfo: str) -> None:
    """As the URL has them; our own options are taken out."""
    assert conninfo == address_of(url).conninfo


@pytest.mark.parametrize(
    ("query", "schema"),
    [
        ("", "millpond"),
        ("?schema=work", "work"),
        ("?millpond_schema=work", "work"),
        ("?schema=Two%20Words", "Two Words"),
        ("?schema=a%22b%27c", "a\"b'c"),
        ("?schema=m%C3%BChle", "mühle"),
        (f"?schema={'x' * LONGEST}", "x" * LONGEST),
    ],
)
def test_the_schema_may_be_chosen(query: str, schema: str) -> None:
    """Whatever is in its name, up to what PostgreSQL can tell apart."""
    assert schema == address_of(f"postgresql://host/db{query}").schema


def test_a_pooler_is_logged() -> None:
    """It is a switch."""
    assert not address_of("postgresql://host/db").pooler
    assert address_of("postgresql://host/db?pooler=1").pooler
    assert address_of("postgresql://host/db?pooler=true").pooler
    assert not address_of("postgresql://host/db?pooler=off").pooler


def test_a_process_listens_at_the_server_and_not_at_a_pooler() -> None:
    """Unless the URL says otherwise."""
    here = address_of("postgresql://host/db")
    assert here is here.listener
    assert address_of("postgresql://host/db?listen=off").listener is None
    assert address_of("postgresql://host/db?pooler=1").listener is None
    pooled = address_of("postgresql://host/db?pooler=1&listen=on")
    assert pooled is pooled.listener


def test_a_url_may_name_another_one_to_listen_at() -> None:
    """No password of the inner URL is shown either."""
    inner = "postgresql://me:s%40cret@direct:5433/db?sslmode=require&connect_timeout=3"
    for written in (quote(inner, safe=""), quote(inner, safe=":/@?=")):
        address = address_of(f"postgresql://host/db?pooler=1&listen={written}&schema=s")
        assert "s" == address.schema
        assert address.listener is not None
        assert inner == address.listener.conninfo
        assert not address.listener.pooler
        assert "cret" not in f"{address!r} {address} {address.listener!r}"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql:host/db", "slashes"),
        ("postgresql:/host/db", "slashes"),
        ("postgresql+psycopg://host/db", "names a driver"),
        ("postgresql+asyncpg://host/db", "names a driver"),
        ("postgresql://me:two words@host/db", "%20"),
        ("postgresql://host/db\n", "control character"),
        ("postgresql://me:p%zz@host/db", "%25"),
        ("postgresql://me:p@ss@host/db", "%40"),
        ("postgresql://me:pass/word@host/db", "%40"),
        ("postgresql://me:pass/word", "host or a port"),
        ("postgresql://host:port/db", "host or a port"),
        ("postgresql://host:543210/db", "host or a port"),
        ("postgresql://host/db/more", "%2F"),
        ("postgresql://host/db?listen=perhaps", "neither 0 nor 1 nor a URL"),
        ("postgresql://host/db?listen=postgresql:host", "option listen that lacks the slashes"),
        ("postgresql://host/db?listen=1&listen=1", "twice"),
        ("postgresql://host/db#there", "%23"),
        ("postgresql://host/%ff", "UTF-8"),
        ("postgresql://host/a%00b", "zero byte"),
        ("postgresql://host/db?sslmode", "name=value"),
        ("postgresql://host/db?", None),
        ("postgresql://host/db?schema=a&schema=b", "twice"),
        ("postgresql://host/db?schema=a&millpond_schema=b", "twice"),
        ("postgresql://host/db?schema=", "is empty"),
        ("postgresql://host/db?schema=a%0Ab", "control character"),
        ("postgresql://host/db?schema=a%00b", "zero byte"),
        ("postgresql://host/db?schema=100%25", "take for a parameter"),
        ("postgresql://host/db?schema=pg_work", "PostgreSQL's own"),
        ("postgresql://host/db?schema=information_schema", "PostgreSQL's own"),
        (f"postgresql://host/db?schema={'x' * 64}", "64 bytes"),
        (f"postgresql://host/db?schema={'%C3%BC' * 32}", "64 bytes"),
        ("postgresql://host/db?pooler=maybe", "neither 0 nor 1"),
    ],
)
def test_a_url_that_is_no_address_is_refused(url: str, reason: str | None) -> None:
    """The error says what is wrong and how it is written."""
    if reason is None:
        address_of(url)
        return
    with pytest.raises(BadStoreURL, match=reason) as caught:
        address_of(url)
    assert "MILL-040" in str(caught.value)
    assert "postgresql://user:password@host/database" in str(caught.value)


@pytest.mark.rows("TR-17")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@host/db",
        "postgresql://host/db?password=hunter2",
        "postgresql://host/db?password=hunter2@x&schema=pg_1",
        "postgresql://me:hunter2@host/db?password=a@hunter2",
        "postgresql://me:x@hunter2@host/db",
        "postgresql://me:x/hunter2@host/db",
        "postgresql://me:x?hunter2@host/db",
        "postgresql://me:x#hunter2@host/db",
        "postgresql://me:hunter2%zz@host/db",
        "postgresql://me:hunter2 @host/db",
        "postgresql://me:hunter2@host/db?pooler=2",
        "postgresql:me:hunter2@host/db",
        "postgresql+x://me:hunter2@host/db",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """Neither in an error nor where the address is shown."""
    try:
        address = address_of(url)
    except BadStoreURL as error:
        texts = [str(error), repr(error), repr(vars(error))]
    else:
        texts = [str(address), repr(address), f"{address!r:>5}", address.shown]
    texts.append(repr(Millpond()))
    assert "hunter2" not in " ".join(texts)


def test_a_millpond_does_not_show_the_password_either() -> None:
    """It knows the URL, and shows what may be shown."""
    mp = Millpond("postgresql://me:hunter2@host/db?password=hunter2")
    assert "hunter2" not in repr(mp)


def test_an_address_names_its_schema_where_that_is_not_the_usual() -> None:
    """Errors are about a schema of a database."""
    assert "postgresql://host/db" == str(address_of("postgresql://host/db?schema=millpond"))
    assert "postgresql://host/db (schema s)" == str(address_of("postgresql://host/db?schema=s"))


def test_urls_of_postgresql_are_recognised() -> None:
    """Also where it is badly written: the error is then about PostgreSQL."""
    assert is_postgres("postgres://x")
    assert is_postgres("postgresql+psycopg2://x")
    assert not is_postgres("sqlite:///work.db")
    assert not is_postgres("postgresqlx://x")
    assert not is_postgres(7)


def test_names_are_quoted() -> None:
    """And every table of ours gets its schema, nothing else does."""
    assert '"a""b"' == quoted('a"b')
    query = "SELECT millpond_live.id FROM millpond_live JOIN other ON other.millpond = 1"
    assert (
        'SELECT "a""b".millpond_live.id FROM "a""b".millpond_live JOIN other ON other.millpond = 1'
        == qualified(query, 'a"b')
    )


def test_importing_millpond_imports_no_driver() -> None:
    """Nor does a Millpond that is on no server."""
    script = (
        "import sys, millpond; millpond.Millpond('sqlite:///w.db'); print('psycopg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert b"False" == done.stdout.strip()


def test_a_missing_driver_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the URL is given, not where the first task is submitted."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DriverMissing, match=r"pip install 'millpond\[postgres\]'") as caught:
        Millpond("postgresql://me:hunter2@localhost/work")
    assert "postgres" == caught.value.extra
    assert "MILL-060" in str(caught.value)
