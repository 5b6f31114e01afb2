"""How long a thread of a worker process may keep the others waiting.

The event loop runs handlers, and the writer's thread talks to the store: each answer that comes in
needs the interpreter for a moment. Python lets the thread that has it go on for 5 ms before it asks
for it, which is longer than a store takes to answer. An application that has set its own time keeps
it.
"""

from __future__ import annotations

import sys

_PYTHONS_OWN = 0.005
_SECONDS = 0.0005


def take_turns_quickly() -> None:
    """Let threads wait for each other half a millisecond at most."""
    if sys.getswitchinterval() == _PYTHONS_OWN:
        sys.setswitchinterval(_SECONDS)
