"""`millpond emit`, `events`, `replay` and `triggers`: what they do and say."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from tests.cli.operating import Call

from millpond import Millpond
from millpond.cli.exits import Exit

NAME = "webhook.received"


def app(url: str) -> Millpond:
    """An application with a trigger that works, and one whose pool is not there."""
    mp = Millpond(url)
    work = mp.pool("work")

    @work.task
    async def handle(number: int) -> int:
        return number

    mp.trigger("router", on=NAME, task=handle, priority_from="payload")
    mp.trigger("lost", on=NAME, into="nowhere", task=handle)
    return mp


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that knows the triggers, named by the environment."""
    url = f"sqlite:///{tmp_path}/work.db"
    monkeypatch.setenv("MILLPOND_STORE", url)

    async def declare() -> None:
        async with app(url):
            pass

    asyncio.run(declare())
    return url


def work(url: str) -> None:
    """Let a worker do all there is to do."""

    async def until_done() -> None:
        mp = app(url)
        async with mp, mp.worker(), asyncio.timeout(30):
            while await mp.unsettled():  # noqa: ASYNC110 - no event for an empty store
                await asyncio.sleep(0.02)

    asyncio.run(until_done())


def test_an_event_from_the_command_line(place: str, millpond: Call) -> None:
    """It is stored, listed and delivered; emitted again it is the same event with the same task."""
    output = millpond("emit", NAME, "7", "--id", "e1")
    assert (Exit.CLEAN, "e1\n", "") == output
    again = millpond("emit", NAME, "7", "--id", "e1", "--json").json
    assert (True, "e1") == (again["duplicate"], again["id"])
    (event,) = millpond("events", "--json", "--payload").json["events"]
    assert ("queued", 7, False) == (event["status"], event["payload"], event["replay"])
    assert event["emitted_by"].startswith("cli")
    work(place)
    (event,) = millpond("events", NAME, "--json").json["events"]
    assert ("completed", {"router", "lost"}) == (event["status"], set(event["deliveries"]))
    assert "payload" not in event
    assert [NAME, "e1", "completed"] == millpond("events").rows[0][:3]
    (task,) = millpond("tasks", "--pool", "work", "--json").json["tasks"]
    assert ("trigger:router", 7) == (task["submitted_by"], task["priority"])
    millpond("replay", NAME, "e1")
    work(place)
    assert 1 == len(millpond("tasks", "--pool", "work", "--json").json["tasks"])
    assert ["completed", "replayed"] == [row[2] for row in millpond("events", NAME).rows]


def test_triggers_are_shown_paused_and_removed(place: str, millpond: Call) -> None:
    """Their pools are named after them, and the verbs of pools work on those."""
    shown = {one["id"]: one for one in millpond("triggers", "--json").json}
    assert ([NAME], "work", "handle", "payload", "active") == tuple(
        shown["router"][name] for name in ("on", "into", "task", "priority_from", "state")
    )
    assert "~trigger/router paused" in millpond("pause", "trigger/router").out
    assert ["router", "paused"] == millpond("triggers", "router").rows[0][:2]
    assert "removed" == millpond("triggers", "router", "--remove", "--json").json[0]["state"]
    assert ["lost"] == [one["id"] for one in millpond("triggers", "--json").json]
    assert "work" == millpond("pools").rows[0][0]
    assert 1 == len(millpond("pools").rows)


def test_dead_letters_are_shown_and_redriven(place: str, millpond: Call) -> None:
    """Among all that failed, and of the trigger alone."""
    millpond("emit", NAME, "7", "--id", "e1")
    work(place)
    (dead,) = millpond("dead", "--json").json["tasks"]
    assert "~trigger/lost" == dead["pool"]
    assert [dead] == millpond("dead", "--pool", "trigger/lost", "--json").json["tasks"]
    assert "1" == millpond("triggers", "lost").rows[0][-1]
    done = millpond("redrive", "--pool", "trigger/lost", "--yes", "--json").json
    assert 1 == done["redriven"]


def test_wrong_events_and_triggers_are_refused(
    place: str, millpond: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a word on what is wrong, and nothing changed."""
    monkeypatch.setattr("sys.stdin", io.StringIO("{"))
    cases = [
        (("emit", NAME, "{no"), Exit.USAGE, "not JSON"),
        (("emit", NAME, "-"), Exit.USAGE, "not JSON"),
        (("emit", "no name"), Exit.USAGE, "may hold only"),
        (("replay", NAME, "e9"), Exit.NOTHING, "no event 'e9'"),
        (("triggers", "missing"), Exit.NOTHING, "there are: lost, router"),
        (("triggers", "--remove"), Exit.USAGE, "needs the ids"),
        (("emit", NAME, "--wait", "10ms"), Exit.NOTHING, "check that a worker runs"),
    ]
    for line, code, words in cases:
        answer = millpond(*line)
        assert (code, True) == (answer.code, words in answer.err), answer
    millpond("emit", NAME, "1", "--id", "e1")
    assert Exit.NOTHING == millpond("emit", NAME, "2", "--id", "e1").code
    assert 2 == len(json.loads(millpond("events", "--json").out)["events"])


def test_emit_with_wait_prints_receipts(place: str, millpond: Call) -> None:
    """One per trigger; a dead letter sets the exit code."""
    millpond("emit", NAME, "7", "--id", "e1")
    work(place)
    answer = millpond("emit", NAME, "7", "--id", "e1", "--wait", "5s", "--json")
    assert Exit.NOTHING == answer.code
    outcomes = {one["trigger"]: one["outcome"] for one in answer.json["receipts"]}
    assert {"router": "submitted", "lost": "failed"} == outcomes
    said = millpond("emit", NAME, "7", "--id", "e1", "--wait", "5s")
    assert "MILL-070" in said.out
    assert "duplicate" in said.err


def test_pages_of_events(place: str, millpond: Call) -> None:
    """Oldest first; each page says where the next begins."""
    for number in range(3):
        millpond("emit", "other", str(number), "--id", f"e{number}")
    first = millpond("events", "--limit", "2", "--json").json
    rest = millpond("events", "--after", first["next"], "--json").json
    assert (["e0", "e1"], ["e2"], None) == (
        [one["id"] for one in first["events"]],
        [one["id"] for one in rest["events"]],
        rest["next"],
    )
    assert "more: --after" in millpond("events", "--limit", "2").err
    assert "no events" in millpond("events", "nothing").err


@pytest.mark.parametrize("durable", ["sqlite", "postgres"])
def test_before_any_event_there_is_an_empty_list(
    durable: str, request: pytest.FixtureRequest, tmp_path: Path, millpond: Call
) -> None:
    """And the command that emits the first one; no other command objects to a new store either."""
    url = f"sqlite:///{tmp_path}/new.db"
    if durable == "postgres":
        url = request.getfixturevalue("postgres_url")

    async def made() -> None:
        async with Millpond(url):
            pass

    asyncio.run(made())
    for command in ("pools", "tasks", "dead", "audit", "cron", "triggers", "events"):
        output = millpond(command, "--store", url)
        assert Exit.CLEAN == output.code, (command, output.err)
    assert {"events": [], "next": None} == millpond("events", "--json", "--store", url).json
    assert "`millpond emit NAME`" in millpond("events", "--store", url).err
