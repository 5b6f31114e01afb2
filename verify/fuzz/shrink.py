"""Shrinks a history that diverged: what is left out of it and still diverges was not needed.

Delta debugging (Zeller and Hildebrandt, 2002): leave out ever smaller parts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.errors import MillpondError
from verify.fuzz.differential import Diverged, Turn, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verify.servers.schemas import Schemas


def divergence(schemas: Schemas, history: Sequence[Turn]) -> str | None:
    """Return how a history diverges when it is replayed, without numbers; None if it does not."""
    schema = schemas.take()
    try:
        asyncio.run(replay(schema, history))
    except Diverged as diverged:
        return kind_of(diverged)
    except MillpondError:
        return None  # without its beginning it is no history: a pool was not declared
    finally:
        schemas.give_back(schema)
    return None


def kind_of(diverged: Diverged) -> str:
    """Return what differs: the words before the values, and not at which verb."""
    _, _, what = diverged.what.partition(": ")
    said = what.split(" is ")[0]
    return "".join(letter for letter in said if not letter.isdigit())[:60]


def shrink(schemas: Schemas, history: list[Turn]) -> list[Turn]:
    """Return a part of a history that diverges in the same way."""
    kind = divergence(schemas, history)
    if kind is None:
        return history
    size = max(len(history) // 2, 1)
    while size >= 1:
        start = 0
        while start < len(history):
            shorter = history[:start] + history[start + size :]
            if shorter and divergence(schemas, shorter) == kind:
                history = shorter
            else:
                start += size
        size //= 2
    return history
