"""`millpond run`: parse the command line, choose the store of the run, and run or show."""

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
from millpond.core.escape import plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from millpond.cli.run.run_store import RunIdentity, RunStore


def main(arguments: Sequence[str]) -> int:
    """Run commands, or show the results of a run."""
    options, given, files = _parse(arguments)
    if not hasattr(os, "waitid"):
        _refuse("millpond run needs Linux, or macOS with Python 3.13 or newer")
    try:
        if options.list or options.failed or options.show is not None:
            return asyncio.run(_show(options))
        if not options.command:
            _refuse("no command given; to run each line as a command: --shell 'eval \"$1\"'")
        template = Template(options.command, shell=options.shell, replace=options.replace)
        if options.dry_run:
            return asyncio.run(_dry_run(template, options, given, files))
        return _run(template, options, given, files)
    except BrokenPipeError:
        return RunExit.PIPE


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str] | None, str | None]:
    """Return the options, and the items or the file of items behind `:::` or `::::`."""
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
    """Return the arguments before `:::` or `::::`, the mark, and the arguments behind it."""
    marks = [at for at, one in enumerate(arguments) if one in (":::", "::::")]
    if len(marks) > 1:
        _refuse("::: is given more than once")
    if not marks:
        return arguments, "", []
    at = marks[0]
    return arguments[:at], arguments[at], arguments[at + 1 :]


def _check(made: argparse.ArgumentParser, options: argparse.Namespace, mark: str) -> None:
    """Refuse options that exclude each other."""
    shows = options.list or options.failed or options.show is not None
    if mark and options.arg_file is not None:
        made.error(f"-a and {mark} exclude each other")
    if options.json and not shows:
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
        sys.stderr.write("millpond run: reading items from the terminal, one per line; ")
        sys.stderr.write("Ctrl-D ends them\n")
    return items.read(descriptor, end)


# What it can do


async def _show(options: argparse.Namespace) -> int:
    from millpond.cli.run import show
    from millpond.cli.run.run_store import RunNotFound, all_runs, chosen

    try:
        if options.list:
            places = [chosen(options.store)] if options.store is not None else all_runs()
            return await show.list_runs(places, as_json=options.json)
        run_store = _store_to_show(options)
        if options.failed:
            return await show.show_failed(run_store, as_json=options.json)
        return await show.show_item(run_store, options.show, as_json=options.json)
    except RunNotFound as nothing:
        sys.stderr.write(f"millpond run: {plain(str(nothing))}\n")
        return RunExit.NOTHING


def _store_to_show(options: argparse.Namespace) -> RunStore:
    from millpond.cli.run.run_store import RunIdentity, RunNotFound, all_runs, chosen, latest

    if options.store is not None:
        return chosen(options.store)
    if options.command:
        identity = RunIdentity.of(
            Template(options.command, shell=options.shell, replace=options.replace)
        )
        run_store = latest(identity)
        if run_store is None:
            message = f"no stored run of {shlex.join(options.command)} from this folder"
            raise RunNotFound(message)
        return run_store
    places = all_runs()
    if not places:
        raise RunNotFound("no stored run")
    return places[-1]


async def _dry_run(
    template: Template,
    options: argparse.Namespace,
    given: list[str] | None,
    file: str | None,
) -> int:
    left, known, number = await _known_items(template, options)
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


async def _known_items(
    template: Template, options: argparse.Namespace
) -> tuple[list[tuple[int, str]], Counter[str], int]:
    """Return the unfinished items of the run to resume, all its items, and their last number."""
    from millpond.cli.run.run_store import RunIdentity, chosen, latest
    from millpond.cli.run.show import unfinished

    if not (options.resume or options.resume_failed):
        return [], Counter(), 0
    identity = RunIdentity.of(template)
    run_store = latest(identity) if options.store is None else chosen(options.store)
    if run_store is None or run_store.identity() is None:
        return [], Counter(), 0
    left, known = await unfinished(run_store)
    return left, known, known.total()


def _print_command(template: Template, item: str, number: int) -> None:
    os.write(1, os.fsencode(template.shown(item, number)) + b"\n")


