"""Random numbers for generated histories: a stream of its own for each field that is drawn.

With one stream for all, one draw more shifts every draw after it, and a seed that was kept means
another history. Here a new field, or a new choice for one, leaves all other fields as they are.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_HOW_OFTEN = (0.0, 0.0, 0.0, 0.004, 0.03, 0.2)
"""How often a field is unusual in one history: histories without a feature reach other states
than those in which all features are mixed."""


class Streams:
    """Streams by the names of fields, all made of one seed."""

    def __init__(self, *seed: object) -> None:
        self._seed = "/".join(map(str, seed))
        self._streams: dict[str, random.Random] = {}
        self._chances: dict[str, float] = {}

    def __getitem__(self, field: str) -> random.Random:
        stream = self._streams.get(field)
        if stream is None:
            stream = self._streams[field] = random.Random(f"{self._seed}/{field}")
        return stream

    def pick(self, field: str, choices: Sequence[T]) -> T:
        """Return one of these."""
        return self[field].choice(choices)

    def chance(self, field: str, probability: float) -> bool:
        """Return True with a probability."""
        return self[field].random() < probability

    def seldom(self, field: str, usual: T, others: Sequence[T]) -> T:
        """Return what is usual, or one of the others; how often, each history decides by itself.

        Both are drawn each time, so that how often it happens does not shift what happens.
        """
        chance = self._chances.get(field)
        if chance is None:
            chance = self._chances[field] = self[f"{field}, how often"].choice(_HOW_OFTEN)
        other, is_other = self[field].choice(others), self[field].random() < chance
        return other if is_other else usual
