"""The command line of `millpond run`."""

from __future__ import annotations

import argparse

from millpond.cli.run import options as words
from millpond.cli.run.exits import RunExit
from millpond.cli.run.template import MEANINGS

USAGE = """\
millpond run [OPTIONS] [--] COMMAND [ARGUMENT ...] [::: ITEM ...]
       millpond run --failed | --show ITEM | --list [--store FILE] [--json]"""

REPLACED = "replacement strings:\n" + "\n".join(
    f"  {name:<5} {meaning}" for name, meaning in MEANINGS.items()
)

SIGNALS = """\
signals:
  The first Ctrl-C (SIGINT), SIGTERM or SIGHUP lets what runs end, and starts nothing more. A
  second one kills what runs; it will be run again. A third leaves at once."""


def parser() -> argparse.ArgumentParser:
    """Return the command line of a run."""
    codes = "\n".join(f"  {code:<3}  {code.meaning}" for code in RunExit)
    made = argparse.ArgumentParser(
        prog="millpond run",
        usage=USAGE,
        description="Run a command for each item, many at a time, and keep what became of each: "
        "an xargs\nthat can be killed. Items are lines of the standard input, or are given by -a "
        "or behind `:::`.",
        epilog=f"{REPLACED}\n\n{SIGNALS}\n\nexit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="what to run; replacement strings stand for the item, which comes last if there is "
        "none of them. An item is an argument, never shell text",
    )
    _add_items(made)
    _add_course(made)
    _add_output(made)
    _add_looking(made)
    return made


def _add_items(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-a", "--arg-file", metavar="FILE", help="read items from this file (- is standard input)"
    )
    ends = made.add_mutually_exclusive_group()
    ends.add_argument(
        "-0", "--null", action="store_true", help="items end with a NUL, as find -print0 writes"
    )
    ends.add_argument(
        "-d",
        "--delimiter",
        type=words.delimiter,
        metavar="C",
        help=r"items end with this character (default: \n, and empty lines are left out)",
    )
    made.add_argument(
        "-I", dest="replace", default="{}", metavar="TEXT", help="what stands for the item"
    )
    made.add_argument(
        "--shell",
        action="store_true",
        help="the command is a script for /bin/sh; the item is its $1, and one word where {} is",
    )
    made.add_argument(
        "-r", "--no-run-if-empty", action="store_true", help="as ever: without items nothing runs"
    )


def _add_course(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-j",
        "-P",
        "--jobs",
        type=words.jobs,
        default=words.jobs("100%"),
        metavar="N",
        help="run N at a time; 150%% or +2 go by the number of cores, 0 is all at once (default: "
        "as many as there are cores)",
    )
    made.add_argument(
        "--retries",
        type=words.whole,
        default=0,
        metavar="N",
        help="try a command that fails N times more (default: 0)",
    )
    made.add_argument(
        "--retry-delay",
        type=words.pause,
        default=1.0,
        metavar="TIME",
        help="before the first retry; doubled with each, up to a minute (default: 1)",
    )
    made.add_argument(
        "--timeout",
        type=words.seconds,
        metavar="TIME",
        help="a command that runs for longer has failed, and is killed with all it started "
        "(30, 1.5, 5m, 2h)",
    )
    made.add_argument(
        "--key", metavar="TEXT", help="what limits per key count by, such as {//} for the folder"
    )
    made.add_argument(
        "--key-regex",
        type=words.pattern,
        metavar="REGEX",
        help="the same from the item: the first group, such as '//([^/]+)' for a host; items "
        "that do not match have no limit",
    )
    made.add_argument(
        "--per-key", type=words.count, metavar="N", help="run at most N of a key (default: 1)"
    )
    made.add_argument(
        "--rate", type=words.rate, metavar="RATE", help="start so many: 10/s, 100/m, 1/30s"
    )
    made.add_argument(
        "--rate-per-key", type=words.rate, metavar="RATE", help="start so many of each key"
    )
    made.add_argument(
        "--resume",
        action="store_true",
        help="go on with the last run of this command: only what has not ended, and items that "
        "are new",
    )
    made.add_argument(
        "--resume-failed", action="store_true", help="the same, and try again what failed"
    )
    made.add_argument(
        "--store",
        metavar="FILE",
        help="keep the run in this file, and beside it (default: a new one in "
        "$XDG_STATE_HOME/millpond/run, kept for a month)",
    )
    made.add_argument(
        "--halt",
        type=words.halt,
        metavar="WHEN",
        help="end early: now,fail=1 kills what runs when the first fails, soon,fail=10%% starts "
        "nothing more when a tenth has; also success= and done= (default: never)",
    )
    made.add_argument(
        "--dry-run", action="store_true", help="print the commands, and run and keep nothing"
    )


def _add_output(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-k", "--keep-order", action="store_true", help="print output in the order of the items"
    )
    made.add_argument("--tag", action="store_true", help="begin each line of output with its item")
    made.add_argument(
        "-t", "--verbose", action="store_true", help="print each command to stderr as it starts"
    )
    made.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no summary on stderr"
    )


def _add_looking(made: argparse.ArgumentParser) -> None:
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--show",
        metavar="ITEM",
        help="print the output that is kept of an item of the last run: by its number or its "
        "text, or of all; with a command, of the last run of that",
    )
    which.add_argument("--failed", action="store_true", help="print which items of it failed")
    which.add_argument("--list", action="store_true", help="print the runs that are kept")
    made.add_argument(
        "--json", action="store_true", help="print what --show, --failed and --list tell as JSON"
    )
