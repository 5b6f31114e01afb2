"""Sessions: a log-in, and who asks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token, for a browser that wants a session."""

    token: Annotated[str, Meta(max_length=4096)]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what that one may do."""

    authenticated: bool
    token_required: bool
    actor: str | None
    """As the audit names it."""
    actions: bool
    """Whether this server lets requests change anything."""
    csrf: str | None
    """What a page sends as X-CSRF-Token with every request that changes something."""
    version: str | None
    store: str | None
    """Where the store is, without secrets."""
    now: float | None
    """The time of the store."""
