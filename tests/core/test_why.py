"""Why a task does not run, in words."""

from typing import Any

import pytest

from millpond.core.lifecycle import Status
from millpond.core.why import Facts, explain, span

NOW = 1000.0


def facts(**known: Any) -> Facts:
    """A queued task that could start at once, but for the `known` facts."""
    return Facts(
        **{"task": 1, "pool": "p", "status": Status.QUEUED, "workers": 1, "due": NOW, **known}
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "ready: starts when a worker asks next"),
        (
            {"unit": "acme", "unit_running": 2, "unit_limit": 2, "ahead": 14, "rate_at": NOW + 3},
            "key acme at 2/2; 14 ahead; rate refills in 3 s",
        ),
        ({"paused": True}, "pool paused"),
        ({"unit": "3", "in_lane": True, "unit_paused": True}, "lane 3 paused"),
        ({"due": NOW + 12}, "scheduled for 12 s from now"),
        (
            {"due": NOW + 4, "attempt": 2, "attempts": 3, "error": b"ValueError: no\n  at x"},
            "retry in 4 s (attempt 2 of 3 failed: ValueError: no)",
        ),
        ({"due": NOW + 4, "attempt": 1, "error": b""}, "retry in 4 s (attempt 1 of 1 failed)"),
        (
            {"parked": True, "function": "resize", "workers": 0},
            "parked: no worker knows function 'resize'",
        ),
        (
            {"behind": 12, "unit": "3", "in_lane": True, "unit_limit": 1, "unit_running": 1},
            "behind sequence 12 of its lane",
        ),
        ({"running": 5, "max_concurrent": 5}, "pool at 5/5"),
        ({"workers": 0}, "no live worker"),
        ({"workers": 0, "closure_of": "app-7"}, "no live worker of app-7"),
        (
            {"worker": "w-1"},
            "claimed ahead by worker w-1, starts when one of its slots is free",
        ),
        (
            {"status": Status.RUNNING, "worker": "w-1", "started_at": NOW - 3},
            "running on worker w-1 for 3 s",
        ),
        ({"status": Status.COMPLETED}, "completed"),
        ({"status": Status.FAILED, "reason": "lease_lost"}, "failed: lease_lost"),
    ],
)
def test_each_reason_has_its_words(known: dict[str, Any], expected: str) -> None:
    """What decides is named, with its numbers."""
    assert expected == explain(facts(**known), NOW)


def test_a_long_error_is_cut() -> None:
    """A sentence stays a sentence, whatever the handler raised."""
    said = explain(facts(due=NOW + 1, attempt=1, error=b"x" * 500), NOW)
    assert said.endswith(" ...)")
    assert len(said) < 140


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 s"),
        (-1.0, "0 s"),
        (0.25, "0.2 s"),
        (119.0, "119 s"),
        (300.0, "5 min"),
        (7200.0, "2 h"),
        (345_600.0, "4 d"),
    ],
)
def test_lengths_of_time_are_said_as_people_say_them(seconds: float, expected: str) -> None:
    """In the largest unit that still gives a useful number."""
    assert expected == span(seconds)
