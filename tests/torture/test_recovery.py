"""Recovery: from the kill to the record that takes the leases back, and who stood in the way."""

from typing import Any

import pytest
from verify.torture.auditor import recovered_in_time
from verify.torture.evidence import Evidence, from_zero
from verify.torture.ledger import (
    AnyEntry,
    AttemptBegan,
    LeadershipTaken,
    ProcessEnded,
    ProcessStarted,
    SignalSent,
    StoreFaulted,
    StoreOpened,
)
from verify.torture.plan import Settings
from verify.torture.recovery import Recovery, percentile, recoveries, write_pauses
from verify.torture.replay import Replay

from millpond.core.audit import Record, RecordKind
from millpond.core.lifecycle import Status, Transition
from millpond.core.spec import PoolSpec

START = 1_700_000_000.0
PID, OTHER = 40, 41
BY_LEASE = Settings(url="", home="", seed=0, sees_deaths=False)
BOX: dict[str, Any] = {"pool": "p", "task": 1, "token": 5, "worker": "own/1", "attempts": 3}


def submit(at: float) -> Record:
    return Record(
        at=START + at,
        kind=RecordKind.SUBMIT,
        event=Transition.SUBMIT,
        pool="p",
        task=1,
        after=Status.QUEUED,
        attempts=3,
    )


def lease(at: float) -> Record:
    arrow: dict[str, Any] = {"before": Status.QUEUED, "after": Status.RUNNING, "attempt": 1}
    return Record(at=START + at, kind=RecordKind.DEQUEUE, event=Transition.LEASE, **arrow, **BOX)


def lose(at: float) -> Record:
    arrow: dict[str, Any] = {"before": Status.RUNNING, "after": Status.QUEUED, "attempt": 1}
    return Record(
        at=START + at, kind=RecordKind.LEASE_EXPIRED, event=Transition.LOSE, **arrow, **BOX
    )


def beats(first: float, last: float) -> list[Record]:
    count = round((last - first) / 0.2)
    return [
        Record(at=START + first + beat * 0.2, kind=RecordKind.CONTROL, pool="pulse", detail="pause")
        for beat in range(count + 1)
    ]


def when(at: float, pid: int = 1) -> dict[str, Any]:
    return {"pid": pid, "wall": START + at, "mono": at}


def life(*lines: AnyEntry) -> list[AnyEntry]:
    started = ProcessStarted(**when(0.0), child=PID, role="worker", number=0)
    return [started, StoreOpened(**when(0.1, PID), owner="own", role="worker", number=0), *lines]


def killed(at: float, pid: int = PID) -> list[AnyEntry]:
    return [
        SignalSent(**when(at), child=pid, how="killed"),
        ProcessEnded(**when(at), child=pid, role="worker", number=0, code=-9, expected=True),
    ]


def found(
    lines: list[AnyEntry], records: list[Record], settings: Settings | None = None
) -> list[Recovery]:
    specs = {"p": PoolSpec(name="p"), "pulse": PoolSpec(name="pulse")}
    found = sorted(records, key=lambda record: record.at)
    evidence = Evidence(
        settings=settings or Settings(url="", home="", seed=0),
        specs=specs,
        lines=lines,
        records=found,
        rows={},
    )
    replay = Replay(specs)
    replay.read(from_zero(found))
    assert {} == replay.broken
    return recoveries(evidence, replay)


def test_recovery_is_the_time_from_the_kill_to_the_record() -> None:
    """A worker that held a lease when it was killed counts, with that lease."""
    (one,) = found(life(*killed(2.0)), [submit(0.5), lease(1.0), lose(2.3), *beats(0, 4)])
    assert (PID, 1, False) == (one.pid, one.leases, one.disturbed)
    assert 0.3 == pytest.approx(one.seconds, abs=1e-5)


def test_a_worker_that_held_nothing_does_not_count() -> None:
    """Neither one that had lost its leases before it was killed."""
    assert [] == found(life(*killed(2.0)), [submit(0.5), *beats(0, 4)])
    earlier = [submit(0.5), lease(0.6), lose(1.0), *beats(0, 4)]
    assert [] == found(life(*killed(2.0)), earlier)


def test_a_worker_that_its_own_task_killed_counts_from_its_last_word() -> None:
    """Only the process itself recorded its kill."""
    began = AttemptBegan(**when(1.5, PID), task=1, attempt=1, token=5, pool="p", item="0")
    gone = ProcessEnded(**when(1.6), child=PID, role="worker", number=0, code=-9, expected=False)
    (one,) = found(life(began, gone), [submit(0.5), lease(1.0), lose(1.9), *beats(0, 4)])
    assert 0.4 == pytest.approx(one.seconds, abs=1e-5)


def test_a_pid_that_is_used_again_is_another_process() -> None:
    """The second one held nothing, whatever the first one did."""
    first = life(
        ProcessEnded(**when(1.2), child=PID, role="worker", number=0, code=0, expected=True)
    )
    again: list[AnyEntry] = [
        ProcessStarted(**when(1.3), child=PID, role="worker", number=0),
        StoreOpened(**when(1.4, PID), owner="another", role="worker", number=0),
    ]
    assert [] == found(
        [*first, *again, *killed(2.0)], [submit(0.5), lease(1.0), lose(2.3), *beats(0, 4)]
    )


def frozen(start: float, end: float) -> list[AnyEntry]:
    return [
        SignalSent(**when(start), child=OTHER, how="frozen"),
        SignalSent(**when(end), child=OTHER, how="thawed"),
    ]


