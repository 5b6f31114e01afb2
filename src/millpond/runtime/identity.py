"""Identity: who an open Millpond is among all that use its store, and its own chance."""

from __future__ import annotations

import os
import random
import re
import socket

_ODD = re.compile(r"[^A-Za-z0-9.-]+")
"""What a host may be called and a lock file, or the name of a worker, may not."""


class Identity:
    """One opening of one Millpond in one process; no other has the same owner."""

    def __init__(self, seed: int | None = None) -> None:
        self.dice = random.Random(seed) if seed is not None else random.Random()  # noqa: S311
        # A seeded runtime must repeat, so it is named by its seed and not by where it runs.
        host = _ODD.sub("-", socket.gethostname())[:64]
        place = f"{host}-{os.getpid()}" if seed is None else "seeded"
        self.owner = f"{place}-{self.dice.getrandbits(32):08x}"
