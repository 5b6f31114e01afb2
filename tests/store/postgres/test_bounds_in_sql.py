"""Tasks submitted in SQL pass the same checks as tasks submitted in Python."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any

import psycopg
import pytest
from tests.store.postgres.test_inbox import Own, connected, kept, leased, new, opened
from verify.servers.schemas import Schema

from millpond.core import bounds
from millpond.core.spec import bounded, fair_round_robin
from millpond.store.postgres.server_functions import sources
from millpond.store.sql.codec import body_of

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-03")]

WIDE = "\u65e5"
"""Three bytes of UTF-8."""

REFUSED = [
    ("function", "repeat('x', 2800)"),
    ("function", f"repeat('{WIDE}', 90)"),
    ("function", "'a b'"),
    ("function", "'a..b'"),
    ("function", "''"),
    ("key", "repeat('x', 1025)"),
    ("key", f"repeat('{WIDE}', 512)"),
    ("idempotency_key", f"repeat('{WIDE}', 512)"),
    ("submitted_by", "repeat('x', 40000000)"),
    ("submitted_by", f"repeat('{WIDE}', 342)"),
    ("labels", "jsonb_build_object('a', repeat('x', 40000000))"),
    ("labels", "jsonb_build_object(repeat('x', 257), 'a')"),
    ("labels", "(SELECT jsonb_object_agg(g::text, '') FROM generate_series(1, 65) AS g)"),
    ("delay", "1e305"),
    ("delay", "315360001"),
    ("expires_in", "1e300"),
    ("timeout", "1e300"),
    ("run_at", "'2201-01-01'"),
    ("run_at", "'294000-01-01'"),
    ("arguments", "jsonb_build_object('a', repeat('x', 40000000))"),
]


@pytest.mark.parametrize(("option", "value"), REFUSED)
async def test_the_function_refuses_what_python_refuses(
    schema: Schema, option: str, value: str
) -> None:
    """By the name of the option, before anything is stored; and the pool goes on."""
    async with opened(schema) as store:
        with connected(schema, autocommit=True) as own:
            said = f"{option} => {value}" + ("" if option == "function" else ", function => 'f'")
            with pytest.raises(psycopg.Error) as caught:
                own._first(f"SELECT \"{own.schema}\".submit('p', {said})")
            assert caught.value.sqlstate in ("ML003", "ML014")
            assert option in str(caught.value)
            task = own.submit()
        assert [task] == await leased(store)


@pytest.mark.parametrize("where", ["labels", "arguments"])
async def test_the_share_of_a_fair_pool_has_the_bound_of_a_key(schema: Schema, where: str) -> None:
    """A label or an argument names it: it is in the same index as the key."""
    async with opened(schema, order=fair_round_robin("tenant"), max_per_key=1) as store:
        with connected(schema, autocommit=True) as own:
            for value in (f"repeat('{WIDE}', 512)", "''"):
                said = f"{where} => jsonb_build_object('tenant', {value})"
                with pytest.raises(psycopg.Error, match=r"tenant|labels") as caught:
                    own.submit(said)
                assert "ML003" == caught.value.sqlstate
            longest = "(SELECT string_agg(chr(19968 + (random() * 20000)::int), '')"
            longest += " FROM generate_series(1, 341))"
            said = f"{where} => jsonb_build_object('tenant', {longest}), key => {longest}"
            task = own.submit(said)
        assert [task] == await leased(store)


def entered(own: Own, **fields: Any) -> Any:
    """Submit a task with the SQL function that the Python side calls."""
    store = own.ask("SELECT millpond_where()")
    task = {"id": 7, "dedupe": "forever", "function": "work", "fingerprint": 0, **fields}
    given = json.dumps({"store": store, "pool": "p", "tasks": [task]})
    statement = f'SELECT "{own.schema}".millpond_enter(%s)'
    row = own.connection.execute(statement.encode(), [given]).fetchone()
    assert row is not None
    return json.loads(row[0])


def encoded(identifier: int = 7, **options: Any) -> str:
    """The body of a task, as the Python side sends it."""
    return b64encode(body_of(new(identifier, **options))).decode()


@pytest.mark.parametrize(
    "fields",
    [
        {"function": "x" * 2800},
        {"function": ""},
        {"key": WIDE * 512},
        {"idempotency_key": "x" * 1025},
        {"body": "A" * 47_000_000},
        {"id": -1},
        {"id": 2**63},
        {"words": {"function": "work"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_the_function_that_python_calls_refuses_the_same_from_any_program(
    schema: Schema, fields: dict[str, Any]
) -> None:
    """A role that may submit may also call the function that the Python side calls."""
    async with opened(schema) as store:
        with connected(schema, autocommit=True) as own:
            with pytest.raises(psycopg.Error) as caught:
                entered(own, **{"body": encoded(), **fields})
            assert "ML003" == caught.value.sqlstate
            task = own.submit()
        assert [task] == await leased(store)


async def test_a_bound_per_key_cannot_be_sidestepped(schema: Schema) -> None:
    """A body that names another key than the one it was counted by is set aside."""
    async with opened(schema, backpressure=bounded(100, "fail_submitter", per_key=2)) as store:
        with connected(schema, autocommit=True) as own:
            for number in range(5):
                entered(own, id=10 + number, key=None, body=encoded(10 + number, key="acme"))
            own.submit("key => 'acme'")
            own.submit("key => 'acme'")
            with pytest.raises(psycopg.Error) as caught:
                own.submit("key => 'acme'")
            assert "ML001" == caught.value.sqlstate
        for number in range(5):
            found = await kept(store, 10 + number)
            assert (None, "") == (found.new.key, found.new.call.function)


async def test_a_bound_per_key_wants_a_key(schema: Schema) -> None:
    """The key= of a task is Python: a submit in SQL names the key, or is refused with why."""
    async with opened(schema, backpressure=bounded(100, "drop_newest", per_key=2)) as store:
        with connected(schema, autocommit=True) as own:
            with pytest.raises(psycopg.Error, match="key must be given") as caught:
                own.submit()
            assert "ML003" == caught.value.sqlstate
            task = own.submit("key => 'acme'")
        assert [task] == await leased(store)


async def test_a_role_that_may_only_submit_stops_no_pool(schema: Schema) -> None:
    """An unknown function waits for a worker that knows it, and the others are leased."""
    longest = "f" * bounds.MAX_NAME
    async with opened(schema) as store:
        with connected(schema, autocommit=True) as own:
            strange = own.submit(function=longest)
            task = own.submit()
        got = (await leased(store)) + (await leased(store))
        assert {strange, task} == set(got)


def test_the_bounds_in_sql_are_those_of_python() -> None:
    """Each number in the text of the functions is a constant of core/bounds.py."""
    text = sources()["inbox.sql"] + sources()["public.sql"]

    def compared(what: str) -> set[int]:
        return {int(found) for found in re.findall(what, text)}

    assert {bounds.MAX_KEY} == compared(r"octet_length\((?:idempotency_)?key\) > (\d+)")
    assert {bounds.MAX_KEY} == compared(
        r"octet_length\((?:task ->> '(?:idempotency_)?key'|share)\) NOT BETWEEN 1 AND (\d+)"
    )
    assert {bounds.MAX_FUNCTION} == compared(r"'function'\), 0\) NOT BETWEEN 1 AND (\d+)")
    assert {bounds.MAX_NAME} == compared(r"octet_length\((?:function|pool)\) > (\d+)")
    assert {bounds.MAX_LABEL_NAME} == compared(r"octet_length\(l\.key\) > (\d+)")
    assert {bounds.MAX_LABEL} == compared(r"octet_length\(l\.value\) > (\d+)")
    assert {bounds.MAX_LABELS} == compared(r"jsonb_object_keys\(labels\)\) > (\d+)")
    assert {bounds.MAX_SUBMITTED_BY} == compared(r"octet_length\(submitted_by\) > (\d+)")
    assert {int(bounds.MAX_SECONDS)} == compared(r"(?:delay|expires_in|timeout) <= (\d+)")
    assert {int(bounds.MAX_MOMENT)} == compared(r"epoch FROM run_at\)\) > (\d+)")
    assert {bounds.MAX_PAYLOAD} == compared(r"octet_length\(arguments::text\) > (\d+)")
    assert {bounds.MAX_BODY} == compared(r"body must have at most (\d+) bytes")
    assert {bounds.MAX_SUBMITTED_BODY} == compared(r"submit bodies of at most (\d+) bytes")
    assert {-(-bounds.MAX_SUBMITTED_BODY // 3) * 4} == compared(
        r"octet_length\((?:given|t ->> 'body')\) > (\d+)"
    )
    # In base64 three bytes are four.
    assert {bounds.MAX_BODY // 3 * 4} == compared(r"octet_length\(task ->> 'body'\) > (\d+)")


def test_the_widest_rows_of_an_index_fit() -> None:
    """Key, share and owner at their longest, with what PostgreSQL adds, are one index row."""
    header, number, length = 8, 8, 4
    widest = header + number + 3 * (length + 3) + 2 * bounds.MAX_KEY + bounds.MAX_OWNER
    assert widest <= bounds.MAX_INDEX_ROW
    for text in (bounds.MAX_FUNCTION, bounds.MAX_NAME + bounds.MAX_KEY, bounds.MAX_RUN_NAME):
        assert header + 3 * number + 2 * length + text <= bounds.MAX_INDEX_ROW
