"""Changes of tasks that wait: other arguments, another time, another priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import Update
from millpond.core.spec import OrderKind
from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.pool.named_call import NamedCall
from millpond.pool.new_task import share_of
from millpond.pool.options import checked_update
from millpond.pool.payload.signature import fingerprint
from millpond.pool.registered import Invocation
from millpond.pool.work import as_work

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from millpond.core.task import NewTask
    from millpond.core.validation import Seconds
    from millpond.pool.all_tasks import AllTasks
    from millpond.pool.options import UpdateOptions
    from millpond.pool.pools import Pools
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.task import BoundCall


class WaitingTasks:
    """Changes tasks that no worker holds yet, whatever their pool."""

    def __init__(self, owner: RuntimeOwner, pools: Pools, tasks: AllTasks) -> None:
        self._owner = owner
        self._pools = pools
        self._tasks = tasks

    async def update(
        self,
        task: int,
        arguments: BoundCall[Any] | Mapping[str, Any] | None = None,
        /,
        *,
        revision: int | None = None,
        **options: Unpack[UpdateOptions],
    ) -> int:
        """Change a task that waits: its arguments, priority, time or labels; return its revision.

        It keeps its id, its key and its place. Arguments are a call of its function, or plain data
        by name; with others it has a new budget of attempts. `revision` is the one that you have
        seen. NotWaiting if a worker has it already, StaleRevision if another update came first.
        """
        return await self.change(task, arguments, options, revision=revision)

    async def reschedule(
        self,
        task: int,
        /,
        *,
        run_at: float | datetime | None = None,
        delay: Seconds | None = None,
        revision: int | None = None,
    ) -> int:
        """Let a task that waits start at another time, `run_at` or in `delay` seconds.

        Return its revision. NotWaiting if a worker has it already.
        """
        if (run_at is None) == (delay is None):
            raise ConfigError("run_at", run_at, "or delay: give one of them")
        given = {"delay": delay} if run_at is None else {"run_at": run_at}
        return await self.change(task, None, given, revision=revision)

    async def run_now(self, task: int, /, *, revision: int | None = None) -> int:
        """Let a task that waits for its time start as soon as its pool allows.

        It ends a delay and the wait for a retry; the order and the limits of the pool hold. Return
        its revision. NotWaiting if a worker has it already.
        """
        return await self.change(task, None, {"delay": 0.0}, revision=revision)

    async def change(
        self,
        task: int,
        arguments: object,
        options: Mapping[str, Any],
        *,
        revision: int | None = None,
        by: str | None = None,
    ) -> int:
        """Change a task that waits, by the order of an operator if there is one."""
        check.integer("task", task, most=bounds.MAX_NUMBER)
        changes = checked_update(options)
        if arguments is not None:
            changes = {**await self._call(task, arguments, changes), **changes}
        runtime = self._owner.runtime
        order = Update(task=task, revision=revision, by=by, **changes)
        answer = await runtime.control.order(order)
        runtime.maintenance.nudge()
        return answer.revision

    async def _call(
        self, task: int, arguments: object, options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the fields of an update that gives a task other arguments."""
        runtime = self._owner.runtime
        record = await runtime.view.task(task)
        if record is None:
            raise runtime.waiting.unknown(task)
        new = record.new
        call = self._as_call(new, arguments)
        own, derived = {}, None
        if isinstance(call, Invocation):
            own, derived = dict(call.options), call.key()
        key = own.pop("key", None) or derived or new.key
        changes = checked_update(own)
        encoded = call.encode()
        return {
            **changes,
            "call": encoded,
            "key": key,
            "share": await self._share(new, call, key, {**changes, **options}),
            "fingerprint": (
                fingerprint(encoded.function, encoded.payload) if new.idempotency_key else 0
            ),
        }

    def _as_call(self, new: NewTask, arguments: object) -> Invocation | NamedCall:
        if new.is_callback:
            raise ConfigError(
                "arguments", arguments, f"of task {new.id}, a callback, cannot be changed"
            )
        if isinstance(arguments, Mapping):
            arguments = self._tasks.named_call(new.call.function, arguments)
        call = as_work(arguments)
        if isinstance(call, (Invocation, NamedCall)):
            return call
        raise ConfigError(
            "arguments", arguments, "must be a call, such as send.bind('ada'), or data by name"
        )

    async def _share(
        self,
        new: NewTask,
        call: Invocation | NamedCall,
        key: str | None,
        options: Mapping[str, Any],
    ) -> str | None:
        """Return the partition in a fair pool that the task has with these arguments."""
        pool = internals_of(await self._pools.in_store(new.pool.removesuffix(CALLBACKS)))
        order = pool.spec.order
        if order.kind is not OrderKind.FAIR:
            return new.share
        return share_of(order.key, {"labels": new.labels, **options}, key, call)
