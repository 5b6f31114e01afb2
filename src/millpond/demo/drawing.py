"""Draw pictures and text as lines, each piece with its tone."""

from __future__ import annotations

import textwrap
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from millpond.demo.scenes import Bar, Columns, Legend, Note, Stack, Strip, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.demo.report import Show
    from millpond.demo.scenes import Act, Bill, Promise, Row

Line: TypeAlias = list[tuple[str, Tone]]

NARROWEST, WIDEST = 36, 116
MARGIN = 2
TAIL, SHORT_TAIL = 36, 13
"""Columns reserved for the text behind a bar, in one column and in two."""
NUMBERS = 12
GAP = 3
TWO_COLUMNS = 72
"""Two pictures are side by side from this width on."""


class Glyphs(msgspec.Struct, frozen=True):
    """The characters bars are made of."""

    full: str
    half: str
    light: str
    limit: str
    rule: str


UNICODE = Glyphs("█", "▒", "░", "│", "─")
ASCII = Glyphs("#", "=", ":", "|", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the finest glyphs that can be written in an encoding."""
    try:
        "".join(msgspec.structs.astuple(UNICODE)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


class Pen:
    """Draws a show as lines no longer than `width`."""

    def __init__(self, width: int, glyphs: Glyphs = UNICODE) -> None:
        self.width = max(NARROWEST, min(width, WIDEST))
        self.glyphs = glyphs

    def act(
        self, bill: Bill, place: str, rows: Sequence[Row], *, facts: str = "", said: str | None
    ) -> list[Line]:
        """Draw an act at one moment; add the conclusion once it has ended."""
        lines = self._ruled(f"{place}  {bill.title}", facts, Tone.STRONG)
        lines += wrapped(bill.words, self.width, MARGIN, Tone.PLAIN)
        lines += [[(f"{' ' * MARGIN}{line}"[: self.width], Tone.QUIET)] for line in bill.code]
        lines += [[], *drawn(rows, self.width, self.glyphs)]
        if said is not None:
            lines += [[], *wrapped(said, self.width, MARGIN, Tone.STRONG)]
        return lines

    def played(self, act: Act[Any], place: str) -> list[Line]:
        """Draw an act that is over: its key frame and its conclusion."""
        frame = act.key_frame
        facts = "" if frame is act.frames[-1] else f"after {frame.at:.1f} s"
        return self.act(act.bill, place, frame.rows, facts=facts, said=act.ending.said)

    def summary(self, show: Show) -> list[Line]:
        """Draw each promise beside its measured value, and links to read next."""
        promises = show.promises
        broken = sum(not promise.kept for promise in promises)
        column = max(len(promise.promise) for promise in promises) + 2
        verdict = f"{broken} of {len(promises)} BROKEN" if broken else "every one kept"
        tone = Tone.BAD if broken else Tone.STRONG
        lines = self._ruled(f"Promised, and seen: {verdict}", f"seed {show.seed}", tone)
        lines += [*wrapped(show.headline, self.width, MARGIN, Tone.STRONG), []]
        for promise in promises:
            lines += self._promise(promise, column)
        where = "Next: README.md for what is guaranteed, docs/index.md for the rest"
        return [*lines, [], *wrapped(where, self.width, MARGIN, Tone.QUIET)]

    def _ruled(self, text: str, facts: str, tone: Tone) -> list[Line]:
        tail = f" {facts}" if facts and len(text) + len(facts) + 2 <= self.width else ""
        rule = self.glyphs.rule * (self.width - len(text) - len(tail) - 1)
        return [[(f"{text} "[: self.width], tone), (rule + tail, Tone.QUIET)]]

    def _promise(self, promise: Promise, column: int) -> list[Line]:
        mark = ("ok  ", Tone.GOOD) if promise.kept else ("NO  ", Tone.BAD)
        tone = Tone.PLAIN if promise.kept else Tone.BAD
        head: Line = [(" " * MARGIN, Tone.PLAIN), mark]
        indent = MARGIN + len(mark[0])
        if indent + column + len(promise.seen) <= self.width:
            return [[*head, (promise.promise.ljust(column), tone), (promise.seen, tone)]]
        first, *more = wrapped(promise.promise, self.width, indent, tone)
        return [
            [*head, (first[0][0].strip(), tone)],
            *more,
            *wrapped(promise.seen, self.width, indent + 2, tone),
        ]


def drawn(
    rows: Sequence[Row], width: int, glyphs: Glyphs = UNICODE, tail: int | None = None
) -> list[Line]:
    """Draw a picture: rows that share one column of labels."""
    label = max((len(label_of(row)) for row in rows), default=0) + 2
    brush = Brush(width, glyphs, label, min(TAIL, width // 2) if tail is None else tail)
    return [line for row in rows for line in brush.row(row)]


def label_of(row: Row) -> str:
    """Return the label left of a row."""
    return row.label if isinstance(row, Bar | Stack | Strip) else ""


class Brush:
    """Draws rows: label, bar, text."""

    def __init__(self, width: int, glyphs: Glyphs, label: int, tail: int) -> None:
        self._width = width
        self._glyphs = glyphs
        self._label_room = label
        self._tail_room = tail
        self._room = max(6, width - MARGIN - label - tail)

    def row(self, row: Row) -> list[Line]:
        """Draw one row, in one line or several."""
        match row:
            case Bar():
                return [self._bar(row)]
            case Stack():
                return [self._stack(row)]
            case Legend():
                return [self._legend()]
            case Strip():
                return list(self._strip(row))
            case Note():
                return wrapped(row.text, self._width, MARGIN, row.tone)
            case Columns():
                return self._columns(row)

    def _columns(self, columns: Columns) -> list[Line]:
        if self._width < TWO_COLUMNS:
            both = (columns.left, columns.right)
            return [line for rows in both for line in drawn(rows, self._width, self._glyphs)]
        half = (self._width - GAP) // 2
        left, right = (
            drawn(rows, half, self._glyphs, SHORT_TAIL) for rows in (columns.left, columns.right)
        )
        nothing: Line = []
        return [
            [*one, (" " * (half + GAP - length(one)), Tone.PLAIN), *other]
            for one, other in zip_longest(left, right, fillvalue=nothing)
        ]

    def _bar(self, bar: Bar) -> Line:
        size = self._room
        full, peak = (cells(part, bar.top, size) for part in (bar.value, bar.peak))
        drawing = self._glyphs.full * full + self._glyphs.light * max(0, peak - full)
        drawing = drawing.ljust(size)
        line: Line = [self._label(bar.label)]
        if bar.limit is None:
            line.append((drawing, bar.tone))
        else:
            at = min(size - 1, cells(bar.limit, bar.top, size))
            line += [
                (drawing[:at], bar.tone),
                (self._glyphs.limit, Tone.PLAIN),
                (drawing[at + 1 :], bar.tone),
            ]
        return [*line, self._tail(bar.tail)]

    def _stack(self, stack: Stack) -> Line:
        size = self._width - MARGIN - self._label_room - NUMBERS
        counts = (stack.done, stack.running, stack.queued)
        shades = (self._glyphs.full, self._glyphs.half, self._glyphs.light)
        drawing = ""
        for count, upto, shade in zip(counts, accumulate(counts), shades, strict=True):
            least = len(drawing) + (count > 0)
            drawing = drawing.ljust(max(least, cells(upto, stack.top, size)), shade)[:size]
        numbers = "".join(f"{count:>4}" for count in counts)
        return [
            self._label(stack.label),
            (drawing.ljust(size), stack.tone),
            (numbers, Tone.PLAIN),
        ]

    def _legend(self) -> Line:
        glyphs = self._glyphs
        shades = f"{glyphs.full} done  {glyphs.half} running  {glyphs.light} queued"
        return [(words(f"{' ' * MARGIN}{shades}", self._width), Tone.QUIET)]

    def _strip(self, strip: Strip) -> Iterator[Line]:
        """Draw letters in as few lines as possible."""
        room = self._width - MARGIN - self._label_room
        length = max(strip.length, len(strip.letters))
        lines = -(-length // room)
        size = -(-length // lines)
        for number in range(lines):
            part = strip.letters[number * size : (number + 1) * size]
            label = self._label(strip.label if number == 0 else "")
            yield [label, *((one, strip.tone(one)) for one in part)]

    def _label(self, label: str) -> tuple[str, Tone]:
        return " " * MARGIN + label.ljust(self._label_room), Tone.QUIET

    def _tail(self, text: str) -> tuple[str, Tone]:
        return f" {words(text, self._tail_room - 1)}", Tone.PLAIN


def wrapped(text: str, width: int, indent: int, tone: Tone) -> list[Line]:
    """Return a text as lines that fit, all of them indented."""
    parts = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
    if len(text) + indent <= width:
        parts = [text]
    return [[(" " * indent + part, tone)] for part in parts]


def trimmed(line: Line) -> Line:
    """Return a line without the blanks at its end."""
    kept = list(line)
    while kept:
        text, tone = kept.pop()
        if text.rstrip():
            return [*kept, (text.rstrip(), tone)]
    return []


def length(line: Line) -> int:
    """Return how many columns a line takes."""
    return sum(len(text) for text, _ in line)


def cells(value: float, top: float, size: int) -> int:
    """Return how many cells of a bar a value fills: 0 for zero, at least 1 otherwise."""
    return max(int(value > 0), min(size, round(value / top * size)))


def words(text: str, width: int) -> str:
    """Return as many whole words of a text as fit."""
    return text if len(text) <= width else text[: width + 1].rpartition(" ")[0].rstrip(" ,:")
