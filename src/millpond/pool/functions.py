"""The functions that one Millpond registers as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.errors import ConfigError, DuplicateName
from millpond.pool.task import KeyOf, TaskFunction

if TYPE_CHECKING:
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool
    from millpond.runtime.jobs.job import Handler


class Functions:
    """Registered functions, by name and alias."""

    def __init__(self, mp: Millpond) -> None:
        self._mp = mp
        self.by_name: dict[str, TaskFunction[..., Any, Any]] = {}
        self.handlers: dict[str, Handler] = {}
        """What workers run: also what the system has for itself."""

    def register(
        self,
        pool: Pool | None,
        fn: Callable[..., Any] | None,
        *,
        name: str | None,
        key: KeyOf | None,
        aliases: Iterable[str],
        executor: str | None,
        defaults: Mapping[str, Any],
        batch: tuple[int, float] | None = None,
    ) -> Any:  # noqa: ANN401 - a task, or the decorator that makes one
        """Register a function under its name and aliases."""
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
            )
        if not callable(fn):
            raise TypeError(f"task() decorates a function, not {fn!r}")
        given = getattr(fn, "__name__", "")
        if name is None and given in ("", "<lambda>"):
            raise ConfigError(
                "name", name, f"must be given for {fn!r}, which has none to be found by"
            )
        own = check.name("name", given if name is None else name)
        task: TaskFunction[..., Any, Any] = TaskFunction(
            self._mp,
            pool,
            fn,
            name=own,
            key=key,
            aliases=aliases,
            executor=executor,
            batch=batch,
            defaults=defaults,
        )
        for one in (own, *task.aliases):
            if one in self.by_name:
                message = f"a task named {one!r} is registered already; give this one name="
                raise DuplicateName(message, kind="task", name=one)
        handler = task.handler()
        for one in (own, *task.aliases):
            self.by_name[one] = task
            self.handlers[one] = handler
        if self._mp.is_open:
            self._mp.runtime.registration.functions_added()
        return task
