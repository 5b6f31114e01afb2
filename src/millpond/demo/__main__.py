"""`python -m millpond.demo`: arguments in, a show out.

Exit codes: 0 every promise was kept, 1 one was broken, 2 the arguments are wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from millpond.demo.report import give
from millpond.demo.screen import screen_for

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT, BROKEN, INTERRUPTED, NOBODY_READS = 0, 1, 130, 141


def whole_number(text: str) -> int:
    """Return a seed, or say what a seed is."""
    if not text.isdecimal():
        message = f"{text!r} is not a whole number of 0 or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def factor(text: str) -> float:
    """Return a speed, or say what a speed is."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (speed > 0 and math.isfinite(speed)):
        message = f"{text!r} is not a number above 0"
        raise argparse.ArgumentTypeError(message)
    return speed


def parser(prog: str = "python -m millpond.demo") -> argparse.ArgumentParser:
    """Return the command line of the demo, under the name it was called by."""
    options = argparse.ArgumentParser(
        prog=prog,
        description="Pools and a bulkhead at work, in half a minute. Everything shown is "
        "checked: the exit code is 1 if a promise was broken.",
        epilog="With make: make demo ARGS='--fast --seed 7'",
        allow_abbrev=False,
    )
    options.add_argument(
        "--seed", type=whole_number, default=1, metavar="N", help="roll other dice (default 1)"
    )
    pace = options.add_mutually_exclusive_group()
    pace.add_argument(
        "--speed",
        type=factor,
        default=1.0,
        metavar="X",
        help="play X times as fast; below 1 is slower",
    )
    pace.add_argument("--fast", action="store_true", help="do not play, show how each act ends")
    form = options.add_mutually_exclusive_group()
    form.add_argument(
        "--plain", action="store_true", help="plain lines, as when the output is no terminal"
    )
    form.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m millpond.demo") -> int:
    """Give the show and return the exit code."""
    asked = parser(prog).parse_args(arguments)
    try:
        if asked.json:
            show = give(asked.seed)
            document = msgspec.json.format(msgspec.json.encode(show.report()), indent=2)
            sys.stdout.write(document.decode() + "\n")
        else:
            speed = None if asked.fast else asked.speed
            show = screen_for(sys.stdout, speed=speed, plain=asked.plain).play(asked.seed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; what is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    return KEPT if show.kept else BROKEN


if __name__ == "__main__":
    sys.exit(main())