def _run(
    template: Template,
    options: argparse.Namespace,
    given: list[str] | None,
    file: str | None,
) -> int:
    from millpond.cli import gc_tuning
    from millpond.cli.run import process, run_store
    from millpond.cli.run.execution import run
    from millpond.cli.run.request import RunOptions
    from millpond.errors import MillpondError

    if template.program is not None and process.found(template.program) is None:
        return _no_program(template.program)
    jobs = min(options.jobs, process.most_at_once())
    same = ("retries", "retry_delay", "timeout", "rate", "rate_per_key", "halt", "tag", "quiet")
    run_options = RunOptions(
        jobs=jobs,
        key=None if options.key is None else Text(options.key, options.replace),
        key_pattern=options.key_regex,
        per_key=_per_key(options),
        in_order=options.keep_order,
        verbose=options.verbose,
        redo_failed=options.resume_failed,
        **{name: getattr(options, name) for name in same},
    )
    source = _items(options, given, file)
    store = _store_of_run(run_store.RunIdentity.of(template), options)
    gc_tuning.tune_garbage_collection()
    try:
        return asyncio.run(run(store, template, run_options, source))
    except MillpondError as error:
        raise Refusal(Exit.STORE, str(error)) from error
    finally:
        store.unlock()


def _per_key(options: argparse.Namespace) -> int | None:
    """Return how many items of a key may run at a time: 1 by default."""
    if options.key is None and options.key_regex is None:
        return None
    if options.per_key is None and options.rate_per_key is not None:
        return None
    return int(options.per_key or 1)


def _store_of_run(identity: RunIdentity, options: argparse.Namespace) -> RunStore:
    """Return the store of this run, locked for this process."""
    from millpond.cli.run import orphans, run_store

    again = options.resume or options.resume_failed
    if options.store is not None:
        store = run_store.chosen(options.store)
        _check_store(store, identity, again=again)
    else:
        store = (run_store.latest(identity) if again else None) or run_store.fresh(identity)
    if store.identity() is None:
        if again and not options.quiet:
            sys.stderr.write("millpond run: no run to resume; starting a new one\n")
        if not again and options.store is None and not options.quiet:
            _mention_unfinished(run_store.latest(identity))
        store.create(identity)
    store.lock()
    groups = orphans.left_behind(store.ledger)
    if groups:
        sys.stderr.write(
            f"millpond run: {len(groups)} command(s) of the killed run still running; "
            "killing them, and running them again\n"
        )
        orphans.end(groups)
    if options.store is None:
        run_store.clear_out(identity, time.time())
    return store


def _mention_unfinished(earlier: RunStore | None) -> None:
    """Print a note if an earlier run of the same command has unfinished items.

    It says nothing about a run that is running now, or that cannot be read.
    """
    from millpond.cli.run.run_store import RunNotFound
    from millpond.cli.run.show import unfinished_count
    from millpond.errors import MillpondError

    if earlier is None or earlier.is_locked:
        return
    with contextlib.suppress(MillpondError, RunNotFound, Refusal):
        identity, left = earlier.identity(), asyncio.run(unfinished_count(earlier))
        if identity is None or not left:
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(identity.started_at))
        items = "1 item is" if left == 1 else f"{left:,} items are"
        sys.stderr.write(
            f"millpond run: {items} left of an earlier run of this command, started at {at}; this "
            "is a new run with all its items. To continue the earlier run instead, stop this one "
            f"and add: --resume --store {shlex.quote(plain(str(earlier.file)))}\n"
        )


def _check_store(store: RunStore, identity: RunIdentity, *, again: bool) -> None:
    from millpond.cli.run.run_store import check_identity

    if store.identity() is None:
        if store.file.exists():
            _refuse(f"{store.file} exists and is not a run; give --store another name")
        return
    check_identity(store, identity)
    if not again:
        _refuse(
            f"{store.file} is already a run of this command: use --resume to continue it; to start "
            "over, remove it or give --store another name"
        )


def _no_program(program: str) -> int:
    is_there = os.path.exists(program)  # noqa: PTH110 - a path, or a name that is none
    message = "cannot be run" if is_there else "was not found"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"millpond run: the command {program!r} {message}; nothing was started\n")
    return RunExit.NOT_RUN if is_there else RunExit.NOT_FOUND
