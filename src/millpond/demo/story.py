"""What an act is made of: scenes to look at, figures to read, promises that were kept or not.

Acts run on virtual time and answer with these values; nothing here knows a terminal.
"""

from __future__ import annotations

import asyncio
import random
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

import msgspec

F = TypeVar("F")


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
    tail: str = ""
    tone: Tone = Tone.BUSY


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in a row, each in its own tone: an order of starts, or a line of time."""

    label: str
    letters: str
    tones: dict[str, Tone]
    length: int
    """How long it will be in the end, so that the picture keeps its height while it grows."""
    is_time: bool = False
    """Whether each letter is a moment; then it is squeezed, not wrapped, where there is no room."""

    def tone(self, letter: str) -> Tone:
        """Return the tone of a letter."""
        return self.tones.get(letter, Tone.PLAIN)


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """A small curve of numbers between 0 and `top`."""

    label: str
    values: tuple[float, ...]
    top: float
    length: int
    tail: str = ""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at a moment."""

    at: float
    text: str
    tone: Tone = Tone.PLAIN


Row: TypeAlias = Bar | Strip | Spark | Note


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The picture at one moment, in virtual seconds since the scene began."""

    at: float
    rows: tuple[Row, ...]


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Frames in order of time, under a title and the code that they show."""

    title: str
    code: str
    frames: tuple[Frame, ...]
    said: str
    """What to take away from it, in a sentence."""
    seconds: float
    """How long to show it at normal speed."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of the library, what was seen of it, and whether that is what was claimed."""

    promise: str
    seen: str
    kept: bool


class Act(msgspec.Struct, Generic[F], frozen=True, kw_only=True):
    """One half of the show."""

    title: str
    scenes: tuple[Scene, ...]
    promises: tuple[Promise, ...]
    figures: F


class Camera:
    """Keeps a frame for each moment at which something changed, and the notes so far."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._start = self._clock()
        self._frames: list[Frame] = []
        self._notes: list[Note] = []

    @property
    def at(self) -> float:
        """Virtual seconds since the scene began."""
        return self._clock() - self._start

    def note(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Write a line that stays in the picture from here on."""
        self._notes.append(Note(at=self.at, text=text, tone=tone))

    def take(self, *rows: Row) -> None:
        """Keep the picture of this moment; a later one of the same moment replaces it."""
        if self._frames and self._frames[-1].at == self.at:
            self._frames.pop()
        self._frames.append(Frame(at=self.at, rows=(*rows, *self._notes)))

    def frames(self) -> tuple[Frame, ...]:
        """Return what was kept, in order of time."""
        return tuple(self._frames)


def dice_of(seed: int) -> random.Random:
    """Return the dice of a show: the same seed rolls the same numbers."""
    return random.Random(seed)  # noqa: S311 - a show; nobody defends anything with it


def mean(numbers: list[float]) -> float:
    """Return the mean, 0 of nothing."""
    return sum(numbers) / len(numbers) if numbers else 0.0
