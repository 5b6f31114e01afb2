"""The clock of a durable store: the time of day, never less than before, and never more."""

import time
from collections.abc import Callable

import pytest

from millpond.core.store_time import Timeline
from millpond.store.clock import ForwardClock, ServerClock, kernel_times


class Clocks:
    """A wall clock and a steady one; each reading may take time, as where a process is frozen."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000.0, 50.0
        self.stands_still_for = 0.0

    def read(self, clock: str) -> Callable[[], float]:
        """Return a way to read a clock, after which this process may stand still."""

        def now() -> float:
            seen: float = getattr(self, clock)
            self.pass_(self.stands_still_for)
            return seen

        return now

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.steady += seconds


def forward(clocks: Clocks) -> ForwardClock:
    return ForwardClock(clocks.read("wall"), clocks.read("steady"))


def test_the_clock_is_the_time_of_day() -> None:
    """It is, as long as the clock is not set."""
    clocks = Clocks()
    clock = forward(clocks)
    assert 1_000.0 == clock()
    clocks.pass_(5.0)
    assert 1_005.0 == clock()


def test_a_process_that_stands_still_while_it_looks_does_not_run_ahead() -> None:
    """Frozen between two readings for as long as a lease: then, and ever after, it is no later."""
    clocks = Clocks()
    clock = forward(clocks)
    clocks.stands_still_for = 30.0
    assert clock() <= clocks.wall
    clocks.stands_still_for = 0.0
    assert clocks.wall == clock()


def test_a_set_wall_clock_does_not_change_the_stores_time() -> None:
    """Between two readings of the store's time a steady clock counts."""
    clocks = Clocks()
    clock = forward(clocks)
    clock.set_to(1_010.0, 0)
    clocks.wall += 3_600.0
    clocks.pass_(1.0)
    assert 1_011.0 == clock()
    clocks.wall -= 7_200.0
    clocks.pass_(1.0)
    assert 1_012.0 == clock()


def test_the_clock_vouches_from_the_first_reading_until_the_time_is_moved() -> None:
    """Then it knows no more than that it is as late as the last write."""
    clocks = Clocks()
    clock = forward(clocks)
    assert clock.vouched(Timeline(1_000.0)) is None
    clock.set_to(1_010.0, 0)
    clocks.pass_(5.0)
    assert 1_015.0 == clock.vouched(Timeline(1_010.0))
    assert 500.0 == clock.vouched(Timeline(500.0, steps=1))


@pytest.mark.rows("TR-08")
def test_a_clock_that_no_evidence_agrees_with_is_corrected() -> None:
    """It is this process's alone: the kernel's counts."""
    clock = ForwardClock(lambda: 4e7 + 1_000.0, lambda: 1.0, evidence=lambda: [1_000.0, 1_001.0])
    assert not clock.is_doubtful()
    assert 1_000.0 == clock.wall()
    assert 4e7 == clock.off


@pytest.mark.rows("TR-08")
def test_a_clock_about_which_the_evidence_differs_is_doubtful() -> None:
    """It is not corrected, as either may be right."""
    clock = ForwardClock(lambda: 4e7, lambda: 1.0, evidence=lambda: [4e7, 1_001.0])
    assert clock.is_doubtful()
    assert 4e7 == clock.wall()


def test_the_kernel_agrees_with_a_clock_that_was_not_set() -> None:
    """By the time of a file that was just made."""
    assert any(abs(moment - time.time()) < 60.0 for moment in kernel_times())


def test_a_server_clock_is_the_last_reading_plus_the_steady_time_since() -> None:
    """Forwards and backwards: the server rules."""
    clocks = Clocks()
    clock = ServerClock(clocks.read("steady"))
    clock.set_to(7_000.0)
    clocks.steady += 2.5
    assert 7_002.5 == clock()
    clock.set_to(6_000.0)
    clocks.steady += 1.0
    assert 6_001.0 == clock()
