"""The parsed options of a run."""

from __future__ import annotations

import re

import msgspec

from millpond.cli.run.options import Halt
from millpond.cli.run.template import Text
from millpond.core.rate import Rate


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    jobs: int
    retries: int = 0
    retry_delay: float = 1.0
    timeout: float | None = None
    key: Text | None = None
    key_pattern: re.Pattern[str] | None = None
    per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    halt: Halt | None = None
    in_order: bool = False
    tag: bool = False
    quiet: bool = False
    verbose: bool = False
    redo_failed: bool = False

    def key_of(self, item: str) -> str | None:
        """Return the key of an item for the limits per key; None = no limit applies."""
        if self.key is not None:
            return self.key.filled(item, 0) or None
        if self.key_pattern is None:
            return None
        match = self.key_pattern.search(item)
        if match is None:
            return None
        return match[1 if match.re.groups else 0] or None
