"""The parts of an act: pictures, figures and promises.

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

from millpond.core.service import Service
from millpond.demo.playback_clock import in_real_time, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.demo.playback_clock import Audience

F = TypeVar("F")

LONG = 60.0
"""Seconds after which an act that hangs ends the demo."""

QUICK = 4.0
"""Speed of real work without a viewer."""


class CannotGoOn(Exception):
    """The demo cannot run: no promise was broken, but it could not be checked."""


class Tone(StrEnum):
    """The meaning of a piece of the picture; the screen maps each tone to a colour."""

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
    """Position of a mark: a limit, or a promised share."""
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
    """The legend of the stacks below."""


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in a row, each in its own tone: an order of starts."""

    label: str
    letters: str
    tones: dict[str, Tone]
    length: int
    """Its final length, so that the picture keeps its height while it grows."""

    def tone(self, letter: str) -> Tone:
        """Return the tone of a letter."""
        return self.tones.get(letter, Tone.PLAIN)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A line of words."""

    text: str = ""
    tone: Tone = Tone.PLAIN


class Columns(msgspec.Struct, frozen=True):
    """Two pictures side by side; one above the other where there is no room."""

    left: tuple[Row, ...]
    right: tuple[Row, ...]


Row: TypeAlias = Bar | Stack | Legend | Strip | Note | Columns

BLANK = Note()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The picture at one moment, in seconds of the act's own clock since it began."""

    at: float
    rows: tuple[Row, ...]


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """The title and description of an act."""

    title: str
    words: str
    """The description, in a sentence or two."""
    code: tuple[str, ...]
    """The lines of Python that the act demonstrates."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise of the library, the measured value, and whether it was kept."""

    promise: str
    seen: str
    kept: bool


class Ending(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """The result of an act."""

    said: str
    """The conclusion, in a sentence."""
    promises: tuple[Promise, ...]
    figures: F
    key_frame: float | None = None
    """The time of the key frame, if it is not the last."""


class Act(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """An act that was played, with its frames and result."""

    bill: Bill
    frames: tuple[Frame, ...]
    ending: Ending[F]

    @property
    def key_frame(self) -> Frame:
        """The frame that is printed for the act."""
        moment = self.ending.key_frame
        if moment is None:
            return self.frames[-1]
        return min(self.frames, key=lambda frame: abs(frame.at - moment))


class Camera:
    """Records frames; the first is the beginning."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._began: float | None = None

    def take(self, rows: Sequence[Row]) -> None:
        """Record a frame; it replaces one of the same time."""
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        at = now - self._began
        if self.frames and self.frames[-1].at == at:
            self.frames.pop()
        self.frames.append(Frame(at=at, rows=tuple(rows)))


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an act."""

    seed: int
    file: Path
    """The SQLite file of all pools."""
    speed: float | None = None
    """Playback speed; None = without a viewer."""


class Piece(Service, Generic[F]):
    """An act that can be played: its description and its coroutine.

    One that starts processes plays in real time, because theirs is; the others in virtual time.
    """

    bill: Bill
    _play: Callable[[Camera, Scene], Coroutine[Any, Any, Ending[F]]]
    real: bool = False

    def perform(
        self, scene: Scene, *, camera: Camera | None = None, audience: Audience | None = None
    ) -> Act[F]:
        """Play the act to the end on its own event loop."""
        seen = camera or Camera()
        run = in_real_time if self.real else in_virtual_time
        ending = run(asyncio.wait_for(self._play(seen, scene), LONG), audience)
        return Act(bill=self.bill, frames=tuple(seen.frames), ending=ending)


def dice_of(seed: int) -> random.Random:
    """Return the random numbers of an act for a seed."""
    return random.Random(seed)  # noqa: S311 - not for security


def median(numbers: Sequence[float]) -> float:
    """Return the median, 0 if there are no values."""
    return sorted(numbers)[(len(numbers) - 1) // 2] if numbers else 0.0
