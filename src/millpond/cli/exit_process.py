"""End the process even if a thread or a library still runs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

    from millpond.cli.exits import Exit


def exit_within(seconds: float, code: Exit, why: str) -> None:
    """End the process with this code after so many seconds, unless it ends earlier.

    The timer is a daemon thread, so it does not keep the process alive.
    """
    timer = threading.Timer(seconds, exit_at_once, (code, why))
    timer.daemon = True
    timer.name = "millpond exit"
    timer.start()


def exit_at_once(code: Exit, why: str) -> NoReturn:
    """End the process without waiting and without cleanup."""
    # Not the logger: the thread that blocks the exit may hold its lock.
    with contextlib.suppress(OSError):
        os.write(2, f"millpond worker: {why} (exit code {code})\n".encode())
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


def blocking_threads() -> str:
    """Return the names of the threads that keep the process from ending."""
    main = threading.main_thread()
    held = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
    return f"threads {', '.join(held)}" if held else "a handler"
