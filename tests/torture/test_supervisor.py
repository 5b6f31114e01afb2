"""The supervisor: hurts its own processes, brings them back, and leaves none behind."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from verify.torture import supervisor as module
from verify.torture.fault_schedule import Fault, FaultKind
from verify.torture.ledger import (
    AnyEntry,
    IdleMeasured,
    Ledger,
    ProcessEnded,
    ProcessStarted,
    SignalSent,
    StoreFaulted,
    read,
)
from verify.torture.plan import Settings
from verify.torture.store_setup import StatementCount, StoreSetup
from verify.torture.supervisor import Child, Supervisor, Unfinished

DUMMY = Path(__file__).parent / "dummy.py"


class Stage:
    """A supervisor over dummies, and what it wrote down."""

    def __init__(
        self,
        home: Path,
        manner: str = "good",
        *,
        place: StoreSetup | None = None,
        **settings: float,
    ) -> None:
        usual = {"seconds": 2.0, "lease": 0.3, "kill_every": 0.15, "freeze_every": 0.3}
        self.settings = Settings(
            url="",
            home=str(home),
            seed=3,
            workers=3,
            submitters=1,
            began=time.monotonic(),
            **{**usual, **settings},  # type: ignore[arg-type]
        )
        self._ledger = Ledger(home / "ledger.jsonl")
        self.supervisor = Supervisor(
            self.settings,
            self._ledger,
            place=place,
            command=lambda role, _: [
                sys.executable,
                str(DUMMY),
                role,
                str(home),
                manner,
                str(os.getpid()),
            ],
        )

    def lines(self) -> list[AnyEntry]:
        """Return the entries of the ledger."""
        return read(Path(self.settings.home) / "ledger.jsonl")[0]

    def close(self) -> None:
        """Put the pen down."""
        self._ledger.close()


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[Stage]]:
    """The stages of a test; closed at its end, with no process left."""
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.close()
        for line in stage.lines():
            if isinstance(line, ProcessStarted):
                with pytest.raises(ProcessLookupError):
                    os.kill(line.child, 0)


def test_processes_get_every_fault_and_are_restarted(tmp_path: Path, stages: list[Stage]) -> None:
    """Each fault is recorded; an ended process is restarted; at the end all have ended."""
    stage = Stage(tmp_path, seconds=4.0)
    stages.append(stage)
    stage.supervisor.run(lambda: True)
    lines = stage.lines()
    struck = Counter(line.how for line in lines if isinstance(line, SignalSent))
    assert {"killed", "frozen", "thawed", "stopped"} == set(struck)
    assert all(stage.supervisor.faults[how] for how in (FaultKind.KILL, FaultKind.FREEZE))
    started = [line.child for line in lines if isinstance(line, ProcessStarted)]
    gone = [line for line in lines if isinstance(line, ProcessEnded)]
    assert sorted(started) == sorted(line.child for line in gone)
    assert len(started) > 5 + 5
    assert {0, -9, -15} >= {line.code for line in gone}
    assert all(line.expected for line in gone)


def test_a_frozen_process_stays_frozen_for_the_given_time(
    tmp_path: Path, stages: list[Stage]
) -> None:
    """Longer than its lease; the next blow for it comes when it moves again."""
    stage = Stage(tmp_path, kill_every=50.0, patience=0.6)
    stages.append(stage)
    with pytest.raises(Unfinished):
        stage.supervisor.run(lambda: False)
    frozen: dict[int, float] = {}
    spans = []
    for line in (line for line in stage.lines() if isinstance(line, SignalSent)):
        if line.how == "frozen":
            assert line.child not in frozen
            frozen[line.child] = line.mono
        elif line.child in frozen:
            spans.append(line.mono - frozen.pop(line.child))
    assert spans
    assert min(spans) > stage.settings.lease


def test_no_frozen_process_gets_sigterm(tmp_path: Path, stages: list[Stage]) -> None:
    """He would not hear it."""
    stage = Stage(tmp_path)
    stages.append(stage)
    supervisor, child = stage.supervisor, Child("worker", 0)
    supervisor.children = [child]
    try:
        supervisor._come()
        supervisor._strike(Fault(FaultKind.FREEZE, "worker", 0, seconds=0.8), time.monotonic())
        supervisor._wait(lambda: True)
        assert child.moves
        supervisor._stop()
    finally:
        supervisor._end_all()
    assert [0] == [line.code for line in stage.lines() if isinstance(line, ProcessEnded)]


def test_a_fleet_that_does_not_finish_is_given_up(tmp_path: Path, stages: list[Stage]) -> None:
    """After a while, with an error that says so and no process left."""
    stage = Stage(tmp_path, seconds=0.5, patience=0.6)
    stages.append(stage)
    with pytest.raises(Unfinished, match="not everything was done"):
        stage.supervisor.run(lambda: False)


def test_a_fleet_that_never_comes_to_work_is_given_up(
    tmp_path: Path, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault before all processes have started; if they never do, it is an error."""
    monkeypatch.setattr(module, "TO_COME", 0.0)
    stage = Stage(tmp_path)
    stages.append(stage)
    with pytest.raises(Unfinished, match="did not come to work"):
        stage.supervisor.run(lambda: True)


