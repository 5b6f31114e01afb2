"""Retention: how long ended tasks, their keys and the audit are kept."""

from __future__ import annotations

import msgspec

from millpond.core import validation as check
from millpond.core.retention import DAY, DEFAULT, HOUR, TIMES, Retention, in_force
from millpond.core.validation import Seconds
from millpond.errors import ConfigError


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for which each kind of record is kept."""

    completed: Seconds = HOUR
    """Completed tasks; an hour."""
    failed: Seconds = 7 * DAY
    """Failed tasks, the dead letters; cancelled and rejected ones too; seven days."""
    keys: Seconds = 30 * DAY
    """Idempotency keys, and runs that are over; 30 days. In a pool that a trigger submits to, at
    least as long as events can be replayed."""
    events: Seconds | None = None
    """Events, and the receipts of triggers: as long as they can be replayed; seven days, or for as
    long as keys are kept if that is shorter. A replay finds its tasks by their keys, so never for
    longer than those."""
    audit: Seconds = 7 * DAY
    """Audit records, which all pools of a store share: the longest that any of them asks for
    counts. In memory their number counts instead, the latest 10,000."""
    shorten: bool = False
    """Shorten what is stored with a pool; without it, a shorter declaration is a ConfigConflict."""

    def __post_init__(self) -> None:
        for option in TIMES:
            given = getattr(self, option)
            if given is None:
                given = min(7 * DAY, check.seconds("keep.keys", self.keys))
            seconds = check.seconds(f"keep.{option}", given)
            msgspec.structs.force_setattr(self, option, seconds)
        if self.events > self.keys:  # type: ignore[operator]
            reason = "must not exceed keep.keys: a replay would make a second task"
            raise ConfigError("keep.events", self.events, reason)

    @classmethod
    def stored(cls, kept: Retention | None) -> Keep:
        """Return what is stored with a pool."""
        held = in_force(kept)
        return cls(**{name: getattr(held, name) for name in TIMES})

    def of_pool(self, *, given: bool) -> Retention | None:
        """Return it as it is stored with a pool; None for a default that says nothing new."""
        seconds = {name: float(getattr(self, name)) for name in TIMES}
        made = Retention(**seconds, given=given, shorten=self.shorten)
        return None if made == DEFAULT else made
