"""The fair ring against a naive one, its two sequences and its bound."""

from itertools import combinations
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.making import seats

from millpond.core.order.heap import LazyHeap
from millpond.core.order.ring import PLACES_KEPT, Owner, Ring, Share
from millpond.core.spec import ONE_TURN, Order, fair_round_robin

SHARES: list[Share] = [None, "a", "b", "c", "d"]
OWNERS: list[Owner] = [None, "me", "you"]
WEIGHTED = fair_round_robin(weights={"a": 2.0, "b": 0.5, "c": 3.0})


class NaiveRing:
    """The ring as the contract's sentence has it: every question looks at every share."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.last: dict[Share, tuple[int, int]] = {}
        self.present: dict[Share, set[Owner]] = {}
        self.joins = 0
        self.passed = (0, 0)

    def enter(self, share: Share, owner: Owner) -> None:
        """Come in at max(V, own last turn); a place not yet passed is still one's own."""
        if share not in self.present:
            self.present[share] = set()
            if self.last.get(share, (0, 0)) <= self.passed:
                self.joins += 1
                self.last[share] = (self.passed[0], self.joins)
        self.present[share].add(owner)

    def leave(self, share: Share, owner: Owner) -> None:
        """Go out; nothing is forgotten here, however long ago."""
        self.present.get(share, set()).discard(owner)
        if not self.present.get(share, {None}):
            del self.present[share]

    def place(self, owner: Owner) -> tuple[int, int] | None:
        """The lowest (turn, join order) among those with something for `owner`."""
        return min((self.last[s] for s, who in self.present.items() if owner in who), default=None)

    def serve(self, share: Share) -> None:
        """One start: V is its turn, its next turn is a stride later."""
        turn, join = self.last[share]
        self.passed = max(self.passed, (turn, join))
        self.last[share] = (self.passed[0] + self.order.stride(share), join)


class RingMachine(RuleBasedStateMachine):
    """Shares come, go and are served, with and without an owner."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(WEIGHTED)
        self.model = NaiveRing(WEIGHTED)

    @rule(share=st.sampled_from(SHARES), owner=st.sampled_from(OWNERS))
    def enter(self, share: Share, owner: Owner) -> None:
        """Something of a share becomes ready."""
        self.ring.enter(share, owner)
        self.model.enter(share, owner)

    @rule(share=st.sampled_from(SHARES), owner=st.sampled_from(OWNERS))
    def leave(self, share: Share, owner: Owner) -> None:
        """Nothing of a share is ready any more."""
        self.ring.leave(share, owner)
        self.model.leave(share, owner)

    @rule(owner=st.sampled_from(OWNERS), times=st.integers(1, 4))
    def serve(self, owner: Owner, times: int) -> None:
        """Whose turn it is for an owner gets it."""
        for _ in range(times):
            if self.ring.turn_of(owner) is not None:
                share = self.ring.peek(owner)
                self.ring.serve(share)
                self.model.serve(share)

    @invariant()
    def same_as_the_model(self) -> None:
        """The next in turn is the same for each owner, and so are V and who is in."""
        for owner in OWNERS:
            expected = self.model.place(owner)
            actual = self.ring.turn_of(owner)
            assert (expected is None) == (actual is None)
            if expected is not None and actual is not None:
                assert expected[0] == actual[0]
                share = self.ring.peek(owner)
                assert expected == self.model.last[share]
        assert [*self.model.passed] == [*self.ring.passed]
        assert set(self.model.present) == {s for s in SHARES if s in self.ring}

    @invariant()
    def only_what_matters_is_remembered(self) -> None:
        """A share that is out is kept only while its place has not been passed."""
        kept = {
            s
            for s, place in self.model.last.items()
            if s in self.model.present or place > self.model.passed
        }
        assert kept == set(seats(self.ring))
        assert kept - set(self.model.present) == set(cast("LazyHeap[Share]", self.ring._resting))
        assert set().union(*self.model.present.values()) == set(self.ring._audiences)


class BoundMachine(RuleBasedStateMachine):
    """Between two shares that both stayed in, service differs by at most a turn of each."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(WEIGHTED)
        self.ahead: dict[tuple[Share, Share], int] = {}

    def present(self) -> list[Share]:
        """Who is in."""
        return [share for share in SHARES if share in self.ring]

    @rule(share=st.sampled_from(SHARES))
    def enter(self, share: Share) -> None:
        """A share comes in; its comparisons start now."""
        self.ring.enter(share, None)

    @rule(share=st.sampled_from(SHARES))
    def leave(self, share: Share) -> None:
        """A share leaves, and so do the comparisons with it."""
        self.ring.leave(share, None)
        self.ahead = {pair: n for pair, n in self.ahead.items() if share not in pair}

    @precondition(lambda self: self.ring.turn_of(None) is not None)
    @rule(times=st.integers(1, 10))
    def serve(self, times: int) -> None:
        """Serve the next share, and note by how much it is ahead of each other share."""
        for _ in range(times):
            served = self.ring.peek(None)
            self.ring.serve(served)
            for other in self.present():
                if other != served:
                    stride = WEIGHTED.stride(served)
                    self.ahead[served, other] = self.ahead.get((served, other), 0) + stride
                    self.ahead[other, served] = -self.ahead[served, other]

    @invariant()
    def no_share_is_far_ahead(self) -> None:
        """Starts times stride differ by no more than both strides."""
        for one, other in combinations(self.present(), 2):
            apart = abs(self.ahead.get((one, other), 0))
            assert apart <= WEIGHTED.stride(one) + WEIGHTED.stride(other)


