"""Asked: which of the records of a page whoever reads the audit wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.audit import Record


def matching(
    records: Sequence[Record], since: float | None, task: int | None
) -> tuple[Record, ...]:
    """Return those of a moment or later, and of a task, where these are given."""
    return tuple(
        record
        for record in records
        if (since is None or record.at >= since) and (task is None or record.task == task)
    )
