"""`millpond demo`: the same as `python -m millpond.demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.demo import __main__ as demo

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """Return the parser of the demo."""
    return demo.parser("millpond demo")


def main(arguments: Sequence[str]) -> int:
    """Run the demo."""
    return demo.main(arguments, prog="millpond demo")
