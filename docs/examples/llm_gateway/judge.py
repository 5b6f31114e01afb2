"""Checks a run of the gateway against its promises, by three sources.

The clients record their replies, the model its requests, and the store's audit the start of each
attempt. A promise is kept if no source contradicts it.
"""

from dataclasses import dataclass

from docs.examples.llm_gateway.gateway import Gateway
from docs.examples.llm_gateway.limits import Limits, most_in_any
from docs.examples.llm_gateway.model import Entry
from docs.examples.llm_gateway.traffic import MEAN, Book
from verify.torture.evidence import from_zero
from verify.torture.replay import Replay

from millpond.core.audit import Record
from millpond.core.lifecycle import Transition

FAIR = 0.9
OVERLOAD = 9.0
"""Times what the rate allows that must have been asked for: ten, give or take what chance does."""
USED = 0.6
"""The part of the rate that must have been used: who lets nothing through exceeds nothing. A
machine that is busy with other things is slow to start what it may."""


@dataclass(frozen=True)
class Check:
    """A promise, the figure that was measured, and whether the gateway kept the promise."""

    promise: str
    found: str
    kept: bool


@dataclass
class Figures:
    """The figures of a run, before or after."""

    overload: float
    worst_share: float
    answered: int
    refused: int
    expired: int
    failed: int
    median_wait: float
    late_wait: float
    """The wait of an admitted request that 99 of 100 do not exceed."""
    most_asked: int
    """The most tokens requested in any minute of the model."""
    over_budget: int
    """How often the model answered 429 because of the tokens."""
    overloaded: int
    tokens_a_second: float


def figures(book: Book, model: list[Entry], limits: Limits) -> Figures:
    """Sum up the records of the clients and of the model."""
    seconds, rate = book.ended - book.began, limits.rate
    said = [entry.answer for entry in model]
    under_load = [entry for entry in model if entry.at <= book.ended]
    used = sum(entry.tokens for entry in under_load if entry.answer == "answered")
    return Figures(
        overload=sum(book.requests.values()) * MEAN / seconds / (rate.n / rate.per),
        worst_share=book.worst_share(),
        answered=book.count("answered"),
        refused=book.count("refused"),
        expired=book.count("expired"),
        failed=book.count("failed"),
        median_wait=book.wait(0.5, limits.deadline),
        late_wait=book.wait(0.99, limits.deadline),
        most_asked=most_in_any(limits.minute, ((entry.at, entry.tokens) for entry in model)),
        over_budget=said.count("over budget"),
        overloaded=said.count("overloaded"),
        tokens_a_second=used / seconds,
    )


def judged(
    gateway: Gateway, book: Book, model: list[Entry], records: list[Record]
) -> tuple[Figures, list[Check]]:
    """Check every promise."""
    limits, rate = gateway.limits, gateway.limits.rate
    found = figures(book, model, limits)
    replay = Replay({gateway.pool.spec.name: gateway.pool.spec}, [gateway.budget])
    replay.read(from_zero(records))
    started = most_in_any(limits.minute, tokens_started(records))
    part = found.tokens_a_second / (rate.n / rate.per)
    admitted = found.answered + found.expired + found.failed
    checks = [
        Check("ten times overload", f"{found.overload:.1f} x", found.overload >= OVERLOAD),
        Check(
            f"no tenant below {FAIR:.0%} of its fair share",
            f"{found.worst_share:.1%}",
            found.worst_share >= FAIR,
        ),
        Check(
            f"at most {limits.tokens:,} tokens in any minute, by the model's book",
            f"{found.most_asked:,}, {found.over_budget} refused for it",
            found.most_asked <= limits.tokens and not found.over_budget,
        ),
        Check(
            f"at most {rate.n + rate.depth:,} in any minute, by the audit",
            f"{started:,}",
            started <= rate.n + rate.depth,
        ),
        Check(
            "every limit and every rate, at every start (I1, I13), by the audit",
            f"{replay.broken or 'never broken'}, {len(records):,} records",
            not replay.broken,
        ),
        Check(
            f"p99 wait of the admitted below {limits.deadline:g} s, 1 % given up at most",
            f"{found.late_wait:.2f} s, {found.expired} of {admitted:,} given up",
            found.late_wait < limits.deadline and found.expired <= 0.01 * admitted,
        ),
        _nothing_lost(book, model, replay),
        Check(f"{USED:.0%} of the rate is used", f"{part:.1%}", part >= USED),
    ]
    return found, checks


def _nothing_lost(book: Book, model: list[Entry], replay: Replay) -> Check:
    """Check that every request got a reply, and that audit, clients and model count the same."""
    replies, requests = len(book.every()), sum(book.requests.values())
    events, answered = replay.events, book.count("answered")
    accepted = events[Transition.SUBMIT]
    ended = sum(fact.status.terminal for fact in replay.witness.tasks.values())
    by_model = sum(entry.answer == "answered" for entry in model)
    same = answered == events[Transition.COMPLETE] == by_model and not book.count("failed")
    none_lost = replies == requests and accepted == ended == replies - book.count("refused")
    found = f"{requests:,} requests, {replies:,} replies; {accepted:,} accepted, {ended:,} ended"
    return Check("0 lost", f"{found}; {answered:,} answered", same and none_lost)


def tokens_started(records: list[Record]) -> list[tuple[float, int]]:
    """Return when each attempt started, and the tokens it used, or reserved if unknown."""
    starts: list[tuple[float, int]] = []
    open_starts: dict[int, int] = {}
    for record in records:
        if record.task is None:
            continue
        if record.event is Transition.LEASE:
            open_starts[record.task] = len(starts)
            starts.append((record.at, record.weight))
        elif record.detail == "weight" and record.task in open_starts:
            place = open_starts[record.task]
            starts[place] = (starts[place][0], record.weight)
    return starts
