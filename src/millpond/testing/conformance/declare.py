"""Declare and redeclare pools."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.rate import Rate
from millpond.core.retention import Retention
from millpond.core.spec import bounded, fair_round_robin, fifo, lifo, priority
from millpond.errors import ConfigConflict, ConfigError
from millpond.testing.conformance.lab import CALLBACKS, POOL, Lab, names_of
from millpond.testing.conformance.scenario import StoreSuite, mark


class DeclareConformance(StoreSuite):
    """What a declaration makes of a pool, and what it leaves as it was."""

    # Declarations

    async def test_a_declaration_makes_a_pool_once(self, lab: Lab) -> None:
        """Declaring the same pool again changes nothing and makes no revision."""
        first = await lab.declare(max_concurrent=3)
        again = await lab.declare(max_concurrent=3)
        assert ((1, 1), (0, 1)) == ((first.count, first.revision), (again.count, again.revision))
        assert 1 == len(await lab.records())

    async def test_a_different_declaration_is_a_new_revision(self, lab: Lab) -> None:
        """The new settings are in force and the revision says so."""
        await lab.declare(max_concurrent=1)
        changed = await lab.declare(max_concurrent=2, backpressure=bounded(5))
        again = await lab.declare(max_concurrent=2, backpressure=bounded(5))
        assert (1, 0, changed.revision) == (changed.count, again.count, again.revision)
        pool = await lab.pool()
        assert (2, 2, bounded(5)) == (
            changed.revision,
            pool.spec.max_concurrent,
            pool.spec.backpressure,
        )

    async def test_a_new_limit_per_key_is_in_force_at_once(self, lab: Lab) -> None:
        """Keys that were at their limit go on as far as the new one lets them."""
        await lab.declare(max_per_key=1)
        await lab.put_keys("AAA")
        await lab.one()
        assert [] == await lab.lease()
        await lab.declare(max_per_key=2)
        assert 1 == len(await lab.lease())

    async def test_a_rate_may_be_declared_later(self, lab: Lab) -> None:
        """It starts with a full bucket and holds from then on."""
        await lab.declare()
        await lab.put()
        await lab.run_one()
        await lab.declare(rates=(Rate(1, per=60.0, burst=2),))
        await lab.put_many(4)
        assert 2 == len(await lab.lease())

    async def test_a_resize_does_not_refill_a_rate(self, lab: Lab) -> None:
        """Tasks started before count under the new limit too."""
        await lab.declare(rates=(Rate(1, per=60.0),))
        await lab.put()
        await lab.run_one()
        await lab.control(orders.Resize(POOL, 9))
        await lab.put()
        assert [] == await lab.lease()

    async def test_what_an_operator_resized_stays(self, lab: Lab) -> None:
        """A new declaration takes over everything but a limit set by an operator."""
        await lab.declare(max_concurrent=1)
        await lab.control(orders.Resize(POOL, 7))
        await lab.declare(max_concurrent=2, max_per_key=1)
        pool = await lab.pool()
        assert (7, 1) == (pool.spec.max_concurrent, pool.spec.max_per_key)

    async def test_a_resize_to_nothing_is_a_reset(self, lab: Lab) -> None:
        """Without a number the limit is the declared one again, and follows declarations."""
        await lab.declare(max_concurrent=3)
        await lab.control(orders.Resize(POOL, 7))
        assert 3 == (await lab.control(orders.Resize(POOL))).revision
        assert 3 == (await lab.pool()).spec.max_concurrent
        await lab.declare(max_concurrent=2)
        assert 2 == (await lab.pool()).spec.max_concurrent

    async def test_a_reset_goes_back_to_the_latest_declaration(self, lab: Lab) -> None:
        """The limit declared during an operator's limit comes into force."""
        await lab.declare(max_concurrent=3)
        await lab.control(orders.Resize(POOL, 0))
        await lab.declare(max_concurrent=2)
        await lab.put()
        assert [] == await lab.lease()
        await lab.control(orders.Resize(POOL))
        assert lab.now == lab.wakes[POOL]
        assert 1 == len(await lab.lease())

    @pytest.mark.parametrize("field", ["queue", "ordered", "lanes"])
    @pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
    async def test_the_order_cannot_change_under_a_backlog(
        self, lab: Lab, field: str, running: bool
    ) -> None:
        """A declaration that would reorder what waits or comes back is refused, by field."""
        await lab.declare()
        await lab.put()
        if running:
            await lab.one()
        with pytest.raises(ConfigConflict) as caught:
            await lab.declare(
                order=lifo() if field == "queue" else fifo(),
                ordered=field == "ordered",
                lanes=4 if field == "lanes" else None,
            )
        assert field == caught.value.field
        assert (1, fifo()) == ((await lab.pool()).revision, (await lab.pool()).spec.order)

    async def test_the_order_may_change_when_nothing_waits(self, lab: Lab) -> None:
        """An empty pool can be redeclared in every way."""
        await lab.declare()
        await lab.put()
        await lab.run_one()
        await lab.declare(order=lifo())
        await lab.put("a")
        await lab.put("b")
        assert "b a" == await lab.serve(2)
        await lab.declare(order=fair_round_robin())
        await lab.put_keys("AAB")
        assert "A B A" == await lab.serve(3)
        await lab.declare(ordered=True)
        await lab.put_keys("AA")
        assert 1 == len(await lab.lease())

    # Redeclared

    @pytest.mark.parametrize("first", [False, True], ids=["behind", "before"])
    async def test_a_second_rate_leaves_the_first_as_it_is(self, lab: Lab, first: bool) -> None:
        """What the first one counted still counts, wherever the new one is written."""
        old, new = Rate(1, per=60.0), Rate(100, per=1.0)
        await lab.declare(rates=(old,))
        await lab.put()
        await lab.run_one()
        await lab.declare(rates=(new, old) if first else (old, new))
        await lab.put()
        answer = await lab.ask()
        assert ((), lab.now + 60.0) == (answer.leased, answer.next_at)

    async def test_a_changed_rate_starts_afresh(self, lab: Lab) -> None:
        """An hour that the old rate still had to wait is not waited for under the new one."""
        await lab.declare(rates=(Rate(1, per=3600.0),))
        await lab.put()
        await lab.run_one()
        await lab.put()
        await lab.put()
        assert lab.now + 3600.0 == (await lab.ask()).next_at
        await lab.declare(rates=(Rate(1, per=2.0),))
        answer = await lab.ask(9)
        assert (1, lab.now + 2.0) == (len(answer.leased), answer.next_at)

    async def test_a_changed_rate_per_key_starts_afresh(self, lab: Lab) -> None:
        """Each key has a full bucket of the new rate, and waits only as long as that says."""
        await lab.declare(rate_per_key=Rate(1, per=3600.0))
        await lab.put_keys("AAA")
        assert 1 == len(await lab.lease())
        await lab.declare(rate_per_key=Rate(1, per=2.0))
        answer = await lab.ask(9)
        assert (1, lab.now + 2.0) == (len(answer.leased), answer.next_at)

    async def test_a_removed_rate_per_key_limits_no_key(self, lab: Lab) -> None:
        """Keys that waited for it start at once."""
        await lab.declare(rate_per_key=Rate(1, per=3600.0))
        await lab.put_keys("AAB")
        assert "A B" == names_of(await lab.lease())
        await lab.declare()
        assert "A" == names_of(await lab.lease())

    async def test_new_weights_count_from_the_next_start(self, lab: Lab) -> None:
        """They may change under a backlog, and a key of weight two is served twice as often."""
        await lab.declare(order=fair_round_robin(), max_concurrent=1)
        await lab.put_keys("AAAAAAAABBBBBBBB")
        assert "A B" == await lab.serve(2)
        await lab.declare(order=fair_round_robin(weights={"B": 2.0}), max_concurrent=1)
        assert {"A": 3, "B": 6} == Counter((await lab.serve(9)).split())

    async def test_aging_cannot_change_under_a_backlog(self, lab: Lab) -> None:
        """The place of what waits came from it."""
        await lab.declare(order=priority(aging=5.0))
        await lab.put()
        for order in (priority(aging=6.0), priority()):
            with pytest.raises(ConfigConflict) as caught:
                await lab.declare(order=order)
            assert ("aging", 5.0, order.aging) == (
                caught.value.field,
                caught.value.stored,
                caught.value.declared,
            )
        assert priority(aging=5.0) == (await lab.pool()).spec.order
        await lab.run_one()
        assert 1 == (await lab.declare(order=priority())).count

    async def test_a_refused_declaration_changes_nothing(self, lab: Lab) -> None:
        """Fewer lanes than an operator's limit cannot be; asked again, it is refused again."""
        await lab.declare(lanes=4)
        await lab.control(orders.Resize(POOL, 3))
        before, records = await lab.pool(), await lab.records()
        for _ in range(2):
            with pytest.raises(ConfigError):
                await lab.declare(lanes=2, rates=(Rate(1),), max_callbacks=1)
            assert before == await lab.pool()
        assert records == await lab.records()
        assert 16 == (await lab.pool(CALLBACKS)).spec.max_concurrent
        assert 0 == (await lab.declare(lanes=4)).count
        await lab.control(orders.Resize(POOL, 1))
        assert 1 == (await lab.declare(lanes=2)).count
        assert (2, 1) == (
            (await lab.pool()).spec.lanes,
            (await lab.pool()).spec.max_concurrent,
        )

    async def test_a_conflicting_declaration_changes_nothing(self, lab: Lab) -> None:
        """Nothing of it is in force, and it is a conflict again as long as tasks wait."""
        await lab.declare()
        await lab.put()
        before = await lab.pool()
        for _ in range(2):
            with pytest.raises(ConfigConflict):
                await lab.declare(order=lifo(), max_concurrent=9, max_callbacks=1)
            assert before == await lab.pool()
        assert 16 == (await lab.pool(CALLBACKS)).spec.max_concurrent

    async def test_what_an_operator_resized_outlasts_every_declaration(self, lab: Lab) -> None:
        """One that happens to name the same limit does not take it over."""
        await lab.declare(max_concurrent=1)
        await lab.control(orders.Resize(POOL, 7))
        for declared in (7, 2, 1):
            await lab.declare(max_concurrent=declared)
            assert 7 == (await lab.pool()).spec.max_concurrent

    # Retention

    @mark.rows("TR-09")
    async def test_a_pool_remembers_how_long_it_keeps_what_ended(self, lab: Lab) -> None:
        """As declared; one that says nothing takes over what is stored."""
        kept = Retention(completed=5.0, keys=60.0, events=60.0)
        await lab.declare(keep=kept)
        assert kept == (await lab.pool()).declared.keep
        assert 0 == (await lab.declare()).count
        default = msgspec.structs.replace(kept, completed=1.0, given=False)
        assert 0 == (await lab.declare(keep=default)).count
        assert kept == (await lab.pool()).declared.keep

    @mark.rows("TR-09")
    async def test_keeping_for_less_time_is_a_conflict_once_there_were_tasks(
        self, lab: Lab
    ) -> None:
        """Longer is a revision; shorter needs to be said as such, and is not stored as such."""
        kept = Retention(completed=5.0)
        await lab.declare(keep=Retention(completed=50.0))
        await lab.declare(keep=kept)
        await lab.put()
        longer, shorter = Retention(completed=9.0), Retention(completed=4.0)
        assert 1 == (await lab.declare(keep=longer)).count
        with pytest.raises(ConfigConflict, match="keep") as conflict:
            await lab.declare(keep=shorter)
        assert ("keep", longer) == (conflict.value.field, conflict.value.stored)
        confirmed = msgspec.structs.replace(shorter, shorten=True)
        assert 1 == (await lab.declare(keep=confirmed)).count
        assert shorter == (await lab.pool()).declared.keep

    @mark.rows("TR-09")
    async def test_a_prune_leaves_other_pools_alone(self, lab: Lab) -> None:
        """Tasks and keys of one pool go, those of another stay."""
        for pool in (POOL, "other"):
            await lab.declare(pool)
            await lab.put(pool=pool, idempotency_key="k")
            await lab.complete(await lab.one(pool=pool))
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now, keys_before=lab.now))
        assert [0, 1] == [(await lab.pool(pool)).kept for pool in (POOL, "other")]
        for pool, known in ((POOL, False), ("other", True)):
            answer = await lab.submit(lab.new(pool=pool, idempotency_key="k"))
            assert [known] == [one.duplicate for one in answer.admissions]
