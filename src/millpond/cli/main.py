"""`millpond COMMAND ...`: find the command and pass it the other arguments.

A command is a module with `main(arguments) -> int` and its own parser. It is imported when it is
used: `millpond --version` does not import the worker.
"""

from __future__ import annotations

import importlib
import os
import sys

from millpond.cli.exits import Exit, Refusal
from millpond.core.escape import plain

TYPE_CHECKING = False
"""Stands in for `typing.TYPE_CHECKING`: importing `typing` takes longer than all else here."""

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

COMMANDS = {
    "worker": "run the tasks of an application until a signal stops it",
    "health": "ask a worker whether it is live and ready, for container probes",
    "run": "run a command for each item and store each result: a durable xargs",
    "submit": "submit a task by the names of its pool and function",
    "workers": "show workers: what each runs, and since when",
    "pools": "show pools: running and waiting tasks, waits and run times",
    "tasks": "list tasks by pool, status, function, key, label, error and age",
    "task": "show one task: attempts, errors, times, and why it does not run",
    "dead": "list failed tasks (dead letters)",
    "top": "watch pools live; pause, resume and resize them",
    "serve": "serve the dashboard and the HTTP API of a store",
    "pause": "stop starting tasks of a pool, a lane or a key",
    "resume": "start tasks of a pool, a lane or a key again",
    "resize": "change how many tasks of a pool may run at a time",
    "purge": "cancel all waiting tasks of a pool, a lane or a key",
    "cancel": "cancel tasks, waiting or running",
    "update": "change tasks that wait: start them now or later, priority, arguments",
    "redrive": "queue failed or cancelled tasks again",
    "cron": "show schedules and when each fires next; pause, resume, fire and remove them",
    "triggers": "show triggers: the events each takes, and how many it submitted",
    "emit": "emit an event to the triggers of a store",
    "events": "list events and the triggers that took them",
    "replay": "send an event to its triggers again; known tasks are not submitted twice",
    "audit": "print the audit log as JSON Lines; --follow waits for more",
    "doctor": "check a store, and report problems and risks",
    "migrate": "migrate the tables of a store to this release",
    "bench": "measure the speed of a store on this machine",
    "demo": "watch pools and a bulkhead at work, for 15 seconds",
    "docs": "print a page of the documentation, or what an error means",
    "completion": "print a script that makes a shell complete commands",
}
"""Every command and its description."""

MODULES = {
    "dead": "tasks",
    **dict.fromkeys(("triggers", "emit", "replay"), "events"),
    **dict.fromkeys(("pause", "resume", "resize", "purge", "cancel", "redrive"), "control"),
}
"""Modules of several commands: there, a command is the function of its own name."""

EXTRA = ("click", "rich")
"""The packages of the extra `cli`."""

COMPLETION_VARIABLE = "_MILLPOND_COMPLETE"
"""The environment variable that a shell sets to ask for completions."""


def parser() -> argparse.ArgumentParser:
    """Return the command line in front of the command."""
    import argparse

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {does}" for name, does in COMMANDS.items())
    options = argparse.ArgumentParser(
        prog="millpond",
        usage="millpond [--help] [--version] COMMAND ...",
        description="Work pools for Python: bounded, fair, and honest about what they refuse.",
        epilog=f"commands:\n{listed}\n\n`millpond COMMAND --help` describes each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_argument("--version", action="store_true", help="print the version and exit")
    options.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    finally:
        flush_streams()


def _run(given: list[str]) -> int:
    try:
        if COMPLETION_VARIABLE in os.environ:
            return int(load_command("completion", "complete")())
        if given and given[0] in COMMANDS:
            return int(load_command(given[0])(given[1:]))
        return print_version() if given == ["--version"] else _without_command(given)
    except Refusal as refusal:
        name = given[0] if given and given[0] in COMMANDS else ""
        print_refusal(f"millpond {name}".strip(), refusal)
        return refusal.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        return Exit.CLEAN


def load_command(name: str, function: str = "main") -> Callable[..., Any]:
    """Return the function of a command; refuse if a package of an extra is missing."""
    module = MODULES.get(name, name)
    try:
        return getattr(  # type: ignore[no-any-return]
            importlib.import_module(f"millpond.cli.{module}"), function if module == name else name
        )
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        message = f"this needs the package {error.name}: run `pip install 'millpond[cli]'`"
        raise Refusal(Exit.USAGE, message) from None


def print_version() -> int:
    """Print the version."""
    from millpond import __version__

    sys.stdout.write(f"millpond {__version__}\n")
    return Exit.CLEAN


def _without_command(given: list[str]) -> int:
    options = parser()
    parsed = options.parse_args(given)
    if parsed.version:
        return print_version()
    if parsed.command is not None:
        options.error(f"no command {plain(parsed.command)!r} (there are: {', '.join(COMMANDS)})")
    options.print_help()
    return Exit.USAGE


def print_refusal(who: str, refusal: Refusal) -> None:
    """Print a refusal to stderr, after the traceback of the user's own code."""
    if refusal.trace:
        sys.stderr.write(plain(refusal.trace, lines=True).rstrip("\n") + "\n")
    sys.stderr.write(f"{who}: {plain(refusal.message, lines=True)}\n")


def flush_streams() -> None:
    """Flush stdout and stderr. A closed pipe is no failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Otherwise the interpreter flushes again at exit, and changes the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
