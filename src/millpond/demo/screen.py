"""Screens: print the demo as plain lines, or play it on a terminal and print it at the end."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import msgspec

from millpond.demo.drawing import Pen, glyphs_for, trimmed
from millpond.demo.playback_clock import Audience
from millpond.demo.report import PIECES, Show, give
from millpond.demo.scenes import Act, Camera, Piece, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.demo.drawing import Line
    from millpond.demo.scenes import Scene

F = TypeVar("F")

PLAIN_WIDTH = 80
READING = 1.6
"""Seconds for which the end of an act stays, at normal speed."""


def written(show: Show, pen: Pen) -> list[Line]:
    """Return the demo as lines: the key frame of each act, then the summary."""
    lines: list[Line] = []
    for piece, act in zip(PIECES, show.acts, strict=True):
        lines += [*pen.played(act, place_of(piece)), []]
    return [*lines, *pen.summary(show)]


def place_of(piece: Piece[Any]) -> str:
    """Return which act of how many it is."""
    return f"{PIECES.index(piece) + 1}/{len(PIECES)}"


class PlainScreen:
    """Lines of text and nothing else, as fast as they can be written."""

    def __init__(self, out: TextIO, width: int = PLAIN_WIDTH) -> None:
        self._out = out
        self._pen = Pen(width, glyphs_for(out.encoding))

    def play(self, scene: Scene) -> Show:
        """Print each act when it is over, and the summary."""
        show = give(msgspec.structs.replace(scene, speed=None), self._perform)
        self._print(self._pen.summary(show))
        return show

    def _perform(self, piece: Piece[F], scene: Scene, /) -> Act[F]:
        act = piece.perform(scene)
        self._print([*self._pen.played(act, place_of(piece)), []])
        return act

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            self._out.write("".join(text for text, _ in trimmed(line)) + "\n")
        self._out.flush()


STYLES = {
    Tone.PLAIN: "",
    Tone.STRONG: "1",
    Tone.QUIET: "2",
    Tone.BUSY: "36",
    Tone.WAIT: "33",
    Tone.GOOD: "32",
    Tone.BAD: "31",
    Tone.ONE: "36",
    Tone.TWO: "32",
    Tone.THREE: "35",
}
"""Colours that are readable on white and on black; plain text has none."""

COLOURS = frozenset(tone for tone, style in STYLES.items() if style.startswith("3"))

FOOT = "  Ctrl-C leaves"
ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[2J"
HOME = "\x1b[H"
ERASE_LINE = "\x1b[2K"


class LiveScreen:
    """A terminal: acts play on its alternate screen; the results are printed on the main screen."""

    def __init__(self, out: TextIO, *, colour: bool) -> None:
        self._out = out
        self._colour = colour
        self._size = os.terminal_size((0, 0))

    def play(self, scene: Scene) -> Show:
        """Play every act, then print the show with its summary."""
        if scene.speed is None:
            show = give(scene)
        else:
            with self._second_page():
                show = give(scene, self._perform)
        lines = written(show, self._pen(self._measured()))
        self._out.write("".join(self._painted(line) + "\n" for line in lines))
        self._out.flush()
        return show

    def _perform(self, piece: Piece[F], scene: Scene, /) -> Act[F]:
        camera, place = Camera(), place_of(piece)
        speed = scene.speed or 1.0

        def paint(said: str | None = None) -> None:
            frame = camera.frames[-1] if camera.frames else None
            rows, at = (frame.rows, frame.at) if frame else ((), 0.0)
            size = self._measured()
            facts = f"{at:4.1f} s"
            pen = self._pen(size)
            lines = pen.act(piece.bill, place, rows, facts=facts, said=said)
            if len(lines) > size.lines:
                bill = msgspec.structs.replace(piece.bill, code=())
                lines = pen.act(bill, place, rows, facts=facts, said=said)
            self._repaint(lines, size)

        act = piece.perform(scene, camera=camera, audience=Audience(speed, paint))
        over = time.monotonic() + READING / speed
        while time.monotonic() < over:
            paint(act.ending.said)
            time.sleep(min(0.1, READING / speed))
        return act

    def _repaint(self, lines: list[Line], size: os.terminal_size) -> None:
        """Redraw the screen in one write; clear it first if its size has changed."""
        fresh = CLEAR if size != self._size else ""
        self._size = size
        spare = size.lines - len(lines)
        if spare > 1:
            lines = [*lines, *([[]] * (spare - 1)), [(FOOT, Tone.QUIET)]]
        shown = [ERASE_LINE + self._painted(line, size.columns) for line in lines[: size.lines]]
        self._out.write(fresh + HOME + "\r\n".join(shown))
        self._out.flush()

    @contextlib.contextmanager
    def _second_page(self) -> Iterator[None]:
        """Use the alternate screen without a cursor, and restore the main screen afterwards."""
        try:
            self._out.write(ENTER)
            yield
        finally:
            self._out.write(LEAVE)
            self._out.flush()

    def _measured(self) -> os.terminal_size:
        """Return the current size of the terminal, which may change while the demo runs."""
        try:
            size = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return os.terminal_size((PLAIN_WIDTH, 24))
        return size if size.columns and size.lines else os.terminal_size((PLAIN_WIDTH, 24))

    def _pen(self, size: os.terminal_size) -> Pen:
        return Pen(size.columns, glyphs_for(self._out.encoding))

    def _painted(self, line: Line, width: int | None = None) -> str:
        pieces, used = [], 0
        for text, tone in trimmed(line):
            part = text if width is None else text[: max(0, width - used)]
            used += len(part)
            style = STYLES[tone] if self._colour or tone not in COLOURS else ""
            pieces.append(f"\x1b[{style}m{part}\x1b[0m" if style and part.strip() else part)
        return "".join(pieces)


def screen_for(out: TextIO, *, plain: bool) -> PlainScreen | LiveScreen:
    """Return the best screen that `out` can be: live on a terminal, else plain."""
    if plain or not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainScreen(out)
    return LiveScreen(out, colour=not os.environ.get("NO_COLOR"))
