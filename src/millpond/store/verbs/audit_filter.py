"""Filter a page of audit records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.audit import Record


def matching(
    records: Sequence[Record], since: float | None, task: int | None
) -> tuple[Record, ...]:
    """Return the records at `since` or later and of `task`, where these are given."""
    return tuple(
        record
        for record in records
        if (since is None or record.at >= since) and (task is None or record.task == task)
    )
