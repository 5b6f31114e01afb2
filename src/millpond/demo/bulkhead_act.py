"""Act 1, in a function: a bulkhead keeps callers off an API that would break."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from millpond import Bulkhead, RejectReason
from millpond.demo.scenes import (
    Bar,
    Bill,
    Camera,
    Columns,
    Ending,
    Note,
    Piece,
    Promise,
    Row,
    Scene,
    Tone,
    dice_of,
)

if TYPE_CHECKING:
    import random

CALLERS = 40
ROOM = 8
LIMIT, QUEUE = 5, 10
TICK = 0.05

BILL = Bill(
    title="In a function: a bulkhead",
    words=f"{CALLERS} callers run to an API that answers {ROOM} calls at once: one more, and "
    "every call in flight fails. Left without, right with a bulkhead.",
    code=(
        f'llm = Bulkhead("llm", {LIMIT}, max_queue={QUEUE})',
        "async with llm:",
        "    await call_model()",
    ),
)


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """All callers at once, without a bulkhead."""

    callers: int
    answered: int
    failed: int
    most_in_flight: int


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """The same callers behind a bulkhead."""

    callers: int
    answered: int
    failed: int
    most_in_flight: int
    most_waiting: int
    refused: dict[str, int]
    """How many were refused, by reason."""
    slowest_refusal: float
    """Longest time in seconds until a caller was refused."""
    in_order: bool
    left: int
    """How many were in flight or waiting after close and drain."""
    anomalies: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 1 measured."""

    without_bulkhead: Flood
    with_bulkhead: Guarded


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
        """How many calls are in flight."""
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
            loop.call_later(self._dice.uniform(0.3, 0.48), self._answer, answer)
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


class Stage:
    """Two identical APIs, one behind a bulkhead, and their callers."""

    def __init__(self, seed: int) -> None:
        dice = dice_of(seed)
        self.bare = Api(ROOM, dice)
        self.walled = Api(ROOM, dice)
        self.llm = Bulkhead("llm", LIMIT, max_queue=QUEUE)
        self.arrivals = sorted(dice.uniform(0.06, 0.54) for _ in range(CALLERS))
        self.came: list[int] = []
        self.served: list[int] = []
        self.refused_after: list[float] = []
        self.most_waiting = 0

    async def call_bare(self, number: int) -> None:
        """Arrive, and call the API."""
        await asyncio.sleep(self.arrivals[number])
        with contextlib.suppress(ApiDown):
            await self.bare.call()

    async def call_walled(self, number: int) -> None:
        """Arrive, acquire the bulkhead, and call the API if admitted."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.arrivals[number])
        arrived = loop.time()
        self.came.append(number)
        loop.call_soon(self.count)
        permit = await self.llm.acquire()
        if not permit:
            self.refused_after.append(loop.time() - arrived)
            return
        with permit:
            self.served.append(number)
            with contextlib.suppress(ApiDown):
                await self.walled.call()

    def count(self) -> None:
        """Record how many wait."""
        self.most_waiting = max(self.most_waiting, self.llm.stats().pending)


async def play(camera: Camera, scene: Scene) -> Ending[Figures]:
    """Let all callers call, with and without a bulkhead."""
    stage = Stage(scene.seed)

    async def watch() -> None:
        while True:
            camera.take(picture(stage))
            await asyncio.sleep(TICK)

    watching = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as callers:
        for number in range(CALLERS):
            callers.create_task(stage.call_bare(number))
            callers.create_task(stage.call_walled(number))
    stage.llm.close()
    left = await stage.llm.drain()
    watching.cancel()
    camera.take(picture(stage))
    figures = measured(stage, left.in_flight + left.pending)
    return Ending(said=said(figures), promises=promises(figures), figures=figures)


def measured(stage: Stage, left: int) -> Figures:
    """Return the figures of both APIs and of the bulkhead's statistics."""
    stats, served = stage.llm.stats(), stage.served
    reasons = stats.rejected_by_reason.items()
    return Figures(
        without_bulkhead=Flood(
            callers=CALLERS,
            answered=stage.bare.answered,
            failed=stage.bare.failed,
            most_in_flight=stage.bare.most,
        ),
        with_bulkhead=Guarded(
            callers=CALLERS,
            answered=stage.walled.answered,
            failed=stage.walled.failed,
            most_in_flight=stage.walled.most,
            most_waiting=stage.most_waiting,
            refused={str(reason): many for reason, many in reasons if many},
            slowest_refusal=max(stage.refused_after, default=0.0),
            in_order=served == [number for number in stage.came if number in set(served)],
            left=left,
            anomalies=stats.underflow
            + stats.leaked
            + stats.double_release
            + stats.hook_errors
            + abs(stats.admitted - stats.released),
        ),
    )


def count(label: str, value: int, tone: Tone, *, peak: int = 0, limit: int | None = None) -> Bar:
    """Return the bar of a number of callers, with the number behind it."""
    tail = f"{value:>2}" if not peak else f"{value:>2}  peak {peak}"
    return Bar(label=label, value=value, top=CALLERS, peak=peak, limit=limit, tail=tail, tone=tone)


def picture(stage: Stage) -> list[Row]:
    """Draw both APIs side by side."""
    bare, walled, stats = stage.bare, stage.walled, stage.llm.stats()
    refused = stats.rejected_by_reason.get(RejectReason.QUEUE_LIMIT, 0)
    return [
        Columns(
            (
                Note(text="Without", tone=Tone.STRONG),
                count("in flight", bare.in_flight, Tone.BUSY, peak=bare.most, limit=ROOM),
                count("answered", bare.answered, Tone.GOOD),
                count("failed", bare.failed, Tone.BAD),
            ),
            (
                Note(text="With", tone=Tone.STRONG),
                count("in flight", walled.in_flight, Tone.BUSY, peak=walled.most, limit=LIMIT),
                count("answered", walled.answered, Tone.GOOD),
                count("failed", walled.failed, Tone.BAD),
                count("waiting", stats.pending, Tone.WAIT, peak=stage.most_waiting, limit=QUEUE),
                count("refused", refused, Tone.WAIT),
            ),
        )
    ]


def said(seen: Figures) -> str:
    """Return the conclusion of the act."""
    before, after = seen.without_bulkhead, seen.with_bulkhead
    return (
        f"{before.failed} of {CALLERS} callers got an error. Behind the bulkhead none did: "
        f"{after.answered} were answered, {sum(after.refused.values())} refused at once."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Compare the figures with the promises of a bulkhead."""
    before, after = seen.without_bulkhead, seen.with_bulkhead
    refused = sum(after.refused.values())
    return (
        Promise(
            promise=f"Never more than {LIMIT} in flight",
            seen=f"{after.most_in_flight} at most; {after.failed} errors, {before.failed} without",
            kept=after.most_in_flight <= LIMIT and after.failed == 0,
        ),
        Promise(
            promise=f"Never more than {QUEUE} waiting, in order",
            seen=f"{after.most_waiting} at most, {'in' if after.in_order else 'NOT in'} order",
            kept=after.most_waiting <= QUEUE and after.in_order and after.left == 0,
        ),
        Promise(
            promise="The rest refused at once, with a reason",
            seen=f"{refused} queue_limit, after {after.slowest_refusal * 1000:.0f} ms",
            kept=after.slowest_refusal == 0.0
            and after.refused == {RejectReason.QUEUE_LIMIT: refused}
            and after.answered + refused == after.callers
            and after.anomalies == 0,
        ),
    )


PIECE = Piece(BILL, play)
