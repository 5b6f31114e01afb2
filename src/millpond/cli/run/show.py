"""Show the stored items of a run, and list runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.run.execution import POOL, stored
from millpond.cli.run.exits import RunExit
from millpond.cli.run.items import unpacked
from millpond.cli.run.output import Ran, files_of, signal_name
from millpond.cli.run.printer import write
from millpond.cli.run.run_store import RunIdentity, RunNotFound, RunStore, with_identity
from millpond.core.escape import plain
from millpond.core.lifecycle import Status
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.runtime.error_info import read

if TYPE_CHECKING:
    from millpond.core.task import Task


class Shown(msgspec.Struct, kw_only=True):
    """One item, as `--json` prints it."""

    number: int
    item: str
    status: str
    exit_code: int | None
    """None if it has not ended, or ended without an exit code."""
    verdict: str
    """The outcome, such as `exit 3`, `signal KILL` or `timeout`."""
    message: str
    """The last line of output of a failed command."""
    attempts: int
    seconds: float | None
    stdout: str | None = None
    stderr: str | None = None


class ShownRun(msgspec.Struct, kw_only=True):
    """One run, as `--json` prints it."""

    store: str
    command: tuple[str, ...]
    folder: str
    started_at: float
    running: bool
    completed: int
    failed: int
    left: int


async def show_item(store: RunStore, which: str, *, as_json: bool) -> RunExit:
    """Print the stored output of one item, or of all."""
    count = 0
    async with opened(store) as mp:
        async for task in stored(mp):
            if which not in ("all", str(task.sequence), item_of(task)):
                continue
            count += 1
            if as_json:
                _print_json(shown(task, store.outputs, with_output=True))
            else:
                _print_output(task, store.outputs, alone=which != "all")
    if not count and which != "all":
        raise RunNotFound(f"no item {which!r} in {store.file}; {WHICH}")
    return RunExit.DONE


WHICH = "name an item by its number or its text, or give `all`"


async def show_failed(store: RunStore, *, as_json: bool) -> RunExit:
    """Print the failed items; print a note to stderr if there are none."""
    count = 0
    async with opened(store) as mp:
        async for task in stored(mp, Status.FAILED):
            count += 1
            if as_json:
                _print_json(shown(task, store.outputs, with_output=False))
            else:
                _print(failed_line(task))
    if not count:
        sys.stderr.write(f"millpond run: no item failed in {plain(str(store.file))}\n")
    return RunExit.DONE


async def list_runs(stores: list[RunStore], *, as_json: bool) -> RunExit:
    """Print the stored runs, oldest first."""
    for store, identity in with_identity(stores):
        try:
            run = await _run_of(store, identity)
        except MillpondError as error:
            sys.stderr.write(f"millpond run: {plain(str(error))}\n")
            continue
        if as_json:
            _print_json(run)
            continue
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(identity.started_at))
        state = "running" if run.running else f"{run.left:,} left" if run.left else "done"
        counts = f"{run.completed:,} done, {run.failed:,} failed"
        _print(f"{started}  {counts}, {state}  {shlex.join(identity.command)}  ({store.file})")
    return RunExit.DONE


async def _run_of(store: RunStore, identity: RunIdentity) -> ShownRun:
    async with opened(store) as mp:
        view = await internals_of(mp).runtime.view.pool(POOL, measured=False)
        failed = sum([1 async for _ in stored(mp, Status.FAILED)])
    return ShownRun(
        store=str(store.file),
        command=identity.command,
        folder=identity.folder,
        started_at=identity.started_at,
        running=store.is_locked,
        completed=0 if view is None else view.totals.get(Status.COMPLETED, 0),
        failed=failed,
        left=0 if view is None else view.queued + view.running,
    )


async def unfinished_count(store: RunStore) -> int:
    """Return how many submitted items of a run have not ended."""
    async with opened(store) as mp:
        view = await internals_of(mp).runtime.view.pool(POOL, measured=False)
    return 0 if view is None else view.queued + view.running


def opened(store: RunStore) -> Millpond:
    """Return the store of a run without declaring pools, so that reading does not change it."""
    if not store.file.exists():
        raise RunNotFound(f"no stored run at {store.file}")
    return Millpond(store.url, work=False, durability="normal")


def item_of(task: Task) -> str:
    """Return the item of a task."""
    return unpacked(str(msgspec.json.decode(task.new.call.payload)["item"]))


def shown(task: Task, folder: Path, *, with_output: bool) -> Shown:
    """Return an item as data."""
    verdict, message = verdict_of(task)
    out, err = output_of(task, folder) if with_output else (None, None)
    return Shown(
        number=task.sequence,
        item=_text(os.fsencode(item_of(task))),
        status=str(task.status),
        exit_code=code_of(verdict),
        verdict=verdict,
        message=message,
        attempts=task.attempt,
        seconds=_seconds(task),
        stdout=None if out is None else _text(_bytes(out)),
        stderr=None if err is None else _text(_bytes(err)),
    )


def failed_line(task: Task) -> str:
    """Return the line of a failed item: number, verdict, item, last line of output."""
    verdict, message = verdict_of(task)
    suffix = f": {message}" if message else ""
    return f"#{task.sequence} {verdict}  {item_of(task)}{suffix}"


def verdict_of(task: Task) -> tuple[str, str]:
    """Return the verdict of a task's command, and its last line of output if it failed."""
    if task.status is Status.COMPLETED:
        return "exit 0", ""
    error = read(task.error)
    if error is None:
        return task.reason or str(task.status), ""
    return error.type, error.message


