"""The audit."""

from __future__ import annotations

import msgspec


class AuditItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit."""

    at: float
    kind: str
    pool: str
    position: int | None = None
    task: str | None = None
    event: str | None = None
    before: str | None = None
    after: str | None = None
    attempt: int | None = None
    worker: str | None = None
    key: str | None = None
    function: str | None = None
    run: str | None = None
    due: float | None = None
    reason: str | None = None
    detail: str | None = None
    """What an operator ordered."""
    by: str | None = None
    """Who ordered it, where that is known."""
    cause: str | None = None
    """The task on whose account it happened."""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Audit records, the latest first."""

    items: list[AuditItem]
    next: str | None
    partial: bool
    at: float
