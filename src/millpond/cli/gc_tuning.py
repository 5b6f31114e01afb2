"""Tune the garbage collector for a process that works or serves.

Imported objects live as long as the process, so the collector need not traverse them again. The
objects of a task are freed when it ends, so the collector need not run every few dozen tasks. An
application that has set its own thresholds keeps them.
"""

from __future__ import annotations

import gc

_DEFAULTS = {(700, 10, 10), (700, 10, 0), (2000, 10, 0), (2000, 10, 10)}
"""Python's default thresholds, by version."""
_THRESHOLDS = (5_000, 20, 20)


def tune_garbage_collection() -> None:
    """Raise the thresholds and freeze the imported objects. Call it after all imports."""
    if gc.get_threshold() in _DEFAULTS:
        gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()
