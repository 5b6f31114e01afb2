"""Identity: who an open Millpond is among all that use its store, and its own chance."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Iterator

_ODD = re.compile(r"[^A-Za-z0-9.-]+")
"""What a host may be called and a lock file, or the name of a worker, may not."""


_BLOCK = 4096
"""How many ids follow each other before the next is drawn."""


class Identity:
    """One opening of one Millpond in one process; no other has the same owner."""

    def __init__(self, seed: int | None = None) -> None:
        self._seeded = seed is not None
        self._ids: Iterator[int] = iter(())
        self.dice = random.Random(seed) if seed is not None else random.Random()  # noqa: S311
        # A seeded runtime must repeat, so it is named by its seed and not by where it runs.
        host = _ODD.sub("-", socket.gethostname())[:64]
        place = f"{host}-{os.getpid()}" if seed is None else "seeded"
        self.owner = f"{place}-{self.dice.getrandbits(32):08x}"

    def new_id(self) -> int:
        """Return a new id of 63 bits: drawn by chance, or the one after the last.

        The chance that two are the same is less than if each were drawn, and an index of a large
        store takes in those that follow each other at less cost.
        """
        for identifier in self._ids:
            return identifier
        first = self.dice.getrandbits(63)
        if not self._seeded:
            # What is seeded was found with ids that were drawn each, and must repeat.
            self._ids = iter(range(first + 1, min(first + _BLOCK, 1 << 63)))
        return first
