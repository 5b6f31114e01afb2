"""A settle that is sent behind another one, over the same connection."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest
from tests.store.postgres.stores import with_pool
from tests.store.postgres.test_pending_calls import (
    _end_session,
    address,
    done,
    held_up,
    submitted,
    until_flying,
)
from tests.waiting import eventually
from verify.servers.schemas import Schema

from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settled, Settlement
from millpond.errors import OutcomeUnknown
from millpond.store.postgres import writer as module
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address
from millpond.store.protocol import SettleAnswer

pytestmark = pytest.mark.real_loop
__all__ = ["address", "done"]

MORE = LeaseRequest(pool="p", worker="w", want=0, ahead=2)
APPLIED = (Settled.APPLIED,) * 2


class Hands:
    """A worker with two slots that run, and six prefetched tasks."""

    def __init__(self, store: PostgresStore, leased: Sequence[Leased]) -> None:
        self.store = store
        self._leased = leased

    def ends(self, first: int, *, event: Transition = Transition.COMPLETE) -> list[Settlement]:
        """End two attempts from the given one on, and start the two that come after them."""
        return [
            Settlement(
                fence=self._leased[n].fence,
                event=event if n == first else Transition.COMPLETE,
                successor=self._leased[n + 2].fence,
            )
            for n in (first, first + 1)
        ]

    async def under_way(self, ends: list[Settlement]) -> "asyncio.Task[SettleAnswer]":
        """Send a settle, and wait until it is on its way."""
        task = asyncio.ensure_future(self.store.settle(ends, then=MORE))
        await until_flying(self.store)
        return task

    async def left(self) -> tuple[int, int, int, int]:
        """Return how many tasks run, are prefetched, are completed, and were ended too late."""
        view = await self.store.view.pool("p")
        assert view is not None
        return view.running, view.claimed, view.totals[Status.COMPLETED], view.stale_settles


@asynccontextmanager
async def at_work(address: Address) -> AsyncIterator[Hands]:
    """Open a store with such a worker."""
    async with with_pool(PostgresStore(address), max_concurrent=2, prefetch=6) as store:
        await submitted(store, 1, 20)
        answer = await store.lease(LeaseRequest(pool="p", worker="w", want=2, ahead=6))
        yield Hands(store, [*answer.leased, *answer.claimed])


async def test_both_are_done_in_their_order(address: Address, done: Counter[str]) -> None:
    """The second one ends what only the first one reports as started, and the loop reads both."""
    async with at_work(address) as hands:
        done.clear()
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            let_go()
            answers = [await first, await second]
        assert [APPLIED, APPLIED] == [answer.settled for answer in answers if answer]
        leases = [answer.lease for answer in answers if answer]
        claimed = [one.fence.task for lease in leases if lease for one in lease.claimed]
        assert [9, 10, 11, 12] == claimed
        assert (2, 6, 4, 0) == await hands.left()
        assert not done["finish"]


async def test_the_second_is_refused_with_the_first(address: Address) -> None:
    """Nothing of it is written or counts as stale; after the first it is done."""
    async with at_work(address) as hands:
        with held_up(address) as let_go:
            # The server leaves the retry of a last attempt to the verbs.
            first = await hands.under_way(hands.ends(0, event=Transition.RETRY))
            second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            let_go()
            assert await second is None
            assert APPLIED == (await first).settled
        assert (2, 6, 1, 0) == await hands.left()
        assert APPLIED == (await hands.store.settle(hands.ends(2), then=MORE)).settled
        assert (2, 6, 3, 0) == await hands.left()


async def test_a_refusal_behind_does_not_count_against_the_pool(address: Address) -> None:
    """The next call of the pool is tried as if it had not been."""
    async with at_work(address) as hands:
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            stale = hands.ends(4)  # they have not started
            second = hands.store.settle_behind(stale, then=MORE)
            assert second is not None
            let_go()
            await first
            assert await second is None
        assert not hands.store._refusals.get("p")
        assert not hands.store.detour_counts()


async def test_a_connection_lost_with_both_leaves_both_in_doubt(
    address: Address, schema: Schema
) -> None:
    """Each may have been done; the next call goes over a new connection."""
    async with at_work(address) as hands:
        with held_up(address):
            first = await hands.under_way(hands.ends(0))
            second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            _end_session(hands.store, schema)
            with pytest.raises(OutcomeUnknown):
                await first
            with pytest.raises(OutcomeUnknown):
                await second
        for start in (0, 2):
            assert APPLIED == (await hands.store.settle(hands.ends(start), then=MORE)).settled
        assert (2, 6, 4, 0) == await hands.left()


async def test_the_thread_finishes_both(
    address: Address, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first takes long; then the loop does the next one again."""
    monkeypatch.setattr(module, "_A_MOMENT", 0.01)
    async with at_work(address) as hands:
        done.clear()
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            await eventually(lambda: done["finish"])
            assert hands.store.settle_behind(hands.ends(4), then=MORE) is None
            let_go()
            for one in (first, second):
                answer = await one
                assert answer is not None
                assert APPLIED == answer.settled
        assert 2 == done["finish"]
        monkeypatch.setattr(module, "_A_MOMENT", 3600.0)
        await hands.store.settle(hands.ends(4), then=MORE)
        assert 2 == done["finish"]


