"""Bad input to a durable Millpond: each has an error of its own, and leaves nothing half done."""

from pathlib import Path
from typing import Any

import pytest
from tests.durable.looking import looked_at
from tests.pool.fleet import until

from millpond import Context, Millpond, TaskFailed
from millpond.errors import (
    BadPayload,
    BadStoreURL,
    ConfigError,
    MillpondError,
    NotADatabase,
    PayloadTooLarge,
    SchemaTooNew,
    StoreMissing,
)
from millpond.store.sqlite.connect import connect

pytestmark = pytest.mark.real_loop


def tasks_in(url: str) -> int:
    """Return how many tasks are stored; everything must fit together."""
    with looked_at(url) as look:
        ((count,),) = look("SELECT count(*) FROM millpond_task")
        return int(count)


async def test_a_wrong_url_is_refused_where_it_is_given() -> None:
    """Before anything is opened."""
    with pytest.raises(BadStoreURL) as caught:
        Millpond("sqlite://work.db")
    assert "MILL-040" == caught.value.code
    assert "sqlite:///" in str(caught.value)


async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    """Opening raises the error."""
    folder = tmp_path / "nowhere"
    with pytest.raises(StoreMissing) as caught:
        await Millpond(f"sqlite:///{folder}/work.db").__aenter__()
    assert "MILL-041" == caught.value.code
    assert str(folder) in str(caught.value)
    assert [] == list(tmp_path.iterdir())  # noqa: ASYNC240 - a test may


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    """Nor does Millpond make a file beside it."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)
    with pytest.raises(NotADatabase) as caught:
        await Millpond(f"sqlite:///{path}").__aenter__()
    assert "MILL-043" == caught.value.code
    assert "Dear reader, " * 100 == path.read_text()
    assert [path] == list(tmp_path.iterdir())  # noqa: ASYNC240


async def test_a_newer_schema_is_left_as_it_is(tmp_path: Path) -> None:
    """A newer release wrote it, and knows what it means."""
    path = tmp_path / "work.db"
    async with Millpond(f"sqlite:///{path}"):
        pass
    connection = connect(path)
    connection.execute("INSERT INTO millpond_schema VALUES (99, 'future', 'x', 0.0)")
    connection.close()
    with pytest.raises(SchemaTooNew) as caught:
        await Millpond(f"sqlite:///{path}").__aenter__()
    assert ("MILL-049", 99) == (caught.value.code, caught.value.found)
    assert "newer release" in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("x" * 2_000_000, PayloadTooLarge),
        (object(), BadPayload),
        ({1, lambda: None}, BadPayload),
        ("\ud800", MillpondError),
    ],
    ids=["too large", "no data", "a set of a function", "no text"],
)
async def test_an_argument_that_cannot_be_stored_is_refused(
    url: str, argument: Any, error: type[MillpondError]
) -> None:
    """At the call, by its name, and nothing is stored."""
    mp = Millpond(url)

    @mp.pool("pool").task
    async def work(first: Any) -> None: ...

    async with mp:
        with pytest.raises(error) as caught:
            await work.submit(argument)
        assert "work" in str(caught.value)
    assert 0 == tasks_in(url)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "\ud800"},
        {"key": "a\0b"},
        {"idempotency_key": "\udfff"},
        {"labels": {"a": "\ud800"}},
        {"priority": 2**70},
    ],
    ids=repr,
)
async def test_an_option_that_cannot_be_stored_is_refused(
    url: str, options: dict[str, Any]
) -> None:
    """By its name, and never with an error of the database or half of it stored."""
    mp = Millpond(url)

    @mp.pool("pool").task
    async def work() -> None: ...

    async with mp:
        with pytest.raises(ConfigError):
            await work.options(**options).submit()
        await work.submit()
    assert 1 == tasks_in(url)


async def test_a_task_whose_function_no_worker_knows_is_parked(url: str) -> None:
    """Until a worker comes that knows it."""
    ran = []

    def application(*, knows: bool, work: bool) -> Millpond:
        mp = Millpond(url, work=work)
        pool = mp.pool("pool")
        if knows:

            @pool.task
            async def mystery() -> str:
                ran.append(1)
                return "done"

        return mp

    async with application(knows=True, work=False) as mp:
        stored = await mp.tasks["mystery"].submit()
    async with application(knows=False, work=True) as mp:
        pool = mp.get_pool("pool")

        async def parked() -> bool:
            return (await pool.snapshot()).parked == 1

        await until(parked)
        why = await mp.why(stored.id)
        assert "mystery" in why
        assert "no worker" in why
    assert [] == ran
    assert 1 == tasks_in(url)
    async with application(knows=True, work=True) as mp:
        assert "done" == await (await mp.handle(stored.id))


async def test_a_result_that_cannot_be_stored_fails_its_task_alone(url: str) -> None:
    """It is not run again: it would give the same."""
    ran = []
    mp = Millpond(url, work=True)
    pool = mp.pool("pool")

    @pool.task
    async def work(number: int) -> Any:
        ran.append(number)
        return object() if number == 1 else number

    async with mp:
        handles = [await work.submit(number) for number in range(3)]
        assert 0 == await handles[0]
        with pytest.raises(TaskFailed) as caught:
            await handles[1]
        assert "result" in str(caught.value)
        assert 2 == await handles[2]
    assert [0, 1, 2] == sorted(ran)
    assert 3 == tasks_in(url)


async def test_words_that_are_no_text_are_refused_by_name(url: str) -> None:
    """As names of files sometimes are: on every store alike, and never by the database."""
    for where in (None, url):
        mp = Millpond(where, work=True)
        pool = mp.pool("pool")

        @pool.task
        async def work(ctx: Context) -> str:
            try:
                await ctx.progress(0.5, "\udcff")
            except ConfigError as error:
                return error.option
            return "taken"

        async with mp:
            assert "text" == await (await work.submit())
            with pytest.raises(ConfigError):
                await pool.pause(key="\udcff")
