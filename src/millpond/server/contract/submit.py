"""Submit: a call, and the receipt for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millpond.core import bounds
from millpond.server.contract.basics import Key, Lasting, Priority, Seconds


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be said about a task besides its work."""

    key: Key | None = None
    priority: Priority = 0
    weight: Annotated[int, Meta(ge=1, le=bounds.MAX_COUNT)] = 1
    delay: Seconds | None = None
    run_at: float | None = None
    """Not before this moment; wins over delay."""
    expires_in: Lasting | None = None
    timeout: Lasting | None = None
    attempts: Annotated[int, Meta(ge=1, le=bounds.MAX_COUNT)] | None = None
    """How many charged runs it may have; the default is what the pool declares, or 3."""
    labels: dict[str, str] = {}
    idempotency_key: Key | None = None
    """The same as the header Idempotency-Key."""
    dedupe: Literal["forever", "success", "inflight", "waiting", "replace"] = "forever"


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a registered function, by its name."""

    function: Annotated[str, Meta(min_length=1, max_length=bounds.MAX_FUNCTION)]
    """The name that workers know it by; the server need not know it."""
    args: list[Any] = []
    """Arguments by position; only where the server knows the function."""
    kwargs: dict[str, Any] = {}
    """Arguments by the names of the parameters."""
    options: SubmitOptions = SubmitOptions()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was taken, or the one that its idempotency key stands for."""

    id: str
    pool: str
    status: str
    duplicate: bool
    """The idempotency key was known: this is the task it stands for."""
    location: str
    lane: str | None
    sequence: int
    position: int | None
    """How many stand ahead of it, where that is known."""
