"""Arguments that do not fit: a task waits for a worker whose function takes them."""

from __future__ import annotations

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lease import Leased
from millpond.core.lifecycle import Status
from millpond.core.settle import Settlement
from millpond.core.task import MOST_TRIED, Call
from millpond.testing.conformance.lab import (
    DAY,
    POOL,
    Lab,
    completed,
    corrupt,
    ids_of,
    names_of,
    released,
)
from millpond.testing.conformance.scenario import StoreSuite, mark


def misfit(leased: Leased, error: bytes = b"no 'tenant'") -> Settlement:
    """The arguments do not fit the function as the worker has it."""
    return msgspec.structs.replace(released(leased, parked=True), misfit=True, error=error)


async def join(lab: Lab, worker: str, signature: str, *functions: str) -> None:
    """Let a worker join that has its functions in a signature of its own."""
    known = functions or ("work",)
    signatures = dict.fromkeys(known, signature)
    await lab.control(orders.Register(worker, 30.0, None, known, signatures))


class MisfitsConformance(StoreSuite):
    """Tasks whose arguments some versions of a function cannot read."""

    @mark.rows("TR-11")
    async def test_a_task_that_does_not_fit_is_parked_with_the_reason(self, lab: Lab) -> None:
        """Uncharged, out of the way of others, and its worker never gets it again."""
        await lab.declare(max_concurrent=1)
        await join(lab, "old", "1")
        task = await lab.put()
        await lab.applied(misfit(await lab.one(worker="old")))
        answer = await lab.task(task)
        assert (Status.QUEUED, True, 0) == (answer.status, answer.parked, answer.attempt)
        assert (b"no 'tenant'", ("1",)) == (answer.error, answer.misfits)
        assert (1, 1) == ((await lab.pool()).parked, (await lab.pool()).queued)
        assert [] == await lab.lease(worker="old")
        await lab.put("fits")
        assert "fits" == names_of(await lab.lease(worker="old"))

    @mark.rows("TR-11")
    async def test_a_worker_with_another_signature_takes_it(self, lab: Lab) -> None:
        """It waits at its old place, and one more worker of the old kind changes nothing."""
        await lab.declare()
        await join(lab, "old", "1")
        task = await lab.put()
        await lab.applied(misfit(await lab.one(worker="old")))
        await join(lab, "as old", "1")
        assert [] == await lab.lease(worker="as old")
        await join(lab, "new", "2")
        assert [task] == ids_of(await lab.lease(worker="new"))
        assert 0 == (await lab.pool()).parked

    @mark.rows("TR-11")
    async def test_a_worker_that_takes_any_task_has_its_signatures(self, lab: Lab) -> None:
        """A task that did not fit it fits a worker of the same kind with another signature."""
        await lab.declare()
        task = await lab.put()
        for signature in ("1", "2"):
            signatures = {"work": signature}
            await lab.control(orders.Register(signature, 30.0, None, None, signatures))
            await lab.applied(misfit(await lab.one(worker=signature)))
            assert [] == await lab.lease(worker=signature)
        assert ("1", "2") == (await lab.task(task)).misfits

    @mark.rows("TR-11")
    @pytest.mark.parametrize("tries", [2, 3])
    async def test_two_that_cannot_read_it_do_not_hand_it_to_and_fro(
        self, lab: Lab, tries: int
    ) -> None:
        """Each signature tries it once; the tried signatures are kept when it is claimed."""
        await lab.declare()
        task = await lab.put()
        names = [f"w{n}" for n in range(tries)]
        for name in names:
            await join(lab, name, name)
            await lab.applied(misfit(await lab.one(worker=name)))
        for name in names:
            assert [] == await lab.lease(worker=name)
        assert tuple(names) == (await lab.task(task)).misfits
        await join(lab, "fits", "fits")
        assert [task] == ids_of(await lab.lease(worker="fits"))

    @mark.rows("TR-11")
    async def test_tasks_of_both_versions_find_their_workers(self, lab: Lab) -> None:
        """Old and new beside each other: what one cannot read, the other runs."""
        await lab.declare(max_concurrent=1)
        await join(lab, "old", "1")
        await join(lab, "new", "2")
        for name in ("a", "b", "a", "b"):
            await lab.put(name)
        done: list[str] = []
        for _ in range(12):
            for worker, reads in (("old", "a"), ("new", "b")):
                for leased in await lab.lease(1, worker=worker):
                    fits = leased.labels["name"] == reads
                    await lab.applied(completed(leased) if fits else misfit(leased))
                    done += [worker] if fits else []
        assert ["new", "new", "old", "old"] == sorted(done)

    @mark.rows("TR-11")
    async def test_one_that_is_tried_again_still_avoids_those_who_cannot_read_it(
        self, lab: Lab
    ) -> None:
        """A retry goes to a worker that understands it; another one parks it unread."""
        await lab.declare()
        await join(lab, "old", "1")
        await join(lab, "new", "2")
        task = await lab.put()
        await lab.applied(misfit(await lab.one(worker="old")))
        await lab.retry(await lab.one(worker="new"))
        lab.later(60)
        assert [] == await lab.lease(worker="old")
        answer = await lab.task(task)
        assert (1, 2) == (answer.attempt, answer.runs)
        assert [task] == ids_of(await lab.lease(worker="new"))

    @mark.rows("TR-11")
    async def test_a_claim_that_does_not_fit_is_parked_too(self, lab: Lab) -> None:
        """One that was held ahead and never started goes the same way."""
        await lab.declare(prefetch=2)
        await join(lab, "old", "1")
        await join(lab, "new", "2")
        task = await lab.put()
        (claim,) = await lab.claims(worker="old")
        await lab.applied(misfit(claim))
        answer = await lab.task(task)
        assert (True, 0, b"no 'tenant'") == (answer.parked, answer.runs, answer.error)
        assert [] == await lab.lease(worker="old")
        await lab.put("ahead", priority=1)
        assert [task] == ids_of(await lab.lease(1, worker="new"))

    @mark.rows("TR-11")
    async def test_a_head_that_does_not_fit_blocks_its_lane(self, lab: Lab) -> None:
        """As one of an unknown function does: what stands behind it waits, other lanes go on."""
        await lab.declare(ordered=True)
        await join(lab, "old", "1")
        await join(lab, "new", "2")
        await lab.put("head", key="a")
        await lab.put("behind", key="a")
        await lab.put("other", key="b")
        head, other = await lab.lease(worker="old")
        assert ("head", "other") == (head.labels["name"], other.labels["name"])
        await lab.applied(misfit(head))
        assert [] == await lab.lease(worker="old")
        assert "head" == names_of(await lab.lease(worker="new"))

    @mark.rows("TR-11")
    async def test_it_fails_after_a_day_for_its_own_reason(self, lab: Lab) -> None:
        """Not as an unknown function; the error that names the argument stays with it."""
        await lab.declare()
        await join(lab, "old", "1")
        task = await lab.put()
        await lab.applied(misfit(await lab.one(worker="old")))
        lab.later(DAY - 1)
        await lab.recover()
        assert Status.QUEUED == await lab.status(task)
        lab.later(2)
        await lab.recover()
        answer = await lab.task(task)
        assert (Status.FAILED, "unfit_arguments", 0) == (
            answer.status,
            answer.reason,
            answer.attempt,
        )
        assert b"no 'tenant'" == answer.error

    @mark.rows("TR-11")
    async def test_a_redrive_lets_every_worker_try_again(self, lab: Lab) -> None:
        """Parked it goes back to its place, failed to the tail; nothing of before is held on to."""
        await lab.declare()
        await join(lab, "old", "1")
        task = await lab.put()
        await lab.applied(misfit(await lab.one(worker="old")))
        answer = await lab.control(orders.Redrive((task,)))
        assert (1, [POOL]) == (answer.count, [wake.pool for wake in answer.wakes])
        assert () == (await lab.task(task)).misfits
        await lab.applied(misfit(await lab.one(worker="old")))
        lab.later(DAY + 1)
        await lab.recover()
        await join(lab, "again", "1")
        assert 1 == (await lab.control(orders.Redrive((task,)))).count
        assert [task] == ids_of(await lab.lease(worker="again"))

    @mark.rows("TR-11")
    async def test_a_parked_task_of_an_unknown_function_can_be_redriven(self, lab: Lab) -> None:
        """It goes back to its place, and is parked again by who still does not know it."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        task = await lab.put(call=Call("rare"))
        assert [] == await lab.lease(worker="w2")
        assert 1 == (await lab.control(orders.Redrive((task,)))).count
        assert 0 == (await lab.pool()).parked
        assert [] == await lab.lease(worker="w2")
        assert 1 == (await lab.pool()).parked

    @mark.rows("TR-11")
    async def test_it_is_not_tried_without_end(self, lab: Lab) -> None:
        """After so many signatures in vain it waits for a redrive, and says so to any worker."""
        await lab.declare()
        task = await lab.put()
        for n in range(MOST_TRIED + 1):
            await join(lab, f"w{n}", f"s{n:02}")
            await lab.applied(misfit(await lab.one(worker=f"w{n}")))
        await join(lab, "late", "late")
        assert [] == await lab.lease(worker="late")
        assert len((await lab.task(task)).misfits) == MOST_TRIED + 1

    @mark.rows("TR-11")
    async def test_a_corrupt_record_keeps_its_error(self, lab: Lab) -> None:
        """Also of one that was held ahead and never started."""
        await lab.declare(prefetch=1)
        ran, held = await lab.put(), await lab.put()
        leased = await lab.one()
        (claim,) = await lab.claims()
        damage = {"error": b"bad JSON"}
        await lab.applied(msgspec.structs.replace(corrupt(leased), **damage))
        await lab.applied(msgspec.structs.replace(corrupt(claim), **damage))
        for task in (ran, held):
            answer = await lab.task(task)
            assert ("corrupt", b"bad JSON", 0) == (answer.reason, answer.error, answer.attempt)
