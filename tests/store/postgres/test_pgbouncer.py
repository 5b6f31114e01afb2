"""Through a real PgBouncer in transaction mode: a session is lent for one transaction only."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from verify.servers.pgbouncer import Pooler, find_pgbouncer
from verify.servers.postgres import OwnServer
from verify.torture.plan import Settings
from verify.torture.store_setup import on

from millpond import Millpond
from millpond.cli.doctor import check_server
from millpond.errors import (
    MillpondError,
    PoolerBetween,
    StoreDenied,
    StoreMissing,
    StoreUnreachable,
    TooManyConnections,
)
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import connect, is_pooled, settings
from millpond.store.postgres.url import address_of

pytestmark = [pytest.mark.real_loop, pytest.mark.pgbouncer]


@pytest.fixture(scope="module")
def pooler(own: OwnServer) -> Iterator[Pooler]:
    """Give a pooler with two sessions, so that no client has a session of its own."""
    program = find_pgbouncer()
    assert program is not None
    settings = {"default_pool_size": "2", "max_client_conn": "40"}
    with Pooler(own, program, settings=settings) as made:
        yield made


@pytest.fixture
def url(pooler: Pooler) -> Iterator[str]:
    """Give an empty database through it."""
    with pooler.database() as made:
        yield made


def shop(url: str, *, work: bool = True) -> Millpond:
    """Return an application."""
    mp = Millpond(url, work=work)
    pool = mp.pool("jobs", max_concurrent=8)

    @pool.task
    async def double(number: int) -> int:
        return 2 * number

    return mp


def direct(pooler: Pooler, url: str) -> str:
    """Return the same database without the pooler."""
    return pooler.server.tcp_url_of(url.rpartition("/")[2])


@pytest.mark.parametrize("said", ["", "?pooler=1", "?pooler=1&listen=0"])
async def test_tasks_run_with_and_without_hints(url: str, said: str) -> None:
    """Several processes' worth of connections share two sessions; nothing is prepared in them."""
    async with shop(f"{url}{said}") as mp, shop(f"{url}{said}", work=False) as other:
        handles = [await other.tasks["double"].submit(number) for number in range(40)]
        assert [2 * number for number in range(40)] == [await handle for handle in handles]
        assert "completed" == (await mp.handle(handles[0].id)).status
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        expected = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'millpond%'"
        found = {connection.execute(expected).fetchone() for _ in range(5)}
        assert {(0,)} == found
        ours = sorted(settings("full").keys() - {"TimeZone"})  # of which a pooler keeps track
        left = "SELECT name FROM pg_settings WHERE source = 'session' AND name = ANY(%s)"
        assert [] == [row for _ in range(5) for row in connection.execute(left, [ours])]


async def test_every_transaction_brings_its_settings(pooler: Pooler, url: str) -> None:
    """Lock and statement timeouts hold, whichever client had the session before."""
    async with shop(url, work=False):
        pass
    with psycopg.connect(direct(pooler, url), autocommit=True) as admin:
        admin.execute("CREATE TABLE public.noted (lock text, statement text)")
        admin.execute(
            "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO public.noted VALUES "
            "(current_setting('lock_timeout'), current_setting('statement_timeout')); "
            "RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE ON millpond.millpond_meta "
            "EXECUTE FUNCTION public.note()"
        )
        async with shop(url) as mp:
            for number in range(5):
                assert 2 * number == await (await mp.tasks["double"].submit(number))
        assert [("30s", "1min")] == admin.execute("SELECT DISTINCT * FROM public.noted").fetchall()


def test_a_pooler_is_detected(pooler: Pooler, url: str) -> None:
    """The session's process id differs from the one that the server reports."""
    with connect(address_of(url)) as through:
        assert is_pooled(through)
    with connect(address_of(f"{url}?pooler=0")) as believed:
        assert not is_pooled(believed)
    with connect(address_of(direct(pooler, url))) as straight:
        assert not is_pooled(straight)


async def test_a_silent_listener_is_logged_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """With what to write into the URL; and where one listens elsewhere there is nothing to say."""
    logged = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: logged.set()  # type: ignore[assignment, method-assign]
    logger = logging.getLogger("millpond.postgres")
    logger.addHandler(handler)
    try:
        async with shop(url, work=False):
            assert await asyncio.to_thread(logged.wait, 30.0)
    finally:
        logger.removeHandler(handler)
    assert 1 == caplog.text.count("LISTEN is not available through the pooler")
    assert "listen=" in caplog.text


async def test_a_process_may_listen_at_the_server_itself(pooler: Pooler, url: str) -> None:
    """Then it receives hints as without a pooler."""
    ear = quote(direct(pooler, url), safe="")
    async with shop(f"{url}?listen={ear}") as mp, asyncio.timeout(30):
        while not internals_of(mp).runtime.shared_store.receives_hints:
            assert 2 == await (await mp.tasks["double"].submit(1))


def test_a_fleet_that_is_tortured_listens_past_it_or_not_at_all(pooler: Pooler) -> None:
    """All else goes through it."""
    with on(pooler) as hears, on(pooler, listens=False) as deaf:
        address, silent = address_of(hears.url), address_of(deaf.url)
        assert f":{pooler.port}/" in address.conninfo
        assert address.listens_at is not None
        with connect(address.listens_at) as straight, connect(address) as through:
            assert [False, True] == [is_pooled(straight), is_pooled(through)]
    assert silent is silent.listener
    assert (1.0, 3.0) == tuple(
        Settings(home="", seed=0, **place.settings).cancelled_within for place in (hears, deaf)
    )


def test_the_doctor_leaves_nothing_behind(url: str) -> None:
    """Twice over the same sessions."""

    async def once() -> None:
        async with shop(url, work=False):
            pass

    asyncio.run(once())
    for _ in range(3):
        assert [] == check_server(url, address_of(url)).wrong


def test_prepared_statements_that_a_pooler_loses_are_explained(url: str) -> None:
    """Where the URL says, wrongly, that there is none."""
    script = (
        "import asyncio, sys\n"
        "from tests.store.postgres.test_pgbouncer import shop\n"
        "async def main():\n"
        "    async with shop(sys.argv[1]) as mp, shop(sys.argv[1]) as other:\n"
        "        for number in range(20):\n"
        "            await (await mp.tasks['double'].submit(number))\n"
        "            await (await other.tasks['double'].submit(number))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"{url}?pooler=0&listen=0"],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert PoolerBetween.code in done.stderr
    assert "pooler=1" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ("?options=-csearch_path%3Dpublic", PoolerBetween, "ALTER ROLE"),
        ("?connect_timeout=5&user=stranger", StoreDenied, "user"),
    ],
)
def test_a_refusal_of_the_pooler_is_explained(
    url: str, wrong: str, kind: type[MillpondError], words: str
) -> None:
    """The pooler has messages of its own."""
    with pytest.raises(kind, match=words):
        connect(address_of(f"{url}{wrong}"))


def test_a_database_that_is_not_there_is_an_error(pooler: Pooler) -> None:
    """Neither the server nor the pooler knows it."""
    with pytest.raises((StoreMissing, StoreUnreachable), match="not_there"):
        connect(address_of(pooler.url_of("not_there")))


def test_a_pooler_with_too_many_clients_is_an_error(url: str) -> None:
    """It lets no further client in."""
    held = []
    try:
        with pytest.raises(TooManyConnections, match="takes no further connections"):
            for _ in range(60):
                held.append(connect(address_of(url)))  # noqa: PERF401 - the last one fails
    finally:
        for connection in held:
            connection.close()
