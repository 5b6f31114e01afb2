"""Units: the lane or key that an order to a pool names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core import validation as check
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from millpond.core.spec import PoolSpec


def unit_of(spec: PoolSpec, pool: str, lane: str | int | None, key: str | None) -> str | None:
    """Return the unit of an order, None for the whole pool; raise if the pool has no such unit."""
    if lane is not None and key is not None:
        raise ConfigError("lane", lane, "and key exclude each other")
    if lane is None and key is not None and spec.lanes is not None:
        raise ConfigError("key", key, f"shares a lane of pool {pool!r} with other keys: give lane=")
    if lane is None:
        return None if key is None else check.text("key", key)
    if not spec.strict:
        raise ConfigError("lane", lane, f"is unknown: pool {pool!r} has no lanes")
    name = str(lane)
    lanes = spec.lanes
    if lanes is not None and name not in map(str, range(lanes)):
        raise ConfigError("lane", lane, f"must be from 0 to {lanes - 1}")
    return name
