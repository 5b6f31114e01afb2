"""Shorten the interpreter's switch interval in a worker process.

The event loop runs handlers while the writer's thread talks to the store. By default a thread keeps
the interpreter for 5 ms, which is longer than a store takes to answer. An application that has set
its own interval keeps it.
"""

from __future__ import annotations

import sys

_DEFAULT = 0.005
_SECONDS = 0.0005


def switch_threads_quickly() -> None:
    """Let threads switch every half millisecond."""
    if sys.getswitchinterval() == _DEFAULT:
        sys.setswitchinterval(_SECONDS)
