"""What enters from outside, and what handlers may do to the process they run in."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.webhooks.test_app import app_of, call

from millpond import Context, Millpond, Retry, TaskFailed
from millpond.errors import BadStoreURL, TransactionControl
from millpond.store.postgres.server_functions import installed_name
from millpond.store.postgres.url import address_of
from millpond.store.sql.handler_connection import ends_or_begins
from millpond.store.url_redaction import shown

pytestmark = pytest.mark.real_loop

SECONDS = 60.0


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Texts from outside


@pytest.mark.rows("TR-17")
@pytest.mark.stores("memory")
async def test_a_path_that_is_not_there_forges_no_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Line ends and control characters are escaped."""
    caplog.set_level(logging.INFO)
    mp = Millpond()
    async with mp:
        path = "/x\nCRITICAL:root:all is lost\x1b[2J"
        assert 404 == (await call(app_of(mp), path)).status
    assert "all is lost" in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert "\x1b" not in caplog.text


@pytest.mark.rows("TR-17")
@pytest.mark.stores
@pytest.mark.parametrize(
    "url",
    [
        "host=db.example password=geheim dbname=x",
        "password=geheim",
        "dbname=x password='ge heim' user=y",
        "postgresql:host=h password=geheim@h",
    ],
)
def test_the_password_of_a_keyword_dsn_is_not_shown(url: str) -> None:
    """A DSN is no URL: it is refused, and nothing of its values is repeated."""
    with pytest.raises(BadStoreURL) as caught:
        Millpond(url)
    assert "heim" not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert "heim" not in shown(url)


# The transaction of a handler


@pytest.mark.rows("TR-17")
@pytest.mark.stores
@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "/* /* nested */ */ COMMIT",
        "/* /* not nested */ COMMIT",
        "\ufeffCOMMIT",
        "-- why\n; eNd",
        "ABORT",
        "START TRANSACTION",
        "PREPARE/**/TRANSACTION 'x'",
        "ROLLBACK /* all */ WORK",
    ],
)
def test_a_statement_that_ends_the_transaction_is_known_in_any_disguise(statement: str) -> None:
    """Comments, case, semicolons and a byte order mark do not help."""
    assert ends_or_begins(statement)


@pytest.mark.rows("TR-17")
@pytest.mark.stores
@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "PREPARE p AS SELECT 1", "ROLLBACK WORK TO x", "SAVEPOINT a", "SELECT '/*'"],
)
def test_other_statements_are_let_through(statement: str) -> None:
    """Also those that only look like it."""
    assert not ends_or_begins(statement)


@pytest.mark.rows("TR-17")
@pytest.mark.parametrize("way", ["execute", "cursor", "stream", "copy"])
async def test_no_method_of_a_handlers_connection_commits(postgres_url: str, way: str) -> None:
    """Neither several statements in one nor the cursor's other methods."""
    mp = Millpond(postgres_url, work=True)
    pool = mp.pool("p", retry=Retry.never())
    with psycopg.connect(postgres_url, autocommit=True) as own:
        own.execute("CREATE TABLE ledger (n int)")
    several = "SELECT 1; COMMIT; BEGIN"

    def write(connection: Any) -> None:
        connection.execute("INSERT INTO ledger VALUES (1)")
        cursor = connection.cursor()
        if way == "execute":
            connection.execute(several)
        elif way == "cursor":
            cursor.execute(several)
        elif way == "stream":
            list(cursor.stream("COMMIT"))
        else:
            with cursor.copy("COMMIT"):
                pass

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.commit(write)

    async with mp:
        with pytest.raises(TaskFailed, match=r"multiple commands|MILL-057"):
            await (await job.submit())
    with psycopg.connect(postgres_url) as own:
        assert [] == own.execute("SELECT * FROM ledger").fetchall()


@pytest.mark.rows("TR-17")
async def test_the_cursor_of_a_file_does_not_lend_its_connection(tmp_path: Path) -> None:
    """It could commit."""
    mp = Millpond(f"sqlite:///{tmp_path / 'work.db'}", work=True)
    pool = mp.pool("p", retry=Retry.never())
    seen: list[BaseException] = []

    def write(connection: Any) -> None:
        try:
            connection.cursor().connection.commit()
        except TransactionControl as error:
            seen.append(error)

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.commit(write)

    async with mp:
        await (await job.submit())
    assert 1 == len(seen)


@pytest.mark.rows("TR-14")
def test_every_notify_looks_at_the_queue_first(postgres_url: str) -> None:
    """A full one would make the caller's own commit fail."""

    async def made() -> None:
        async with Millpond(postgres_url):
            pass

    asyncio.run(made())
    with psycopg.connect(address_of(postgres_url).conninfo) as own:
        bodies = own.execute(
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'millpond'::regnamespace "
            "AND prosrc LIKE '%pg_notify%'"
        ).fetchall()
    senders = {installed_name(name) for name in ("millpond_put", "millpond_notify")}
    assert senders == {name for name, _ in bodies}
    for name, body in bodies:
        assert body.count("pg_notify(") == body.count("pg_notification_queue_usage() < 0.5"), name


# Handlers that exit or fork

