"""Ctrl-C, as distinct from a KeyboardInterrupt that a handler or a hook raised by itself.

The first may end the process. The second is an error of the function like any other.
"""

from __future__ import annotations

import signal
import threading

_RUNNER = "_on_sigint"
"""The method of asyncio.Runner that raises where Ctrl-C comes a second time."""


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an error may come from SIGINT; in doubt it does."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        # Python raises it in the main thread only.
        return False
    takes = signal.getsignal(signal.SIGINT)
    if takes is None or takes in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    if getattr(takes, "__module__", "") == "asyncio.unix_events":
        # The loop has it, as in `millpond worker`: a signal sets an event, and raises nothing.
        return False
    if getattr(getattr(takes, "func", None), "__name__", "") == _RUNNER:
        return _RUNNER in _innermost(error)
    return True


def _innermost(error: BaseException) -> str:
    """Return the name of the function that raised an error."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name, trace = trace.tb_frame.f_code.co_name, trace.tb_next
    return name
