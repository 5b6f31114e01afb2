"""`millpond top` and `millpond tasks` in a terminal: what is seen, and what keys do."""

import json

import pytest
from tests.cli.operating import EVIL, Call
from tests.cli.terminal import terminal, until

from millpond.cli.exits import Exit
from millpond.cli.keyboard import pressed


def paused(millpond: Call) -> list[str]:
    """The pools that are paused, in the store."""
    return [pool["name"] for pool in millpond("pools", "--json").json if pool["paused"]]


def test_top_shows_the_pools_and_keys_pause_and_resume_them(millpond: Call, store: str) -> None:
    """Live: what another process changes is seen too; q gives the terminal back."""
    with terminal("top", "--every", "0.2", store=store, size=(120, 24)) as screen:
        seen = until(screen, "hooks", "mail", "reviews", "p pause", "lanes of hooks")
        for words in ("0 workers", "QUEUED", "OLDEST", "DONE/S", "0/2", " waiting"):
            assert words in seen
        screen.press("p")
        until(screen, "hooks paused")
        assert ["hooks"] == paused(millpond)
        screen.press("r")
        until(screen, "hooks resumed")
        assert [] == paused(millpond)
        screen.press("Down", "Down", "p")
        until(screen, "reviews paused")
        assert ["reviews"] == paused(millpond)
        screen.press("+")
        until(screen, "0/3", "reviews at most 3 at a time")
        millpond("pause", "mail")
        until(screen, "0 workers", gone="idle")
        screen.press("q")
        until(screen, gone="p pause")


def test_top_as_lines_of_json(millpond: Call, store: str) -> None:
    """For whatever draws its own picture."""
    answer = millpond("top", "--json", "--looks", 2, "--every", "0.1")
    assert Exit.CLEAN == answer.code
    first, second = answer.lines
    assert {"at", "workers", "pools"} == set(first)
    assert first["at"] < second["at"]
    assert {"submitted", "completed", "failed"} == set(first["pools"][0]["per_second"])
    assert ["mail"] == [
        pool["name"]
        for pool in json.loads(millpond("top", "mail", "--json", "--looks", 1).out)["pools"]
    ]


def test_tasks_come_page_by_page(store: str) -> None:
    """As many as fit; Enter goes on, q ends it, and nothing is asked after the last."""
    with terminal("tasks", store=store, size=(110, 12)) as screen:
        until(screen, "hooks", "Enter: more")
        screen.press("Enter")
        seen = until(screen, "reviews", "Enter: more")
        assert EVIL not in seen
        screen.press("q")
        until(screen, gone="Enter: more")
    with terminal("tasks", "--pool", "mail", store=store, size=(110, 24)) as screen:
        seen = until(screen, "STATUS", "completed", "failed", "bad\\x1b[2J")
        assert "Enter: more" not in seen


def test_a_narrow_terminal_cuts_names_and_never_ids(millpond: Call, store: str) -> None:
    """An id is there to be copied."""
    with terminal("tasks", "--pool", "mail", store=store, size=(60, 24)) as screen:
        seen = until(screen, "STAT")
        for task in millpond("tasks", "--pool", "mail", "--ids").out.split():
            assert task in seen


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOAj", ["up", "j"]),
        ("\x1b[1;5Dp", ["\x1b[1;5D", "p"]),
        ("\x1b", ["\x1b"]),
        ("é", ["é"]),
    ],
)
def test_keys_are_recognised(sent: str, expected: list[str]) -> None:
    """A key that a terminal sends as several characters is one."""
    assert expected == pressed(sent)
