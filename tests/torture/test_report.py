"""The report: broken promises, shortfalls, and the seed."""

import msgspec
from verify.torture.auditor import Check, Verdict
from verify.torture.cancels import Cancel
from verify.torture.plan import Settings
from verify.torture.recovery import Recovery
from verify.torture.report import WANTED, WANTED_OF_A_SERVER, Report, lines_of, report

SETTINGS = Settings(url="sqlite:///work.db", home="", seed=41)


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


def test_a_broken_promise_is_reported_and_fails() -> None:
    """With its first breaks in words, and the seed to try again."""
    result = report(SETTINGS, verdict(*(f"task {n} is gone" for n in range(9))), 12.0, full=False)
    assert not result.clean
    table = "\n".join(lines_of(result))
    assert "task 4 is gone" in table
    assert "task 5 is gone" not in table
    assert "BROKEN: seed 41, 12 s" in table


def test_a_whole_torture_must_have_tried_hard_enough() -> None:
    """One kill too few fails; the short form has no such minimum."""
    few = enough() | {"processes killed": 79}
    result = report(SETTINGS, verdict(facts=few), 1.0, full=True)
    assert ["processes killed"] == [short.what for short in result.shortfalls]
    assert not result.clean
    assert "NOT ENOUGH  processes killed: 79 of 80" in "\n".join(lines_of(result))
    assert report(SETTINGS, verdict(facts=enough()), 1.0, full=True).clean
    assert report(SETTINGS, verdict(facts=few), 1.0, full=False).clean


def test_a_server_that_is_ours_must_have_crashed() -> None:
    """Other stores do not."""
    settings = msgspec.structs.replace(SETTINGS, crashes=3)
    result = report(settings, verdict(facts=enough()), 1.0, full=True)
    assert set(WANTED_OF_A_SERVER) == {short.what for short in result.shortfalls}
    both = verdict(facts=enough() | WANTED_OF_A_SERVER)
    assert report(settings, both, 1.0, full=True).clean


def test_of_recoveries_the_time_in_peace_counts() -> None:
    """The report counts disturbed recoveries, and how long they took."""
    result = report(SETTINGS, verdict(), 1.0, full=False)
    assert (0.2, 0.4, 0.4) == tuple(result.recovery[name] for name in ("p50", "p99", "max"))
    assert (1.0, 4.0) == (result.recovery["disturbed"], result.recovery["max in all"])


def test_cancels_and_idle_workers_have_a_line_of_their_own() -> None:
    """Cancels during a write outage do not count; missing counts are left out."""
    result = report(SETTINGS, verdict(idle={"transactions": 3.456}), 1.0, full=False)
    table = "\n".join(lines_of(result))
    assert "2 cancels of running handlers, until they noticed: p50 0.010 s, p99 0.020 s" in table
    assert "idle workers, in a second: 3.46 transactions" in table
    quiet = report(SETTINGS, verdict(), 1.0, full=False)
    assert "idle workers" not in "\n".join(lines_of(quiet))


def test_the_report_has_no_password() -> None:
    """A report may be kept."""
    settings = msgspec.structs.replace(SETTINGS, url="postgresql://me:secret@host/work")
    result = report(settings, verdict(), 1.0, full=False)
    assert "secret" not in msgspec.json.encode(result).decode()


def test_the_report_is_json() -> None:
    """What is written comes back as it was."""
    result = report(SETTINGS, verdict("task 1 is gone"), 1.0, full=False)
    assert result == msgspec.json.decode(msgspec.json.encode(result), type=Report)
