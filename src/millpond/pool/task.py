"""Tasks: registered functions, and calls of them that can be submitted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from millpond.errors import ConfigError
from millpond.pool.options import Options, checked
from millpond.pool.registered import Invocation, Registered

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.core.task import Call
    from millpond.pool.handle import Handle, SyncHandle
    from millpond.pool.pool import Pool
    from millpond.runtime.executors.processes.child import Channel

    OwnPool: TypeAlias = Pool
    """The pool of a task. A pool makes tasks, so only type checkers know it here."""

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class CallableWithoutArguments(Protocol[R_co]):
    """A registered function whose parameters all have defaults, if it has any."""

    def bind(self) -> BoundCall[R_co]:
        """Return a call."""


class CallableWithItem(Protocol[T_contra, R_co]):
    """A registered function, perhaps with options, that needs one argument."""

    def bind(self, item: T_contra, /) -> BoundCall[R_co]:
        """Return a call with this argument."""


class BoundCall(msgspec.Struct, Generic[R_co], eq=False):
    """A registered function with its arguments, and perhaps options: data, ready to submit."""

    function: TaskFunction[..., R_co, Any]
    """The function that it calls."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: Mapping[str, Any] = _NOTHING
    """Its named arguments."""
    _options: Mapping[str, Any] = _NOTHING

    @property
    def _internals(self) -> Invocation:
        return Invocation(self.function._internals, self.args, self.kwargs, self._options)  # noqa: SLF001 - of the same module

    def options(self, **options: Unpack[Options]) -> BoundCall[R_co]:
        """Return the same call with options; later ones win."""
        return BoundCall(
            self.function, self.args, self.kwargs, {**self._options, **checked(options)}
        )

    def _as_callback(self) -> Call:
        return self._internals.encode_callback()

    def __repr__(self) -> str:
        return repr(self._internals)


class TaskFunction(Generic[P, R_co, F_co]):
    """A registered function. A direct call runs the function itself: no pool, no record."""

    def __init__(
        self,
        registered: Registered,
        pool: OwnPool | None,
        run_encoded: Callable[[bytes, bytes, Channel], bytes],
    ) -> None:
        self._internals = registered
        self._pool = pool
        self._run_encoded = run_encoded
        """Runs a call in a child process, which finds this object by the name of the function."""
        self.name: str = registered.name
        """The name under which its calls are stored."""
        self.aliases: tuple[str, ...] = registered.aliases
        """Other names of stored calls that it runs."""
        functools.update_wrapper(self, registered.fn)
        self.__name__ = getattr(registered.fn, "__name__", registered.name)

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co:
            """Call the function itself: no pool, no limit, no record."""
            ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
            """Call the function itself: no pool, no limit, no record."""
            return self._internals.fn(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R_co]:
        """Return a call of this function with these arguments, to submit."""
        # Thousands are bound at a time: a dict that is empty is not kept for each.
        return BoundCall(self, args, kwargs or _NOTHING)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Submit a call to the function's own pool."""
        return await self.pool.submit(BoundCall(self, args, kwargs))

    @property
    def sync(self) -> SyncTaskFunction[P, R_co]:
        """The same function for threads: `review.sync.submit(1984)`."""
        return SyncTaskFunction(self)

    def options(self, **options: Unpack[Options]) -> Optioned[P, R_co]:
        """Return the function with options for its next calls.

        `await review.options(priority=9).submit(1984)` submits one of them.
        """
        return Optioned(self, checked(options))

    def each(self, items: Iterable[Any]) -> Iterator[BoundCall[R_co]]:
        """Yield one call for each item, which is its only argument.

        `pool.submit_many(review.each(ids))` submits all of them.
        """
        return (BoundCall(self, (item,)) for item in items)

    @property
    def pool(self) -> OwnPool:
        """The pool that registered it, where its calls go; raises if that was `@mp.task`."""
        if self._pool is None:
            raise ConfigError(
                "pool", None, f"is not set for task {self.name!r}; use pool.submit, or @pool.task"
            )
        return self._pool

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Optioned(Generic[P, R_co]):
    """A registered function with options for its next calls."""

    __slots__ = ("_options", "function")

    def __init__(self, function: TaskFunction[P, R_co, Any], options: Mapping[str, Any]) -> None:
        self.function = function
        """The function that it calls."""
        self._options = options

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R_co]:
        """Return a call with these arguments and options."""
        return BoundCall(self.function, args, kwargs, self._options)

    @property
    def pool(self) -> OwnPool:
        """The pool that registered it, where its calls go; raises if that was `@mp.task`."""
        return self.function.pool

    @property
    def sync(self) -> SyncTaskFunction[P, R_co]:
        """The function with these options, for threads."""
        return SyncTaskFunction(self)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Submit a call with these options to the function's own pool."""
        return await self.function.pool.submit(self.bind(*args, **kwargs))

    def each(self, items: Iterable[Any]) -> Iterator[BoundCall[R_co]]:
        """Yield one call for each item, which is its only argument.

        `pool.submit_many(review.each(ids))` submits all of them.
        """
        return (BoundCall(self.function, (item,), _NOTHING, self._options) for item in items)


class SyncTaskFunction(Generic[P, R_co]):
    """A registered function, for threads: `review.sync.submit(1984)`."""

    __slots__ = ("_function",)

    def __init__(self, function: TaskFunction[P, R_co, Any] | Optioned[P, R_co]) -> None:
        self._function = function

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R_co]:
        """Submit a call to the function's own pool."""
        return self._function.pool.sync.submit(self._function.bind(*args, **kwargs))


Work: TypeAlias = (
    "BoundCall[T] | CallableWithoutArguments[T] | Callable[[], Coroutine[Any, Any, T]]"
)
"""What can be submitted, but for a plain function: a type checker must ask for that one last."""
WorkOnItem: TypeAlias = "CallableWithItem[T, R] | Callable[[T], Coroutine[Any, Any, R]]"
"""What can be mapped over items, but for a plain function."""