TestRing = RingMachine.TestCase
TestBound = BoundMachine.TestCase
TestRing.settings = settings(max_examples=150, stateful_step_count=40)
TestBound.settings = settings(max_examples=100, stateful_step_count=40)


def serve_all(ring: Ring, tasks: dict[Share, int], turns: int) -> str:
    """Serve `turns` tasks, each share leaving with its last one; return who was served."""
    served = ""
    for _ in range(turns):
        if ring.turn_of(None) is None:
            break
        share = ring.peek(None)
        served += share or "-"
        ring.serve(share)
        tasks[share] -= 1
        if not tasks[share]:
            ring.leave(share, None)
    return served


@pytest.mark.rows("TRAP-8")
def test_one_heavy_key_and_five_light_ones() -> None:
    """Eight tasks of A and one each of B to F: each key once, then what A has left."""
    ring = Ring(fair_round_robin())
    tasks: dict[Share, int] = {"A": 8, "B": 1, "C": 1, "D": 1, "E": 1, "F": 1}
    for share in tasks:
        ring.enter(share, None)
    assert "ABCDEFAAAAAAA" == serve_all(ring, tasks, 99)


def test_a_newcomer_is_served_in_the_round_under_way() -> None:
    """C arrives after the first A, and is served behind B, who still waits in the round."""
    ring = Ring(fair_round_robin())
    tasks: dict[Share, int] = {"A": 3, "B": 3, "C": 3}
    ring.enter("A", None)
    ring.enter("B", None)
    served = serve_all(ring, tasks, 1)
    ring.enter("C", None)
    assert "ABCABCABC" == served + serve_all(ring, tasks, 99)


def test_a_weight_of_two_is_served_twice_as_often() -> None:
    """Over any three starts two go to the heavier one."""
    ring = Ring(fair_round_robin(weights={"A": 2.0}))
    ring.enter("A", None)
    ring.enter("B", None)
    served = serve_all(ring, {"A": 999, "B": 999}, 300)
    assert (200, 100) == (served.count("A"), served.count("B"))
    assert all(served[i : i + 3].count("A") == 2 for i in range(0, 300, 3))


def test_absence_saves_up_no_credit() -> None:
    """A key away for a hundred turns gets its next turn, not the hundred it missed."""
    ring = Ring(fair_round_robin())
    ring.enter("A", None)
    ring.enter("B", None)
    serve_all(ring, {"A": 999, "B": 999}, 2)
    ring.leave("B", None)
    assert "A" * 100 == serve_all(ring, {"A": 999}, 100)
    ring.enter("B", None)
    assert "BABABA" == serve_all(ring, {"A": 999, "B": 999}, 6)


def test_leaving_for_a_moment_costs_nothing() -> None:
    """A key that is back before its turn came has the place it would have had."""
    ring = Ring(fair_round_robin())
    for share in "ABC":
        ring.enter(share, None)
    served = serve_all(ring, {"A": 9, "B": 9, "C": 9}, 1)
    for share in "BA":
        ring.leave(share, None)
        ring.enter(share, None)
    assert "ABCABC" == served + serve_all(ring, {"A": 9, "B": 9, "C": 9}, 5)


def test_an_owner_that_claims_nothing_saves_up_no_turns() -> None:
    """An owner that was away gets one task at once, then takes its turns."""
    ring = Ring(fair_round_robin())
    ring.enter("A", None)
    ring.enter("mine", "me")
    for _ in range(50):
        ring.serve("A")
    assert ("A", "mine") == (ring.peek(None), ring.peek("me"))
    ring.serve("mine")
    assert [49 * ONE_TURN, 1] == [*ring.passed]
    assert (50 * ONE_TURN, 2) == ring.turn_of("me")


def test_keys_that_went_are_forgotten_as_the_ring_turns() -> None:
    """Ten thousand keys that came once leave nothing behind one that stays."""
    ring = Ring(fair_round_robin())
    ring.enter("stays", None)
    for n in range(10_000):
        ring.enter(f"k{n}", None)
        while ring.peek(None) != f"k{n}":
            ring.serve("stays")
        ring.serve(f"k{n}")
        ring.leave(f"k{n}", None)
        ring.serve("stays")
        assert len(seats(ring)) <= 4


def test_no_more_than_so_many_places_are_kept() -> None:
    """Keys that came once while the ring never turned are forgotten too, the oldest first."""
    ring = Ring(fair_round_robin())
    for n in range(PLACES_KEPT + 100):
        ring.enter(f"k{n}", None)
        ring.serve(f"k{n}")
        ring.leave(f"k{n}", None)
    assert PLACES_KEPT == len(ring._resting.entries) == len(seats(ring))
    assert (
        "k0" in seats(ring),
        f"k{PLACES_KEPT + 99}" in seats(ring),
    ) == (False, True)
