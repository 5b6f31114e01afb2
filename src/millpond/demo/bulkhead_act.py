"""Act 1, a bulkhead: an API that breaks under load, and the wall in front of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond import Bulkhead, HookEvent, RejectReason, adaptive
from millpond.demo.story import Act, Bar, Camera, Promise, Scene, Spark, Tone, dice_of
from millpond.testing.clock import run_virtual

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

CALLERS = 40
ROOM = 8
LIMIT, QUEUE = 5, 10
BUDGET = 1000
CAPACITY, LESS_CAPACITY = 12, 6
LONG = 600.0
"""Virtual seconds after which a bulkhead that lost a permit, say, ends the show."""


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """Forty callers at once, with nothing in between."""

    callers: int
    answered: int
    failed: int
    most_in_flight: int


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """The same callers in front of a bulkhead."""

    callers: int
    answered: int
    failed: int
    most_in_flight: int
    most_waiting: int
    refused: dict[str, int]
    """How many were refused, by reason."""
    slowest_refusal: float
    """Seconds the slowest caller waited to be told that the queue is full."""
    in_order: bool


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Permits that weigh as much as the tokens they may use."""

    budget: int
    most_reserved: int
    refunded: int
    entered_on_refund: int
    refused: dict[str, int]


class Resized(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that change while work goes on, then the end."""

    limits: tuple[int, ...]
    admitted: int
    finished: int
    grants_over_limit: int
    seconds_to_shrink: float
    entered_on_raise: int
    refused: dict[str, int]
    waiting_at_close: int
    left_after_drain: int
    anomalies: int


class Adapted(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that finds what a server can take."""

    capacities: tuple[int, ...]
    limits_found: tuple[int, ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 1 measured."""

    without_bulkhead: Flood
    with_bulkhead: Guarded
    weights: Weights
    resized: Resized
    adapted: Adapted


def play(seed: int) -> Act[Figures]:
    """Run act 1 on virtual time."""
    return run_virtual(asyncio.wait_for(_play(seed), LONG))


async def _play(seed: int) -> Act[Figures]:
    dice = dice_of(seed)
    flood_scene, without = await flood(dice)
    guarded_scene, guarded_by = await guarded(dice)
    weights_scene, weighed = await weights()
    resized_scene, resized_to = await resized(dice)
    adapted_scene, adapted_to = await adapted(dice)
    figures = Figures(
        without_bulkhead=without,
        with_bulkhead=guarded_by,
        weights=weighed,
        resized=resized_to,
        adapted=adapted_to,
    )
    return Act(
        title="A bulkhead",
        scenes=(flood_scene, guarded_scene, weights_scene, resized_scene, adapted_scene),
        promises=promises(figures),
        figures=figures,
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Hold the figures against what the bulkhead promises."""
    before, after, weighed, moved = (
        seen.without_bulkhead,
        seen.with_bulkhead,
        seen.weights,
        seen.resized,
    )
    refused = sum(after.refused.values())
    full = after.refused.get(RejectReason.QUEUE_LIMIT, 0)
    return (
        Promise(
            promise=f"Never more than {LIMIT} in flight",
            seen=f"{after.most_in_flight} at most, {after.failed} errors ({before.failed} without)",
            kept=after.most_in_flight <= LIMIT and after.failed == 0,
        ),
        Promise(
            promise=f"Never more than {QUEUE} waiting, in order",
            seen=f"{after.most_waiting} at most, {'in' if after.in_order else 'NOT in'} order",
            kept=after.most_waiting <= QUEUE and after.in_order,
        ),
        Promise(
            promise="The rest refused at once, with a reason",
            seen=f"{full} queue_limit, told after {after.slowest_refusal * 1000:.0f} ms",
            kept=after.slowest_refusal == 0.0
            and full > 0
            and after.answered + refused == after.callers,
        ),
        Promise(
            promise="Weights stay in budget; a refund counts",
            seen=f"{weighed.most_reserved} of {weighed.budget}; "
            f"the refund let {weighed.entered_on_refund} in",
            kept=weighed.most_reserved <= weighed.budget and weighed.entered_on_refund == 1,
        ),
        Promise(
            promise="A lower limit kills nobody",
            seen=f"{' -> '.join(map(str, moved.limits))}, "
            f"{moved.finished} of {moved.admitted} finished",
            kept=moved.grants_over_limit == 0 and moved.finished == moved.admitted,
        ),
        Promise(
            promise="Closed is closed, drained is empty",
            seen=f"{moved.refused.get(RejectReason.SHUTDOWN, 0)} refused: shutdown; "
            f"{moved.left_after_drain} left",
            kept=moved.left_after_drain == 0
            and moved.anomalies == 0
            and moved.refused == {RejectReason.SHUTDOWN: moved.waiting_at_close + 1},
        ),
        Promise(
            promise="An adaptive limit finds the capacity",
            seen=", ".join(
                f"{found} for {room}"
                for room, found in zip(
                    seen.adapted.capacities, seen.adapted.limits_found, strict=True
                )
            ),
            kept=all(
                room * 0.7 <= found <= room * 1.7
                for room, found in zip(
                    seen.adapted.capacities, seen.adapted.limits_found, strict=True
                )
            ),
        ),
    )


def count(
    label: str,
    value: int,
    tone: Tone = Tone.BUSY,
    *,
    of: int = CALLERS,
    peak: int = 0,
    limit: int | None = None,
    more: str = "",
) -> Bar:
    """Return the bar of a number of callers, with the number behind it."""
    tail = f"{value:>2}  {more}" if more else f"{value:>2}"
    return Bar(label=label, value=value, top=of, peak=peak, limit=limit, tail=tail, tone=tone)


class ApiDown(Exception):
    """The API broke while this call was in flight."""


class Api:
    """Answers `room` calls at once. One more breaks it, and every call in flight fails."""

    def __init__(self, room: int, dice: random.Random) -> None:
        self._room = room
        self._dice = dice
        self._calls: dict[asyncio.Future[None], None] = {}
        self.most = 0
        self.answered = 0
        self.failed = 0

    @property
    def in_flight(self) -> int:
        """How many calls it is answering now."""
        return len(self._calls)

    async def call(self) -> None:
        """Answer after a while, or raise ApiDown."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self._calls[answer] = None
        self.most = max(self.most, self.in_flight)
        if self.in_flight > self._room:
            self._break()
        else:
            loop.call_later(self._dice.uniform(0.4, 0.6), self._answer, answer)
        await answer

    def _answer(self, answer: asyncio.Future[None]) -> None:
        if not answer.done():
            self.answered += 1
            del self._calls[answer]
            answer.set_result(None)

    def _break(self) -> None:
        self.failed += len(self._calls)
        for answer in self._calls:
            answer.set_exception(ApiDown())
        self._calls.clear()


Arrivals: TypeAlias = list[float]


def arrivals(dice: random.Random, many: int, within: float) -> Arrivals:
    """Return the moments at which callers come."""
    return sorted(dice.uniform(0.0, within) for _ in range(many))


async def flood(dice: random.Random) -> tuple[Scene, Flood]:
    """Let everybody call at once."""
    api, camera = Api(ROOM, dice), Camera()

    def take() -> None:
        camera.take(
            count(
                "in flight",
                api.in_flight,
                peak=api.most,
                limit=ROOM,
                more=f"peak {api.most}, room for {ROOM}",
            ),
            count("answered", api.answered, Tone.GOOD),
            count("failed", api.failed, Tone.BAD),
        )

    async def caller(moment: float) -> None:
        await asyncio.sleep(moment)
        take()
        with contextlib.suppress(ApiDown):
            await api.call()
        take()

    async with asyncio.TaskGroup() as callers:
        for moment in arrivals(dice, CALLERS, 0.3):
            callers.create_task(caller(moment))
    figures = Flood(
        callers=CALLERS,
        answered=api.answered,
        failed=api.failed,
        most_in_flight=api.most,
    )
    scene = Scene(
        title=f"{CALLERS} callers, one API, no bulkhead",
        code=f"# It answers {ROOM} calls at once. One more, and all in flight fail.",
        frames=camera.frames(),
        said=f"{api.failed} of {CALLERS} callers got an error.",
        seconds=1.2,
    )
    return scene, figures


async def guarded(dice: random.Random) -> tuple[Scene, Guarded]:
    """Put a bulkhead in front of the same API."""
    api, camera = Api(ROOM, dice), Camera()
    came: list[int] = []
    served: list[int] = []
    told_after: list[float] = []
    most_waiting = 0

    def take(_: HookEvent | None = None) -> None:
        nonlocal most_waiting
        stats = llm.stats()
        most_waiting = max(most_waiting, stats.pending)
        refused = stats.rejected_by_reason
        camera.take(
            count(
                "in flight",
                stats.in_flight,
                peak=api.most,
                limit=LIMIT,
                more=f"peak {api.most} of {LIMIT}",
            ),
            count(
                "waiting",
                stats.pending,
                Tone.WAIT,
                peak=most_waiting,
                limit=QUEUE,
                more=f"peak {most_waiting} of {QUEUE}",
            ),
            count("answered", api.answered, Tone.GOOD),
            *(
                count("refused", refused.get(reason, 0), Tone.BAD, more=reason)
                for reason in (RejectReason.QUEUE_LIMIT, RejectReason.TIMEOUT)
            ),
        )

    llm = Bulkhead("llm", LIMIT, max_queue=QUEUE, on_admit=take, on_reject=take, on_release=take)

    async def caller(number: int, moment: float) -> None:
        await asyncio.sleep(moment)
        arrived = camera.at
        came.append(number)
        # The last two who get into the queue are in a hurry.
        hurried = LIMIT + QUEUE - 2 < len(came) <= LIMIT + QUEUE
        asyncio.get_running_loop().call_soon(take)
        permit = await llm.acquire(timeout=0.7 if hurried else None)
        if not permit:
            if permit.reason is RejectReason.QUEUE_LIMIT:
                told_after.append(camera.at - arrived)
            return
        with permit:
            served.append(number)
            await api.call()

    async with asyncio.TaskGroup() as callers:
        for number, moment in enumerate(arrivals(dice, CALLERS, 0.3)):
            callers.create_task(caller(number, moment))
    take()
    stats = llm.stats()
    figures = Guarded(
        callers=CALLERS,
        answered=api.answered,
        failed=api.failed,
        most_in_flight=api.most,
        most_waiting=most_waiting,
        refused=by_reason(stats.rejected_by_reason),
        slowest_refusal=max(told_after, default=0.0),
        in_order=served == [number for number in came if number in set(served)],
    )
    scene = Scene(
        title=f"The same {CALLERS} callers, {LIMIT} at once and {QUEUE} waiting",
        code=f'llm = Bulkhead("llm", {LIMIT}, max_queue={QUEUE})',
        frames=camera.frames(),
        said=f"{api.failed} errors. {len(told_after)} were told at once, and why; "
        f"{figures.refused.get(RejectReason.TIMEOUT, 0)} would not wait longer.",
        seconds=2.0,
    )
    return scene, figures


async def weights() -> tuple[Scene, Weights]:
    """Reserve what a call may use; give back what it did not."""
    camera = Camera()
    most = entered_on_refund = 0

    def take(_: HookEvent | None = None) -> None:
        nonlocal most
        stats = tokens.stats()
        most = max(most, stats.weight_in_flight)
        camera.take(
            Bar(
                label="tokens",
                value=stats.weight_in_flight,
                top=BUDGET,
                peak=most,
                tail=f"{stats.weight_in_flight} of {BUDGET}, peak {most}",
            ),
            count("waiting", stats.pending, Tone.WAIT),
        )

    tokens = Bulkhead(
        "tokens", 8, max_queue=4, max_weight=BUDGET, on_admit=take, on_reject=take, on_release=take
    )

    async def call(name: str, weight: int, used: int) -> None:
        nonlocal entered_on_refund
        async with tokens.permit(weight=weight) as permit:
            await asyncio.sleep(0.5)
            if used < weight:
                before = tokens.stats().admitted
                permit.settle(used)
                entered_on_refund = tokens.stats().admitted - before
                enter = f"{weight - used} go back, {entered_on_refund} enters at once"
                camera.note(f"the {name} used {used} of {weight}: {enter}")
                take()
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as calls:
        for name, weight, used in (("first", 600, 200), ("second", 300, 300), ("third", 400, 400)):
            calls.create_task(call(name, weight, used))
            await asyncio.sleep(0.1)
            stands = "waits" if tokens.stats().pending else "enters"
            camera.note(f"the {name} reserves {weight} and {stands}")
            take()
        refusal = tokens.try_acquire(weight=BUDGET + 200)
        if not refusal:
            camera.note(f"a call of {BUDGET + 200} is refused: {refusal.reason}", Tone.BAD)
        take()
    take()
    figures = Weights(
        budget=BUDGET,
        most_reserved=most,
        refunded=400,
        entered_on_refund=entered_on_refund,
        refused=by_reason(tokens.stats().rejected_by_reason),
    )
    scene = Scene(
        title="Permits with weights, and a refund",
        code=f'Bulkhead("tokens", 8, max_queue=4, max_weight={BUDGET}); permit.settle(used)',
        frames=camera.frames(),
        said="The refund let the third call in before the first had ended.",
        seconds=1.4,
    )
    return scene, figures


async def resized(dice: random.Random) -> tuple[Scene, Resized]:
    """Lower the limit, raise it, close, drain; all with work inside."""
    camera, few = Camera(), asyncio.Event()
    admitted = finished = over = most = 0

    def take(event: HookEvent | None = None) -> None:
        nonlocal admitted, over, most
        stats = llm.stats()
        most = max(most, stats.in_flight)
        if event is not None and event.kind == "admit":
            admitted += 1
            over += event.capacity.in_flight > event.capacity.max_concurrent
        shut = stats.rejected_by_reason.get(RejectReason.SHUTDOWN, 0)
        camera.take(
            count(
                "in flight",
                stats.in_flight,
                of=20,
                peak=most,
                limit=stats.max_concurrent,
                more=f"limit {stats.max_concurrent}, peak {most}",
            ),
            count("waiting", stats.pending, Tone.WAIT, of=20),
            count("finished", finished, Tone.GOOD, of=20),
            count("refused", shut, Tone.BAD, of=20, more="shutdown"),
        )
        if stats.in_flight <= 2:
            few.set()

    llm = Bulkhead("llm", 5, max_queue=20, on_admit=take, on_reject=take, on_release=take)

    async def caller(moment: float, work: float) -> None:
        nonlocal finished
        await asyncio.sleep(moment)
        asyncio.get_running_loop().call_soon(take)
        permit = await llm.acquire()
        if permit:
            with permit:
                await asyncio.sleep(work)
                finished += 1

    async with asyncio.TaskGroup() as callers:
        for moment in arrivals(dice, 20, 0.3):
            callers.create_task(caller(moment, dice.uniform(0.5, 0.9)))
        await asyncio.sleep(0.45)
        asked = camera.at
        llm.resize(max_concurrent=2)
        camera.note(f"resize(max_concurrent=2): {llm.stats().in_flight} inside go on", Tone.STRONG)
        few.clear()
        take()
        await few.wait()
        shrunk = camera.at - asked
        camera.note("2 inside: reached as work ended")
        await asyncio.sleep(0.5)
        before = llm.stats()
        llm.resize(max_concurrent=8)
        await asyncio.sleep(0)
        entered = llm.stats().admitted - before.admitted
        camera.note(f"resize(max_concurrent=8): {entered} enter at once", Tone.STRONG)
        take()
        await asyncio.sleep(0.4)
        waiting = llm.stats().pending
        llm.close()
        newcomer = llm.try_acquire()
        refused = f"{waiting} waiting and {0 if newcomer else 1} newcomer are refused"
        camera.note(f"close(): {refused}; those inside finish", Tone.STRONG)
        take()
        left = await llm.drain()
    take()
    camera.note(f"drain(): {left.in_flight} inside, {left.pending} waiting")
    take()
    stats = llm.stats()
    figures = Resized(
        limits=(5, 2, 8),
        admitted=admitted,
        finished=finished,
        grants_over_limit=over,
        seconds_to_shrink=round(shrunk, 3),
        entered_on_raise=entered,
        refused=by_reason(stats.rejected_by_reason),
        waiting_at_close=waiting,
        left_after_drain=left.in_flight + left.pending,
        anomalies=stats.underflow
        + stats.leaked
        + stats.double_release
        + stats.hook_errors
        + abs(stats.admitted - stats.released),
    )
    scene = Scene(
        title="New limits while work goes on, then close and drain",
        code="llm.resize(max_concurrent=2); llm.resize(max_concurrent=8); llm.close()",
        frames=camera.frames(),
        said="Nobody inside was stopped, nobody was let in above the limit of the moment.",
        seconds=2.4,
    )
    return scene, figures


async def adapted(dice: random.Random) -> tuple[Scene, Adapted]:
    """Let latency tell the limit how much a server can take, also when that changes."""
    loop = asyncio.get_running_loop()
    camera = Camera()
    search = Bulkhead("search", adaptive(1, 50), max_queue=100, clock=loop.time)
    capacity = CAPACITY
    limits: list[float] = []
    ticks, tick = 56, 0.5

    async def caller() -> None:
        while True:
            async with search:
                load = max(1.0, search.stats().in_flight / capacity)
                await asyncio.sleep(0.05 * load * dice.uniform(0.9, 1.1))

    def take() -> None:
        now = search.stats().max_concurrent
        limits.append(now)
        camera.take(
            Spark(
                label="limit",
                values=tuple(limits),
                top=24,
                length=ticks,
                tail=f"{now:>2}",
            )
        )

    found: list[int] = []
    callers = [asyncio.create_task(caller()) for _ in range(60)]
    for number in range(ticks):
        if number == ticks // 2:
            found.append(round(sum(limits[-8:]) / 8))
            capacity = LESS_CAPACITY
            camera.note(f"the server loses half of its capacity: {LESS_CAPACITY}", Tone.BAD)
        await asyncio.sleep(tick)
        take()
    found.append(round(sum(limits[-8:]) / 8))
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    figures = Adapted(capacities=(CAPACITY, LESS_CAPACITY), limits_found=tuple(found))
    scene = Scene(
        title=f"A limit that finds itself; the server can take {CAPACITY}",
        code='Bulkhead("search", adaptive(1, 50), max_queue=100)',
        frames=camera.frames(),
        said=f"It settled at {found[0]} for {CAPACITY}, and at {found[1]} for {LESS_CAPACITY}.",
        seconds=1.8,
    )
    return scene, figures


def by_reason(counts: Mapping[RejectReason, int]) -> dict[str, int]:
    """Return the refusals that happened, by reason, as plain words."""
    return {str(reason): count for reason, count in counts.items() if count}
