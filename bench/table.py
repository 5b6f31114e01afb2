"""A benchmark's figures as people read them."""

from __future__ import annotations

import sys

from figures import Figure, Found, Target, cautious


def line_of(figure: Figure) -> str:
    """Return a figure as a line."""
    digits = 0 if figure.value >= 1_000 else 2
    note = f"  ({figure.note})" if figure.note else ""
    # What is ours is not rounded up: a rate down, a time or a size up.
    up = figure.unit not in ("/s", "x")
    return (
        f"  {figure.name:58} {cautious(figure.value, up=up, digits=digits):>12} {figure.unit}{note}"
    )


def verdict_of(target: Target) -> str:
    """Return a target as a line."""
    goal = "" if target.goal is None else f", goal {target.goal:g}"
    word = "MISSED" if not target.holds else "goal met" if target.reached else "met"
    value = cautious(target.value, up=target.least is None)
    return f"  {target.name:58} {value:>12} {target.unit} ({target.bound}{goal}) {word}"


def show(name: str, found: Found) -> None:
    """Print a section."""
    print(f"\n{name}")
    for figure in found.figures:
        print(line_of(figure))
    for what, reason in found.absent.items():
        print(f"  {what:58} NOT MEASURED: {reason}")
    for target in found.targets:
        print(verdict_of(target))
    sys.stdout.flush()
