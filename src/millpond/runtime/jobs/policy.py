"""Retry policies: a formula or a function of the user, and what a task carries of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from millpond.core.backoff import Retry

Policy: TypeAlias = Retry | Callable[[int, BaseException], float | None]
"""A formula, or a function of the attempt and its error that returns seconds or None."""

DEFAULT_RETRY = Retry()


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task carries for the runtime: nothing, unless its submitter said otherwise."""

    retry: Retry | None = None
    trace: dict[str, str] = {}
    """The trace that its submit is part of, as W3C headers; only where there is telemetry."""


def carried(options: bytes) -> Carried:
    """Return what a task carries; unreadable bytes count as nothing."""
    try:
        return msgspec.msgpack.decode(options, type=Carried)
    except msgspec.MsgspecError:
        return Carried()


def without_trace(options: bytes) -> bytes:
    """Return what a task carries, without the trace of one submit."""
    retry = carried(options).retry if options else None
    return b"" if retry is None else msgspec.msgpack.encode(Carried(retry=retry))
