"""Databases that are set up in odd ways: pools on them are as on any other."""

import contextlib
from collections.abc import Iterator
from itertools import count

import psycopg
import pytest
from verify.servers.postgres import OwnServer

from millpond import Millpond
from millpond.errors import StoreNotWritable
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import connect
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.url import address_of

pytestmark = [pytest.mark.real_loop, pytest.mark.session]

KEYS = ["a", "B", "ä", "Ä", "Z", "\\", "it's", '"', "é", "e\u0301", "NULL", "{,}", "%s $1 :x"]
"""Texts that languages order otherwise than by their code points, and that SQL may trip over."""
NAMES = ["b", "a", "B", "a.b", "a-b", "a_b", "aB", "Z"]

SETTINGS = {
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "iso_8601",
    "TimeZone": "'Asia/Kathmandu'",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "work_mem": "64",
    "jit_above_cost": "0",
}

EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$SELECT 'epoch'::timestamptz$$;
CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql
    AS $$BEGIN RAISE 'evil'; END$$;
CREATE TABLE evil.millpond_meta (n int);
CREATE TABLE evil.millpond_pool (n int)
"""

_numbers = count(1)


@contextlib.contextmanager
def made(own: OwnServer, options: str = "") -> Iterator[str]:
    """Give the URL of a database that is created with some options."""
    name = f"odd_{next(_numbers)}"
    own.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' {options}")
    try:
        yield own.url_of(name)
    finally:
        own.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def used(url: str) -> None:
    """Use a pool as an application does, and check that it works as in any database."""
    mp = Millpond(url, work=True)
    pool = mp.pool("jobs", max_concurrent=4, max_per_key=1)

    @pool.task
    async def echo(value: str) -> str:
        return value

    for name in NAMES:
        mp.pool(name)
    async with mp:
        handles = [await pool.submit(echo.bind(key), key=key, idempotency_key=key) for key in KEYS]
        assert KEYS == [await handle for handle in handles]
        again = [await pool.submit(echo.bind(key), key=key, idempotency_key=key) for key in KEYS]
        assert [one.id for one in handles] == [one.id for one in again]
        assert sorted(["jobs", *NAMES]) == list(await internals_of(mp).runtime.view.names())
        with psycopg.connect(address_of(url).conninfo, autocommit=True) as own:
            call = "SELECT millpond.submit('jobs', 'echo', jsonb_build_object('value', %s::text))"
            rows = [own.execute(call, [key]).fetchone() for key in KEYS]
        by_sql = [await mp.handle(row[0]) for row in rows if row is not None]
        assert KEYS == [await handle for handle in by_sql]
        assert [] == list(await internals_of(mp).runtime.shared_store.repair())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("said", "path"),
    [("", "evil, pg_catalog, public"), ("&pooler=1", "evil, pg_catalog"), ("&pooler=1", "''")],
)
async def test_settings_that_others_chose(own: OwnServer, said: str, path: str) -> None:
    """Of the database; also where no session is ours to set up."""
    with made(own) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(EVIL.encode())
            for name, value in {**SETTINGS, "search_path": path}.items():
                where = f"DATABASE {admin.info.dbname}"
                admin.execute(f"ALTER {where} SET {name} = {value}".encode())
        await used(f"{url}{said}")


LOCALES = ("LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", "LOCALE 'en_US.UTF-8'", "LOCALE 'C.UTF-8'")


async def test_another_language(own: OwnServer) -> None:
    """The order of texts is that of their code points, and no two of them are one."""
    for locale in LOCALES:
        # The first that this server was built with.
        with contextlib.suppress(psycopg.Error), made(own, locale) as url:
            await used(url)
            return
    raise AssertionError("no locale at all")


async def test_an_encoding_with_fewer_characters(own: OwnServer) -> None:
    """What it has is kept; what it lacks is refused, and named."""
    name = f"latin_{next(_numbers)}"
    own.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        mp = Millpond(own.url_of(name), work=True)
        pool = mp.pool("jobs")

        @pool.task
        async def echo(value: str) -> str:
            return value

        async with mp:
            assert "日本" == await (await pool.submit(echo.bind("日本"), key="ä"))
            with pytest.raises(Exception, match="MILL-067") as caught:
                await pool.submit(echo.bind("x"), key="日本")
            assert "ENCODING 'UTF8'" in str(caught.value)
            assert "ä" == await (await pool.submit(echo.bind("ä"), key="ä"))
    finally:
        own.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_role_that_only_reads(own: OwnServer, own_url: str) -> None:
    """The error names the setting that makes it read only."""
    own.execute("CREATE ROLE hesitant LOGIN SUPERUSER")
    own.execute("ALTER ROLE hesitant SET default_transaction_read_only = on")
    try:
        address = address_of(own_url.replace("millpond@", "hesitant@"))
        with pytest.raises(StoreNotWritable, match="default_transaction_read_only"):
            connect(address)
        with connect(address, writable=False) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        own.execute("DROP ROLE hesitant")


async def test_two_stores_of_one_database(own_url: str) -> None:
    """A name of the longest and one in quotes: neither sees anything of the other."""
    names = ("x" * 63, "it%27s%20%22mine%22")
    first, second = (f"{own_url}&schema={name}" for name in names)
    for url in (first, second):
        with connect(address_of(url)) as connection:
            migrate(connection, address_of(url))
    one, other = Millpond(first, work=True), Millpond(second, work=True)
    ran: list[str] = []
    for mp in (one, other):
        pool = mp.pool("jobs")

        @pool.task(name="note")
        async def note(value: str, where: str = mp.url or "") -> None:
            ran.append(f"{value} {where == first}")

    async with one, other:
        handles = [
            await mp.get_pool("jobs").submit(mp.tasks["note"].bind(value), idempotency_key="same")
            for mp, value in ((one, "first"), (other, "second"))
        ]
        for handle in handles:
            await handle
    assert ["first True", "second False"] == sorted(ran)