LEAVING = Path(__file__).parent / "leaving.py"
IN_ALL_PLACES = [
    *("loop", "thread", "thread_context", "batch", "batch_thread", "batch_results", "reading"),
    *("storing", "once", "once_thread", "commit", "commit_thread", "transaction"),
    *("transaction_thread", "callback", "hook", "async_hook", "on_empty", "observer", "message"),
    *("policy", "process"),
]


def leave(url: str, deed: str, places: list[str], kind: str = "") -> None:
    """Run the program that leaves in places; the worker must go on, and obey SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, str(LEAVING), url, deed, ",".join(places), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if line == "ready\n":
                process.send_signal(signal.SIGTERM)
        _, wrong = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert [*places, "ready", "stopped"] == said, wrong[-2000:]
    assert 0 == process.returncode


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.rows("TR-18")
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_an_exit_inside_a_commit_fails_its_attempt_only(store: str, kind: str) -> None:
    """The worker runs the next task, whatever the function given to ctx.commit raised."""
    leave(store, "exit", ["commit", "commit_thread"], kind)


@pytest.mark.rows("TR-18")
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_no_function_of_the_users_ends_its_worker(tmp_path: Path, kind: str) -> None:
    """Handlers, batches, steps, callbacks, hooks, observers, policies, classes that are stored."""
    leave(f"sqlite:///{tmp_path / 'work.db'}", "exit", IN_ALL_PLACES, kind)


@pytest.mark.rows("TR-18")
def test_a_child_forked_anywhere_ends_where_the_parent_goes_on(store: str) -> None:
    """It says no word to the store, and the worker still obeys SIGTERM."""
    leave(store, "fork", [one for one in IN_ALL_PLACES if one != "batch_results"])


def test_the_places_are_all_of_those_of_the_program() -> None:
    """A place that is added there is tried here."""
    leaving = re.findall(r'^    "(\w+)": ', LEAVING.read_text().partition("WAYS")[2], re.MULTILINE)
    assert IN_ALL_PLACES == leaving


@pytest.mark.rows("TR-18")
@pytest.mark.parametrize("where", ["start", "end"])
def test_resources_that_exit_are_reported_as_an_error(where: str, tmp_path: Path) -> None:
    """SystemExit(0) while a worker starts is not a clean end; one at its end changes no code."""
    (tmp_path / "app.py").write_text(
        textwrap.dedent(
            f"""
            import contextlib
            from millpond import Millpond

            @contextlib.asynccontextmanager
            async def resources():
                if {where!r} == "start":
                    raise SystemExit(0)
                yield 1
                raise SystemExit(9)

            mp = Millpond("sqlite:///{tmp_path}/work.db", resources=resources)
            mp.pool("p")
            """
        )
    )
    ended = subprocess.run(
        [sys.executable, "-m", "millpond", "worker", "app:mp", "--once"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if where == "start":
        assert ended.returncode not in (0, None)
        assert "the worker could not start: SystemExit" in ended.stderr
    else:
        assert 0 == ended.returncode, ended.stderr
        assert "closing failed" in ended.stderr


FORKS = """
    import asyncio, os, signal, sys, time
    from millpond import Millpond

    mp = Millpond(sys.argv[1], work=True)
    pool = mp.pool("p")

    @pool.task
    async def forks() -> int:
        child = os.fork()
        if child == 0:
            if sys.argv[2] == "stays":
                time.sleep(600)
            return 0  # goes on in the parent's loop
        return child

    async def main():
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with mp:
            child = await (await forks.submit())
            if sys.argv[2] == "stays":
                os.kill(child, signal.SIGTERM)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            print("child", os.waitstatus_to_exitcode(status), flush=True)
            print("ready", flush=True)
            await stop.wait()
        print("stopped", flush=True)

    asyncio.run(main())
"""


@pytest.mark.rows("TR-18")
@pytest.mark.parametrize(("child", "ends"), [("returns", 70), ("stays", -signal.SIGTERM)])
def test_a_handler_that_forks_leaves_sigterm_to_the_parent(
    child: str, ends: int, tmp_path: Path
) -> None:
    """A child that goes on in the loop ends; one that stays obeys signals of its own."""
    process = run(FORKS, f"sqlite:///{tmp_path / 'work.db'}", child)
    assert process.stdout is not None
    try:
        assert f"child {ends}\n" == process.stdout.readline()
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said, wrong = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "stopped\n" == said, wrong


LEAVES = """
    import os, sys
    from millpond import Millpond

    mp = Millpond(sys.argv[1])
    mp.pool("p")
    child = 0
    with mp.sync:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            print("child", os.waitstatus_to_exitcode(status), flush=True)
    print("left", flush=True)
    os._exit(0 if child else 5)
"""


@pytest.mark.rows("TR-18")
def test_a_forked_child_leaves_a_sync_block_at_once(tmp_path: Path) -> None:
    """The loop is the parent's, and works on there."""
    process = run(LEAVES, f"sqlite:///{tmp_path / 'work.db'}")
    try:
        said, wrong = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert ["left", "child 5", "left"] == said.split("\n")[:-1], wrong
    assert os.path.exists(tmp_path / "work.db")  # noqa: PTH110 - what the parent holds is there
