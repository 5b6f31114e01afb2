"""The functions that one Millpond registers as tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.errors import ConfigError, DuplicateName
from millpond.pool.context import Context, SyncContext
from millpond.pool.internals import internals_of
from millpond.pool.registered import Registered, Registration
from millpond.pool.task import TaskFunction
from millpond.pool.task_handler import TaskHandler

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.task import OwnPool


class Functions:
    """Registered functions, by name and alias."""

    def __init__(self, owner: RuntimeOwner, find_pool: Callable[[str], DeclaredPool]) -> None:
        self._owner = owner
        self._find_pool = find_pool
        self.by_name: dict[str, TaskFunction[..., Any, Any]] = {}

    def register(
        self,
        pool: OwnPool | None,
        fn: Callable[..., Any] | None,
        given: Registration,
    ) -> Any:  # noqa: ANN401 - a task, or the decorator that makes one
        """Register a function under its name and aliases."""
        if given.batch is not None and pool is not None and pool.spec.strict:
            raise ConfigError("batch_task", pool.name, "does not work with lanes or ordered")
        if fn is None:
            return lambda decorated: self.register(pool, decorated, given)
        if not callable(fn):
            raise TypeError(f"task() decorates a function, not {fn!r}")
        own_name = getattr(fn, "__name__", "")
        if given.name is None and own_name in ("", "<lambda>"):
            raise ConfigError("name", None, f"is required for {fn!r}, which has no name of its own")
        registered = Registered(
            fn,
            name=check.name("name", own_name if given.name is None else given.name),
            context_types=(Context, SyncContext),
            largest=self._owner.max_payload,
            find_pool=self._find_pool,
            pool=None if pool is None else internals_of(pool),
            given=given,
        )
        return self._add(registered, pool)

    def _add(self, registered: Registered, pool: OwnPool | None) -> TaskFunction[..., Any, Any]:
        names = (registered.name, *registered.aliases)
        for one in names:
            if one in self.by_name:
                message = f"a task named {one!r} is registered already; give this one name="
                raise DuplicateName(message, kind="task", name=one)
        handler = TaskHandler(
            registered, self.decoder_of, self._owner.hooks, self._owner.middlewares
        )
        task: TaskFunction[..., Any, Any] = TaskFunction(registered, pool, handler.run_encoded)
        for one in names:
            self.by_name[one] = task
            self._owner.handlers[one] = handler.handler()
        if self._owner.is_open:
            self._owner.runtime.registration.functions_added()
        return task

    def decoder_of(self, function: str) -> Callable[[bytes], Any] | None:
        """Return what decodes the results of a function; None if it is not registered here."""
        task = self.by_name.get(function)
        return None if task is None else internals_of(task).signature.decode_result
