"""How the suite runs: Hypothesis profiles, `async def` tests on virtual time, and which store."""

import asyncio
import functools
import gc
import inspect
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests import machine, stores
from verify.servers.pgbouncer import Pooler, find_pgbouncer
from verify.servers.postgres import NoServer, OwnServer, Server, serve
from verify.servers.schemas import Schemas

from millpond.store.postgres.url import Address
from millpond.testing.clock import run_virtual

settings.register_profile("ci", derandomize=True, print_blob=True, database=None, deadline=None)
settings.register_profile("dev", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROOM = 4 << 30
"""Bytes that a folder in memory must have free for the files of all tests."""


def use_memory_for_files() -> None:
    """Let tests, servers and browsers make their files in memory, unless TMPDIR names a folder.

    Each test of PostgreSQL makes and removes hundreds of files. On a disk that took half of the
    time of the suite: ext4 looks for a place that no recently removed file had.
    """
    fast = Path("/dev/shm")  # noqa: S108 - folders with names of their own are made there
    if "TMPDIR" in os.environ or not fast.is_dir() or not os.access(fast, os.W_OK):
        return
    runs_programs = not os.statvfs(fast).f_flag & os.ST_NOEXEC  # some tests copy or compile one
    if runs_programs and shutil.disk_usage(fast).free >= ROOM:
        os.environ["TMPDIR"] = str(fast)
        tempfile.tempdir = None  # forget the folder that it found before


use_memory_for_files()

AsyncTest = Callable[..., Coroutine[Any, Any, object]]


def pytest_configure() -> None:
    """Obey signals again: a shell starts what it runs in the background without some of them.

    A process that ignores a signal starts programs that ignore it, and tests interrupt those.
    """
    for name in ("SIGINT", "SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            by_default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
            signal.signal(number, by_default)


def pytest_report_header() -> list[str]:
    """Say what the machine lacks: nothing is left out in silence."""
    return [need.line for need in machine.NEEDS]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it again at the end, which `-q` shows too."""
    for need in machine.absent():
        terminalreporter.write_line(need.line, yellow=True)


def _on_a_loop(test: AsyncTest, *, real: bool) -> Callable[..., None]:
    """The same test as a plain function; waits cost no time unless it asks for a real loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        (asyncio.run if real else run_virtual)(test(*args, **kwargs))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Make `async def` tests callable; pytest then calls them as it would any other."""
    real = pyfuncitem.get_closest_marker("real_loop") is not None
    given = getattr(pyfuncitem.obj, "hypothesis", None)
    if given is not None:
        if inspect.iscoroutinefunction(given.inner_test):
            given.inner_test = _on_a_loop(given.inner_test, real=real)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _on_a_loop(pyfuncitem.obj, real=real)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about another store or connection, or needs what the machine lacks."""
    unfit = {
        "memory": stores.DURABLE,
        "listens": stores.POOLED or stores.DEAF,
        "session": stores.POOLED,
    }
    marks = [name for name, is_unfit in unfit.items() if is_unfit]
    marks += [need.marker for need in machine.absent()]
    apart = [item for item in items if any(map(item.get_closest_marker, marks))]
    if apart:
        items[:] = [item for item in items if item not in apart]
        config.hook.pytest_deselected(items=apart)


def pytest_collection_finish() -> None:
    """Search for garbage among what tests make, not among all that was imported and collected.

    Half a million objects stay until the end. To walk through them again and again took a third of
    the processor time of tests of pools.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Let nothing be skipped in silence: where CI=true, what is absent is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true allows no skips: {report.longrepr}"
    return report


@pytest.fixture(autouse=stores.ON_FILES)
def files_instead_of_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With MILLPOND_STORE=sqlite every Millpond that would be in memory is on a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _instead_of_memory(stores.Files(Path(folder)), monkeypatch)


@pytest.fixture(autouse=stores.ON_SERVER)
def tables_instead_of_memory(
    postgres_schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """With MILLPOND_STORE=postgres each has tables of its own."""
    yield from _instead_of_memory(stores.Servers(postgres_schemas), monkeypatch)


def _instead_of_memory(
    places: stores.Places, monkeypatch: pytest.MonkeyPatch
) -> Generator[None, None, None]:
    stores.places.append(places)
    monkeypatch.setattr("millpond.pool.store_opening.MemoryStore", stores.fresh_store)
    yield
    stores.places.remove(places)
    places.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Give a PostgreSQL server, one for each process of the test run; it is started when needed."""
    try:
        server = serve()
    except NoServer as absent:
        pytest.skip(str(absent))
    with server:
        if not stores.POOLED:
            yield server
            return
        program = find_pgbouncer()
        assert program is not None, "there is no pgbouncer here"
        assert isinstance(server, OwnServer), "what a pooler stands before is started here"
        with Pooler(server, program) as pooler:
            yield pooler


@pytest.fixture(autouse=stores.DEAF)
def listen_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MILLPOND_TEST_LISTEN=0 every store on a server does without LISTEN."""
    monkeypatch.setattr(Address, "listener", None)


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """Give the URL of an empty database that no other test uses."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_schemas(postgres: Server) -> Iterator[Schemas]:
    """Give tables of stores on that server, which tests use one after another."""
    with postgres.database() as url, Schemas(url) as schemas:
        yield schemas
