"""The capacity model: it must agree with what can be worked out by hand."""

import pytest
from verify.capacity.model import Costs, Fleet, Site, carried

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0)
SUBMIT = Costs(200e-6, 0.0, 100e-6, 0.0, 50e-6)
FAR_APART = Site(server_cores=64, client_cores=1000, flush=0.0)


def test_one_process_takes_the_sum_of_all_parts_for_a_call() -> None:
    """Alone, a process waits for nothing but its own call."""
    site = Site(64, 1000, flush=0.002, round_trip=0.001)
    alone = carried(Fleet(1), SUBMIT, site)
    assert 0.00335 == pytest.approx(alone.median)
    assert 1 / 0.00335 == pytest.approx(alone.rate, rel=0.01)


def test_processes_share_a_flush() -> None:
    """A call waits for the rest of one flush and for one more: sixteen processes do 8 to 16 x."""
    site = Site(64, 1000, flush=0.002)
    one, many = (carried(Fleet(count), FREE, site).rate for count in (1, 16))
    assert 7.9 < many / one < 16.1


def test_one_lock_ends_the_growth_and_a_lock_per_pool_goes_on() -> None:
    """However many cores there are, one lock lets one call pass at a time."""
    shared = carried(Fleet(64), SUBMIT, FAR_APART)
    assert 10_000 == pytest.approx(shared.rate, rel=0.01)
    assert 1.0 == pytest.approx(shared.lock, rel=0.01)
    apart = carried(Fleet(64, pools=4), SUBMIT, FAR_APART)
    assert 40_000 == pytest.approx(apart.rate, rel=0.05)


def test_the_counts_of_the_store_end_the_growth_of_many_pools() -> None:
    """Each call locks them for a part of its time: 25 us are at most 40,000 calls a second."""
    costs = SUBMIT._replace(server_counts=25e-6)
    one = carried(Fleet(64), costs, FAR_APART)
    assert 10_000 == pytest.approx(one.rate, rel=0.01)  # its pool's lock holds it back before
    many = carried(Fleet(256, pools=16), costs, FAR_APART)
    assert 40_000 == pytest.approx(many.rate, rel=0.01)
    assert 1.0 == pytest.approx(many.counts, rel=0.01)


def test_cores_that_processes_and_server_share_end_the_growth() -> None:
    """350 us of CPU time a task on two cores are at most 5,714 tasks a second."""
    together = carried(Fleet(32, pools=32), SUBMIT, Site(2, None, flush=0.0))
    assert 2 / 350e-6 == pytest.approx(together.rate, rel=0.02)
    assert 1.0 == pytest.approx(together.server, rel=0.01)


def test_slots_stand_empty_while_their_worker_waits_for_the_store() -> None:
    """A handler of 50 ms and a flush of 2 ms: a slot is idle for one flush, or nearly two."""
    fleet = Fleet(4, slots=10, handler=0.05)
    free = carried(fleet, FREE, FAR_APART).rate
    assert 4 * 10 / 0.05 == pytest.approx(free, rel=0.02)
    slow = carried(fleet, FREE, Site(64, 1000, flush=0.002)).rate
    assert 50 / 54 * 0.98 < slow / free < 50 / 52 * 1.02


def test_the_same_costs_give_the_same_answer() -> None:
    """The model reads no clock and rolls no dice."""
    fleet, site = Fleet(7, slots=3, handler=0.01, pools=2), Site(2, None, flush=0.001)
    assert carried(fleet, SUBMIT, site) == carried(fleet, SUBMIT, site)
