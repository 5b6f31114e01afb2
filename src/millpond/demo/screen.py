"""Drawing: scenes as lines of text, printed plainly or played on a terminal.

Both ways draw the same lines. The plain way prints the last frame of each scene; the live way
plays all frames first and leaves the last one standing.
"""

from __future__ import annotations

import textwrap
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

import msgspec

from millpond.demo.story import Bar, Note, Spark, Strip, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from millpond.demo.report import Show
    from millpond.demo.story import Frame, Promise, Row, Scene

Line: TypeAlias = list[tuple[str, Tone]]

PLAIN_WIDTH = 80
NARROWEST, WIDEST = 36, 100
MARGIN = 2
LABEL = 11
TAIL = 26
LONGEST_BAR = 40
FRAMES_PER_SECOND = 24
ONCE = "x!+"
BETWEEN_SCENES = 0.15


class Glyphs(msgspec.Struct, frozen=True):
    """The characters bars and curves are made of."""

    full: str
    light: str
    limit: str
    rule: str
    levels: str


UNICODE = Glyphs("█", "░", "│", "─", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("#", ":", "|", "-", "_.-=+*%#")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the finest glyphs that can be written in an encoding."""
    try:
        "".join(msgspec.structs.astuple(UNICODE)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


class Pen:
    """Draws values as lines no longer than `width`."""

    def __init__(self, width: int, glyphs: Glyphs = UNICODE) -> None:
        self.width = max(NARROWEST, min(width, WIDEST))
        self.glyphs = glyphs

    def opening(self, show: Show) -> list[Line]:
        """Draw the head of the show."""
        subject = "Millpond, at work"
        facts = f"virtual time, seed {show.seed}"
        gap = self.width - len(subject) - len(facts)
        if gap < 2:
            return [[(subject, Tone.STRONG)], [(facts, Tone.QUIET)]]
        return [[(subject, Tone.STRONG), (" " * gap + facts, Tone.QUIET)]]

    def heading(self, number: int, title: str) -> list[Line]:
        """Draw the head of an act."""
        return self._ruled(f"{number}. {title}", Tone.STRONG)

    def scene(self, scene: Scene, frame: Frame, *, ended: bool) -> list[Line]:
        """Draw one frame of a scene; the sentence at its end is there once it has ended."""
        lines: list[Line] = [[]]
        lines += self._text(scene.title, Tone.STRONG)
        if scene.code:
            lines += self._text(scene.code, Tone.QUIET)
        for row in frame.rows:
            lines += self._row(row)
        lines += self._text(scene.said if ended else "", Tone.GOOD)
        return lines

    def closing(self, promises: Sequence[Promise]) -> list[Line]:
        """Draw what was promised beside what was seen, and where to go from here."""
        broken = sum(not promise.kept for promise in promises)
        column = max(len(promise.promise) for promise in promises) + 2
        verdict = f"{broken} of {len(promises)} BROKEN" if broken else "every one kept"
        lines = self._ruled(f"Promised, and seen: {verdict}", Tone.BAD if broken else Tone.STRONG)
        for promise in promises:
            lines += self._promise(promise, column)
        lines += [
            [],
            [("Where next", Tone.STRONG)],
            *self._text("README.md                           what is guaranteed, and what not"),
            *self._text("docs/tutorial/01-first-bulkhead.md  your own, in twenty lines"),
        ]
        return lines

    def _ruled(self, text: str, tone: Tone) -> list[Line]:
        rule = self.glyphs.rule * (self.width - len(text) - 1)
        return [[], [(f"{text} ", tone), (rule, Tone.QUIET)]]

    def _promise(self, promise: Promise, column: int) -> list[Line]:
        mark = ("ok  ", Tone.GOOD) if promise.kept else ("NO  ", Tone.BAD)
        tone = Tone.QUIET if promise.kept else Tone.BAD
        head: Line = [(" " * MARGIN, Tone.PLAIN), mark]
        indent = MARGIN + len(mark[0])
        if indent + column + len(promise.seen) <= self.width:
            return [[*head, (promise.promise.ljust(column), Tone.PLAIN), (promise.seen, tone)]]
        first, *more = self._wrapped(promise.promise, indent, Tone.PLAIN)
        return [
            [*head, (first[0][0].strip(), Tone.PLAIN)],
            *more,
            *self._wrapped(promise.seen, indent + 2, tone),
        ]

    def _row(self, row: Row) -> list[Line]:
        match row:
            case Bar():
                return [self._bar(row)]
            case Strip():
                return list(self._strip(row))
            case Spark():
                return [self._spark(row)]
            case Note(at=at, text=text, tone=tone):
                return self._text(text, tone, label=f"{at:.1f} s")

    def _bar(self, bar: Bar) -> Line:
        size = max(6, min(LONGEST_BAR, self.width - MARGIN - LABEL - TAIL))
        full, peak = (_cells(part, bar.top, size) for part in (bar.value, bar.peak))
        light = max(0, peak - full)
        rest = size - full - light
        empty = " " * rest
        if bar.limit is not None:
            at = _cells(bar.limit, bar.top, size) - full - light
            if 0 <= at < rest:
                empty = " " * at + self.glyphs.limit + " " * (rest - at - 1)
        return [
            self._label(bar.label),
            (self.glyphs.full * full, bar.tone),
            (self.glyphs.light * light, bar.tone),
            (empty, Tone.QUIET),
            (f" {_cut(bar.tail, self.width - MARGIN - LABEL - size - 1)}", Tone.PLAIN),
        ]

    def _strip(self, strip: Strip) -> Iterator[Line]:
        """Draw letters in as few lines as will hold them all, or a line of time in one."""
        room = self.width - MARGIN - LABEL
        length = max(strip.length, len(strip.letters))
        if strip.is_time:
            letters = _squeezed(strip.letters, length, room)
            yield [self._label(strip.label), *((one, strip.tone(one)) for one in letters)]
            return
        lines = -(-length // room)
        size = -(-length // lines)
        for number in range(lines):
            part = strip.letters[number * size : (number + 1) * size]
            label = self._label(strip.label if number == 0 else "")
            yield [label, *((one, strip.tone(one)) for one in part)]

    def _spark(self, spark: Spark) -> Line:
        room = min(spark.length, self.width - MARGIN - LABEL - len(spark.tail) - 1)
        every = spark.length / room
        values = [
            spark.values[int(number * every)]
            for number in range(room)
            if int(number * every) < len(spark.values)
        ]
        top = len(self.glyphs.levels) - 1
        curve = "".join(
            self.glyphs.levels[min(top, int(value / spark.top * top + 0.5))] for value in values
        )
        return [
            self._label(spark.label),
            (curve.ljust(room), Tone.BUSY),
            (f" {spark.tail}", Tone.PLAIN),
        ]

    def _label(self, label: str) -> tuple[str, Tone]:
        return " " * MARGIN + label.ljust(LABEL)[:LABEL], Tone.QUIET

    def _text(self, text: str, tone: Tone = Tone.PLAIN, *, label: str = "") -> list[Line]:
        if not label:
            return self._wrapped(text, MARGIN, tone)
        first, *more = self._wrapped(text, MARGIN + LABEL, tone)
        return [[self._label(label), (first[0][0].strip(), tone)], *more]

    def _wrapped(self, text: str, indent: int, tone: Tone) -> list[Line]:
        if len(text) + indent <= self.width:
            return [[(" " * indent + text, tone)]]
        parts = textwrap.wrap(text, self.width - indent, break_on_hyphens=False)
        return [[(" " * indent + part, tone)] for part in parts]


def _cells(value: float, top: float, size: int) -> int:
    """Return how many cells of a bar a value fills: none for nothing, one for a little."""
    return max(int(value > 0), min(size, round(value / top * size)))


def _cut(text: str, width: int) -> str:
    """Return as many whole words of a text as fit."""
    return text if len(text) <= width else text[: width + 1].rpartition(" ")[0].rstrip(" ,")


def _squeezed(letters: str, length: int, room: int) -> str:
    """Return a line of time in fewer cells; the marks of what happened once are kept."""
    per_cell = -(-length // room)
    cells = (letters[at : at + per_cell] for at in range(0, len(letters), per_cell))
    return "".join(next((one for one in cell if one in ONCE), cell[0]) for cell in cells)


class Screen(Protocol):
    """Where a show is seen."""

    def play(self, show: Show) -> None:
        """Show it from beginning to end."""
        ...


class PlainScreen:
    """Lines of text and nothing else, as fast as they can be written."""

    def __init__(self, out: TextIO, width: int = PLAIN_WIDTH) -> None:
        self._out = out
        self._pen = Pen(width, glyphs_for(out.encoding))

    def play(self, show: Show) -> None:
        """Print the end of each scene."""
        self._print(self._pen.opening(show))
        for number, (title, scenes) in enumerate(show.acts, start=1):
            self._print(self._pen.heading(number, title))
            for scene in scenes:
                self._print(self._pen.scene(scene, scene.frames[-1], ended=True))
        self._print(self._pen.closing(show.promises))

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            self._out.write("".join(text for text, _ in line).rstrip() + "\n")
        self._out.flush()


STYLES = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.QUIET: "dim",
    Tone.BUSY: "cyan",
    Tone.WAIT: "yellow",
    Tone.GOOD: "green",
    Tone.BAD: "red",
    Tone.ONE: "blue",
    Tone.TWO: "green",
    Tone.THREE: "magenta",
}


class LiveScreen:
    """A terminal: each scene is played in place and stays when it has ended.

    Needs `rich`, which takes care of colours (NO_COLOR too), of the cursor and of resizing.
    """

    def __init__(self, console: Console, speed: float | None) -> None:
        self._console = console
        self._speed = speed
        """How many times faster than normal; None = without any waiting."""

    def play(self, show: Show) -> None:
        """Play every scene, then sum up."""
        self._print(self._pen.opening(show))
        for number, (title, scenes) in enumerate(show.acts, start=1):
            self._print(self._pen.heading(number, title))
            for scene in scenes:
                self._scene(scene)
        self._print(self._pen.closing(show.promises))

    @property
    def _pen(self) -> Pen:
        """A pen for the width of this moment: terminals are resized while one looks."""
        return Pen(self._console.width, glyphs_for(self._console.encoding))

    def _scene(self, scene: Scene) -> None:
        if self._speed is None:
            self._print(self._pen.scene(scene, scene.frames[-1], ended=True))
            return
        from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

        moments = [frame.at for frame in scene.frames]
        seconds = scene.seconds / self._speed
        with Live(console=self._console, auto_refresh=False) as live:
            began = time.monotonic()
            while (passed := (time.monotonic() - began) / seconds) < 1.0:
                frame = scene.frames[max(0, bisect_right(moments, passed * moments[-1]) - 1)]
                live.update(self._text(self._pen.scene(scene, frame, ended=False)), refresh=True)
                time.sleep(1 / FRAMES_PER_SECOND)
            last = self._pen.scene(scene, scene.frames[-1], ended=True)
            live.update(self._text(last), refresh=True)
        time.sleep(BETWEEN_SCENES / self._speed)

    def _print(self, lines: list[Line]) -> None:
        self._console.print(self._text(lines))

    def _text(self, lines: list[Line]) -> Text:
        from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

        text = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lines):
            text.append("\n" if number else "")
            for part, tone in line:
                text.append(part, STYLES[tone])
        return text


def screen_for(out: TextIO, *, speed: float | None, plain: bool) -> Screen:
    """Return the best screen that `out` can be: live on a terminal with rich, else plain."""
    if plain or not out.isatty():
        return PlainScreen(out)
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra; without it lines are plain
    except ImportError:
        return PlainScreen(out)
    console = Console(file=out, highlight=False, soft_wrap=False)
    if console.is_dumb_terminal:
        return PlainScreen(out)
    return LiveScreen(console, speed)
