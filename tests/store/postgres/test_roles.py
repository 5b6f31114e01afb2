"""Roles with the least rights: each does what it may; an error names the grant for the rest."""

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator

import psycopg
import pytest
from verify.servers.postgres import OwnServer

from millpond import Millpond
from millpond.cli.doctor import check_server
from millpond.cli.migrate import main as migrate_command
from millpond.core import bounds
from millpond.errors import MigrationNeeded, MissingRights
from millpond.pool.internals import internals_of
from millpond.store.migration import Migration
from millpond.store.postgres.connect import connect
from millpond.store.postgres.migrate import known_migrations, migrate
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.roles import FOR_SUBMITTERS, FOR_WORKERS, Role, grants, role_of
from millpond.store.postgres.server_functions import installed_name
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of

pytestmark = [pytest.mark.real_loop, pytest.mark.session]

SCHEMA = 'Work\'s "pool"'
USERS = {role: f"the {role}'s {os.getpid()}" for role in Role}
OPTION = "schema=Work%27s%20%22pool%22"

At = Callable[[Role], str]


@pytest.fixture(scope="module")
def users(own: OwnServer) -> Iterator[OwnServer]:
    """Give a server on which there is a user for each role, with a name that must be quoted."""
    for user in USERS.values():
        own.execute(f'CREATE ROLE "{user}" LOGIN')
    yield own
    for user in USERS.values():
        own.execute(f'DROP ROLE "{user}"')


@pytest.fixture
def at(users: OwnServer) -> Iterator[At]:
    """Give the URL of a store by role; its owner has made it, and let the others in."""
    with users.database() as url:

        def as_(role: Role) -> str:
            user = USERS[role].replace(" ", "%20").replace("'", "%27")
            return f"{url.replace('millpond@', f'{user}@')}&{OPTION}"

        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            for statement in grants(Role.OWNER, USERS[Role.OWNER], SCHEMA):
                admin.execute(statement.encode())
        address = address_of(as_(Role.OWNER))
        with connect(address) as owner:
            migrate(owner, address)
            for role in (Role.WORKER, Role.SUBMITTER, Role.READER):
                for statement in grants(role, USERS[role], SCHEMA):
                    owner.execute(statement.encode())
        yield as_
        with psycopg.connect(url, autocommit=True) as admin:
            disown(admin, *USERS.values())


def disown(admin: psycopg.Connection, *users: str) -> None:
    """Take all rights from users, so that they can be dropped."""
    # A session that has just closed may still hold locks.
    admin.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for user in users:
        admin.execute(f'DROP OWNED BY "{user}" CASCADE'.encode())


def by_hand(url: str) -> psycopg.Connection:
    """Connect as an application that writes SQL."""
    return psycopg.connect(address_of(url).conninfo, autocommit=True)


def shop(url: str, **options: object) -> Millpond:
    """Return an application."""
    mp = Millpond(url, **options)  # type: ignore[arg-type]
    pool = mp.pool("jobs", max_concurrent=4)

    @pool.task
    async def double(number: int) -> int:
        return 2 * number

    return mp


async def done(url: str, *numbers: int) -> list[int]:
    """Have something done as a worker."""
    async with shop(url, work=True, migrate=False) as mp:
        return [await (await mp.tasks["double"].submit(number)) for number in numbers]


@pytest.mark.parametrize("role", Role)
def test_the_role_of_a_connection_is_known(at: At, role: Role) -> None:
    """By the rights that it has."""
    address = address_of(at(role))
    with connect(address) as connection:
        assert role is role_of(connection, address)


