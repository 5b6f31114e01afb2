"""`millpond demo`: the same as `python -m millpond.demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.demo.__main__ import main as give

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Give the show."""
    return give(arguments, prog="millpond demo")
