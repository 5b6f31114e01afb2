"""`millpond COMMAND ...`: finds the command and hands it the rest of the line.

A command is a module with `main(arguments) -> int` and its own parser. It is imported when it is
asked for: `millpond --version` does not pay for a worker.
"""

from __future__ import annotations

import importlib
import os
import sys

from millpond.cli.exits import Exit, Refusal
from millpond.cli.terminal_text import plain

TYPE_CHECKING = False
"""As `typing` has it, which takes longer to import than the rest of this."""

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

COMMANDS = {
    "worker": "run the tasks of an application, until told to stop",
    "run": "run a command for each item, and keep what became of each: a durable xargs",
    "pools": "the pools of a store: what runs, what waits, and for how long",
    "tasks": "tasks by pool, status, key and age, page by page",
    "task": "one task: its attempts, errors and times, and why it does not run",
    "dead": "tasks that failed for good",
    "top": "watch the pools live; pause and resume them by a key",
    "serve": "the dashboard and the HTTP API of a store, in a browser and for every language",
    "pause": "start nothing more, of a pool, a lane or a key",
    "resume": "start work again",
    "resize": "change how many tasks of a pool may run at a time",
    "purge": "cancel everything that waits in a pool, a lane or of a key",
    "cancel": "cancel tasks, waiting or running",
    "redrive": "queue failed or cancelled tasks again",
    "cron": "the schedules of a store, and when each fires next; pause, resume and remove them",
    "triggers": "the triggers of a store: what each is for, and what became of its events",
    "emit": "tell the triggers of a store what happened",
    "events": "what happened, and which triggers it was for",
    "replay": "send an event to its triggers again; they find the tasks they made of it",
    "audit": "what happened, as JSON Lines; --follow goes on",
    "doctor": "look at a store, and say what is wrong or risky",
    "migrate": "bring the tables of a store up to this release",
    "bench": "measure what the place of a store can do",
    "demo": "see pools and a bulkhead at work, in a quarter of a minute",
    "completion": "make a shell complete all of this",
}
"""Every command, and what it does."""

ELSEWHERE = {
    "dead": "tasks",
    **dict.fromkeys(("triggers", "emit", "replay"), "events"),
    **dict.fromkeys(("pause", "resume", "resize", "purge", "cancel", "redrive"), "control"),
}
"""Modules of several commands; there each has its own name instead of `main`."""

EXTRA = ("click", "rich")
"""What comes with the extra `cli`."""

ASKED_TO_COMPLETE = "_MILLPOND_COMPLETE"
"""What a shell sets that wants to know how a line could go on."""


def parser() -> argparse.ArgumentParser:
    """Return the command line in front of the command."""
    import argparse

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
        if ASKED_TO_COMPLETE in os.environ:
            return int(found("completion", "complete")())
        if given and given[0] in COMMANDS:
            return int(found(given[0])(given[1:]))
        return tell_version() if given == ["--version"] else _without_command(given)
    except Refusal as refusal:
        name = given[0] if given and given[0] in COMMANDS else ""
        complain(f"millpond {name}".strip(), refusal)
        return refusal.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read what was written has read enough.
        return Exit.CLEAN


def found(name: str, function: str = "main") -> Callable[..., Any]:
    """Return what carries out a command; what it needs may be one of the extras."""
    module = ELSEWHERE.get(name, name)
    try:
        return getattr(  # type: ignore[no-any-return]
            importlib.import_module(f"millpond.cli.{module}"), function if module == name else name
        )
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        message = f"this needs the package {error.name}: run `pip install 'millpond[cli]'`"
        raise Refusal(Exit.USAGE, message) from None


def tell_version() -> int:
    """Print the version."""
    from millpond import __version__

    sys.stdout.write(f"millpond {__version__}\n")
    return Exit.CLEAN


def _without_command(given: list[str]) -> int:
    options = parser()
    asked = options.parse_args(given)
    if asked.version:
        return tell_version()
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
