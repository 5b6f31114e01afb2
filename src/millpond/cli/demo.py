"""`millpond demo`: the same as `python -m millpond.demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.demo import __main__ as demo

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """Return the command line of the show."""
    return demo.parser("millpond demo")


def main(arguments: Sequence[str]) -> int:
    """Give the show."""
    return demo.main(arguments, prog="millpond demo")
