"""`make guides`: run both programs of every migration guide, the peer's and ours.

Each page `docs/how-to/migrate-from-PEER.md` shows two programs of `docs/examples/migrate` and what
both print. This starts the worker that the page names, runs the program beside it, and compares.
Needs the peers (requirements/bench.in) and a Redis server in the same environment or on the PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verify.servers.postgres import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "docs/examples/migrate"
PATIENCE = 60.0
"""Seconds that a program may take on a busy machine."""


@dataclass(frozen=True)
class Side:
    """One program of a guide, and the worker that it needs."""

    program: str
    workers: tuple[str, ...] = ()
    """Their command lines, as the page prints them; none: the program works by itself."""
    server: str = ""
    """`redis`, `postgres`, or neither."""


@dataclass(frozen=True)
class Guide:
    """A page with two programs that print the same."""

    peer: str
    before: Side
    after: Side
    bridge: Side | None = None
    """A program that uses both."""

    @property
    def page(self) -> str:
        """The text of the page."""
        return (ROOT / f"docs/how-to/migrate-from-{self.peer}.md").read_text("utf-8")

    def printed_by(self, side: Side) -> str:
        """Return what the page says that the program prints."""
        words = "The bridge prints" if side is self.bridge else "Both print"
        found = re.search(words + r":\n\n```text\n(.*?)```", self.page, re.DOTALL)
        assert found, f"the guide from {self.peer} does not say what {side.program} prints"
        return found[1]


GUIDES = (
    Guide(
        "celery",
        Side("celery_before.py", ("celery -A celery_before worker -B",), "redis"),
        Side("celery_after.py", ("millpond worker celery_after:mp",)),
        Side(
            "celery_bridge.py",
            ("celery -A celery_bridge worker -c 1", "millpond worker celery_after:mp"),
            "redis",
        ),
    ),
    Guide(
        "rq",
        Side("rq_before.py", ("rq worker --with-scheduler",), "redis"),
        Side("rq_after.py", ("millpond worker rq_after:mp",)),
        Side("rq_bridge.py", ("rq worker", "millpond worker rq_after:mp"), "redis"),
    ),
    Guide(
        "arq",
        Side("arq_before.py", ("arq arq_before.WorkerSettings",), "redis"),
        Side("arq_after.py", ("millpond worker arq_after:mp",)),
        Side(
            "arq_bridge.py",
            ("arq arq_bridge.WorkerSettings", "millpond worker arq_after:mp"),
            "redis",
        ),
    ),
    Guide(
        "dramatiq",
        Side("dramatiq_before.py", ("dramatiq dramatiq_before",), "redis"),
        Side("dramatiq_after.py", ("millpond worker dramatiq_after:mp",)),
        Side(
            "dramatiq_bridge.py",
            ("dramatiq dramatiq_bridge --processes 1", "millpond worker dramatiq_after:mp"),
            "redis",
        ),
    ),
    Guide("apscheduler", Side("apscheduler_before.py"), Side("apscheduler_after.py")),
    Guide(
        "procrastinate",
        Side("procrastinate_before.py", server="postgres"),
        Side("procrastinate_after.py", server="postgres"),
        Side("procrastinate_bridge.py", server="postgres"),
    ),
)


def run(side: Side, folder: Path, servers: Mapping[str, str] | None = None) -> str:
    """Run a program beside its worker in an empty folder, and return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **(servers or {}), "PATH": path, "PYTHONPATH": str(PROGRAMS)}
    with ExitStack() as stack:
        for worker in side.workers:
            stack.enter_context(working(worker.split(), folder, environment))
        answer = subprocess.run(  # noqa: S603 - our own examples
            [sys.executable, str(PROGRAMS / side.program)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert answer.returncode == 0, f"{side.program}: {answer.stderr}{tail(folder / 'worker.log')}"
    return answer.stdout


@contextmanager
def working(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background; terminate it at the end, and kill it if it stays."""
    program = shutil.which(command[0], path=environment["PATH"])
    assert program, f"there is no program {command[0]!r} here"
    with (
        (folder / "worker.log").open("ab") as log,
        subprocess.Popen(  # noqa: S603 - a command of this module
            [program, *command[1:]], cwd=folder, env=environment, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def tail(log: Path) -> str:
    """Return the end of a worker's log."""
    return log.read_text(errors="replace")[-3000:] if log.exists() else ""


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Start a Redis server on a free port of the loopback, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = f"redis-server --bind 127.0.0.1 --port {port} --appendonly no --save".split()
    with working([*command, ""], folder, {**os.environ, "PATH": path}):
        until = time.monotonic() + PATIENCE
        while not answers(port):
            assert time.monotonic() < until, tail(folder / "worker.log")
            time.sleep(0.05)  # another process: it gives no event to wait for
        yield f"redis://127.0.0.1:{port}/0"


def answers(port: int) -> bool:
    """Return whether a server listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def server(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """Start the server that a program needs, and yield the variable that names it."""
    if kind == "redis":
        with redis(folder) as url:
            yield {"REDIS_URL": url}
    elif kind == "postgres":
        with serve() as running, running.database() as url:
            yield {"DATABASE_URL": url}
    else:
        yield {}


def prints_as_the_page_says(guide: Guide, side: Side) -> bool:
    """Run one side with the server it needs; print and return whether it is right."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        with server(side.server, Path(beside)) as servers:
            begun = time.monotonic()
            printed = run(side, Path(folder), servers)
        same = printed == guide.printed_by(side)
        verdict = "prints what the page says" if same else f"prints something else:\n{printed}"
        print(f"{side.program}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
        return same


def main() -> int:
    """Run all guides, or those named."""
    options = argparse.ArgumentParser(prog="make guides ARGS=...", description=__doc__)
    options.add_argument("peers", nargs="*", help="celery, rq, ...; all without one")
    wanted = options.parse_args().peers or [guide.peer for guide in GUIDES]
    results = [
        prints_as_the_page_says(guide, side)
        for guide in GUIDES
        if guide.peer in wanted
        for side in (guide.before, guide.after, guide.bridge)
        if side is not None
    ]
    print(f"{sum(results)} of {len(results)} programs print what their page says")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
