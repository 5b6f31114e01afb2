"""Read single keys from the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform != "win32":
    import termios
    import tty

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|\x1b|.", re.DOTALL)

_NAMES = {"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down"}

GONE = "gone"
"""The key that stands for a closed terminal."""


def pressed(given: str) -> list[str]:
    """Return the keys in a terminal's input; arrow keys by name."""
    return [_NAMES.get(key, key) for key in _KEY.findall(given)]


@contextlib.contextmanager
def keys() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of pressed keys; the terminal does not echo them."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str] = asyncio.Queue()

    def read_keys() -> None:
        given = os.read(file, 1024)
        for key in pressed(given.decode("utf-8", "replace")) if given else [GONE]:
            queue.put_nowait(key)
        if not given:
            # A closed terminal is always readable.
            loop.remove_reader(file)

    tty.setcbreak(file)
    loop.add_reader(file, read_keys)
    try:
        yield queue
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def one_key() -> str:
    """Wait for one key; later keys stay in the terminal's buffer."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.getwch()
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        return os.read(file, 1).decode("utf-8", "replace")
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)
