"""`millpond submit` and `millpond workers`, and the filters by function, label and error."""

import asyncio
from pathlib import Path

import pytest
from tests.cli.apps.ledger import make
from tests.cli.operating import Call
from tests.cli.running import running

from millpond import Millpond, Retry
from millpond.cli.exits import Exit


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an application whose store exists."""

    async def opened() -> None:
        async with make(tmp_path):
            pass

    asyncio.run(opened())
    monkeypatch.setenv("MILLPOND_STORE", f"sqlite:///{tmp_path}/work.db")
    return tmp_path


def test_a_task_is_submitted_run_and_shown(place: Path, millpond: Call) -> None:
    """The command has no code of the application; a worker in another process runs it."""
    with running("ledger:make", LEDGER=str(place)) as worker:
        worker.until("serving jobs")
        answer = millpond("submit", "jobs", "job", '{"number": 7}', "--wait", "20s", "--json")
        assert (Exit.CLEAN, "completed", 49) == (
            answer.code,
            answer.json["status"],
            answer.json["result"],
        )
        held = millpond("submit", "jobs", "held", '{"number": 3}', "--key", "x", "--json").json
        worker.until("held 3")
        (one,) = millpond("workers", "--json").json
        assert ("live", 1, False) == (one["state"], one["running"], one["closures_only"])
        assert f"-{worker.process.pid}-" in one["name"]
        assert {"job", "held"} == {*one["functions"]}
        (task,) = one["tasks"]
        assert (held["id"], "jobs", "held", "x", 1) == tuple(
            task[name] for name in ("id", "pool", "function", "key", "attempt")
        )
        assert 0 <= task["running_for"] < 60
        lines = millpond("workers", "--tasks").out
        assert one["name"] in lines
        assert held["id"] in lines
        (place / "go").touch()


def test_a_store_without_workers_has_none_to_show(place: Path, millpond: Call) -> None:
    """And a submit says that none knows the function; the task waits."""
    assert [] == millpond("workers", "--json").json
    assert "no workers in" in millpond("workers").err
    answer = millpond("submit", "jobs", "later")
    assert (Exit.CLEAN, "no worker that is running knows later") == (
        answer.code,
        answer.err.partition(";")[0].removeprefix("millpond: "),
    )


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["jobs", "job", "7"], Exit.USAGE, "must be an object"),
        (["jobs", "job", "{"], Exit.USAGE, "not JSON"),
        (["jobs", "job", "[" * 100_000], Exit.USAGE, "not JSON"),
        (["jobs", "job", '{"x": NaN}'], Exit.USAGE, "JSON cannot hold"),
        (["jobs", "job", '{"x": 1e999}'], Exit.USAGE, "JSON cannot hold"),
        (["mail", "job"], Exit.NOTHING, "no pool named 'mail'"),
        (["jobs", "job", "--label", "x"], Exit.USAGE, "is not NAME=VALUE"),
        (["jobs", "job", "--wait", "10ms"], Exit.NOTHING, "did not end within 0.01 s"),
    ],
)
def test_a_submit_that_cannot_be_done_is_refused(
    place: Path, millpond: Call, arguments: list[str], code: Exit, complaint: str
) -> None:
    """In one line."""
    answer = millpond("submit", *arguments)
    assert code == answer.code
    assert complaint in answer.err


def test_an_idempotency_key_finds_the_same_task(place: Path, millpond: Call) -> None:
    """From another process, too."""
    first = millpond("submit", "jobs", "job", '{"number": 1}', "--idempotency-key", "a", "--json")
    again = millpond("submit", "jobs", "job", '{"number": 1}', "--idempotency-key", "a", "--json")
    assert first.json["id"] == again.json["id"]
    assert (False, True) == (first.json["duplicate"], again.json["duplicate"])


# Filters


@pytest.fixture
def failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call | None:
    """A store with tasks that failed in different ways, and others that wait."""
    url = f"sqlite:///{tmp_path}/work.db"
    mp = Millpond(url, work=False)
    pool = mp.pool("mail", max_concurrent=4, retry=Retry.never())

    @pool.task
    async def send(number: int) -> None:
        raise ConnectionError("the server is busy") if number % 2 else ValueError("no address")

    @pool.task
    async def archive() -> None:
        raise KeyError("nothing")

    async def filled() -> None:
        async with mp:
            await pool.submit_many(send.each(range(4)), labels={"tenant": "acme"})
            await archive.options(labels={"tenant": "bolt", "kind": "old"}).submit()
            async with mp.worker():
                await pool.drain()
            await archive.options(labels={"tenant": "acme"}, delay=3600).submit()
            await send.options(delay=3600).submit(9)

    asyncio.run(filled())
    monkeypatch.setenv("MILLPOND_STORE", url)
    return None


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--function", "send"], 4),
        (["--label", "tenant=acme"], 4),
        (["--label", "tenant"], 5),
        (["--label", "tenant=bolt", "--label", "kind"], 1),
        (["--error", "connection"], 2),
        (["--error", "NO ADDRESS"], 2),
        (["--error", "busy", "--function", "archive"], 0),
    ],
)
def test_dead_letters_by_function_label_and_error(
    failures: None, millpond: Call, options: list[str], count: int
) -> None:
    """A redrive takes the same options, and takes just those."""
    assert count == len(millpond("dead", "--json", *options).json["tasks"])
    answer = millpond("redrive", "--pool", "mail", *options, "--yes", "--json")
    assert (count, count) == (answer.json["found"], answer.json["redriven"])
    assert 5 - count == len(millpond("dead", "--json").json["tasks"])


def test_waiting_tasks_by_function_and_label(failures: None, millpond: Call) -> None:
    """Listed, and cancelled, by what they call and carry."""
    waiting = millpond("tasks", "--status", "scheduled", "--function", "archive", "--json").json
    assert ["archive"] == [task["function"] for task in waiting["tasks"]]
    answer = millpond(
        "cancel", "--pool", "mail", "--label", "tenant=acme", "--waiting", "--yes", "--json"
    )
    assert (1, 1) == (answer.json["found"], answer.json["cancelled"])
    left = millpond("tasks", "--status", "scheduled", "--json").json["tasks"]
    assert ["send"] == [task["function"] for task in left]


def test_filters_and_ids_exclude_each_other(failures: None, millpond: Call) -> None:
    """An id names the task already."""
    for command in ("redrive", "cancel"):
        answer = millpond(command, "1", "--function", "send")
        assert Exit.USAGE == answer.code
        assert "--function goes with --pool, not with ids" in answer.err


def test_a_waiting_task_is_changed(place: Path, millpond: Call) -> None:
    """Its time, priority and arguments; the audit says who did it."""
    task = millpond("submit", "jobs", "job", '{"number": 7}', "--delay", "1h", "--json").json["id"]
    changed = millpond("update", task, "--priority", "3", "--arguments", '{"number": 8}')
    assert (Exit.CLEAN, f"{task}  changed\n") == (changed.code, changed.out)
    (one,) = millpond("update", task, "--now", "--json").json["tasks"]
    assert {"id": task, "changed": True, "revision": 2} == one
    with running("ledger:make", "--once", LEDGER=str(place)) as worker:
        assert 0 == worker.ended()
    shown = millpond("task", task, "--payload", "--json").json
    task_shown = shown["task"]
    assert ("completed", 64, 3) == tuple(
        task_shown[name] for name in ("status", "result", "priority")
    )
    assert "update" in millpond("audit").out


def test_a_task_that_does_not_wait_is_not_changed(place: Path, millpond: Call) -> None:
    """An unknown id makes the command fail, and says so; so does nothing to change."""
    waits = millpond("submit", "jobs", "job", '{"number": 7}', "--json").json["id"]
    at = "2030-12-24T18:00:00+01:00"
    answer = millpond("update", waits, "77", "--at", at)
    assert Exit.NOTHING == answer.code
    assert f"{waits}  changed" in answer.out
    assert "77  task 77 is unknown" in answer.out
    assert waits in millpond("tasks", "--status", "scheduled").out
    for wrong in ([], ["--now", "--delay", "5s"], ["--at", "noon"], ["--arguments", "7"]):
        assert Exit.USAGE == millpond("update", waits, *wrong).code
