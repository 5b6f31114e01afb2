"""Report the verdicts: a table for people, and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from verify.chaos.judge import ENOUGH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from verify.chaos.judge import Verdict
    from verify.chaos.load import Load

HEAD = (
    *("scenario", "before, per s", "during", "longest standstill", "back after", "after"),
    "slowest task",
    *("accepted", "lost", "doubled", "run again", "limits met", "limits broken"),
)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chaos."""

    server: str
    seconds: float
    """How long each part of a scenario lasted."""
    load: dict[str, float]
    verdicts: list[Verdict]
    clean: bool


def report(server: str, seconds: float, load: Load, verdicts: Sequence[Verdict]) -> Report:
    """Return the report."""
    load_facts = {
        "offered per second": load.rate,
        "capacity per second": load.capacity,
        "workers": load.workers,
        "slots": load.slots,
        "lease": load.lease,
    }
    return Report(
        server=server,
        seconds=seconds,
        load=load_facts,
        verdicts=list(verdicts),
        clean=all(one.clean for one in verdicts),
    )


def row(verdict: Verdict) -> tuple[str, ...]:
    """Return a verdict as a row of the table."""
    return (
        verdict.name,
        f"{verdict.baseline:.0f}",
        f"{verdict.during:.0%}",
        f"{verdict.standstill:.1f} s",
        "never" if verdict.recovery is None else f"{verdict.recovery:.1f} s",
        f"{verdict.after:.0%}",
        f"{verdict.slowest:.1f} s",
        f"{verdict.accepted:,}",
        f"{verdict.lost}",
        f"{verdict.doubled}",
        f"{verdict.run_again}",
        f"{verdict.limits_met}",
        f"{len(verdict.broken)}",
    )


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|---{'|---:' * (len(HEAD) - 1)}|"
    for verdict in verdicts:
        yield f"| {' | '.join(row(verdict))} |"


def complaints(verdict: Verdict) -> Iterator[str]:
    """Yield what is wrong with a verdict."""
    if verdict.recovery is None:
        yield "it never did as much as before, with nothing left over"
    if verdict.after < ENOUGH:
        yield f"afterwards it did {verdict.after:.0%} of what it did before"
    if verdict.lost:
        yield f"{verdict.lost} tasks were lost"
    if verdict.doubled:
        yield f"{verdict.doubled} tasks were done twice"
    if verdict.exits:
        yield f"{verdict.exits} processes ended by themselves"
    yield from verdict.broken[:5]
