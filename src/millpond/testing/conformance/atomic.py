"""Atomic: many at once, and still one after another; each verb with its own moment and chance."""

from __future__ import annotations

import asyncio

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.settle import Settled
from millpond.core.spec import Order, bounded, fair_round_robin, fifo, lifo, priority
from millpond.store.protocol import Batch
from millpond.testing.conformance.lab import POOL, WORKER, Lab, completed, failed, names_of
from millpond.testing.conformance.scenario import StoreSuite, mark


class AtomicConformance(StoreSuite):
    """Every verb is atomic, also beside concurrent ones."""

    @mark.rows("DP-08")
    async def test_claims_at_once_never_exceed_the_limit(self, lab: Lab) -> None:
        """Ten claims race for three slots: three tasks start, each once."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(10)
        claims = await asyncio.gather(*(lab.lease(1) for _ in range(10)))
        started = [leased.fence.task for claim in claims for leased in claim]
        assert (3, 3) == (len(started), len(set(started)))
        assert (3, 7) == ((await lab.pool()).running, (await lab.pool()).queued)

    @mark.rows("DP-07")
    @pytest.mark.parametrize(
        ("order", "first", "rest"),
        [
            (fifo(), "a b d", "c e f"),
            (lifo(), "f e d", "c b a"),
            (priority(), "f a d", "c b e"),
            (fair_round_robin(), "a d f", "b c e"),
        ],
        ids=["fifo", "lifo", "priority", "fair"],
    )
    async def test_claims_at_once_take_the_first_of_the_order(
        self, lab: Lab, order: Order, first: str, rest: str
    ) -> None:
        """Six claims race for three slots; each takes a task that is ready, and its row says so."""
        await lab.declare(order=order, max_concurrent=3)
        await lab.join("w2")
        given = [("a", 1, "x"), ("b", 0, "x"), ("c", 1, "x"), ("d", 1, "y"), ("e", 0, "y")]
        ids = {
            name: await lab.put(name, priority=level, share=share, delay=60.0 * (name == "c"))
            for name, level, share in (*given, ("f", 9, "z"))
        }
        workers = [WORKER, "w2"] * 3
        claims = await asyncio.gather(*(lab.lease(1, worker=each) for each in workers))
        started = [leased for claim in claims for leased in claim]
        assert sorted(first.split()) == sorted(names_of(started).split())
        holders = [
            (leased, w) for w, claim in zip(workers, claims, strict=True) for leased in claim
        ]
        for leased, worker in holders:
            row = await lab.task(leased.fence.task)
            assert (Status.RUNNING, leased.fence, worker) == (row.status, row.fence, row.worker)
        assert {Status.QUEUED} == set(await lab.statuses(*(ids[name] for name in rest.split())))

    async def test_submits_at_once_never_exceed_the_bound(self, lab: Lab) -> None:
        """Ten submits race for four places: four are accepted, six are refused as full."""
        await lab.declare(backpressure=bounded(4, "fail_submitter"))
        answers = await asyncio.gather(*(lab.submit(lab.new()) for _ in range(10)))
        refused = [answer.refusal.reason for answer in answers if answer.refusal is not None]
        assert [Reason.QUEUE_FULL] * 6 == refused
        assert 4 == (await lab.pool()).queued

    async def test_submits_of_one_key_at_once_make_one_task(self, lab: Lab) -> None:
        """The first submit creates the task; all others return the same task."""
        await lab.declare()
        answers = await asyncio.gather(
            *(lab.submit(lab.new(idempotency_key="k")) for _ in range(10))
        )
        found = [answer.admissions[0] for answer in answers]
        assert 1 == len({admission.task for admission in found})
        assert 9 == sum(admission.duplicate for admission in found)
        assert 1 == (await lab.pool()).queued

    @mark.rows("DE-03", "DE-T20")
    async def test_submits_at_once_are_numbered_without_gaps(self, lab: Lab) -> None:
        """A lane's numbers have neither gap nor double, however many write to it."""
        await lab.declare(ordered=True)
        answers = await asyncio.gather(*(lab.submit(lab.new(key="A")) for _ in range(10)))
        assert list(range(1, 11)) == sorted(a.admissions[0].sequence for a in answers)

    async def test_of_settles_at_once_exactly_one_counts(self, lab: Lab) -> None:
        """One fence is used up once."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        answers = await asyncio.gather(*(lab.settle(completed(leased)) for _ in range(5)))
        assert 1 == answers.count([Settled.APPLIED])
        assert 4 == (await lab.pool()).stale_settles
        assert Status.COMPLETED == await lab.status(task)

    async def test_a_settle_and_a_burial_at_once_agree(self, lab: Lab) -> None:
        """Either the task was settled before its worker was lost, or the settle is stale."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put()
        leased = await lab.one(worker="w2")
        settled, _ = await asyncio.gather(
            lab.settle(failed(leased)), lab.control(orders.DeclareDead("w2"))
        )
        expected = Status.FAILED if settled == [Settled.APPLIED] else Status.QUEUED
        assert expected == await lab.status(task)
        assert 0 == (await lab.pool()).running

    # Moments and chance

    async def test_the_given_moment_is_used_and_no_other(self, lab: Lab) -> None:
        """A verb acts at the moment it is given, be it far from any clock."""
        await lab.declare()
        lab.now = 5_000.0
        task = await lab.put(delay=2.0)
        answer = await lab.task(task)
        assert (5_000.0, 5_002.0) == (answer.submitted_at, answer.due)
        assert 5_000.0 == (await lab.records(task))[0].at

    async def test_time_does_not_go_back(self, lab: Lab) -> None:
        """A clock that steps back does not move the store's time: due tasks stay due."""
        await lab.declare()
        first = lab.now
        task = await lab.put()
        lab.now = first - 3600.0
        assert task == (await lab.one()).fence.task
        assert first == (await lab.records(task))[-1].at

    async def test_the_given_entropy_makes_the_fence(self, lab: Lab) -> None:
        """The same entropy gives the same token, another gives another."""
        await lab.declare()
        tokens = []
        for entropy in (7, 7, 8):
            await lab.put()
            ask = LeaseRequest(pool=POOL, worker=WORKER, want=1)
            answer = await lab.store.lease(ask, now=lab.now, entropy=entropy)
            tokens.append(answer.leased[0].fence.token)
        assert tokens[0] == tokens[1] != tokens[2]

    async def test_without_a_moment_the_stores_clock_rules(self, lab: Lab) -> None:
        """Its time never runs backwards, and what is due by it can start."""
        await lab.declare()
        first, second = lab.new(), lab.new()
        for new in (first, second):
            await lab.store.submit([Batch(tasks=(new,))])
        moments = [(await lab.task(new.id)).submitted_at for new in (first, second)]
        assert sorted(moments) == moments
        await lab.store.control(orders.Register("w2", 60.0))
        answer = await lab.store.lease(LeaseRequest(pool=POOL, worker="w2", want=2))
        assert 2 == len(answer.leased)

    async def test_without_entropy_the_stores_dice_differ(self, lab: Lab) -> None:
        """Two claims without given entropy never share a token."""
        await lab.declare()
        tokens = set()
        for _ in range(4):
            await lab.put()
            ask = LeaseRequest(pool=POOL, worker=WORKER, want=1)
            answer = await lab.store.lease(ask, now=lab.now)
            tokens.add(answer.leased[0].fence.token)
        assert 4 == len(tokens)
