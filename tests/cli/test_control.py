"""`millpond pause`, `resume`, `resize`, `purge`, `cancel`, `redrive`: what they do, ask and say."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.apps.ledger import make
from tests.cli.operating import Answer, Call
from tests.cli.running import running

from millpond.cli.exits import Exit

pytestmark = pytest.mark.usefixtures("store")


def pool(millpond: Call, name: str) -> Any:
    """Return a pool as JSON."""
    return millpond("pools", name, "--json").json[0]


def ids(millpond: Call, *options: str) -> list[str]:
    """The ids of some tasks."""
    return millpond("tasks", "--ids", *options).out.split()


def states(millpond: Call, *options: str) -> set[str]:
    """Where some tasks are."""
    return {task["state"] for task in millpond("tasks", "--json", *options).json["tasks"]}


def done(answer: Answer) -> Any:
    """What a command did, which must have succeeded."""
    assert (Exit.CLEAN, "") == (answer.code, answer.err)
    return answer.json


# Pause and resume


def test_a_pool_is_paused_and_resumed(millpond: Call) -> None:
    """It says so, and so does the store."""
    assert "mail paused: no more of its tasks start\n" == millpond("pause", "mail").out
    assert "paused" == pool(millpond, "mail")["state"]
    assert {"pool": "mail", "unit": None, "paused": False, "paused_units": []} == done(
        millpond("resume", "mail", "--json")
    )
    assert "idle" == pool(millpond, "mail")["state"]


@pytest.mark.parametrize(
    ("name", "unit", "output"),
    [
        ("mail", ("--key", "ada"), "key ada of mail"),
        ("hooks", ("--lane", "1"), "lane 1 of hooks"),
    ],
)
def test_a_lane_or_a_key_is_paused_alone(
    millpond: Call, name: str, unit: tuple[str, str], output: str
) -> None:
    """The pool itself is not; and resumed."""
    assert millpond("pause", name, *unit).out.startswith(f"{output} paused")
    found = pool(millpond, name)
    assert (False, [unit[1]]) == (found["paused"], found["paused_units"])
    assert f"{output} resumed\n" == millpond("resume", name, *unit).out
    assert [] == pool(millpond, name)["paused_units"]


def test_a_key_that_is_resumed_in_a_paused_pool(millpond: Call) -> None:
    """A note says that the pool itself is still paused."""
    millpond("pause", "mail")
    assert "the pool mail itself is paused\n" == millpond("resume", "mail", "--key", "a").err


# Resize


def test_a_pool_is_resized_and_reset(millpond: Call) -> None:
    """The output has the operator's limit and the declared one."""
    assert {
        "pool": "mail",
        "before": 4,
        "max_concurrent": 9,
        "declared_max_concurrent": 4,
        "running": 0,
        "revision": 2,
    } == done(millpond("resize", "mail", 9, "--json"))
    assert (9, 4) == tuple(
        pool(millpond, "mail")[name] for name in ("max_concurrent", "declared_max_concurrent")
    )
    assert "mail: at most 4 at a time, 9 before (revision 3)\n" == (
        millpond("resize", "mail", "--reset").out
    )


def test_resize_to_zero_pauses_a_pool(millpond: Call) -> None:
    """And is shown as a pause."""
    millpond("resize", "mail", 0)
    assert "paused" == pool(millpond, "mail")["state"]


def test_a_change_that_is_late_is_refused(millpond: Call) -> None:
    """With a revision, two operators cannot undo each other's change."""
    assert Exit.CLEAN == millpond("resize", "mail", 7, "--revision", 5).code
    answer = millpond("resize", "mail", 8, "--revision", 5)
    assert Exit.NOTHING == answer.code
    assert "is not above 5, the current one" in answer.err
    assert 7 == pool(millpond, "mail")["max_concurrent"]


# What asks first

DESTRUCTIVE = [
    ("purge", "reviews"),
    ("cancel", "--pool", "reviews"),
    ("redrive", "--pool", "mail"),
]


@pytest.mark.parametrize("line", DESTRUCTIVE)
def test_a_destructive_command_without_a_terminal_needs_yes(
    millpond: Call, line: tuple[str, ...]
) -> None:
    """An exit code of its own, and nothing was changed."""
    before = millpond("tasks", "--json").json["tasks"]
    answer = millpond(*line)
    assert (Exit.DECLINED, "") == (answer.code, answer.out)
    assert "(use --yes); nothing was changed" in answer.err
    after = millpond("tasks", "--json").json["tasks"]
    assert [task["status"] for task in before] == [task["status"] for task in after]


