"""The command line of `millpond run`."""

from __future__ import annotations

import argparse

from millpond.cli.run import options as parse
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
  The first Ctrl-C (SIGINT), SIGTERM or SIGHUP starts no more commands and waits for those that
  run. A second signal kills them; --resume runs them again. A third signal exits at once."""


def parser() -> argparse.ArgumentParser:
    """Return the command line of a run."""
    codes = "\n".join(f"  {code:<3}  {code.meaning}" for code in RunExit)
    made = argparse.ArgumentParser(
        prog="millpond run",
        usage=USAGE,
        description="Run a command for each item, many at a time, and store each result: an xargs "
        "that can\nbe killed and resumed. Items are lines of stdin, of the file of -a, or follow "
        "`:::`.",
        epilog=f"{REPLACED}\n\n{SIGNALS}\n\nexit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the command; replacement strings stand for the item, which comes last if there are "
        "none. An item is an argument, never shell text",
    )
    _add_items(made)
    _add_execution(made)
    _add_output(made)
    _add_showing(made)
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
        type=parse.delimiter,
        metavar="C",
        help=r"items end with this character (default: \n, and empty lines are left out)",
    )
    made.add_argument(
        "-I",
        dest="replace",
        default="{}",
        metavar="TEXT",
        help="the replacement string for the item",
    )
    made.add_argument(
        "--shell",
        action="store_true",
        help="the command is a script for /bin/sh; the item is $1, and one word in place of {}",
    )
    made.add_argument(
        "-r",
        "--no-run-if-empty",
        action="store_true",
        help="no effect; accepted for xargs compatibility",
    )


def _add_execution(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "-j",
        "-P",
        "--jobs",
        type=parse.jobs,
        default=parse.jobs("100%"),
        metavar="N",
        help="run N at a time; 150%% or +2 go by the number of cores, 0 is all at once (default: "
        "as many as there are cores)",
    )
    made.add_argument(
        "--retries",
        type=parse.whole_number,
        default=0,
        metavar="N",
        help="retry a failed command up to N times (default: 0)",
    )
    made.add_argument(
        "--retry-delay",
        type=parse.pause,
        default=1.0,
        metavar="TIME",
        help="pause before the first retry; doubled each time, up to a minute (default: 1)",
    )
    made.add_argument(
        "--timeout",
        type=parse.seconds,
        metavar="TIME",
        help="kill a command, and all it started, after this time; it has failed then "
        "(30, 1.5, 5m, 2h)",
    )
    made.add_argument(
        "--key", metavar="TEXT", help="the key that limits count by, such as {//} for the folder"
    )
    made.add_argument(
        "--key-regex",
        type=parse.pattern,
        metavar="REGEX",
        help="take the key from the item: the first group, such as '//([^/]+)' for a host; items "
        "that do not match have no limit",
    )
    made.add_argument(
        "--per-key", type=parse.count, metavar="N", help="run at most N of a key (default: 1)"
    )
    made.add_argument(
        "--rate",
        type=parse.rate,
        metavar="RATE",
        help="start at most this many: 10/s, 100/m, 1/30s",
    )
    made.add_argument(
        "--rate-per-key",
        type=parse.rate,
        metavar="RATE",
        help="start at most this many of each key",
    )
    made.add_argument(
        "--resume",
        action="store_true",
        help="continue the last run of this command: run only unfinished and new items",
    )
    made.add_argument(
        "--resume-failed", action="store_true", help="the same, and run failed items again"
    )
    made.add_argument(
        "--store",
        metavar="FILE",
        help="keep the run in this file and a folder beside it (default: a new one in "
        "$XDG_STATE_HOME/millpond/run, kept for a month)",
    )
    made.add_argument(
        "--halt",
        type=parse.halt,
        metavar="WHEN",
        help="end early: now,fail=1 kills all commands when the first fails, soon,fail=10%% starts "
        "no more when a tenth has failed; also success= and done= (default: never)",
    )
    made.add_argument("--dry-run", action="store_true", help="only print the commands")


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


def _add_showing(made: argparse.ArgumentParser) -> None:
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--show",
        metavar="ITEM",
        help="print the stored output of an item of the last run, by its number or text, or `all`; "
        "with a command, of the last run of that command",
    )
    which.add_argument(
        "--failed", action="store_true", help="print the failed items of the last run"
    )
    which.add_argument("--list", action="store_true", help="list the stored runs")
    made.add_argument(
        "--json", action="store_true", help="print --show, --failed and --list as JSON"
    )
