"""`millpond cron`: list, pause, resume and remove schedules."""

import asyncio
from pathlib import Path

import pytest
from tests.cli.operating import Call, caller

from millpond import Millpond
from millpond.cli.exits import Exit


@pytest.fixture
def millpond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command, on a store that knows two schedules."""
    url = f"sqlite:///{tmp_path}/work.db"
    mp = Millpond(url)
    pool = mp.pool("reports")

    @pool.task
    async def report() -> None: ...

    mp.cron("nightly", "30 2 * * *", tz="Europe/Berlin", task=report)
    mp.cron("often", every=900)

    async def armed() -> None:
        async with mp:
            pass

    asyncio.run(armed())
    monkeypatch.setenv("MILLPOND_STORE", url)
    return caller(capsys)


def test_schedules_as_json(millpond: Call) -> None:
    answer = millpond("cron", "--json")
    assert (Exit.CLEAN, "") == (answer.code, answer.err)
    often, nightly = answer.json
    assert ("often", 900.0, None, "cron.often") == tuple(
        often[name] for name in ("id", "every", "task", "emits")
    )
    assert 0 < often["due_in"] <= 900
    assert ("nightly", "30 2 * * *", "Europe/Berlin", "report", "reports", "waiting") == tuple(
        nightly[name] for name in ("id", "expression", "tz", "task", "into", "state")
    )


def test_schedules_as_a_table(millpond: Call) -> None:
    answer = millpond("cron", "nightly")
    assert Exit.CLEAN == answer.code
    assert "02:30:00 +0" in answer.out
    assert "30 2 * * * Europe/Berlin" in answer.out
    assert "report into reports" in answer.out
    assert "often" not in answer.out


def test_pause_resume_and_remove(millpond: Call) -> None:
    assert "paused" == millpond("cron", "often", "--pause", "--json").json[0]["state"]
    assert ["waiting", "paused"] == sorted(
        (one["state"] for one in millpond("cron", "--json").json), reverse=True
    )
    assert "waiting" == millpond("cron", "often", "--resume", "--json").json[0]["state"]
    assert Exit.DECLINED == millpond("cron", "often", "--remove").code
    assert Exit.CLEAN == millpond("cron", "often", "--remove", "--yes").code
    assert ["nightly"] == [one["id"] for one in millpond("cron", "--json").json]


def test_contradictory_options_are_refused(millpond: Call) -> None:
    assert Exit.NOTHING == millpond("cron", "none").code
    assert Exit.NOTHING == millpond("cron", "none", "--pause").code
    assert Exit.USAGE == millpond("cron", "--pause").code


def test_a_store_without_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/work.db"

    async def made() -> None:
        async with Millpond(url):
            pass

    asyncio.run(made())
    call = caller(capsys)
    answer = call("cron", "--store", url)
    assert (Exit.CLEAN, "") == (answer.code, answer.out)
    assert "no schedules" in answer.err
    assert [] == call("cron", "--store", url, "--json").json


def test_a_schedule_fires_now(millpond: Call) -> None:
    """Its task waits in its pool; its next firing stays as it was, also if it is paused."""
    before = {one["id"]: one["next_at"] for one in millpond("cron", "--json").json}
    millpond("cron", "nightly", "--pause")
    answer = millpond("cron", "nightly", "often", "--fire", "--json")
    assert (Exit.CLEAN, ["often", "nightly"]) == (answer.code, [one["id"] for one in answer.json])
    assert [1, 1] == [len(one["tasks"]) for one in answer.json]
    (task,) = millpond("tasks", "--pool", "reports", "--json").json["tasks"]
    assert answer.json[1]["tasks"] == [task["id"]]
    assert ("report", "nightly") == (task["function"], task["labels"]["cron"])
    assert before == {one["id"]: one["next_at"] for one in millpond("cron", "--json").json}
    assert millpond("cron", "nightly", "--fire").out.startswith("nightly fired: ")
