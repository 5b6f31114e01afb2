"""Registering functions as tasks: `@mp.task`, `@pool.task` and `@pool.batch_task`, typed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from millpond.core import validation as check
from millpond.core.validation import Seconds
from millpond.pool.context import Context, SyncContext
from millpond.pool.options import checked, policy
from millpond.pool.outcome import Outcome, RunOutcome
from millpond.pool.registered import Executor, KeyOf, Registration
from millpond.pool.task import TaskFunction
from millpond.runtime.jobs.batch_call import Failed

if TYPE_CHECKING:
    from millpond.runtime.jobs.policy import Policy

P = ParamSpec("P")
T = TypeVar("T")
Ended = TypeVar("Ended", Outcome, RunOutcome)
"""What a callback gets first: the outcome of a task or of a run."""
R = TypeVar("R")

Async: TypeAlias = Coroutine[Any, Any, T]
Running: TypeAlias = Coroutine[object, Never, T]
"""The return type of an `async def`: a coroutine, but without an Any in its type, which would
leave `submit(fn)` and `map(fn, ...)` undecided between a task and a plain callable."""


class TaskDecorator(Protocol):
    """Turns a function into a registered one: `@pool.task`, and what `@pool.task(...)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, Ended, P], Async[T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Context, Ended, P], Running[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Ended, P], Async[T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Ended, P], Running[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Async[T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Context, P], Running[T]]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Async[T]], /
    ) -> TaskFunction[P, T, Callable[P, Running[T]]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncContext, Ended, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, Ended, P], T]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Ended, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Ended, P], T]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncContext, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, P], T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> TaskFunction[P, T, Callable[P, T]]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        timeout: Seconds | None = None,
        retry: Policy | None = None,
        priority: int | None = None,
        executor: Executor | None = None,
        ignore_result: bool = False,
    ) -> TaskDecorator: ...


class BatchDecorator(Protocol):
    """What `@pool.batch_task(...)` returns."""

    @overload
    def __call__(
        self, fn: Callable[[Context, list[T]], Async[list[R | Failed]]], /
    ) -> TaskFunction[[T], R, Callable[[Context, list[T]], Running[list[R | Failed]]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[Context, list[T]], Async[list[R]]], /
    ) -> TaskFunction[[T], R, Callable[[Context, list[T]], Running[list[R]]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[SyncContext, list[T]], list[R | Failed]], /
    ) -> TaskFunction[[T], R, Callable[[SyncContext, list[T]], list[R | Failed]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[SyncContext, list[T]], list[R]], /
    ) -> TaskFunction[[T], R, Callable[[SyncContext, list[T]], list[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[T]], Async[list[R | Failed]]], /
    ) -> TaskFunction[[T], R, Callable[[list[T]], Running[list[R | Failed]]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[T]], Async[list[R]]], /
    ) -> TaskFunction[[T], R, Callable[[list[T]], Running[list[R]]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[T]], list[R | Failed]], /
    ) -> TaskFunction[[T], R, Callable[[list[T]], list[R | Failed]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[T]], list[R]], /
    ) -> TaskFunction[[T], R, Callable[[list[T]], list[R]]]: ...


class RegistersTasks:
    """The part of a Millpond or pool that registers functions."""

    @abstractmethod
    def _register(self, fn: Callable[..., Any] | None, given: Registration) -> Any:  # noqa: ANN401
        """Register a function; without one, return the decorator that does."""

    if TYPE_CHECKING:

        @property
        def task(self) -> TaskDecorator:
            """Register a function as a task; any pool of the Millpond takes its calls."""

    else:

        def task(
            self,
            fn: Callable[..., Any] | None = None,
            /,
            *,
            name: str | None = None,
            key: KeyOf | None = None,
            aliases: Iterable[str] = (),
            timeout: Seconds | None = None,
            retry: Policy | None = None,
            priority: int | None = None,
            executor: Executor | None = None,
            ignore_result: bool = False,
        ) -> Any:  # noqa: ANN401 - as TaskDecorator says
            """Register a function as a task; any pool of the Millpond takes its calls.

            Registered by a pool, its calls go to that pool where none is named.
            """
            defaults = default_options(timeout, retry, priority)
            given = Registration(name, key, aliases, executor, None, defaults, ignore_result)
            return self._register(fn, given)


class RegistersBatchTasks(RegistersTasks):
    """The part of a pool that registers functions, for single items and for batches."""

    def batch_task(
        self,
        *,
        size: int = 64,
        linger: Seconds = 0.05,
        name: str | None = None,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        timeout: Seconds | None = None,
        retry: Policy | None = None,
        priority: int | None = None,
        ignore_result: bool = False,
    ) -> BatchDecorator:
        """Register a function that takes a list: several tasks in one call, each settled alone.

        It returns one result per item, or `Failed(error)` for an item that failed.
        """
        check.integer("size", size, least=1)
        batch = (size, check.seconds("linger", linger))
        defaults = default_options(timeout, retry, priority)
        given = Registration(name, key, aliases, None, batch, defaults, ignore_result)
        return self._register(None, given)  # type: ignore[no-any-return]


def default_options(timeout: object, retry: Policy | None, priority: int | None) -> dict[str, Any]:
    """Return the options that a function has for each of its calls."""
    given = {"timeout": timeout, "priority": priority}
    options = dict(checked({name: value for name, value in given.items() if value is not None}))
    if retry is not None:
        options["retry"] = policy("retry", retry)
    return options