async def test_what_may_go_behind(address: Address) -> None:
    """Only first attempts that completed, behind a call on its way, if no other job waits."""
    async with at_work(address) as hands:
        store = hands.store
        assert store.settle_behind(hands.ends(0), then=MORE) is None
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            assert store.settle_behind(hands.ends(2, event=Transition.FAIL), then=MORE) is None
            task = submitted(store, 90)
            await asyncio.sleep(0)
            assert store.settle_behind(hands.ends(2), then=MORE) is None
            let_go()
            await asyncio.gather(first, task)


async def test_a_value_that_cannot_be_sent_leaves_the_first_alone(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second raises it; the first is answered."""
    async with at_work(address) as hands:
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))

            def broken(*_: object) -> Any:
                raise TypeError("not a value")

            with monkeypatch.context() as patch:
                patch.setattr("millpond.store.postgres.fast_path.SettleAndLease.arguments", broken)
                second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            let_go()
            assert APPLIED == (await first).settled
            with pytest.raises(TypeError):
                await second


async def test_one_that_may_have_been_sent_in_part_is_in_doubt(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first says nothing about it."""
    async with at_work(address) as hands:
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))

            def broken(*_: object) -> Any:
                raise psycopg.OperationalError("the network is gone")

            with monkeypatch.context() as patch:
                patch.setattr(PostgresConnection, "start", broken)
                second = hands.store.settle_behind(hands.ends(2), then=MORE)
            assert second is not None
            let_go()
            assert APPLIED == (await first).settled
            with pytest.raises(OutcomeUnknown):
                await second


async def test_behind_a_pooler_nothing_follows(address: Address) -> None:
    """It may give the next transaction to another session."""
    pooled = msgspec.structs.replace(address, pooler=True)
    async with at_work(pooled) as hands:
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            assert hands.store.settle_behind(hands.ends(2), then=MORE) is None
            let_go()
            assert APPLIED == (await first).settled


async def test_a_large_call_that_is_not_sent_whole_is_left_to_the_thread(
    address: Address, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop must not wait until the rest is sent."""
    monkeypatch.setattr(module, "_A_MOMENT", 3600.0)
    async with at_work(address) as hands:
        done.clear()
        with held_up(address) as let_go:
            first = await hands.under_way(hands.ends(0))
            large = [
                msgspec.structs.replace(one, result=b'"%s"' % (b"x" * 20_000_000))
                for one in hands.ends(2)
            ]
            second = hands.store.settle_behind(large, then=MORE)
            assert second is not None
            let_go()
            answers = [await first, await second]
        assert [APPLIED, APPLIED] == [answer.settled for answer in answers if answer]
        assert 1 == done["finish"]
