"""Real servers for the recipes, each a process of its own, reached over HTTP."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
SOON = 30.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


def gunicorn(app: str, *options: str) -> list[str]:
    """Return the command that serves a WSGI application by gunicorn."""
    program = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--log-level", "info"]
    return [*program, "--graceful-timeout", "10", *options, app]


def uvicorn(app: str, *options: str) -> list[str]:
    """Return the command that serves an ASGI application by uvicorn."""
    return [sys.executable, "-m", "uvicorn", "--port", "0", *options, app]


@dataclass
class Served:
    """A server that runs."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str]

    def stop(self) -> int:
        """Ask it to end, as a deployment does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SOON)

    @property
    def log(self) -> str:
        """What it has written."""
        return "".join(self.lines)


@contextlib.contextmanager
def served(command: Sequence[str], folder: Path) -> Iterator[Served]:
    """Run a server in a folder until the block ends; the examples can be imported there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(folder)])}
    with subprocess.Popen(
        list(command),
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        server = Served("", process, [])
        known = threading.Event()
        reader = threading.Thread(target=_read, args=(server, known))
        reader.start()
        try:
            assert known.wait(SOON), server.log
            assert server.url, server.log
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SOON)
            process.kill()
            reader.join()


def _read(server: Served, known: threading.Event) -> None:
    """Read what a server writes; the first address in there is its own."""
    assert server.process.stdout is not None
    for line in server.process.stdout:
        server.lines.append(line)
        found = ADDRESS.search(line)
        if found is not None and not server.url:
            server.url = found[0]
            known.set()
    known.set()
