"""`python -m millpond.demo`: parse arguments and run the demo.

Exit codes: 0 every promise was kept, 1 one was broken, 2 the arguments are wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.demo import live_fleet
from millpond.demo.playback_clock import call_off
from millpond.demo.report import Show, give
from millpond.demo.scenes import CannotGoOn, Scene
from millpond.demo.screen import screen_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

KEPT, BROKEN, INTERRUPTED, PIPE_CLOSED = 0, 1, 130, 141


def whole_number(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal():
        message = f"{text!r} is not a whole number of 0 or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def factor(text: str) -> float:
    """Parse a speed."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (speed > 0 and math.isfinite(speed)):
        message = f"{text!r} is not a number above 0"
        raise argparse.ArgumentTypeError(message)
    return speed


def new_file(text: str) -> Path:
    """Parse the path of the store file; refuse one that cannot be created."""
    path = Path(text)
    if path.exists():
        message = f"{text!r} is there already; the show begins with a file of its own"
        raise argparse.ArgumentTypeError(message)
    if not path.parent.is_dir():
        message = f"there is no folder {str(path.parent)!r}"
        raise argparse.ArgumentTypeError(message)
    return path


def parser(prog: str = "python -m millpond.demo") -> argparse.ArgumentParser:
    """Return the parser of the demo."""
    options = argparse.ArgumentParser(
        prog=prog,
        description="A bulkhead, a fair pool, and three worker processes on a SQLite file of which "
        "one is killed, in a quarter of a minute. Everything shown is checked: the exit code is 1 "
        "if a promise was broken.",
        epilog="With make: make demo ARGS='--fast --seed 7'",
        allow_abbrev=False,
    )
    options.add_argument(
        "--seed", type=whole_number, default=1, metavar="N", help="roll other dice (default 1)"
    )
    options.add_argument(
        "--store",
        type=new_file,
        metavar="FILE",
        help="keep the pools in a new SQLite file, and leave it there (default: a temporary one)",
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
    form.add_argument(
        "--serve",
        action="store_true",
        help="run the worker processes without an end, and show them live in the dashboard "
        "(needs the extra server)",
    )
    options.add_argument(
        "--port",
        type=whole_number,
        default=8642,
        metavar="N",
        help="with --serve: where the dashboard listens (default 8642; 0 takes a free port)",
    )
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m millpond.demo") -> int:
    """Run the demo and return the exit code."""
    options = parser(prog).parse_args(arguments)
    # The demo shows the killed worker itself: log lines would break the picture.
    logging.getLogger("millpond").addHandler(logging.NullHandler())
    try:
        with ended_by_signals(), file_at(options.store) as file:
            scene = Scene(
                seed=options.seed, file=file, speed=None if options.fast else options.speed
            )
            if options.serve:
                serve_live(scene, options.port)
                return KEPT
            show = shown(scene, json=options.json, plain=options.plain)
    except CannotGoOn as error:
        sys.stderr.write(f"the demo cannot go on: {error}\n")
        return BROKEN
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The output pipe is closed: do not flush the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return KEPT if show.kept else BROKEN


def serve_live(scene: Scene, port: int) -> None:
    """Run the fleet and serve its dashboard until Ctrl-C."""

    live_fleet.check_extra()

    def started(address: str) -> None:
        sys.stdout.write(
            f"the dashboard: {address}\n"
            f"{live_fleet.WORKERS} worker processes share {scene.file}. "
            f"Every {live_fleet.KILL_EVERY:.0f} s one is killed, and another takes its place.\n"
            "Ctrl-C ends it.\n"
        )
        sys.stdout.flush()

    asyncio.run(live_fleet.serve_fleet(scene, port, started))


def shown(scene: Scene, *, json: bool, plain: bool) -> Show:
    """Run the demo, as JSON or on the best screen available."""
    if not json:
        return screen_for(sys.stdout, plain=plain).play(scene)
    show = give(msgspec.structs.replace(scene, speed=None))
    document = msgspec.json.format(msgspec.json.encode(show.report()), indent=2)
    sys.stdout.write(document.decode() + "\n")
    sys.stdout.flush()
    return show


@contextlib.contextmanager
def file_at(store: Path | None) -> Iterator[Path]:
    """Yield the folder of the store file: the given one, or a temporary one."""
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="millpond-demo-") as folder:
        yield Path(folder) / "work.db"


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """On SIGTERM or SIGHUP, end the workers and remove the folder before exiting."""
    received: list[int] = []

    def ended(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if not call_off():
            raise SystemExit(128 + number)

    numbers = [one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP")]
    before = {number: signal.signal(number, ended) for number in numbers}
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
