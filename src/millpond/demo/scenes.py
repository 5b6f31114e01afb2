"""What an act is made of: pictures to look at, figures to read, promises that were kept or not.

An act runs on a loop of its own and answers with these values; nothing here knows a terminal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from millpond.demo.playback_clock import in_real_time, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.demo.playback_clock import Audience

F = TypeVar("F")

LONG = 60.0
"""Seconds after which an act that hangs, because something was lost, ends the show."""

QUICK = 4.0
"""How many times faster than normal real work goes when nobody watches."""


class CannotGoOn(Exception):
    """The show has to stop: not because a promise was broken, but because it cannot be given."""


class Tone(StrEnum):
    """What a piece of the picture means; the screen gives each tone its colour."""

    PLAIN = "plain"
    STRONG = "strong"
    QUIET = "quiet"
    BUSY = "busy"
    WAIT = "wait"
    GOOD = "good"
    BAD = "bad"
    ONE = "one"
    TWO = "two"
    THREE = "three"


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled number drawn as a length out of `top`; the light part reaches to `peak`."""

    label: str
    value: float
    top: float
    peak: float = 0.0
    limit: float | None = None
    """Where a mark stands: a limit, or a share that was promised."""
    tail: str = ""
    tone: Tone = Tone.BUSY


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one tenant as one bar: done, then running, then queued, each in its shade."""

    label: str
    done: int
    running: int
    queued: int
    top: float
    tone: Tone


class Legend(msgspec.Struct, frozen=True):
    """What the shades of the stacks below it mean, and the numbers behind them."""


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in a row, each in its own tone: an order of starts."""

    label: str
    letters: str
    tones: dict[str, Tone]
    length: int
    """How long it will be in the end, so that the picture keeps its height while it grows."""

    def tone(self, letter: str) -> Tone:
        """Return the tone of a letter."""
        return self.tones.get(letter, Tone.PLAIN)


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of numbers between 0 and `top`; higher than a line if `height` says so."""

    label: str
    values: tuple[float, ...]
    top: float
    length: int
    """How many values it is expected to have in the end; with more it is squeezed."""
    tail: str = ""
    height: int = 1
    tone: Tone = Tone.BUSY


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A line of words, behind a label or by itself."""

    label: str = ""
    text: str = ""
    tone: Tone = Tone.PLAIN
    inset: bool = False
    """Whether it stands below the bars, and not below their labels."""


class Columns(msgspec.Struct, frozen=True):
    """Two pictures side by side; one above the other where there is no room."""

    left: tuple[Row, ...]
    right: tuple[Row, ...]


Row: TypeAlias = Bar | Stack | Legend | Strip | Spark | Note | Columns

BLANK = Note()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The picture at one moment, in seconds of the act's own clock since it began."""

    at: float
    rows: tuple[Row, ...]


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an act before it begins."""

    title: str
    words: str
    """What one is looking at, in a sentence or two."""
    code: tuple[str, ...]
    """The lines of Python that it shows at work."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of the library, what was seen of it, and whether that is what was claimed."""

    promise: str
    seen: str
    kept: bool


class Ending(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """What an act came to."""

    said: str
    """What to take away from it, in a sentence."""
    promises: tuple[Promise, ...]
    figures: F
    telling: float | None = None
    """The moment whose picture tells most, where that is not the last one."""


class Act(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """An act that was played, from its bill to its end."""

    bill: Bill
    frames: tuple[Frame, ...]
    ending: Ending[F]

    @property
    def telling(self) -> Frame:
        """The picture that stands for the act in print."""
        moment = self.ending.telling
        if moment is None:
            return self.frames[-1]
        return min(self.frames, key=lambda frame: abs(frame.at - moment))


class Camera:
    """Keeps a frame for each moment at which a picture was taken; the first is the beginning."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._began: float | None = None

    def take(self, rows: Sequence[Row]) -> None:
        """Keep the picture of this moment; a later one of the same moment replaces it."""
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        at = now - self._began
        if self.frames and self.frames[-1].at == at:
            self.frames.pop()
        self.frames.append(Frame(at=at, rows=tuple(rows)))


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What an act is given."""

    seed: int
    file: Path
    """The SQLite file that all pools of the show are kept in."""
    speed: float | None = None
    """How many times faster than normal; None = nobody watches."""


class Piece(Generic[F]):
    """An act that can be played: its bill, and the coroutine that is the play.

    One that starts processes plays in real time, because theirs is; the others in virtual time.
    """

    def __init__(
        self,
        bill: Bill,
        play: Callable[[Camera, Scene], Coroutine[Any, Any, Ending[F]]],
        *,
        real: bool = False,
    ) -> None:
        self.bill = bill
        self.real = real
        self._play = play

    def perform(
        self, scene: Scene, *, camera: Camera | None = None, audience: Audience | None = None
    ) -> Act[F]:
        """Play it to the end on a loop of its own, before an audience or before nobody."""
        seen = camera or Camera()
        run = in_real_time if self.real else in_virtual_time
        ending = run(asyncio.wait_for(self._play(seen, scene), LONG), audience)
        return Act(bill=self.bill, frames=tuple(seen.frames), ending=ending)


def dice_of(seed: int) -> random.Random:
    """Return the dice of an act: the same seed rolls the same numbers."""
    return random.Random(seed)  # noqa: S311 - a show; nobody defends anything with it


def median(numbers: Sequence[float]) -> float:
    """Return the number that half of them stay within, 0 of nothing."""
    return sorted(numbers)[(len(numbers) - 1) // 2] if numbers else 0.0


def share(part: float, whole: float) -> float:
    """Return the part of a whole, 0 of nothing."""
    return part / whole if whole else 0.0