async def test_a_worker_works_and_does_not_migrate(at: At) -> None:
    """It has no right to change tables, nor to say of which release they are."""
    url = at(Role.WORKER)
    assert [2, 4] == await done(url, 1, 2)
    address = address_of(url)
    newer = Migration(known_migrations()[-1].version + 1, "new", "CREATE TABLE millpond_new ()")
    with connect(address) as connection:
        with pytest.raises(MissingRights, match="millpond migrate"):
            migrate(connection, address, migrations=[*known_migrations(), newer])
        (submitted,) = connection.execute('SELECT "Work\'s ""pool""".submit(\'jobs\', \'double\')')
        assert submitted
        for statement in (
            'CREATE TABLE "Work\'s ""pool""".x ()',
            'DROP TABLE "Work\'s ""pool""".millpond_inbox',
            'TRUNCATE "Work\'s ""pool""".millpond_inbox',
            'DELETE FROM "Work\'s ""pool""".millpond_schema',
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


async def test_a_submitter_submits_and_reads_the_status(at: At) -> None:
    """It may call two functions, and nothing else."""
    await done(at(Role.WORKER))
    place = 'SELECT "Work\'s ""pool""".'
    with by_hand(at(Role.SUBMITTER)) as own:
        ((task,),) = own.execute(f"{place}submit('jobs', 'double', '{{\"number\": 4}}')".encode())
        status = f"{place}status({task})".encode()
        assert [("queued",)] == own.execute(status).fetchall()
        assert [(None,)] == own.execute(f"{place}status(1)".encode()).fetchall()
        async with shop(at(Role.WORKER), work=True, migrate=False) as mp:
            assert 8 == await (await mp.handle(task))
        assert [("completed",)] == own.execute(status).fetchall()
        for statement in (
            'SELECT * FROM "Work\'s ""pool""".millpond_task',
            'INSERT INTO "Work\'s ""pool""".millpond_inbox (id) VALUES (1)',
            'SELECT "Work\'s ""pool""".millpond_put_1(\'{"pool": "jobs", "tasks": []}\')',
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.execute(statement.encode())


@pytest.mark.rows("TR-03")
async def test_a_submitter_cannot_stop_a_pool(at: At) -> None:
    """A name too long for an index is refused; a task of an unknown name holds up no other."""
    await done(at(Role.WORKER))
    place = 'SELECT "Work\'s ""pool""".submit('
    with by_hand(at(Role.SUBMITTER)) as own:
        for said in ("repeat('x', 2800)", "repeat('x', 40000000)"):
            with pytest.raises(psycopg.Error, match="MILL-003"):
                own.execute(f"{place}'jobs', {said})".encode())
        own.execute(f"{place}'jobs', repeat('x', 128))".encode())
    assert [4, 6] == await done(at(Role.WORKER), 2, 3)


@pytest.mark.rows("TR-03")
async def test_a_submitter_may_store_at_most_a_mebibyte(at: At) -> None:
    """Also by the function that Python calls, whatever max_payload some process was given."""
    await done(at(Role.WORKER))
    place = 'SELECT "Work\'s ""pool""".'

    def put(own: psycopg.Connection, size: int) -> None:
        body = b64encode(bytes(size)).decode()
        task = {"id": size, "function": "double", "fingerprint": 0, "body": body}
        ((store,),) = own.execute(f"{place}millpond_where_1()".encode())
        given = json.dumps({"store": store, "pool": "jobs", "tasks": [task]})
        own.execute(f"{place}millpond_enter(%s)".encode(), [given])

    with by_hand(at(Role.SUBMITTER)) as own:
        put(own, bounds.MAX_SUBMITTED_BODY)
        with pytest.raises(psycopg.Error, match="MILL-014"):
            put(own, bounds.MAX_SUBMITTED_BODY + 4)
    with by_hand(at(Role.WORKER)) as own:
        put(own, bounds.MAX_SUBMITTED_BODY + 4)
    # None of them can be read, and none is in the way.
    assert [4] == await done(at(Role.WORKER), 2)


async def test_a_submitter_joins_its_own_transaction(at: At) -> None:
    """A worker opens the Millpond; the connection is that of a role with fewer rights."""
    async with shop(at(Role.WORKER), work=True, migrate=False) as mp:
        with by_hand(at(Role.SUBMITTER)) as own, own.transaction():
            handle = await mp.get_pool("jobs").submit(
                mp.tasks["double"].bind(number=5), connection=own
            )
        assert 10 == await handle
        with by_hand(at(Role.READER)) as other, other.transaction():
            with pytest.raises(MissingRights, match="GRANT EXECUTE") as caught:
                await mp.get_pool("jobs").submit(
                    mp.tasks["double"].bind(number=5), connection=other
                )
            assert USERS[Role.READER] in str(caught.value)


async def test_temporary_tables_of_a_submitter_have_no_effect(at: At) -> None:
    """What acts with the owner's rights does not look at what the caller has made."""
    await done(at(Role.WORKER))
    with by_hand(at(Role.SUBMITTER)) as own:
        own.execute("CREATE FUNCTION pg_temp.spy() RETURNS text LANGUAGE sql AS 'SELECT 1'")
        for table in ("millpond_pool", "millpond_inbox", "millpond_key", "millpond_task"):
            own.execute(f"CREATE TEMP TABLE {table} (id bigint, name text, spec text)".encode())
        own.execute("INSERT INTO pg_temp.millpond_pool VALUES (1, 'none', '{}')")
        with pytest.raises(psycopg.Error, match="MILL-008"):
            own.execute('SELECT "Work\'s ""pool""".submit(\'none\', \'double\')')
        ((task,),) = own.execute('SELECT "Work\'s ""pool""".submit(\'jobs\', \'double\')')
        assert 0 < task
        ((found,),) = own.execute("SELECT count(*) FROM pg_temp.millpond_inbox")
        assert 0 == found


async def test_a_submitter_opens_no_pools(at: At) -> None:
    """Which rights it would need is said."""
    with pytest.raises(MissingRights, match="GRANT SELECT, INSERT, UPDATE, DELETE"):
        await done(at(Role.SUBMITTER))


async def test_a_reader_reads_every_view_and_changes_nothing(at: At) -> None:
    """It also reads tasks in the inbox; the error of a write names the grant."""
    assert [2] == await done(at(Role.WORKER), 1)
    with by_hand(at(Role.SUBMITTER)) as own:
        own.execute('SELECT "Work\'s ""pool""".submit(\'jobs\', \'double\')')
    async with Millpond(at(Role.READER), work=False, migrate=False) as mp:
        assert ["jobs"] == list(await internals_of(mp).runtime.view.names())
        seen = await internals_of(mp).runtime.view.pool("jobs")
        assert seen is not None
        assert 1 == len((await internals_of(mp).runtime.view.tasks("jobs")).tasks)
        assert (await internals_of(mp).runtime.view.audit()).records
        with pytest.raises(MissingRights, match="GRANT INSERT, UPDATE, DELETE") as caught:
            await mp.cancel(1)
        assert USERS[Role.READER] in str(caught.value)
    with pytest.raises(MissingRights, match="GRANT INSERT, UPDATE, DELETE"):
        await done(at(Role.READER))
    with by_hand(at(Role.READER)) as own, pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.execute('SELECT "Work\'s ""pool""".submit(\'jobs\', \'double\')')


@pytest.mark.parametrize(
    ("role", "may"),
    {Role.WORKER: True, Role.SUBMITTER: True, Role.READER: False}.items(),
)
def test_only_granted_roles_may_call_functions_with_the_owners_rights(
    at: At, role: Role, may: bool
) -> None:
    """No other function has them: it runs with the rights of its caller."""
    expected = dict.fromkeys(FOR_SUBMITTERS, may)
    expected |= dict.fromkeys(map(installed_name, FOR_WORKERS), role is Role.WORKER)
    query = (
        "SELECT proname, has_function_privilege(oid, 'EXECUTE') FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND prosecdef"
    )
    with by_hand(at(role)) as own:
        found = own.execute(query, [quoted(SCHEMA)]).fetchall()
    assert set(expected.items()) == set(found)


@pytest.mark.parametrize("role", Role)
def test_the_doctor_knows_them(at: At, role: Role) -> None:
    """Nothing is wrong with having few rights."""
    url = at(role)
    found = check_server(url, address_of(url))
    assert ([], role) == (found.wrong, found.facts["role"])
    notes = {
        Role.OWNER: "owns the store",
        Role.WORKER: "has the rights of a worker",
        Role.SUBMITTER: "may read no table",
        Role.READER: "may read the store",
    }
    assert notes[role] in "\n".join(found.notes)


def test_tables_of_a_later_release_are_there_for_all(at: At) -> None:
    """What the owner makes later is theirs, too."""
    address = address_of(at(Role.OWNER))
    made = (
        "CREATE TABLE millpond_new (n int); "
        "CREATE FUNCTION millpond_newer() RETURNS int LANGUAGE sql AS 'SELECT 1'; "
        "REVOKE EXECUTE ON FUNCTION millpond_newer FROM PUBLIC"
    )
    newer = Migration(known_migrations()[-1].version + 1, "new", made)
    with connect(address) as owner:
        migrate(owner, address, migrations=[*known_migrations(), newer])
    for role in (Role.WORKER, Role.READER):
        with by_hand(at(role)) as own:
            own.execute('SELECT * FROM "Work\'s ""pool""".millpond_new')
            call = 'SELECT "Work\'s ""pool""".millpond_newer()'
            if role is Role.WORKER:
                own.execute(call)
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    own.execute(call)


async def test_a_reader_makes_no_tables(users: OwnServer) -> None:
    """Where there are none, the error says so."""
    with users.database() as url:
        mine = url.replace("millpond@", f"{USERS[Role.READER].replace(' ', '%20')}@")
        with pytest.raises(MissingRights, match="GRANT CREATE ON DATABASE"):
            await PostgresStore.open(address_of(mine))
        with pytest.raises(MigrationNeeded):
            await PostgresStore.open(address_of(mine), migrate=False)


def test_grants_are_printed_and_applied(
    users: OwnServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed by default; and what the command applies is enough for a worker."""
    with users.database() as url:
        user = USERS[Role.WORKER]
        line = ["--grants", f"worker={user}", "--store", url]
        assert 0 == migrate_command(line)
        assert f'TO "{user}";\n' in capsys.readouterr().out
        with connect(address_of(url)) as admin, pytest.raises(MigrationNeeded):
            migrate(admin, address_of(url), allowed=False)
        assert 0 == migrate_command([*line, "--apply"])
        mine = url.replace("millpond@", f"{user.replace(' ', '%20')}@")
        assert [2] == asyncio.run(done(mine, 1))
        with psycopg.connect(url, autocommit=True) as admin:
            disown(admin, user)
