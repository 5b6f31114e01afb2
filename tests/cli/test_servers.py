"""The commands on a PostgreSQL store, and what the doctor says of a server."""

import asyncio
import os
from collections.abc import Iterator
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from tests.cli.operating import Call, app, filled
from verify.servers.postgres import Server

from millpond.cli.exits import Exit
from millpond.store.postgres import health


@pytest.fixture(scope="session")
def filled_server(postgres: Server) -> Iterator[str]:
    """A database with a store that no test changes."""
    with postgres.database() as url:
        asyncio.run(filled(app(url)))
        yield url


@pytest.fixture
def store(filled_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """That store, which the environment names."""
    monkeypatch.setenv("MILLPOND_STORE", filled_server)
    return filled_server


@pytest.mark.usefixtures("store")
def test_commands_read_a_server_as_they_read_a_file(millpond: Call) -> None:
    """Pools, tasks, one of them, and the audit."""
    assert ["hooks", "mail", "reviews"] == [p["name"] for p in millpond("pools", "--json").json]
    assert 16 == len(millpond("tasks", "--ids").out.split())
    (task, _) = millpond("dead", "--ids").out.split()
    output = millpond("task", task, "--json").json
    assert ["retry", "fail"] == [run["outcome"] for run in output["attempts"]]
    assert output["history"] == [
        {name: value for name, value in line.items() if name != "position"}
        for line in millpond("audit", "--task", task).lines
    ]
    assert 17 == len(millpond("audit", "--kind", "submit").lines)
    assert 1 == len(millpond("top", "--json", "--looks", 1).lines)
    assert Exit.CLEAN == millpond("migrate", "--check").code


def test_orders_reach_a_server(millpond: Call, postgres_url: str) -> None:
    """One of each kind."""
    asyncio.run(filled(app(postgres_url)))
    at = ("--store", postgres_url)
    assert Exit.CLEAN == millpond("pause", "mail", *at).code
    assert millpond("pools", "mail", "--json", *at).json[0]["paused"]
    assert 9 == millpond("resize", "mail", 9, "--json", *at).json["max_concurrent"]
    assert 2 == millpond("redrive", "--pool", "mail", "-y", "--json", *at).json["redriven"]
    assert 4 == millpond("purge", "hooks", "-y", "--json", *at).json["cancelled"]
    assert 7 == millpond("cancel", "--pool", "reviews", "-y", "--json", *at).json["cancelled"]


def test_a_server_without_tables_is_refused(millpond: Call, postgres_url: str) -> None:
    """It is left as it is, until it is to be migrated."""
    at = ("--store", postgres_url)
    for line in (("pools",), ("doctor",)):
        answer = millpond(*line, *at)
        assert (Exit.STORE, "") == (answer.code, answer.out)
        assert "no Millpond has opened it yet" in answer.err
    assert Exit.BROKE == millpond("migrate", "--check", *at).code
    assert Exit.CLEAN == millpond("migrate", *at).code
    assert [] == millpond("pools", "--json", *at).json


def test_bench_measures_a_new_schema_and_drops_it(millpond: Call, store: str) -> None:
    """In a schema of its own, which is gone afterwards."""
    answer = millpond("bench", "--tasks", 20, "--json")
    assert (Exit.CLEAN, 70) == (answer.code, answer.json["completed"])
    assert answer.json["store"].startswith("a schema beside postgresql://")
    requested = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'millpond%'"
    with psycopg.connect(store) as connection:
        assert [("millpond",)] == connection.execute(requested).fetchall()


# The doctor

DOCTOR_KEYS = {
    *("store", "well", "wrong", "risky", "kind", "server", "schema", "version", "user", "role"),
    *("sees_others", "frozen_age", "settings", "pins", "tables", "lock", "clock", "detours"),
}


def test_doctor_finds_no_problem_on_a_good_server(millpond: Call, store: str) -> None:
    """Its version, that of the tables, rights, dead rows and who pins the horizon."""
    answer = millpond("doctor", store)
    assert Exit.CLEAN == answer.code
    assert "all rows are consistent" in answer.out
    for words in ("PostgreSQL ", "schema millpond of version", "owns the store", "dead ones"):
        assert words in answer.out
    output = millpond("doctor", "--json").json
    assert DOCTOR_KEYS == set(output)
    assert (True, [], "postgresql") == (output["well"], output["wrong"], output["kind"])
    assert "millpond_live" in {table["name"] for table in output["tables"]}


@pytest.mark.session
def test_doctor_names_the_session_that_pins_the_horizon(
    millpond: Call, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session with an open transaction, by its number; a long one is a risk, with what to do."""
    with psycopg.connect(store, application_name="nightly report") as connection:
        connection.execute("SELECT txid_current()")
        pid = str(connection.info.backend_pid)
        found = millpond("doctor", "--json").json
        (pin,) = [one for one in found["pins"] if one["name"] == pid]
        assert ("session", True) == (pin["kind"], "nightly report" in pin["who"])
        assert not any(pid in risk for risk in found["risky"])
        monkeypatch.setattr(health, "LONG_OPEN", 0.0)
        (risk,) = [one for one in millpond("doctor", "--json").json["risky"] if pid in one]
        assert f"pg_terminate_backend({pid})" in risk
        connection.rollback()


def test_doctor_reports_a_wrong_count(millpond: Call, postgres_url: str) -> None:
    """As on a file."""
    asyncio.run(filled(app(postgres_url)))
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE millpond.millpond_pool SET live = live + 1 WHERE name = 'mail'")
    answer = millpond("doctor", postgres_url)
    assert Exit.BROKE == answer.code
    assert "wrong: " in answer.out


REPLACED = """
CREATE OR REPLACE FUNCTION millpond.millpond_unfold_1(these bigint[]) RETURNS void
LANGUAGE sql AS ''
"""
TRIGGER = """
CREATE FUNCTION public.added() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER added AFTER INSERT ON millpond.millpond_task
   FOR EACH ROW EXECUTE FUNCTION public.added();
"""


@pytest.mark.parametrize(
    ("done", "words"),
    [
        ("DROP INDEX millpond.millpond_ready", "the index millpond_ready is missing"),
        (
            "ALTER TABLE millpond.millpond_live SET (autovacuum_enabled = off)",
            'ALTER TABLE "millpond".millpond_live RESET',
        ),
        (
            REPLACED,
            "the function millpond_unfold_1 is not what this release has made",
        ),
        (
            TRIGGER,
            "DROP TRIGGER added ON",
        ),
    ],
)
def test_doctor_reports_a_changed_schema(
    done: str, words: str, millpond: Call, postgres: Server, filled_server: str
) -> None:
    """It names the differences from the migrations, and the remedy."""
    with postgres.database(template=filled_server) as url:
        with psycopg.connect(url) as connection:
            connection.execute(done.encode())
        answer = millpond("doctor", url)
    assert 1 == answer.code
    assert words in answer.out


@pytest.mark.session
def test_missing_rights_are_wrong(millpond: Call, store: str) -> None:
    """With the statement that gives them."""
    role = f"poor_{os.getpid()}"
    with psycopg.connect(store, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
        try:
            parts = urlsplit(store)
            host = parts.netloc.rpartition("@")[2]
            url = urlunsplit(parts._replace(netloc=f"{quote(role)}:x@{host}"))
            answer = millpond("doctor", url)
            assert Exit.BROKE == answer.code
            assert f'GRANT USAGE ON SCHEMA "millpond" TO "{role}"' in answer.out
        finally:
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"autovacuum": "off"}}, "autovacuum is off"),
        ({"settings": {"fsync": "off"}}, "fsync is off"),
        ({"frozen_age": 1_500_000_000}, "VACUUM (FREEZE)"),
        (
            {"tables": (health.Table("millpond_live", 10, 90_000, 1, None),)},
            "millpond_live has 90,000 dead rows beside 10 live ones",
        ),
        (
            {"pins": (health.VacuumPin("slot", "old", "logical, not in use", None, 5_000_000),)},
            "pg_drop_replication_slot('old')",
        ),
        (
            {"pins": (health.VacuumPin("prepared", "gid-1", "bob", 4000.0, 12),)},
            "ROLLBACK PREPARED 'gid-1'",
        ),
        (
            {"pins": (health.VacuumPin("standby", "replica", "repl", None, 2_000_000),)},
            "hot_standby_feedback",
        ),
    ],
)
def test_every_risk_names_its_remedy(change: dict[str, object], words: str) -> None:
    """Each alone; a server without them has none."""
    settings = dict.fromkeys(("autovacuum", "fsync", "full_page_writes"), "on")
    well: dict[str, object] = {
        "server": "18",
        "schema": "millpond",
        "version": 1,
        "user": "u",
        "sees_others": True,
        "frozen_age": 100,
        "settings": settings,
        "pins": (health.VacuumPin("session", "1", "worker", 0.1, 5),),
        "tables": (health.Table("millpond_live", 90_000, 90_000, 1, None),),
    }
    assert [] == list(health.risks(health.Health(**well)))  # type: ignore[arg-type]
    if "settings" in change:
        change = {"settings": {**settings, **change["settings"]}}  # type: ignore[dict-item]
    (risk,) = health.risks(health.Health(**{**well, **change}))  # type: ignore[arg-type]
    assert words in risk
