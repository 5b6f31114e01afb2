"""The garbage collector of a process that does nothing but work.

What was imported lives as long as the process, so the collector need not walk it again and again;
and the objects of a task go when it ends, so there is little reason to look for cycles every few
dozen tasks. An application that has set its own thresholds keeps them.
"""

from __future__ import annotations

import gc

_PYTHONS_OWN = {(700, 10, 10), (700, 10, 0), (2000, 10, 0), (2000, 10, 10)}
"""What Python begins with, by version."""
_THRESHOLDS = (5_000, 20, 20)


def let_it_rest() -> None:
    """Set the collector up for a worker; once everything is imported."""
    if gc.get_threshold() in _PYTHONS_OWN:
        gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()
