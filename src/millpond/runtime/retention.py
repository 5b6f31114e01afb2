"""Retention: how long ended tasks, their keys and the audit are kept."""

from __future__ import annotations

import msgspec

from millpond.core import check
from millpond.core.check import Seconds

HOUR, DAY = 3_600.0, 86_400.0


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for which each kind of record is kept."""

    completed: Seconds = HOUR
    """Completed tasks; an hour."""
    failed: Seconds = 7 * DAY
    """Failed tasks, the dead letters; cancelled and rejected ones too; seven days."""
    keys: Seconds = 30 * DAY
    """Idempotency keys, and runs that are over; 30 days."""
    audit: Seconds = 7 * DAY
    """Audit records; in memory their number counts instead, the latest 10,000."""

    def __post_init__(self) -> None:
        for option in self.__struct_fields__:
            seconds = check.seconds(f"keep.{option}", getattr(self, option))
            msgspec.structs.force_setattr(self, option, seconds)
