"""The clock of a durable store: the time of day, never less than before, and never more."""

from collections.abc import Callable

from millpond.store.clock import ForwardClock, ServerClock


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


def test_it_tells_the_time_of_day() -> None:
    """As long as nobody sets a clock."""
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


def test_a_wall_clock_set_back_does_not_take_it_along() -> None:
    """It goes on from where it was, at the pace of the clock that nobody sets."""
    clocks = Clocks()
    clock = forward(clocks)
    clock()
    clocks.wall -= 3_600.0
    clocks.pass_(5.0)
    assert 1_005.0 == clock()


def test_a_wall_clock_set_forward_does() -> None:
    """What is due by the time of day is due."""
    clocks = Clocks()
    clock = forward(clocks)
    clocks.wall += 3_600.0
    assert 4_600.0 == clock()


def test_it_is_never_earlier_than_what_others_acted_at() -> None:
    """And goes on from there."""
    clocks = Clocks()
    clock = forward(clocks)
    clock.reached(1_010.0)
    clocks.pass_(1.0)
    assert 1_011.0 == clock()


def test_a_clock_of_a_server_goes_by_what_it_was_told_and_what_has_passed_since() -> None:
    """Forwards and backwards: the server rules."""
    clocks = Clocks()
    clock = ServerClock(clocks.read("steady"))
    clock.told(7_000.0)
    clocks.steady += 2.5
    assert 7_002.5 == clock()
    clock.told(6_000.0)
    clocks.steady += 1.0
    assert 6_001.0 == clock()
