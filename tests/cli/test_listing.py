"""`millpond pools`, `tasks`, `task` and `dead`: their output as tables and as JSON."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.cli.operating import EVIL, Call, app

from millpond import Millpond
from millpond.cli.exits import Exit
from millpond.core.control import Hold
from millpond.pool.internals import internals_of

POOL_KEYS = {
    *("name", "state", "paused", "paused_units", "closed", "running", "queued", "scheduled"),
    *("parked", "claimed", "kept", "completed", "failed", "cancelled", "rejected"),
    *("max_concurrent", "declared_max_concurrent", "max_per_key", "queue", "on_full", "bound"),
    *("lanes", "ordered", "oldest_queued_age", "waits", "run_times", "stale_settles", "revision"),
    *("created_at", "callbacks", "keep", "dead", "held_until", "held_for", "held_units"),
    "wanted_slots",
}
TASK_KEYS = {
    *("id", "pool", "function", "status", "state", "key", "labels", "lane", "priority", "seq"),
    *("sequence", "attempt", "attempts", "runs", "submitted_at", "submitted_by", "due", "run"),
    *("started_at", "finished_at", "worker", "parked", "progress", "reason", "error", "waited"),
    *("ran", "idempotency_key", "cancel_requested", "revision"),
}

pytestmark = pytest.mark.usefixtures("store")


# Pools


def test_pools_as_json(millpond: Call) -> None:
    """A list of pools by name, each with all fields."""
    answer = millpond("pools", "--json")
    assert (Exit.CLEAN, "") == (answer.code, answer.err)
    hooks, mail, reviews = answer.json
    assert [POOL_KEYS] * 3 == [set(pool) for pool in answer.json]
    assert ("hooks", "mail", "reviews") == tuple(pool["name"] for pool in answer.json)
    assert (3, 2, "idle") == (mail["completed"], mail["failed"], mail["state"])
    assert (7, 1, "waiting") == (reviews["queued"], reviews["scheduled"], reviews["state"])
    assert {"p50", "p90", "p99", "samples"} == set(mail["waits"])
    assert 2 == hooks["lanes"]


def test_pools_as_a_table(millpond: Call) -> None:
    """Into a pipe each is a line, uncut and without colours."""
    answer = millpond("pools", "mail", "reviews")
    assert Exit.CLEAN == answer.code
    assert "\x1b" not in answer.out
    assert ["mail", "idle", "0/4", "0", "0"] == answer.rows[0][:5]
    assert ["reviews", "waiting", "0/2", "7", "1"] == answer.rows[1][:5]


@pytest.mark.rows("TR-20")
def test_pools_show_dead_and_parked_counts(millpond: Call, store: str) -> None:
    """A redrive takes dead letters out of the count; a task that no worker knows is parked."""
    assert 2 == millpond("pools", "mail", "--json").json[0]["dead"]
    assert Exit.CLEAN == millpond("redrive", "--pool", "mail", "--yes").code
    (mail,) = millpond("pools", "mail", "--json").json
    assert (0, 2) == (mail["dead"], mail["failed"])
    other = Millpond(store)
    other.pool("mail", max_concurrent=4, max_per_key=2)

    async def park() -> None:
        async with other, other.worker():
            while not (await other.get_pool("mail").snapshot()).parked:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(park(), 60))
    (mail,) = millpond("pools", "mail", "--json").json
    assert ("parked", mail["queued"]) == (mail["state"], mail["parked"])
    (row,) = millpond("pools", "mail").rows
    assert ["mail", "parked", "0/4", str(mail["queued"]), "0", str(mail["parked"])] == row[:6]
    states = {
        task["state"] for task in millpond("tasks", "--status", "parked", "--json").json["tasks"]
    }
    assert {"parked"} == states


@pytest.mark.rows("TR-04")
def test_a_hold_is_shown_and_resume_ends_it(millpond: Call, store: str) -> None:
    """By pools, top and why, of the pool and of a key; resume clears the one that is named."""

    async def hold() -> int:
        async with app(store) as mp:
            for unit in (None, "a"):
                await internals_of(mp).runtime.control.order(Hold("mail", 3600.0, unit))
            return (await mp.tasks["send"].submit("a")).id

    task = asyncio.run(hold())
    (mail,) = millpond("pools", "mail", "--json").json
    assert ("held", ["a"]) == (mail["state"], [one["unit"] for one in mail["held_units"]])
    assert 3000 < mail["held_for"] <= 3600
    look = millpond("top", "mail", "--json", "--looks", "1").json
    assert 3000 < look["pools"][0]["held_for"]
    output = millpond("pools", "mail").out
    assert "mail is held back for" in output
    assert "millpond resume mail --key a ends that" in output
    assert "pool held back for 60 min" in millpond("task", task, "--why").out
    assert Exit.CLEAN == millpond("resume", "mail").code
    why = millpond("task", task, "--why").out
    assert ("pool held" not in why, "key a held back for 60 min" in why) == (True, True)
    assert Exit.CLEAN == millpond("resume", "mail", "--key", "a").code
    assert "held" not in millpond("task", task, "--why").out
    assert [] == millpond("pools", "mail", "--json").json[0]["held_units"]


def test_lanes_are_shown_when_they_are_asked_for(millpond: Call) -> None:
    """In JSON and below the table."""
    (hooks,) = millpond("pools", "hooks", "--lanes", "--json").json
    assert {"lane", "state", "pending", "processed", "current_sequence", "paused"} == set(
        hooks["lane_states"][0]
    )
    assert 4 == sum(lane["pending"] for lane in hooks["lane_states"])
    assert "lanes of hooks:" in millpond("pools", "--lanes").out


@pytest.mark.parametrize(
    "line", [("pools", "none"), ("tasks", "--pool", "none"), ("pause", "none")]
)
def test_an_unknown_pool_is_refused(millpond: Call, line: tuple[str, ...]) -> None:
    """It has an exit code of its own, and those that are there are named."""
    answer = millpond(*line)
    assert (Exit.NOTHING, "") == (answer.code, answer.out)
    assert "no pool named 'none' (there are: hooks, mail, reviews)" in answer.err


def test_a_pool_may_be_named_by_its_id(millpond: Call) -> None:
    """With the values of handles and snapshots."""
    assert ["mail"] == [pool["name"] for pool in millpond("pools", "app::mail", "--json").json]


# Tasks


def test_tasks_as_json(millpond: Call) -> None:
    """One document: tasks whose ids are texts, and where to go on."""
    answer = millpond("tasks", "--json", "--limit", 3)
    assert (Exit.CLEAN, {"tasks", "next"}) == (answer.code, set(answer.json))
    assert [TASK_KEYS] * 3 == [set(task) for task in answer.json["tasks"]]
    assert all(isinstance(task["id"], str) for task in answer.json["tasks"])
    assert "3:hooks" == answer.json["next"]


def test_every_page_has_other_tasks_and_all_of_them_have_all(millpond: Call) -> None:
    """Page by page, from pool to pool, whatever the size of a page."""
    everything = millpond("tasks", "--ids").out.split()
    assert 16 == len(set(everything)) == len(everything)
    for size in (1, 4, 16, 50):
        read: list[str] = []
        place: str | None = None
        while True:
            after = () if place is None else ("--after", place)
            page = millpond("tasks", "--json", "--limit", size, *after).json
            read += [task["id"] for task in page["tasks"]]
            place = page["next"]
            if place is None:
                break
        assert everything == read


def test_a_page_says_how_to_see_the_next(millpond: Call) -> None:
    """Beside the answer, not in it."""
    answer = millpond("tasks", "--limit", 2)
    assert 2 == len(answer.rows)
    assert "more: --after 2:hooks\n" == answer.err
    assert "" == millpond("tasks", "--limit", 16).err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--pool", "mail"), 5),
        (("--pool", "mail", "--pool", "hooks"), 9),
        (("--status", "completed"), 3),
        (("--status", "failed"), 2),
        (("--status", "queued"), 11),
        (("--status", "scheduled"), 1),
        (("--status", "parked"), 0),
        (("--status", "running"), 0),
        (("--key", "acme"), 5),
        (("--key", "acme", "--status", "scheduled"), 1),
        (("--pool", "reviews", "--key", "ada"), 0),
        (("--newer-than", "1h"), 16),
        (("--older-than", "1h"), 0),
        (("--older-than", "0"), 16),
        (("--callbacks",), 1),
        (("--callbacks", "--pool", "hooks"), 0),
    ],
)
def test_tasks_are_filtered_by_options(
    millpond: Call, options: tuple[str, ...], expected: int
) -> None:
    """By pool, status, key and age."""
    answer = millpond("tasks", "--json", *options)
    assert (Exit.CLEAN, expected) == (answer.code, len(answer.json["tasks"]))


def test_age_is_counted_from_the_submit(millpond: Call, tmp_path: Path) -> None:
    """Two hours ago is older than one hour and newer than three."""
    with sqlite3.connect(tmp_path / "work.db") as file:
        file.execute("UPDATE millpond_live SET submitted_at = submitted_at - 7200 WHERE key = 'a'")
    file.close()
    for line, expected in (
        (("--older-than", "1h"), 1),
        (("--older-than", "1h", "--newer-than", "3h"), 1),
        (("--older-than", "3h"), 0),
        (("--newer-than", "1h"), 15),
    ):
        assert expected == len(millpond("tasks", "--json", *line).json["tasks"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (("tasks", "--older-than", "soon"), "'soon' is not a duration"),
        (("tasks", "--older-than", "5 parsecs"), "'5 parsecs' is not a duration"),
        (("tasks", "--status", "dead"), "'dead' is not one of 'queued'"),
        (("tasks", "--limit", "0"), "0 is not in the range"),
        (("tasks", "--after", "mail"), "'mail' is not a place"),
        (("tasks", "--after", f"{1 << 63}:mail"), "is not a place"),
        (("tasks", "--after", f"{'9' * 5_000}:mail"), "is not a place"),
        (("task", "mail"), "'mail' is not a task id"),
        (("task", str(1 << 63)), "is not a task id"),
        (("task", "9" * 5_000), "is not a task id"),
        (("task",), "Missing argument 'ID'"),
        (("pools", "--store"), "Option '--store' requires an argument"),
        (("resize", "mail"), "give either N or --reset"),
        (("cancel",), "give either ids of tasks or --pool"),
        (("cancel", "5", "--key", "a"), "--key goes with --pool"),
        (("redrive",), "give either ids of tasks or --pool"),
        (("top",), "needs a terminal"),
        (("pause", "hooks", "--key", "a"), "shares a lane"),
        (("pause", "mail", "--lane", "1"), "has no lanes"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    millpond: Call, line: tuple[str, ...], complaint: str
) -> None:
    """Exit code 2, and nothing was done."""
    answer = millpond(*line)
    assert (Exit.USAGE, "") == (answer.code, answer.out)
    assert 1 == len(answer.err.splitlines()), answer.err
    output = answer.err
    assert output.startswith(f"millpond {line[0]}: ")
    assert complaint in output


# One task


def test_a_task_as_json(millpond: Call) -> None:
    """Where it is, why, each attempt with its times, and its history."""
    (task, _) = millpond("dead", "--json").json["tasks"]
    output = millpond("task", task["id"], "--json").json
    assert {"task", "why", "attempts", "history"} == set(output)
    assert TASK_KEYS == set(output["task"])
    assert ("failed", "ValueError") == (output["why"], output["task"]["error"]["type"])
    first, second = output["attempts"]
    assert ("retry", "fail") == (first["outcome"], second["outcome"])
    assert {
        *("attempt", "worker", "started_at", "ended_at", "waited", "ran", "outcome", "reason")
    } == set(first)
    assert first["started_at"] <= first["ended_at"] <= second["started_at"]
    assert second["waited"] == pytest.approx(second["started_at"] - output["history"][2]["due"])
    assert ["submit", "lease", "retry", "lease", "fail"] == [
        record["event"] for record in output["history"]
    ]


def test_a_task_for_people(millpond: Call) -> None:
    """With its error, its attempts and its history."""
    (task, *_) = millpond("dead", "--ids").out.split()
    answer = millpond("task", task)
    assert Exit.CLEAN == answer.code
    for words in ("attempts   2 of 2", "latest error", "ValueError: no such address", "history"):
        assert words in answer.out


def test_payload_shows_arguments_and_result(millpond: Call) -> None:
    """It may be confidential."""
    (task, *_) = millpond("tasks", "--status", "completed", "--ids").out.split()
    assert "sent to" not in millpond("task", task).out + millpond("task", task, "--json").out
    shown = millpond("task", task, "--payload", "--json").json["task"]
    assert ({"to": "ada"}, "sent to ada") == (shown["arguments"], shown["result"])
    assert "sent to ada" in millpond("task", task, "--payload").out


def test_why_a_task_does_not_run(millpond: Call) -> None:
    """In a sentence, or in a document."""
    (task,) = millpond("tasks", "--status", "scheduled", "--ids").out.split()
    answer = millpond("task", task, "--why")
    assert Exit.CLEAN == answer.code
    assert answer.out.startswith("scheduled for ")
    assert {"id": task, "why": answer.out.strip()} == millpond("task", task, "--why", "--json").json


@pytest.mark.parametrize("options", [(), ("--why",)])
def test_an_unknown_task_is_refused(millpond: Call, options: tuple[str, ...]) -> None:
    """It has the exit code of what is not there."""
    answer = millpond("task", "12345", *options)
    assert (Exit.NOTHING, "") == (answer.code, answer.out)
    assert "no task 12345 is known" in answer.err


def test_dead_lists_failed_tasks(millpond: Call) -> None:
    """Those that failed for good, with what they failed of."""
    answer = millpond("dead")
    assert (Exit.CLEAN, 2) == (answer.code, len(answer.rows))
    assert "ValueError: no such address bad1" in answer.out
    assert 0 == len(millpond("dead", "--pool", "reviews", "--json").json["tasks"])


def test_dead_mentions_failed_callbacks(millpond: Call) -> None:
    """A note mentions them, and --callbacks lists them."""
    assert "callbacks failed, too; --callbacks lists them\n" == millpond("dead").err
    answer = millpond("dead", "--callbacks")
    assert "" == answer.err
    (row,) = answer.rows
    assert ["mail~callbacks", "notify"] == row[1:3]
    (task,) = millpond("dead", "--callbacks", "--ids").out.split()
    assert "failed" == millpond("task", task, "--json").json["task"]["status"]
    assert {"running": 0, "queued": 0, "completed": 0, "failed": 1, "cancelled": 0} == (
        millpond("pools", "mail", "--json").json[0]["callbacks"]
    )


# What all have in common


@pytest.mark.parametrize(
    "line", [("pools",), ("tasks",), ("dead",), ("audit",), ("task", ...), ("cancel", ..., "--yes")]
)
def test_control_characters_in_names_are_escaped_in_every_output(
    millpond: Call, line: tuple[object, ...]
) -> None:
    """Keys and errors hold what a terminal would obey; all of it is shown instead, also as JSON."""
    evil = next(
        task["id"] for task in millpond("tasks", "--json").json["tasks"] if EVIL in str(task["key"])
    )
    given = [evil if word is ... else word for word in line]
    for extra in ((), ("--json",)) if line[0] != "audit" else ((),):
        answer = millpond(*given, *extra)
        assert not set("\x1b\x9b\u202e\r\x07") & set(answer.out + answer.err)
        if line[0] in ("tasks", "dead"):
            assert "[2J" in answer.out


@pytest.mark.parametrize("name", ["pools", "tasks", "dead", "audit"])
def test_a_missing_store_is_not_created(millpond: Call, name: str, tmp_path: Path) -> None:
    """It is refused with the exit code of stores."""
    folder = tmp_path / "empty"
    folder.mkdir()
    answer = millpond(name, "--store", f"sqlite:///{folder}/none.db")
    assert (Exit.STORE, "") == (answer.code, answer.out)
    assert "there is no database at" in answer.err
    assert [] == list(folder.iterdir())


def test_a_database_without_our_tables_is_refused_and_unchanged(
    millpond: Call, tmp_path: Path
) -> None:
    """Also how its journal is kept."""
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE letters (text)")
    connection.close()
    before = path.read_bytes()
    answer = millpond("pools", "--store", f"sqlite:///{path}")
    assert Exit.STORE == answer.code
    assert "has no Millpond tables" in answer.err
    assert before == path.read_bytes()


def test_the_command_line_goes_before_the_environment(
    millpond: Call, monkeypatch: pytest.MonkeyPatch, store: str, tmp_path: Path
) -> None:
    """What the line says goes before the environment; without either, it asks."""
    other = f"sqlite:///{tmp_path}/none.db"
    (tmp_path / "shop_here.py").write_text(
        f"from millpond import Millpond\nmp = Millpond({store!r})\nmemory = Millpond()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLPOND_STORE", other)
    assert Exit.STORE == millpond("pools").code
    assert Exit.CLEAN == millpond("pools", "--store", store).code
    assert Exit.CLEAN == millpond("pools", "--app", "shop_here:mp").code
    assert Exit.APP == millpond("pools", "--app", "shop_here:memory").code
    assert Exit.APP == millpond("pools", "--app", "nowhere_here:mp").code
    monkeypatch.delenv("MILLPOND_STORE")
    monkeypatch.setenv("MILLPOND_APP", "shop_here:mp")
    assert Exit.CLEAN == millpond("pools").code
    monkeypatch.delenv("MILLPOND_APP")
    answer = millpond("pools")
    assert Exit.USAGE == answer.code
    assert "no store given" in answer.err


@pytest.mark.rows("TR-26")
def test_a_pool_of_a_newer_version_is_named_and_the_others_are_shown(
    millpond: Call, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lists leave it out with a note; naming it explains why; the doctor reports it."""
    with sqlite3.connect(store.removeprefix("sqlite:///")) as connection:
        connection.execute(
            """UPDATE millpond_pool SET spec = json_set(spec, '$.colour', 'red')
                WHERE name = 'mail'"""
        )
    connection.close()
    for requested in (("pools", "--json"), ("top", "--json", "--looks", 1)):
        caplog.clear()
        answer = millpond(*requested)
        assert Exit.CLEAN == answer.code
        assert "reviews" in answer.out
        assert any("pool 'mail'" in one.getMessage() for one in caplog.records)
    named = millpond("pools", "mail")
    assert Exit.CLEAN != named.code
    assert "newer version" in named.err
    doctor = millpond("doctor")
    assert Exit.CLEAN != doctor.code
    assert "'mail'" in doctor.out + doctor.err
