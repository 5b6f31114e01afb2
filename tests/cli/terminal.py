"""A terminal with a program in it: tmux where there is one, else a pseudo-terminal of our own.

The second shows the output since a key was pressed or the screen was redrawn.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Protocol

from tests.cli.running import PATIENCE

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()=>][A-Z0-9]?|\r")
_KEYS = {"Enter": "\r", "Up": "\x1b[A", "Down": "\x1b[B"}


class Terminal(Protocol):
    """What a person sees and presses."""

    def press(self, *keys: str) -> None:
        """Press keys, those with names by name."""
        ...

    def screen(self) -> str:
        """Return what is seen."""
        ...


def until(terminal: Terminal, *words: str, gone: str = "") -> str:
    """Wait until words are seen, and others not any more; return the screen."""
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = terminal.screen()
        if all(word in seen for word in words) and not (gone and gone in seen):
            return seen
        assert time.monotonic() < deadline, f"{words} not seen:\n{seen}"
        select.select([], [], [], 0.02)


class Tmux:
    """A server of its own, with one window."""

    def __init__(self, line: list[str], store: str, size: tuple[int, int]) -> None:
        self._name = f"millpond-{os.getpid()}-{time.monotonic_ns()}"
        width, height = map(str, size)
        self._ask("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "cat")
        self._ask("set-option", "-g", "remain-on-exit", "on")
        environment = [f"MILLPOND_STORE={store}", f"PYTHONPATH={':'.join(sys.path)}"]
        self._ask(
            "respawn-pane", "-k", "env", "-uCOLUMNS", "-uLINES", *environment, "LANG=C.UTF-8", *line
        )

    def _ask(self, *words: str) -> str:
        requested = ["tmux", "-u", "-L", self._name, *words]
        return subprocess.run(
            requested, capture_output=True, text=True, check=True, timeout=15
        ).stdout

    def press(self, *keys: str) -> None:
        self._ask("send-keys", *keys)

    def screen(self) -> str:
        return self._ask("capture-pane", "-p")

    def close(self) -> None:
        self._ask("kill-server")


class OwnTerminal:
    """A pseudo-terminal, and all that was written to it."""

    def __init__(self, line: list[str], store: str, size: tuple[int, int]) -> None:
        self._process, self._file = pty.fork()
        if not self._process:
            width, height = size
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            python = {"PYTHONPATH": ":".join(sys.path), "LANG": "C.UTF-8"}
            # Not what this process has: libraries of terminals leave its own size there.
            environment = {"MILLPOND_STORE": store, "TERM": "xterm", **python}
            os.execve(line[0], line, environment)  # noqa: S606 - our own interpreter
        self._written = ""

    def press(self, *keys: str) -> None:
        self._written = ""
        os.write(self._file, "".join(_KEYS.get(key, key) for key in keys).encode())

    def screen(self) -> str:
        with contextlib.suppress(OSError):
            while select.select([self._file], [], [], 0.01)[0]:
                self._written += os.read(self._file, 65536).decode("utf-8", "replace")
        # Output from the corner on overwrites the old content.
        return _CONTROL.sub("", self._written.rpartition("\x1b[H")[2])

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._file)


@contextlib.contextmanager
def terminal(
    *words: object, store: str, size: tuple[int, int] = (100, 24)
) -> Iterator[Tmux | OwnTerminal]:
    """Run `millpond` in a terminal; both are gone after the block."""
    line = [sys.executable, "-m", "millpond", *map(str, words)]
    opened = (Tmux if shutil.which("tmux") else OwnTerminal)(line, store, size)
    try:
        yield opened
    finally:
        opened.close()
