"""The place of a torture: which store it is, what is promised of it, and what it was asked."""

from pathlib import Path

import psycopg
from verify.servers.postgres import OwnServer, Server
from verify.torture.plan import Settings
from verify.torture.store_setup import ServerSetup, StoreSetup, on, setup_for

from millpond.store.postgres.url import address_of


def test_a_new_file_sees_who_died(tmp_path: Path) -> None:
    """Recovery counts from the death."""
    with setup_for("sqlite", None, tmp_path) as place:
        assert f"sqlite:///{tmp_path}/work.db" == place.url
        settings = Settings(home="", seed=0, lease=3.0, **place.settings)
        assert (1.0, 0) == (settings.recovered_within, settings.idlers)


def test_a_server_knows_the_dead_by_their_leases(tmp_path: Path) -> None:
    """Recovery counts from the end of a lease; and idle workers are counted."""
    with setup_for("sqlite", "postgresql://me@host/work", tmp_path) as place:
        assert isinstance(place, ServerSetup)
        settings = Settings(home="", seed=0, lease=3.0, **place.settings)
        assert (4.0, 10) == (settings.recovered_within, settings.idlers)
        assert 0 == settings.crashes, "it is not ours"
        assert 1.0 == settings.cancelled_within


def test_without_listen_more_time_is_allowed(postgres: Server) -> None:
    """And the URL says so; workers that look all the time are not counted."""
    with on(postgres, listens=False) as place:
        address = address_of(place.url)
        settings = Settings(home="", seed=0, **place.settings)
    assert address.listener is None
    assert (3.0, 0) == (settings.cancelled_within, settings.idlers)


def test_a_url_names_a_store_that_is_there(tmp_path: Path) -> None:
    """Whatever kind was asked for."""
    with setup_for("postgres", "sqlite:////srv/work.db", tmp_path) as place:
        assert (StoreSetup, "sqlite:////srv/work.db") == (type(place), place.url)


def test_what_a_server_is_asked_is_counted(postgres: Server) -> None:
    """Each transaction, and each statement where its log can be read; not the counting itself."""
    ours = isinstance(postgres, OwnServer)
    with on(postgres) as place:
        before = place.counted()
        assert before.statements is None
        place.start_counting()
        before = place.counted()
        with psycopg.connect(place.url) as connection:
            for _ in range(3):
                connection.execute("SELECT 1")
        after = place.counted()
    if ours:
        postgres.execute("ALTER SYSTEM RESET log_statement")
        postgres.execute("SELECT pg_reload_conf()")
    # BEGIN, three questions, COMMIT. To connect is a transaction, too.
    assert (5 if ours else None) == after.statements_since(before)
    assert 1 <= after.transactions - before.transactions <= 5
