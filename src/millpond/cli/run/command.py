"""`millpond run`: which of its errands is meant, and where the run is kept."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from millpond.cli.exits import Exit, Refusal
from millpond.cli.run.arguments import parser
from millpond.cli.run.exits import RunExit
from millpond.cli.run.template import Template, Text
from millpond.cli.terminal_text import plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from millpond.cli.run.run_store import About, Place


def main(arguments: Sequence[str]) -> int:
    """Run commands, or show what became of those that ran."""
    options, given, files = _parsed(arguments)
    try:
        if options.list or options.failed or options.show is not None:
            return asyncio.run(_look(options))
        if not options.command:
            _refuse("no command is given; to run each line as one: --shell 'eval \"$1\"'")
        template = Template(options.command, shell=options.shell, replace=options.replace)
        if options.dry_run:
            return asyncio.run(_dry_run(template, options, given, files))
        return _run(template, options, given, files)
    except BrokenPipeError:
        return RunExit.PIPE


def _parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str] | None, str | None]:
    """Return the options, and items or a file of items from the end of the line."""
    line, mark, rest = _split(list(arguments))
    made = parser()
    options = made.parse_args(line)
    if options.command[:1] == ["--"]:
        del options.command[0]
    _check(made, options, mark)
    if mark == "::::":
        if len(rest) != 1:
            made.error(":::: takes one file of items")
        return options, None, rest[0]
    return options, rest if mark else None, options.arg_file


def _split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the line up to `:::` or `::::`, that, and what follows."""
    marks = [at for at, one in enumerate(arguments) if one in (":::", "::::")]
    if len(marks) > 1:
        _refuse("only one list of items can be given: ::: is there more than once")
    if not marks:
        return arguments, "", []
    at = marks[0]
    return arguments[:at], arguments[at], arguments[at + 1 :]


def _check(made: argparse.ArgumentParser, options: argparse.Namespace, mark: str) -> None:
    """Object to options that do not go together."""
    looks = options.list or options.failed or options.show is not None
    if mark and options.arg_file is not None:
        made.error(f"items are given by -a and by {mark}; one of them is enough")
    if options.json and not looks:
        made.error("--json goes with --show, --failed or --list")
    if options.key is not None and options.key_regex is not None:
        made.error("--key and --key-regex exclude each other")
    limits_keys = options.per_key is not None or options.rate_per_key is not None
    if limits_keys and options.key is None and options.key_regex is None:
        made.error("a limit per key needs --key or --key-regex")


def _refuse(message: str) -> NoReturn:
    raise Refusal(Exit.USAGE, message)


def _items(
    options: argparse.Namespace, given: list[str] | None, file: str | None
) -> AsyncIterator[list[str]]:
    from millpond.cli.run import items

    if given is not None:
        return items.words(given)
    end = b"\0" if options.null else options.delimiter or b"\n"
    descriptor = 0 if file is None else items.opened(file)
    if descriptor == 0 and file is None and os.isatty(0):
        sys.stderr.write("millpond run: items are read from the terminal, one per line; ")
        sys.stderr.write("Ctrl-D ends them\n")
    return items.read(descriptor, end)


# Its errands


async def _look(options: argparse.Namespace) -> int:
    from millpond.cli.run import show
    from millpond.cli.run.run_store import NothingThere, all_runs, chosen

    try:
        if options.list:
            places = [chosen(options.store)] if options.store is not None else all_runs()
            return await show.list_runs(places, as_json=options.json)
        place = _place_to_look_at(options)
        if options.failed:
            return await show.show_failed(place, as_json=options.json)
        return await show.show_item(place, options.show, as_json=options.json)
    except NothingThere as nothing:
        sys.stderr.write(f"millpond run: {plain(str(nothing))}\n")
        return RunExit.NOTHING


def _place_to_look_at(options: argparse.Namespace) -> Place:
    from millpond.cli.run.run_store import About, NothingThere, all_runs, chosen, latest

    if options.store is not None:
        return chosen(options.store)
    if options.command:
        about = About.of(Template(options.command, shell=options.shell, replace=options.replace))
        place = latest(about)
        if place is None:
            told = f"no run of {shlex.join(options.command)} from this folder is kept"
            raise NothingThere(told)
        return place
    places = all_runs()
    if not places:
        raise NothingThere("no run is kept")
    return places[-1]


async def _dry_run(
    template: Template,
    options: argparse.Namespace,
    given: list[str] | None,
    file: str | None,
) -> int:
    left, known, number = await _known(template, options)
    for at, item in left:
        _print_command(template, item, at)
    async for items in _items(options, given, file):
        for item in items:
            if known[item]:
                known[item] -= 1
                continue
            number += 1
            _print_command(template, item, number)
    return RunExit.DONE


