"""Leaving: the process ends when its work has, whatever a thread or a library still does."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

    from millpond.cli.exits import Exit


def leave_within(seconds: float, code: Exit, why: str) -> None:
    """End the process with this code after so many seconds, unless it has ended by itself.

    The thread that sees to it keeps nobody: a process that is done before ends as ever.
    """
    timer = threading.Timer(seconds, leave_at_once, (code, why))
    timer.daemon = True
    timer.name = "millpond leave"
    timer.start()


def leave_at_once(code: Exit, why: str) -> NoReturn:
    """End the process: nothing is waited for, and nothing cleaned up."""
    # Not the logger: whoever holds its lock may be what the process does not end for.
    with contextlib.suppress(OSError):
        os.write(2, f"millpond worker: {why} (exit code {code})\n".encode())
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


def who_stays() -> str:
    """Return what would keep the process from ending, as far as it has a name."""
    main = threading.main_thread()
    held = [one.name for one in threading.enumerate() if not one.daemon and one is not main]
    return f"threads {', '.join(held)}" if held else "a handler"
