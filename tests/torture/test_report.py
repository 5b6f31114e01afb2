"""The report: what was broken, what was not tried, and how to see it again."""

import msgspec
from verify.torture.auditor import Check, Verdict
from verify.torture.cancels import Cancel
from verify.torture.plan import Orders
from verify.torture.recovery import Recovery
from verify.torture.report import WANTED, WANTED_OF_A_SERVER, Report, lines_of, report

ORDERS = Orders(url="sqlite:///work.db", home="", seed=41)


def verdict(
    *broken: str,
    facts: dict[str, int | float] | None = None,
    idle: dict[str, float] | None = None,
) -> Verdict:
    recoveries = [
        Recovery(pid=1, at=0.0, leases=2, seconds=seconds, in_peace=min(seconds, 0.4))
        for seconds in (0.1, 0.2, 0.3, 4.0)
    ]
    check = Check(name="0 lost", seen=3, broken=list(broken))
    cancels = [
        Cancel(task=1, way="interrupt", seconds=seconds, stood_still=seconds > 1)
        for seconds in (0.01, 0.02, 5.0)
    ]
    return Verdict(
        checks=[check], facts=facts or {}, recoveries=recoveries, cancels=cancels, idle=idle or {}
    )


def enough() -> dict[str, int | float]:
    return dict(WANTED)


def test_a_broken_promise_is_told_and_fails() -> None:
    """With its first breaks in words, and the seed to try again."""
    told = report(ORDERS, verdict(*(f"task {n} is gone" for n in range(9))), 12.0, whole=False)
    assert not told.clean
    table = "\n".join(lines_of(told))
    assert "task 4 is gone" in table
    assert "task 5 is gone" not in table
    assert "BROKEN: seed 41, 12 s" in table


def test_a_whole_torture_must_have_tried_hard_enough() -> None:
    """One kill too few is told, and fails; a short form is not held to it."""
    few = enough() | {"processes killed": 79}
    told = report(ORDERS, verdict(facts=few), 1.0, whole=True)
    assert ["processes killed"] == [short.what for short in told.shortfalls]
    assert not told.clean
    assert "NOT ENOUGH  processes killed: 79 of 80" in "\n".join(lines_of(told))
    assert report(ORDERS, verdict(facts=enough()), 1.0, whole=True).clean
    assert report(ORDERS, verdict(facts=few), 1.0, whole=False).clean


def test_a_server_that_is_ours_must_have_crashed() -> None:
    """Other stores do not."""
    orders = msgspec.structs.replace(ORDERS, crashes=3)
    told = report(orders, verdict(facts=enough()), 1.0, whole=True)
    assert set(WANTED_OF_A_SERVER) == {short.what for short in told.shortfalls}
    both = verdict(facts=enough() | WANTED_OF_A_SERVER)
    assert report(orders, both, 1.0, whole=True).clean


def test_of_recoveries_the_time_in_peace_counts() -> None:
    """And it is told how many were disturbed, and how long they took."""
    told = report(ORDERS, verdict(), 1.0, whole=False)
    assert (0.2, 0.4, 0.4) == tuple(told.recovery[name] for name in ("p50", "p99", "max"))
    assert (1.0, 4.0) == (told.recovery["disturbed"], told.recovery["max in all"])


def test_cancels_and_idle_workers_have_a_line_of_their_own() -> None:
    """Cancels while nobody could write do not count; what was not counted is not told."""
    told = report(ORDERS, verdict(idle={"transactions": 3.456}), 1.0, whole=False)
    table = "\n".join(lines_of(told))
    assert "2 cancels of running handlers, until they noticed: p50 0.010 s, p99 0.020 s" in table
    assert "idle workers, in a second: 3.46 transactions" in table
    quiet = report(ORDERS, verdict(), 1.0, whole=False)
    assert "idle workers" not in "\n".join(lines_of(quiet))


def test_no_password_is_told() -> None:
    """A report may be kept."""
    orders = msgspec.structs.replace(ORDERS, url="postgresql://me:secret@host/work")
    told = report(orders, verdict(), 1.0, whole=False)
    assert "secret" not in msgspec.json.encode(told).decode()


def test_the_report_is_json() -> None:
    """What is written comes back as it was."""
    told = report(ORDERS, verdict("task 1 is gone"), 1.0, whole=False)
    assert told == msgspec.json.decode(msgspec.json.encode(told), type=Report)