@pytest.mark.parametrize("line", DESTRUCTIVE)
@pytest.mark.parametrize(("said", "code"), [("n", Exit.DECLINED), ("y", Exit.CLEAN)])
def test_a_destructive_command_asks_for_confirmation(
    millpond: Call,
    line: tuple[str, ...],
    said: str,
    code: Exit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And decides."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    requested: list[str] = []

    def ask(question: str, **_: object) -> bool:
        requested.append(question)
        return said == "y"

    monkeypatch.setattr("click.confirm", ask)
    assert code == millpond(*line).code
    (question,) = requested
    assert question.startswith(("Cancel all", "Queue 2 failed tasks of mail again"))


# Purge and cancel


def test_purge_cancels_waiting_tasks(millpond: Call) -> None:
    """Of a pool, or of one lane or key; with how many."""
    assert {"pool": "reviews", "unit": "bolt", "cancelled": 2} == done(
        millpond("purge", "reviews", "--key", "bolt", "--yes", "--json")
    )
    assert {"scheduled", "queued"} == states(millpond, "--pool", "reviews", "--key", "acme")
    assert "5 tasks of reviews cancelled\n" == millpond("purge", "reviews", "--yes").out
    assert {"cancelled"} == states(millpond, "--pool", "reviews")


def test_tasks_are_cancelled_by_their_ids(millpond: Call) -> None:
    """Each has a line; an unknown id sets the exit code, and the others are cancelled."""
    one, two, *_ = ids(millpond, "--pool", "reviews")
    (ended, *_) = ids(millpond, "--status", "completed")
    answer = millpond("cancel", one, two, one, ended, 12345, "--yes")
    assert Exit.NOTHING == answer.code
    assert [
        f"{one}  cancelled, was queued",
        f"{two}  cancelled, was queued",
        f"{ended}  completed: unchanged",
        "12345  unknown: no such task",
    ] == answer.out.splitlines()
    assert {
        "order": "cancel",
        "tasks": [{"id": one, "before": "cancelled", "after": "cancelled"}],
    } == done(millpond("cancel", one, "--json"))


def test_a_pool_is_cancelled(millpond: Call) -> None:
    """Or what of it is old enough."""
    assert {"pool": "reviews", "unit": None, "cancelled": 0, "told_to_stop": 0} == done(
        millpond("cancel", "--pool", "reviews", "--older-than", "1h", "--yes", "--json")
    )
    assert "7 tasks of reviews cancelled\n" == millpond("cancel", "--pool", "reviews", "-y").out


@pytest.mark.parametrize("narrowed", [(), ("--function", "review"), ("--waiting",)])
def test_the_audit_names_the_operator_who_cancelled(
    millpond: Call, narrowed: tuple[str, ...]
) -> None:
    """A whole pool, or the tasks of it that match some options."""
    millpond("cancel", "--pool", "reviews", *narrowed, "--yes")
    audit = millpond("audit", "--pool", "reviews", "--kind", "control").lines
    orders = [line for line in audit if line["detail"].startswith("cancel")]
    assert orders
    assert [] == [line for line in orders if not line.get("by", "").startswith("cli:")]


def test_cancel_reaches_a_task_that_another_process_runs(millpond: Call, tmp_path: Path) -> None:
    """Also by a process that is gone a moment later; an interrupt ends its handler."""

    async def submit() -> str:
        async with make(tmp_path) as mp:
            return str((await mp.get_pool("jobs").submit(mp.tasks["held"].bind(1))).id)

    # The application has its own file of that name.
    (tmp_path / "work.db").unlink()
    task = asyncio.run(submit())
    store = f"sqlite:///{tmp_path}/work.db"
    with running("ledger:make", LEDGER=str(tmp_path)) as worker:
        worker.until("held 1")
        answer = millpond("cancel", task, "--interrupt", "--yes", "--store", store)
        assert Exit.CLEAN == answer.code
        assert answer.out.split("  ")[1] in (
            "running: cancel requested\n",
            "cancelled, was running\n",
        )
        lines = millpond("audit", "--task", task, "--follow", "--limit", 4, "--store", store).lines
    assert ["submit", "lease", None, "cancel"] == [line.get("event") for line in lines]


# Redrive


def test_failed_tasks_are_queued_again(millpond: Call) -> None:
    """All of a pool, or by their ids, with the new status of each."""
    dead = millpond("dead", "--ids").out.split()
    answer = millpond("redrive", dead[0], 12345, *ids(millpond, "--status", "completed"))
    assert Exit.NOTHING == answer.code
    assert f"{dead[0]}  queued, was failed" == answer.out.splitlines()[0]
    assert "completed: unchanged" in answer.out
    assert {"pools": ["mail"], "found": 1, "redriven": 1} == done(
        millpond("redrive", "--pool", "mail", "--yes", "--json")
    )
    assert "" == millpond("dead", "--ids").out
    assert "0 tasks of mail queued again\n" == millpond("redrive", "--pool", "mail").out


def test_callbacks_are_queued_again(millpond: Call) -> None:
    """As tasks are, when they are asked for."""
    line = ("redrive", "--pool", "mail", "--callbacks", "--yes", "--json")
    assert {"pools": ["mail"], "found": 1, "redriven": 1} == done(millpond(*line))
    assert 1 == pool(millpond, "mail")["callbacks"]["queued"]


def test_cancelled_tasks_are_queued_again(millpond: Call) -> None:
    """When they are asked for."""
    millpond("purge", "reviews", "--yes")
    assert 0 == done(millpond("redrive", "--pool", "reviews", "--json"))["found"]
    line = ("redrive", "--pool", "reviews", "--cancelled", "--key", "bolt", "--yes", "--json")
    assert 2 == done(millpond(*line))["redriven"]
    assert {"queued"} == states(millpond, "--pool", "reviews", "--key", "bolt")