async def _known(
    template: Template, options: argparse.Namespace
) -> tuple[list[tuple[int, str]], Counter[str], int]:
    """Return what a resumed run would begin with, which items it has, and their last number."""
    from millpond.cli.run.run_store import About, chosen, latest
    from millpond.cli.run.show import unfinished

    if not (options.resume or options.resume_failed):
        return [], Counter(), 0
    about = About.of(template)
    place = latest(about) if options.store is None else chosen(options.store)
    if place is None or place.about() is None:
        return [], Counter(), 0
    left, known = await unfinished(place)
    return left, known, known.total()


def _print_command(template: Template, item: str, number: int) -> None:
    os.write(1, os.fsencode(template.shown(item, number)) + b"\n")


def _run(
    template: Template,
    options: argparse.Namespace,
    given: list[str] | None,
    file: str | None,
) -> int:
    from millpond.cli import gc_tuning as collector
    from millpond.cli.run import process
    from millpond.cli.run import run_store as place
    from millpond.cli.run.execution import run
    from millpond.cli.run.request import Wanted
    from millpond.errors import MillpondError

    if template.program is not None and process.found(template.program) is None:
        return _not_there(template.program)
    jobs = min(options.jobs, process.most_at_once())
    wanted = Wanted(
        jobs=jobs,
        retries=options.retries,
        retry_delay=options.retry_delay,
        timeout=options.timeout,
        key=None if options.key is None else Text(options.key, options.replace),
        key_pattern=options.key_regex,
        per_key=_per_key(options),
        rate=options.rate,
        rate_per_key=options.rate_per_key,
        halt=options.halt,
        in_order=options.keep_order,
        tag=options.tag,
        quiet=options.quiet,
        verbose=options.verbose,
        redo_failed=options.resume_failed,
    )
    source = _items(options, given, file)
    where = _place(place.About.of(template), options)
    collector.let_it_rest()
    try:
        return asyncio.run(run(where, template, wanted, source))
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from error
    finally:
        where.let_go()


def _per_key(options: argparse.Namespace) -> int | None:
    """Return how many of a key may run: one, unless something else limits them."""
    if options.key is None and options.key_regex is None:
        return None
    if options.per_key is None and options.rate_per_key is not None:
        return None
    return int(options.per_key or 1)


def _place(about: About, options: argparse.Namespace) -> Place:
    """Return where this run is kept, taken for this process alone."""
    from millpond.cli.run import orphans
    from millpond.cli.run import run_store as place

    again = options.resume or options.resume_failed
    if options.store is not None:
        where = place.chosen(options.store)
        _check_store(where, about, again=again)
    else:
        where = (place.latest(about) if again else None) or place.fresh(about)
    if where.about() is None:
        if again and not options.quiet:
            sys.stderr.write("millpond run: there is nothing to resume; this is a new run\n")
        if not again and options.store is None and not options.quiet:
            _say_what_is_left(place.latest(about))
        where.make(about)
    where.take()
    groups = orphans.left_behind(where.ledger)
    if groups:
        sys.stderr.write(
            f"millpond run: {len(groups)} commands of the run that was killed are still at work; "
            "they are ended, and run again\n"
        )
        orphans.end(groups)
    if options.store is None:
        place.clear_out(about, time.time())
    return where


def _say_what_is_left(earlier: Place | None) -> None:
    """Say that an earlier run of the same command has not ended, and how to go on with it.

    This one begins anew all the same: that is what its line asks for. It says nothing of a run
    that is at work, nor of one that cannot be read.
    """
    from millpond.cli.run.run_store import NothingThere
    from millpond.cli.run.show import left_of
    from millpond.errors import MillpondError

    if earlier is None or earlier.is_taken:
        return
    with contextlib.suppress(MillpondError, NothingThere, Refusal):
        about, left = earlier.about(), asyncio.run(left_of(earlier))
        if about is None or not left:
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.started_at))
        items = "1 item is" if left == 1 else f"{left:,} items are"
        sys.stderr.write(
            f"millpond run: {items} left of the run of this command that began at {at}; this is a "
            "new run, which begins with all of its own. To go on with the earlier one instead, "
            f"stop this and add: --resume --store {shlex.quote(plain(str(earlier.file)))}\n"
        )


def _check_store(where: Place, about: About, *, again: bool) -> None:
    from millpond.cli.run.run_store import resumed

    if where.about() is None:
        if where.file.exists():
            _refuse(f"{where.file} is there, and is not a run; give --store another name")
        return
    resumed(where, about)
    if not again:
        _refuse(
            f"{where.file} is a run of this command already: --resume goes on with it; to begin "
            "anew, remove it or give --store another name"
        )


def _not_there(program: str) -> int:
    is_there = os.path.exists(program)  # noqa: PTH110 - a path, or a name that is none
    told = "cannot be run" if is_there else "is not there"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"millpond run: the command {program!r} {told}; nothing was started\n")
    return RunExit.NOT_RUN if is_there else RunExit.NOT_FOUND
