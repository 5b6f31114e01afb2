"""Who takes part in a benchmark."""

from __future__ import annotations

from typing import NamedTuple

FULL, NORMAL, OFF = "full", "normal", "off"


class Contender(NamedTuple):
    """A queue with its settings."""

    name: str
    kind: str
    durability: str
    """The `synchronous` it runs with: full, normal or off."""
    keeps: str
    """What happens to a task whose worker is killed, in a few words."""
