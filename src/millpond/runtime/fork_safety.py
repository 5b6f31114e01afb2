"""A forked child: it has copies of the parent's loop and signal handlers, and may use neither.

A handler that forks gives the child the descriptors by which signals wake the parent's loop. A
child that went on in that loop would read what is meant for the parent, and SIGTERM would be lost.
So a child forgets the signal handlers of the loop, and one that goes on in the loop ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

EXIT = 70
"""The exit code of a child that went on in the loop: an internal error, by sysexits.h."""

_OURS = ("asyncio.", "millpond.")
"""Modules whose signal handlers speak to a loop."""


class _Forks:
    """Whether this process was forked since this module was imported."""

    happened = False
    loops: ClassVar[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()
    """The loops that Millponds of this process use."""


def used_by_millpond(loop: asyncio.AbstractEventLoop) -> None:
    """Have a child that goes on in this loop end, whatever code of the user's has forked it."""
    _Forks.loops.add(loop)


def must_not_be_child(process: int) -> None:
    """End this process if it is a child that would go on in the loop of another; cheap."""
    if _Forks.happened and process != os.getpid():
        sys.stderr.write(
            f"millpond: process {os.getpid()} was forked by a handler and went on in the event "
            "loop, which is the parent's; it ends here. End such a child with os._exit()\n"
        )
        sys.stderr.flush()
        # Nothing of the parent's is closed or flushed.
        os._exit(EXIT)


def _in_child() -> None:
    """Let signals have their usual effect: the loop that heard them is the parent's."""
    _Forks.happened = True
    if threading.current_thread() is not threading.main_thread():
        return
    _end_in(_Forks.loops)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if str(getattr(signal.getsignal(number), "__module__", "")).startswith(_OURS):
            signal.signal(number, signal.SIG_DFL)


def _end_in(loops: Iterable[asyncio.AbstractEventLoop]) -> None:
    """Make this process end on the next round of a loop: hooks and observers may fork, too."""
    for loop in loops:
        # Closed, or of another thread, which is not here: it does not go on.
        with contextlib.suppress(RuntimeError):
            loop.call_soon(must_not_be_child, 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
