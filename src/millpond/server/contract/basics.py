"""What every part of the API shares: numbers, names, refusals."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millpond.core import bounds

Count = Annotated[int, Meta(ge=0, le=bounds.MAX_COUNT)]
Key = Annotated[str, Meta(min_length=1, max_length=bounds.MAX_KEY)]
Name = Annotated[str, Meta(min_length=1, max_length=bounds.MAX_NAME)]
Id = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
Seconds = Annotated[float, Meta(ge=0, le=bounds.MAX_SECONDS)]
Lasting = Annotated[float, Meta(gt=0, le=bounds.MAX_SECONDS)]
Priority = Annotated[int, Meta(ge=bounds.MIN_PRIORITY, le=bounds.MAX_COUNT)]

State = Literal[
    "queued", "scheduled", "parked", "running", "completed", "failed", "cancelled", "rejected"
]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    code: str
    """A stable code: MILL-... as in the library, or a word of the HTTP API."""
    message: str
    """A sentence for people."""
    fields: dict[str, Any]
    """What the refusal is about, by name."""
    docs: str
    """Where the documentation explains it."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every answer with a status of 400 or more."""

    error: Problem


class ErrorOf(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a handler."""

    type: str
    message: str
