"""`millpond COMMAND ...`: finds the command and hands it the rest of the line.

A command is a module with `main(arguments) -> int` and its own parser. It is imported when it is
asked for: `millpond --version` does not pay for a worker.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

from millpond.cli.exits import Exit, Refusal
from millpond.cli.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "worker": "run the tasks of an application, until told to stop",
    "run": "run a command for each item, and keep what became of each: a durable xargs",
    "doctor": "look at a store, and say what is wrong or risky",
    "demo": "see pools and a bulkhead at work, in a quarter of a minute",
}
"""Every command, which is also its module, and what it does."""


def parser() -> argparse.ArgumentParser:
    """Return the command line in front of the command."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {does}" for name, does in COMMANDS.items())
    options = argparse.ArgumentParser(
        prog="millpond",
        usage="millpond [--help] [--version] COMMAND ...",
        description="Work pools for Python: bounded, fair, and honest about what they refuse.",
        epilog=f"commands:\n{listed}\n\n`millpond COMMAND --help` tells more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument("--version", action="store_true", help="print the version and leave")
    options.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    finally:
        let_go_of_streams()


def _run(given: list[str]) -> int:
    try:
        if given and given[0] in COMMANDS:
            command = importlib.import_module(f"millpond.cli.{given[0]}")
            return int(command.main(given[1:]))
        return _without_command(given)
    except Refusal as refusal:
        name = given[0] if given and given[0] in COMMANDS else ""
        complain(f"millpond {name}".strip(), refusal)
        return refusal.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _without_command(given: list[str]) -> int:
    options = parser()
    asked = options.parse_args(given)
    if asked.version:
        from millpond import __version__  # noqa: PLC0415 - looked up when it is asked for

        sys.stdout.write(f"millpond {__version__}\n")
        return Exit.CLEAN
    if asked.command is not None:
        options.error(f"no command {plain(asked.command)!r} (there are: {', '.join(COMMANDS)})")
    options.print_help()
    return Exit.USAGE


def complain(who: str, refusal: Refusal) -> None:
    """Say on stderr what the command cannot do, after the traceback of the user's own code."""
    if refusal.trace:
        sys.stderr.write(plain(refusal.trace, lines=True).rstrip("\n") + "\n")
    sys.stderr.write(f"{who}: {plain(refusal.message, lines=True)}\n")


def let_go_of_streams() -> None:
    """Write out what is left to say; where nobody listens any more, that is no failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Else the interpreter would try again as it ends, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
