"""Draws before and after as SVG, which is plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from docs.examples.llm_gateway.limits import Limits, windows
from docs.examples.llm_gateway.model import Entry
from docs.examples.llm_gateway.traffic import Book

WIDE, HIGH, LEFT, GAP = 330, 220, 62, 44
BEFORE, AFTER, INK, PALE = "#c2571a", "#1f6f8b", "#333", "#ddd"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Side:
    """One way to call the model, and its results."""

    name: str
    book: Book
    model: list[Entry]


class Panel:
    """A part of the drawing with its own axes."""

    def __init__(self, place: int, title: str, across: float, up: float) -> None:
        self._left = LEFT + place * (WIDE + LEFT + GAP)
        self._across, self._up = across, up
        self.parts = [
            _text(self._left, 24, title, weight="bold"),
            f'<path d="M{self._left} 40v{HIGH}h{WIDE}" fill="none" stroke="{INK}"/>',
        ]

    def x(self, value: float) -> float:
        """Return where a value is, from the left."""
        return round(self._left + WIDE * value / self._across, 1)

    def y(self, value: float) -> float:
        """Return where a value is, from above."""
        return round(40 + HIGH * (1 - min(value / self._up, 1.0)), 1)

    def line(self, points: Points, colour: str, *, dashed: bool = False) -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)
        style = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = f'fill="none" stroke="{colour}" stroke-width="2"{style}'
        self.parts.append(f'<path d="{path}" {stroke}/>')

    def bar(self, place: float, width: float, value: float, colour: str) -> None:
        """Draw a bar."""
        top = self.y(value)
        size = f'width="{WIDE * width / self._across:.1f}" height="{40 + HIGH - top:.1f}"'
        self.parts.append(f'<rect x="{self.x(place)}" y="{top}" {size} fill="{colour}"/>')

    def mark_x(self, value: float, words: str) -> None:
        """Write below the axis."""
        self.parts.append(_text(self.x(value), 40 + HIGH + 16, words, anchor="middle"))

    def mark_y(self, value: float, words: str) -> None:
        """Write beside the axis, and draw a thin line across."""
        y = self.y(value)
        across = f'<path d="M{self._left} {y}h{WIDE}" stroke="{PALE}"/>'
        self.parts.insert(1, across)
        self.parts.append(_text(self._left - 6, y + 4, words, anchor="end"))

    def note(self, words: str) -> None:
        """Write the label of the horizontal axis."""
        self.parts.append(_text(self._left + WIDE / 2, 40 + HIGH + 36, words, anchor="middle"))


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = INK,
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def drawn(before: Side, after: Side, limits: Limits) -> str:
    """Return the drawing."""
    panels = [
        _tokens(before, after, limits),
        _shares(before, after),
        _waits(before, after, limits),
    ]
    width = LEFT + len(panels) * (WIDE + LEFT + GAP) - GAP - LEFT // 2
    height = 40 + HIGH + 78
    legend = [
        f'<rect x="{x}" y="{height - 24}" width="12" height="12" fill="{colour}"/>'
        + _text(x + 18, height - 14, words)
        for x, colour, words in (
            (LEFT, BEFORE, "before: a semaphore, and a retry after each 429"),
            (LEFT + 340, AFTER, "after: the gateway"),
        )
    ]
    style = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *(part for panel in panels for part in panel.parts),
        *legend,
        "</svg>\n",
    ]
    return "\n".join(parts)


def _tokens(before: Side, after: Side, limits: Limits) -> Panel:
    """Draw how many tokens were requested in the minute before each point in time."""
    longest = max(side.book.ended - side.book.began for side in (before, after))
    title = f"Tokens asked for in the last minute (of {limits.minute:g} s)"
    panel = Panel(0, title, longest, 3.0 * limits.tokens)
    for part in range(4):
        panel.mark_y(part * limits.tokens, f"{part * limits.tokens // 1000}k")
    for second in range(0, int(longest) + 1, 10):
        panel.mark_x(second, str(second))
    panel.note("seconds; dashed: what is allowed; cut at three times that")
    panel.line([(0, limits.tokens), (longest, limits.tokens)], INK, dashed=True)
    for side, colour in ((before, BEFORE), (after, AFTER)):
        seen = windows(limits.minute, ((entry.at, entry.tokens) for entry in side.model))
        points = [(at - side.book.began, float(tokens)) for at, tokens in seen]
        within = [point for point in points if point[0] <= longest]
        panel.line(within[:: max(1, len(within) // 150)], colour)
    return panel


def _shares(before: Side, after: Side) -> Panel:
    """Draw what each tenant got, as a part of its fair share."""
    tenants = list(after.book.requests)
    panel = Panel(1, "Answered, as a part of the fair share", len(tenants), 2.0)
    for part in (0.5, 1.0, 1.5, 2.0):
        panel.mark_y(part, f"{part:.0%}")
    panel.line([(0, 0.9), (len(tenants), 0.9)], INK, dashed=True)
    for side, colour, shift in ((before, BEFORE, 0.15), (after, AFTER, 0.5)):
        served, fair = side.book.served(), side.book.fair()
        for place, tenant in enumerate(tenants):
            panel.bar(place + shift, 0.33, served[tenant] / fair[tenant], colour)
    for place, tenant in enumerate(tenants):
        panel.mark_x(place + 0.5, tenant)
    panel.note("tenants, who asks most first; dashed: 90 %; cut at 200 %")
    return panel


def _waits(before: Side, after: Side, limits: Limits) -> Panel:
    """Draw which part of the admitted requests had started after how many seconds."""
    panel = Panel(2, "Admitted requests that have begun", limits.deadline, 1.0)
    for part in (0.25, 0.5, 0.75, 1.0):
        panel.mark_y(part, f"{part:.0%}")
    for second in range(0, int(limits.deadline) + 1, 2):
        panel.mark_x(second, str(second))
    panel.note("seconds of waiting; who is given up has never begun")
    for side, colour in ((before, BEFORE), (after, AFTER)):
        admitted = [reply for reply in side.book.every() if reply.outcome != "refused"]
        waits = sorted(reply.waited for reply in admitted if reply.outcome == "answered")
        points = [(wait, (n + 1) / len(admitted)) for n, wait in enumerate(waits)]
        few = points[:: max(1, len(points) // 100)] + points[-1:]
        panel.line([(0.0, 0.0), *few, (limits.deadline, few[-1][1])], colour)
    return panel
