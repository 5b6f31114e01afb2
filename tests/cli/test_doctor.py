"""`millpond doctor`: a store that is well, one that is not, and what is only risky."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from millpond import Millpond
from millpond.cli.doctor import LARGE_WAL, main, risks
from millpond.cli.exits import Exit, Refusal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store in which three tasks wait."""
    path = tmp_path / "work.db"
    mp = Millpond(f"sqlite:///{path}")
    pool = mp.pool("p")

    @pool.task
    async def work(number: int) -> None:
        pass

    async def fill() -> None:
        async with mp:
            await pool.submit_many(work.bind(number) for number in range(3))

    asyncio.run(fill())
    return path


def test_doctor_finds_no_problem_in_a_good_store(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and changes nothing."""
    assert Exit.CLEAN == main([f"sqlite:///{file}"])
    assert "all rows are consistent" in capsys.readouterr().out


def test_doctor_reports_a_wrong_count(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit together is named, and the exit code says that something is wrong."""
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE millpond_pool SET live = live + 1 WHERE name = 'p'")
    connection.close()
    assert Exit.BROKE == main([f"sqlite:///{file}"])
    assert "wrong: " in capsys.readouterr().out


def test_a_damaged_file_is_wrong(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether that is seen at once or only when its rows are read; no traceback."""
    uncut = file.read_bytes()
    for keep in (10_000, 3 * 4096):
        file.write_bytes(uncut[:keep] + b"\xaa" * (len(uncut) - keep if keep % 4096 == 0 else 0))
        assert Exit.BROKE == main([f"sqlite:///{file}"])
        assert f"wrong: MILL-047 {file} is damaged" in capsys.readouterr().out


def test_a_database_without_our_tables_is_refused_and_unchanged(tmp_path: Path) -> None:
    """Also how its journal is kept; and it is not called outdated."""
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE letters (text)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Refusal, match="no Millpond tables") as refused:
        main([f"sqlite:///{path}"])
    assert Exit.STORE is refused.value.code
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_an_old_library_and_a_large_wal_are_risks(tmp_path: Path) -> None:
    """Each names its remedy; a new library and no WAL are no risks."""
    path = tmp_path / "work.db"
    assert [] == list(risks(path, (3, 51, 3)))
    (old,) = risks(path, (3, 40, 1))
    assert "SQLite 3.40.1" in old
    assert "wal_autocheckpoint=0" in old
    wal = tmp_path / "work.db-wal"
    wal.touch()
    with wal.open("r+b") as sparse:
        sparse.truncate(LARGE_WAL)
    (large,) = risks(path, (3, 51, 3))
    assert "64 MiB" in large


@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "mysql://x/y"])
def test_doctor_refuses_a_store_it_cannot_read(url: str, tmp_path: Path) -> None:
    """It is refused with the exit code of a store, and no file is made."""
    with pytest.raises(Refusal) as refused:
        main([url.format(tmp_path)])
    assert Exit.STORE is refused.value.code
    assert [] == list(tmp_path.iterdir())


def test_doctor_prints_its_findings_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document; the store may be that of the environment, or of --store."""
    for line in (["--json", f"sqlite:///{file}"], ["--json", "--store", f"sqlite:///{file}"]):
        assert Exit.CLEAN == main(line)
        output = json.loads(capsys.readouterr().out)
        assert {"store", "well", "wrong", "risky", "kind", "sqlite"} == set(output)
        assert (str(file), True, []) == (output["store"], output["well"], output["wrong"])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE millpond_pool SET live = live + 1 WHERE name = 'p'")
    connection.close()
    assert Exit.BROKE == main(["--json", f"sqlite:///{file}"])
    output = json.loads(capsys.readouterr().out)
    assert (False, 1) == (output["well"], min(len(output["wrong"]), 1))


@pytest.mark.rows("TR-08")
def test_doctor_reports_a_clock_that_jumped(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How far the store's time is ahead, and earlier jumps."""
    with sqlite3.connect(file) as connection:
        connection.execute(
            "UPDATE millpond_meta SET latest = latest + 34560000, "
            """clock = '[0, 0.0, 0.0, [["forward", 1794981642.0, 3600.0]]]'"""
        )
    connection.close()
    assert Exit.CLEAN == main([f"sqlite:///{file}"])
    output = capsys.readouterr().out
    assert "s ahead of the clock" in output
    assert "is 3600 s ahead of what has passed" in output
