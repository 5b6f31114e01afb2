"""Identity: who an open Millpond is among all that use its store, and its own chance."""

from __future__ import annotations

import os
import random
import re
import socket
from array import array
from collections.abc import Callable, Iterator
from functools import partial

_ODD = re.compile(r"[^A-Za-z0-9.-]+")
"""What a host may be called and a lock file, or the name of a worker, may not."""


_BLOCK = 4096
"""How many ids follow each other, with gaps, before the next is drawn from all 63 bits."""

_DRAWN = 256
"""How many gaps are drawn at a time."""

_GAP = (1 << 36) - 1
"""A gap is from 1 to 2^36: who knows an id cannot guess the one before or after it."""


class Identity:
    """One opening of one Millpond in one process; no other has the same owner."""

    def __init__(self, seed: int | None = None) -> None:
        self.dice = random.Random(seed) if seed is not None else random.Random()  # noqa: S311
        # A seeded runtime must repeat, so it is named by its seed and not by where it runs.
        host = _ODD.sub("-", socket.gethostname())[:64]
        place = f"{host}-{os.getpid()}" if seed is None else "seeded"
        self.owner = f"{place}-{self.dice.getrandbits(32):08x}"
        # What is seeded was found with ids that were drawn each, and must repeat.
        self.new_id: Callable[[], int] = (
            partial(self.dice.getrandbits, 63) if seed is not None else _ids().__next__
        )
        """Returns a new id of 63 bits: drawn by chance, or a little above the last.

        An index of a large store takes in ids that stand close together at less cost. The gaps
        between them are random, so neighbours cannot be guessed.
        """


def _ids() -> Iterator[int]:
    while True:
        yield from _block(int.from_bytes(os.urandom(8), "big") >> 1)


def _block(first: int) -> Iterator[int]:
    """Yield ids in order from the first on, each at a random distance behind the one before."""
    identifier = first
    yield identifier
    for _ in range(_BLOCK // _DRAWN):
        for chance in array("Q", os.urandom(8 * _DRAWN)):
            identifier += 1 + (chance & _GAP)
            if identifier >= 1 << 63:
                return
            yield identifier
