"""A drawing of lines over minutes, as SVG: for people, by hand, with nothing to install."""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 46, 74
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = ("#0b6e4f", "#c8553d", "#3d5a98", "#8e6c8a", "#b08900")


class Line(NamedTuple):
    """One value for each minute."""

    name: str
    values: list[float]


def drawn(title: str, lines: list[Line], grey: tuple[int, int]) -> str:
    """Return the lines as SVG; the minutes between the two are marked."""
    most = max((value for line in lines for value in line.values), default=1.0) * 1.05 or 1.0
    minutes = max((len(line.values) for line in lines), default=1)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(minute: float, value: float) -> tuple[float, float]:
        return LEFT + across * minute / minutes, TOP + down * (1 - value / most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}</text>',
    ]
    (begin, top), (end, bottom) = at(grey[0], most), at(grey[1], 0.0)
    parts.append(
        f'<rect x="{begin:.1f}" y="{top:.1f}" width="{end - begin:.1f}" '
        f'height="{bottom - top:.1f}" fill="#eeeeee"/>'
    )
    step = _round_step(most / 5)
    for value in range(0, int(most) + 1, step):
        _, y = at(0, value)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
    for minute in range(minutes):
        x, y = at(minute + 0.5, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{minute + 1}</text>')
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in (at(m + 0.5, v) for m, v in enumerate(line.values))
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        x, y = LEFT + (number % 3) * 235, HEIGHT - 32 + (number // 3) * 18
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="14" height="6" fill="{colour}"/>'
            f'<text x="{x + 20}" y="{y}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _round_step(least: float) -> int:
    """Return the least of 1, 2, 5, 10, 20 and so on that is no smaller."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= least:
                return digit * power
        power *= 10
