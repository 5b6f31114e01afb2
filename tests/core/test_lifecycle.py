"""The table of arrows: it has exactly those of the lifecycle."""

from itertools import product
from pathlib import Path

import pytest

from millpond.core.lifecycle import LIFECYCLE, Status, Transition, advance, diagram
from millpond.errors import IllegalTransition

ROOT = Path(__file__).parents[2]

PROMISED = {
    (None, "submit", "queued"),
    (None, "refuse", "rejected"),
    ("queued", "claim", "queued"),
    ("queued", "release", "queued"),
    ("queued", "lose", "queued"),
    ("queued", "exhaust", "failed"),
    ("queued", "update", "queued"),
    ("queued", "lease", "running"),
    ("queued", "cancel", "cancelled"),
    ("queued", "evict", "rejected"),
    ("queued", "stale", "failed"),
    ("queued", "expire", "failed"),
    ("queued", "corrupt", "failed"),
    ("queued", "unknown", "failed"),
    ("running", "complete", "completed"),
    ("running", "fail", "failed"),
    ("running", "exhaust", "failed"),
    ("running", "stale", "failed"),
    ("running", "cancel", "cancelled"),
    ("running", "retry", "queued"),
    ("running", "release", "queued"),
    ("running", "lose", "queued"),
    ("failed", "redrive", "queued"),
    ("cancelled", "redrive", "queued"),
}
"""Written from the documentation, by hand: a new arrow has to be promised twice."""


def test_the_table_holds_the_promised_arrows_and_no_others() -> None:
    """Every documented arrow is a row, and every row is documented."""
    assert PROMISED == {(before, event, after) for (before, event), after in LIFECYCLE.items()}


@pytest.mark.parametrize(("status", "event"), list(product([None, *Status], Transition)))
def test_advance_takes_a_row_or_refuses(status: Status | None, event: Transition) -> None:
    """`advance` follows the table; what is not in it raises with code, status and event."""
    if (status, event) in LIFECYCLE:
        assert LIFECYCLE[status, event] is advance(status, event)
        return
    with pytest.raises(IllegalTransition) as refused:
        advance(status, event)
    assert ("MILL-012", status, event) == (
        refused.value.code,
        refused.value.status,
        refused.value.event,
    )
    assert str(event) in str(refused.value)


def test_ended_tasks_move_only_by_redrive() -> None:
    """A terminal status has no arrow out but an operator's, and none out of a success."""
    out = {(before, event) for before, event in LIFECYCLE if before and before.terminal}
    assert {(Status.FAILED, Transition.REDRIVE), (Status.CANCELLED, Transition.REDRIVE)} == out


def test_only_a_lease_leads_into_running() -> None:
    """There is one door to running, and it is the one that makes a fence."""
    doors = {event for (_, event), after in LIFECYCLE.items() if after is Status.RUNNING}
    assert {Transition.LEASE} == doors


def test_every_status_can_be_reached() -> None:
    """No status is a word without a task that can have it."""
    assert set(Status) == set(LIFECYCLE.values())


def test_the_diagram_draws_every_arrow_once() -> None:
    """Reading the picture back gives the table."""
    drawn: list[tuple[str | None, str, str]] = []
    for line in diagram().splitlines()[1:]:
        path, _, events = line.strip().partition(": ")
        before, _, after = path.partition(" --> ")
        if after != "[*]":
            drawn += [
                (None if before == "[*]" else before, event, after) for event in events.split(" | ")
            ]
    assert len(LIFECYCLE) == len(drawn)
    assert PROMISED == set(drawn)


def test_the_documented_picture_is_the_drawn_one() -> None:
    """The page about the lifecycle holds the diagram that the table draws."""
    page = (ROOT / "docs/explanation/the-lifecycle.md").read_text("utf-8")
    assert f"```mermaid\n{diagram()}```" in page
