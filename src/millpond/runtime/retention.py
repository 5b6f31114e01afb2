"""Retention: how long ended tasks, their keys and the audit are kept."""

from __future__ import annotations

import msgspec

from millpond.core import check
from millpond.core.check import Seconds
from millpond.core.errors import ConfigError

HOUR, DAY = 3_600.0, 86_400.0


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for which each kind of record is kept."""

    completed: Seconds = HOUR
    """Completed tasks; an hour."""
    failed: Seconds = 7 * DAY
    """Failed tasks, the dead letters; cancelled and rejected ones too; seven days."""
    keys: Seconds = 30 * DAY
    """Idempotency keys, and runs that are over; 30 days."""
    events: Seconds | None = None
    """Events, and the receipts of triggers: as long as they can be replayed; seven days, or for as
    long as keys are kept if that is shorter. A replay finds its tasks by their keys, so never for
    longer than those."""
    audit: Seconds = 7 * DAY
    """Audit records; in memory their number counts instead, the latest 10,000."""

    def __post_init__(self) -> None:
        for option in self.__struct_fields__:
            given = getattr(self, option)
            if given is None:
                given = min(7 * DAY, check.seconds("keep.keys", self.keys))
            seconds = check.seconds(f"keep.{option}", given)
            msgspec.structs.force_setattr(self, option, seconds)
        if self.events > self.keys:  # type: ignore[operator]
            reason = "must not exceed keep.keys: a replay would make a second task"
            raise ConfigError("keep.events", self.events, reason)
