"""The fields of a log record: a stable event name, and what the record is about."""

from __future__ import annotations


def about(
    event: str,
    *,
    pool: str | None = None,
    task: int | None = None,
    worker: str | None = None,
    reason: str | None = None,
    **more: object,
) -> dict[str, object]:
    """Return the `extra` of a log call. Fields without a value are left out.

    `event` is a dotted name that never changes, such as `lease.lost`: programs match on it, people
    read the sentence beside it.
    """
    fields = {"pool": pool, "task": task, "worker": worker, "reason": reason, **more}
    return {"event": event, **{name: value for name, value in fields.items() if value is not None}}
