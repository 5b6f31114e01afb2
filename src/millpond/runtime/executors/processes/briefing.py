"""What a child process knows about the attempt it runs, and what its error means there."""

from __future__ import annotations

import msgspec

from millpond.core.handler_signals import Scope
from millpond.core.lease import Leased


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What a child knows about the attempt it runs."""

    leased: Leased
    started_at: float
    deadline: float | None
    max_payload: int | None = None
    trace: dict[str, str] = {}
    """The trace that its handler is part of, where there is telemetry."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the exception of a handler in a child means."""

    kinds: tuple[str, ...] = ()
    give_up: bool = False
    cancelled: bool = False
    retry_in: float | None = None
    spend: bool = True
    hold: Scope | None = None
    bad_result: bool = False
    unreadable: bool = False
    misfit: str | None = None
    """The argument that does not fit the function; "" where none can be named."""