def test_a_kill_while_a_frozen_process_held_the_lock_is_disturbed() -> None:
    """No process recorded anything, not even the pulse, from the freeze to the thaw."""
    lines = [*life(), *frozen(1.9, 5.0), *killed(2.0)]
    records = [submit(0.5), lease(1.0), *beats(0, 1.8), lose(5.1), *beats(5.1, 6)]
    (one,) = found(lines, records)
    assert one.disturbed
    assert 3.1 == pytest.approx(one.seconds, abs=1e-5)
    assert 0.0 == pytest.approx(one.in_peace, abs=1e-5)


def test_a_freeze_that_blocked_no_writer_is_no_excuse() -> None:
    """The pulse went on, so another worker could have recovered."""
    lines = [*life(), *frozen(1.9, 5.0), *killed(2.0)]
    (one,) = found(lines, [submit(0.5), lease(1.0), *beats(0, 6), lose(5.1)])
    assert not one.disturbed


def test_a_time_for_which_the_store_was_away_does_not_count() -> None:
    """Nor a lease after it has come back: its leader lets all workers renew first."""
    crash = [StoreFaulted(**when(2.0), how="crash"), StoreFaulted(**when(3.0), how="back")]
    after = [submit(0.5), lease(1.0), *beats(0, 12), lose(11.0)]
    (during,) = found([*life(), *crash, *killed(3.5)], after)
    assert 11.0 - 6.0 == pytest.approx(during.in_peace, abs=1e-5)
    (later,) = found([*life(), *crash, *killed(6.5)], after)
    assert not later.disturbed


RECORDS = [submit(0.5), lease(1.0), *beats(0, 6), lose(5.1)]


def in_peace(*lines: AnyEntry, settings: Settings | None = BY_LEASE) -> float:
    """Return for how long a worker killed at 2.0 and recovered at 5.1 could have been before."""
    entries = sorted([*life(), *killed(2.0), *lines], key=lambda line: line.mono)
    (one,) = found(entries, RECORDS, settings)
    return one.in_peace


def there(at: float) -> AnyEntry:
    return StoreOpened(**when(at, 42), owner="third", role="worker", number=2)


def leader(at: float, hurt_at: float) -> list[AnyEntry]:
    return [
        LeadershipTaken(**when(at, OTHER), generation=2),
        SignalSent(**when(hurt_at), child=OTHER, how="frozen"),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], 3.1),
        (leader(1.0, 3.0), 2.1),
        (leader(1.0, 4.5), 2.5),
        (leader(1.0, 5.5), 3.1),
        (leader(1.0, 1.5), 3.1),
    ],
)
def test_a_fault_of_the_leader_restarts_the_time(lines: list[AnyEntry], expected: float) -> None:
    """Where deaths are known by leases; a store that sees them needs no leader for it."""
    assert expected == pytest.approx(in_peace(there(0.3), *lines), abs=1e-5)
    seen = in_peace(there(0.3), *lines, settings=None)
    assert 3.1 == pytest.approx(seen, abs=1e-5)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([there(0.3)], 3.1),
        ([], 0.0),
        ([there(2.1)], 3.0),
        ([there(0.3), SignalSent(**when(3.0), child=42, how="killed")], 1.0),
        ([there(0.3), SignalSent(**when(5.5), child=42, how="killed")], 3.1),
    ],
)
def test_without_workers_no_recovery_is_expected(lines: list[AnyEntry], expected: float) -> None:
    """Until one comes; one that was hurt is none."""
    assert expected == pytest.approx(in_peace(*lines), abs=1e-5)


def test_a_write_pause_without_a_frozen_process_is_no_excuse() -> None:
    """Whatever it was, it is ours."""
    records = [submit(0.5), lease(1.0), *beats(0, 1.8), lose(5.1), *beats(5.1, 6)]
    (one,) = found(life(*killed(2.0)), records)
    assert not one.disturbed


def test_standstills_are_gaps_in_the_audit() -> None:
    """Three beats of the pulse missing, and no fewer."""
    records = [*beats(0, 1), *beats(1.4, 2), *beats(2.8, 3)]
    evidence = Evidence(
        settings=Settings(url="", home="", seed=0), specs={}, lines=[], records=records, rows={}
    )
    (still,) = write_pauses(evidence)
    assert 0.8 == pytest.approx(still.seconds, abs=1e-5)


def recovery(seconds: float, *, in_peace: float | None = None) -> Recovery:
    in_peace = seconds if in_peace is None else in_peace
    return Recovery(pid=1, at=0.0, leases=1, seconds=seconds, in_peace=in_peace)


def test_one_in_a_hundred_may_be_late() -> None:
    """Two may not; those that no worker could have recovered do not count."""
    fine = [recovery(0.4) for _ in range(99)]
    assert not recovered_in_time([*fine, recovery(2.0)], 1.0).broken
    assert recovered_in_time([*fine, recovery(2.0), recovery(2.0)], 1.0).broken
    locked = [recovery(4.0, in_peace=0.5) for _ in range(5)]
    assert not recovered_in_time([*fine, *locked], 1.0).broken


def test_of_a_few_recoveries_the_middle_counts() -> None:
    """One slow one among five proves nothing; three do."""
    fast, slow = [recovery(0.3)] * 4, [recovery(2.0)]
    assert not recovered_in_time([*fast, *slow], 1.0).broken
    assert recovered_in_time([*fast[:2], *slow * 3], 1.0).broken
    assert not recovered_in_time(slow * 4, 1.0).broken


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_one_of_the_values(part: float, expected: float) -> None:
    """The smallest that so many do not exceed."""
    assert expected == percentile([3.0, 1.0, 4.0, 2.0], part)


def test_no_values_have_no_percentile() -> None:
    """Zero, so that a table can be printed."""
    assert 0.0 == percentile([], 0.99)
