"""Workers as people read them: what each runs, and until when it holds that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lease import RELEASE
from millpond.store.protocol import Held, WorkerView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Task


def worker_view(worker: RegisteredWorker, running: int, tasks: Iterable[Task]) -> WorkerView:
    """Return a worker with the first of the tasks that it runs."""
    known = worker.functions
    return WorkerView(
        id=worker.id,
        owner=worker.owner,
        number=worker.number,
        expires_at=worker.expires_at,
        lease=worker.lease,
        functions=None if known is None else tuple(sorted(known - {RELEASE})),
        version=worker.signatures.get(RELEASE),
        running=running,
        holding=tuple(map(_held, tasks)),
        ahead=len(worker.ahead),
    )


def _held(task: Task) -> Held:
    new = task.new
    return Held(
        task=new.id,
        pool=new.pool,
        function=new.call.function,
        key=new.key,
        attempt=task.attempt,
        started_at=task.started_at,
    )