def code_of(verdict: str) -> int | None:
    """Return the exit code of a verdict; for a signal, 128 plus its number as in shells."""
    found = re.fullmatch(r"exit (\d+)", verdict)
    if found is not None:
        return int(found[1])
    if verdict.startswith("signal "):
        for number in range(1, 65):
            if verdict == f"signal {signal_name(number)}":
                return 128 + number
    return None


def output_of(task: Task, folder: Path) -> tuple[bytes | Path, bytes | Path]:
    """Return the stdout and stderr of a task's command."""
    if task.result:
        ran = msgspec.json.decode(task.result, type=Ran)
        if not ran.in_files:
            return ran.out, ran.err
    out, err = files_of(folder, task.new.id)
    return out if out.exists() else b"", err if err.exists() else b""


def _seconds(task: Task) -> float | None:
    if task.result:
        return msgspec.json.decode(task.result, type=Ran).seconds
    if task.finished_at is None or task.started_at is None:
        return None
    return round(task.finished_at - task.started_at, 6)


def _print_output(task: Task, folder: Path, *, alone: bool) -> None:
    """Print the stdout and stderr of a command; with `alone`, also its verdict."""
    out, err = output_of(task, folder)
    if alone:
        verdict, _ = verdict_of(task)
        seconds = _seconds(task)
        took = "" if seconds is None else f" after {seconds:.3g} s"
        tries = f", attempt {task.attempt}" if task.attempt > 1 else ""
        sys.stderr.write(f"#{task.sequence} {plain(item_of(task))}: {verdict}{took}{tries}\n")
        sys.stderr.flush()
    write(1, out)
    write(2, err)


def _bytes(output: bytes | Path) -> bytes:
    return output if isinstance(output, bytes) else output.read_bytes()


def _text(data: bytes) -> str:
    """Return bytes as text; bytes that are not UTF-8 are escaped."""
    return data.decode("utf-8", "backslashreplace")


def _print_json(value: msgspec.Struct) -> None:
    write(1, msgspec.json.encode(value) + b"\n")


def _print(line: str) -> None:
    write(1, plain(line).encode("utf-8", "backslashreplace") + b"\n")


async def unfinished(store: RunStore) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Return the unfinished items of a run with their numbers, and a count of all its items."""
    left: list[tuple[int, str]] = []
    known: Counter[str] = Counter()
    async with opened(store) as mp:
        async for task in stored(mp):
            known[item_of(task)] += 1
            if not task.status.terminal:
                left.append((task.sequence, item_of(task)))
    return left, known
