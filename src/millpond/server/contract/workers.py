"""Workers."""

from __future__ import annotations

import msgspec


class HeldTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker runs."""

    id: str
    pool: str
    function: str
    key: str | None
    attempt: int
    started_at: float | None


class WorkerItem(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, what it runs now and until when it holds that."""

    id: str
    host: str | None
    pid: int | None
    process: str | None
    """The process it belongs to: several workers of one process share it."""
    version: str | None
    """The release of Millpond that it runs, if it has said so."""
    number: int
    lease: float
    expires_at: float
    """When its leases expire unless it renews them."""
    alive: bool
    functions: list[str] | None
    """The functions it knows; null = all."""
    closures_only: bool
    """It runs nothing but closures of its own process."""
    running: int
    holding: list[HeldTask]
    """The first hundred of the tasks it runs."""
    ahead: int
    """Tasks that it holds ahead."""


class WorkerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Workers in the order of joining."""

    items: list[WorkerItem]
    next: str | None
    at: float
