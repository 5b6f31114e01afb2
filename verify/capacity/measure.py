"""Measure what calls cost on this machine, and what fleets of 1 to 16 processes do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from millpond import Millpond
from millpond.store.postgres.server_functions import VERSION
from verify.capacity.model import Costs, Fleet
from verify.servers.postgres import OwnServer, programs_here, slow_server

POOL = "work"
_SETTINGS = {"max_connections": "200"}

FLUSH = "SELECT pg_logical_emit_message(true, 'millpond', '')"
COUNTING = f"""
WITH counted AS (
    SELECT c.* FROM millpond_meta AS m, millpond_reserve_{VERSION}(m.ctid, 0.0, 1, 0, 0) AS c)
INSERT INTO millpond_audit (position, records, at, event, ids, places)
SELECT records + 1, 1, at, 'submit', '{{1}}', '{{1}}' FROM counted
"""  # noqa: S608 - a number of ours
"""What a call of the server's functions does while it locks the counts of the store."""


class Did(NamedTuple):
    """What the processes of a fleet did, together."""

    rate: float
    calls: float
    tasks: float
    client: float
    """CPU seconds of the processes."""
    server: float
    """CPU seconds of the server."""


@contextmanager
def server(flush: float) -> Iterator[OwnServer]:
    """Start a server whose flushes take so many seconds longer."""
    with (
        slow_server(flush, _SETTINGS) if flush else OwnServer(programs_here(), _SETTINGS) as started
    ):
        yield started


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process and its descendants that are alive."""
    seconds = 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
            for child in (task / "children").read_text().split():
                seconds += cpu_of(int(child))
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return seconds


def did(where: OwnServer, fleet: Fleet, *, seconds: float) -> Did:
    """Let a fleet of real processes act on a fresh database, and return what it did."""
    with where.database() as url, ExitStack() as stack:
        given = {
            "url": url,
            "pool": POOL,
            "seconds": seconds,
            "slots": fleet.slots,
            "pause": fleet.handler,
            "limit": max(1, fleet.processes * fleet.slots),
        }
        if fleet.slots:
            _fill(fleet, given)
        act = "work" if fleet.slots else "submit"
        members = [stack.enter_context(_member(act, given)) for _ in range(fleet.processes)]
        for member in members:
            _line(member)
        before = cpu_of(where.process)
        for member in members:
            _go_on(member)
        answers = [json.loads(_line(member)) for member in members]
        used = cpu_of(where.process) - before
        for member in members:
            _go_on(member)
    rate, calls, tasks, client = (
        sum(one[name] for one in answers) for name in ("rate", "calls", "tasks", "cpu")
    )
    return Did(rate, calls, tasks, client, used)


def _fill(fleet: Fleet, given: dict[str, Any]) -> None:
    """Store more tasks than the fleet can do in the time."""
    most = fleet.processes * fleet.slots / max(fleet.handler, 0.002)
    tasks = int(min(most, 20_000) * (given["seconds"] + 3))
    with _member("fill", {**given, "tasks": tasks}) as member:
        _line(member)
        _go_on(member)
        member.wait()


@contextmanager
def _member(act: str, given: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "verify.capacity.member", act, json.dumps(given)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line, "a process of the fleet has failed"
    return line


def costs_of(where: OwnServer, *, seconds: float) -> tuple[Costs, Costs]:
    """Return what a submit costs, and a call of a worker."""
    after, counts = flush_statement(where), counting(where)
    single = did(where, Fleet(1), seconds=seconds)
    server = single.server / single.calls - after
    submit = Costs(single.client / single.calls, 0.0, server, 0.0, after, counts)
    few, many = (did(where, Fleet(1, slots), seconds=seconds) for slots in (1, 50))
    client_call, client_task = _line_through([(d.calls, d.tasks, d.client) for d in (few, many)])
    server_call, server_task = _line_through([(d.calls, d.tasks, d.server) for d in (few, many)])
    return submit, Costs(
        client_call, client_task, max(server_call - after, 0.0), server_task, after, counts
    )


def _line_through(found: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the cost per call and per task that explain two measurements."""
    (calls, tasks, used), (more_calls, more_tasks, more_used) = found
    one, other = tasks / calls, more_tasks / more_calls
    task = max(0.0, (more_used / more_calls - used / calls) / (other - one))
    return max(0.0, used / calls - task * one), task


def flush_statement(where: OwnServer) -> float:
    """Return the CPU seconds of the server for the statement that waits for the flush."""
    with psycopg.connect(where.url, autocommit=True) as connection:
        return _cpu_of_statement(where, connection, FLUSH)


def counting(where: OwnServer) -> float:
    """Return the CPU seconds for which a call locks the counts of the store: it counts, writes an
    audit record and commits."""
    with where.database() as url:
        asyncio.run(_opened(url))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET search_path = millpond")
            connection.execute("SET synchronous_commit = off")
            return _cpu_of_statement(where, connection, COUNTING) - _cpu_of_statement(
                where, connection, "SELECT 1"
            )


async def _opened(url: str) -> None:
    async with Millpond(url):
        pass


def _cpu_of_statement(
    where: OwnServer, connection: psycopg.Connection, statement: str, count: int = 2000
) -> float:
    before = cpu_of(where.process)
    for _ in range(count):
        connection.execute(statement.encode(), prepare=True)
    return (cpu_of(where.process) - before) / count


def flush_time(where: OwnServer, count: int = 300) -> float:
    """Return the seconds that a commit of one session takes, without its CPU time."""
    with psycopg.connect(where.url, autocommit=True) as connection:
        waits = []
        for _ in range(count):
            start = time.monotonic()
            connection.execute(FLUSH.encode(), prepare=True)
            flushed = time.monotonic()
            connection.execute("SELECT 1", prepare=True)
            waits.append((flushed - start) - (time.monotonic() - flushed))
    return sorted(waits)[count // 2]
