"""The functions that one Millpond registers as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.errors import ConfigError, DuplicateName
from millpond.pool.context import Context, SyncContext
from millpond.pool.internals import internals_of
from millpond.pool.registered import KeyOf, Registered
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
        *,
        name: str | None,
        key: KeyOf | None,
        aliases: Iterable[str],
        executor: str | None,
        defaults: Mapping[str, Any],
        batch: tuple[int, float] | None = None,
        ignore_result: bool = False,
    ) -> Any:  # noqa: ANN401 - a task, or the decorator that makes one
        """Register a function under its name and aliases."""
        if batch is not None and pool is not None and pool.spec.strict:
            raise ConfigError("batch_task", pool.name, "does not work with lanes or ordered")
        if fn is None:
            return lambda given: self.register(
                pool,
                given,
                name=name,
                key=key,
                aliases=aliases,
                executor=executor,
                defaults=defaults,
                batch=batch,
                ignore_result=ignore_result,
            )
        if not callable(fn):
            raise TypeError(f"task() decorates a function, not {fn!r}")
        own_name = getattr(fn, "__name__", "")
        if name is None and own_name in ("", "<lambda>"):
            raise ConfigError("name", name, f"is required for {fn!r}, which has no name of its own")
        registered = Registered(
            fn,
            name=check.name("name", own_name if name is None else name),
            context_types=(Context, SyncContext),
            largest=self._owner.max_payload,
            find_pool=self._find_pool,
            pool=None if pool is None else internals_of(pool),
            key=key,
            aliases=aliases,
            executor=executor,
            batch=batch,
            defaults=defaults,
            ignore_result=ignore_result,
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