def test_a_fleet_in_which_nothing_begins_is_given_up_sooner(
    tmp_path: Path, stages: list[Stage]
) -> None:
    """A slow fleet has time; one that stands still has not."""
    stage = Stage(tmp_path, seconds=0.5, patience=50.0, stalled=0.6)
    stages.append(stage)
    with pytest.raises(Unfinished, match=r"no handler has begun for 0\.6 s"):
        stage.supervisor.run(lambda: False)


def test_a_process_that_does_not_stop_is_named(
    tmp_path: Path, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM it has some time; then it is killed, and the torture has failed."""
    monkeypatch.setattr(module, "TO_STOP", 0.5)
    stage = Stage(tmp_path, "deaf", seconds=3.0)
    stages.append(stage)
    with pytest.raises(Unfinished, match="these did not stop within"):
        stage.supervisor.run(lambda: True)


def test_a_crashed_process_is_not_counted_as_killed(tmp_path: Path, stages: list[Stage]) -> None:
    """It is started again, and its code is kept for the auditor."""
    stage = Stage(tmp_path, "feeble", seconds=0.5, kill_every=50.0, freeze_every=50.0)
    stages.append(stage)
    stage.supervisor.run(lambda: True)
    fell = [line for line in stage.lines() if isinstance(line, ProcessEnded) and line.code == 3]
    # Some may have got SIGTERM while they crashed.
    assert [line for line in fell if not line.expected]


class Sheltered(StoreSetup):
    """A place that only says what would have happened to it."""

    def __init__(self) -> None:
        super().__init__("")
        self.said: list[str] = []

    def cut(self, dice: random.Random) -> None:
        self.said.append("cut")

    def crash(self) -> None:
        self.said.append("crash")

    def start(self) -> None:
        self.said.append("back")


def test_the_store_gets_faults_and_is_restarted(tmp_path: Path, stages: list[Stage]) -> None:
    """Each blow is written down before it falls; after a crash comes a start."""
    place = Sheltered()
    stage = Stage(tmp_path, place=place, seconds=4.0, cut_every=0.5, crashes=2)
    stages.append(stage)
    stage.supervisor.run(lambda: True)
    assert place.said == [line.how for line in stage.lines() if isinstance(line, StoreFaulted)]
    assert {"cut": 2, "crash": 2, "back": 2} == Counter(place.said) & Counter(
        {"cut": 2, "crash": 2, "back": 2}
    )
    assert place.said.index("crash") < place.said.index("back")


def test_idle_workers_are_counted_once_they_have_settled(
    tmp_path: Path, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they asked before and after is not theirs."""
    monkeypatch.setattr(module, "SETTLES_WITHIN", 0.2)
    counts = iter([StatementCount(100, None), StatementCount(130, None)])
    stage = Stage(tmp_path, idle_seconds=0.3)
    stages.append(stage)
    stage.supervisor.children = [Child("worker", number) for number in range(2)]
    stage.supervisor.rest(lambda: next(counts))
    (idle_workers_were_quiet,) = [line for line in stage.lines() if isinstance(line, IdleMeasured)]
    assert (2, 30, None) == (
        idle_workers_were_quiet.workers,
        idle_workers_were_quiet.transactions,
        idle_workers_were_quiet.statements,
    )
    assert 0.3 <= idle_workers_were_quiet.seconds < 5.0
    assert [0, 0] == [line.code for line in stage.lines() if isinstance(line, ProcessEnded)]


def test_processes_end_with_their_supervisor() -> None:
    """Even one that was killed and could see to nothing: its children find themselves alone."""
    child = """
import os, sys, time
from verify.torture.member import end_with_parent
end_with_parent(int(sys.argv[1]))
time.sleep(600)
"""
    parent = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}, str(os.getpid())])
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"started\n" == process.stdout.readline()
        process.kill()
        # The child has the same pipe: it ends when the child has.
        assert b"" == process.stdout.read()
