"""Why a task is not running, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.why import explain
from millpond.errors import UnknownTask
from millpond.runtime.error_info import read

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime


async def why(runtime: Runtime, task: int, *, most: int | None = None) -> str:
    """Return in words why a task is not running (or that it is, or how it ended).

    Where more than `most` tasks wait in its pool, those that come first are not counted.
    """
    facts = await runtime.view.why(task, now=runtime.clock(), most=most)
    if facts is None:
        (status,) = await runtime.view.status((task,))
        if status == "unknown":
            raise UnknownTask(f"no task {task} is known", task_id=task)
        return status
    error = read(facts.error)
    if error is not None:
        facts = msgspec.structs.replace(facts, error=str(error).encode())
    if facts.status is Status.QUEUED and facts.worker is None:
        facts = msgspec.structs.replace(facts, no_slot=runtime.no_slot(facts.pool))
    return explain(facts, runtime.clock())
