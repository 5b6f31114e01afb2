"""Keys: what a person presses, while something else is shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import termios
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|\x1b|.", re.DOTALL)

_NAMES = {"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down"}

GONE = "gone"
"""What is heard when the terminal is closed."""


def pressed(given: str) -> list[str]:
    """Return the keys in what a terminal sent, those with names by name."""
    return [_NAMES.get(key, key) for key in _KEY.findall(given)]


@contextlib.contextmanager
def keys() -> Iterator[asyncio.Queue[str]]:
    """Give the keys as they are pressed; the terminal does not show them meanwhile."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear() -> None:
        given = os.read(file, 1024)
        for key in pressed(given.decode("utf-8", "replace")) if given else [GONE]:
            heard.put_nowait(key)
        if not given:
            # The terminal is gone, and would be heard of for ever.
            loop.remove_reader(file)

    tty.setcbreak(file)
    loop.add_reader(file, hear)
    try:
        yield heard
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def one_key() -> str:
    """Wait for a key; what is pressed after it is left for the next who asks."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        return os.read(file, 1).decode("utf-8", "replace")
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)
