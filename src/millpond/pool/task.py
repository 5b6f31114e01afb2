"""Tasks: registered functions, and the calls one binds of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import msgspec

from millpond.core import validation as check
from millpond.core.handler_signals import GiveUp, RetryLater, Throttled
from millpond.core.settle import Ending
from millpond.core.task import CALLBACKS, Call
from millpond.core.type_names import qualified_name
from millpond.errors import ConfigError, ResultUnreadable
from millpond.pool.context import ChildJob, Context, SyncContext
from millpond.pool.options import Options, checked, policy
from millpond.pool.outcome import Outcome
from millpond.pool.payload.signature import MISSING, Signature
from millpond.runtime.executors.processes.parent import Brief, Verdict
from millpond.runtime.jobs.batch_call import Failed
from millpond.runtime.jobs.job import BatchShape, Handler, Job, Where
from millpond.runtime.jobs.outcome import BadResult, Misfit, Unreadable
from millpond.runtime.jobs.policy import Policy

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.pool.handle import Handle
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool
    from millpond.pool.sync.api import SyncTaskFunction
    from millpond.runtime.executors.processes.child import Channel

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)

KeyOf: TypeAlias = str | Callable[..., str | None]
Executor: TypeAlias = Literal["thread", "process"]


class BoundCall(Generic[R_co]):
    """A registered function with its arguments, and perhaps options: data, ready to submit."""

    __slots__ = ("_options", "args", "function", "kwargs")

    def __init__(
        self,
        function: TaskFunction[..., R_co, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._options = options or {}

    def options(self, **options: Unpack[Options]) -> BoundCall[R_co]:
        """Return the same call with options; later ones win."""
        merged = {**self._options, **checked(options)}
        return BoundCall(self.function, self.args, self.kwargs, merged)

    def given(self, around: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options in force: the call's own, over its submit's, over its function's."""
        defaults = self.function.defaults
        if not around and not self._options:
            return defaults
        return {**defaults, **around, **self._options}

    def encoded(self) -> Call:
        """Return the call as data; refuses arguments that would not survive."""
        function = self.function
        return Call(function.name, function.signature.encode(self.args, self.kwargs))

    def as_callback(self) -> Call:
        """Return the call as an on_complete callback: the outcome is put first when it runs."""
        function = self.function
        return Call(function.name, function.callback_signature.encode(self.args, self.kwargs))

    def key(self) -> str | None:
        """Return the key its function derives from the arguments."""
        return self.function.key_of(self.args, self.kwargs)

    def argument(self, name: str) -> Any:  # noqa: ANN401 - an argument of any type
        """Return the argument of a name, or None."""
        value = self.function.signature.argument(self.args, self.kwargs, name)
        return None if value is MISSING else value

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.function.name}({', '.join(arguments)})"


class TaskFunction(Generic[P, R_co, F_co]):
    """A registered function. Called directly, it is just its function."""

    def __init__(
        self,
        mp: Millpond,
        pool: Pool | None,
        fn: Callable[..., Any],
        *,
        name: str,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        executor: str | None = None,
        batch: tuple[int, float] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.mp = mp
        self.own_pool = pool
        self.fn = fn
        self.name = name
        self.aliases = tuple(check.name("aliases", alias) for alias in aliases)
        self.defaults: Mapping[str, Any] = defaults or {}
        self.signature = Signature(
            fn,
            name=name,
            context_types=(Context, SyncContext),
            outcome_types=(Failed,),
            batch=batch is not None,
            largest=mp.max_payload,
        )
        self._key = _checked_key(self.signature, key)
        self._where = _where(fn, executor)
        _check_kind(fn, name, self._where)
        self._batch = batch
        functools.update_wrapper(self, fn)
        self.__name__ = getattr(fn, "__name__", name)

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co:
            """Call the function itself: no pool, no limit, no record."""
            ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
            return self.fn(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R_co]:
        """Return a call of this function with these arguments, to be submitted."""
        return BoundCall(self, args, kwargs)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Submit a call to the function's own pool."""
        return await self.pool.submit(BoundCall(self, args, kwargs))

    @property
    def sync(self) -> SyncTaskFunction[P, R_co]:
        """The function as threads submit it."""
        from millpond.pool.sync.api import SyncTaskFunction  # noqa: PLC0415 - it knows tasks

        return SyncTaskFunction(self)

    def options(self, **options: Unpack[Options]) -> Optioned[P, R_co]:
        """Return the function with options for its next calls."""
        return Optioned(self, checked(options))

    def each(self, items: Iterable[Any]) -> Iterator[BoundCall[R_co]]:
        """Yield one call for each item, which is its only argument."""
        return (BoundCall(self, (item,), {}) for item in items)

    @property
    def pool(self) -> Pool:
        """The pool it is submitted to where none is named."""
        if self.own_pool is None:
            raise ConfigError(
                "pool", None, f"is not set for task {self.name!r}; use pool.submit, or @pool.task"
            )
        return self.own_pool

    @property
    def takes_batches(self) -> bool:
        """Whether one call of it runs several tasks."""
        return self._batch is not None

    def key_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the key of a call, from the parameter or function that was named."""
        if self._key is None:
            return None
        if callable(self._key):
            return self._key(*args, **kwargs)
        value = self.signature.argument(args, kwargs, self._key)
        return None if value is MISSING or value is None else str(value)

    @functools.cached_property
    def callback_signature(self) -> Signature:
        """What it takes as an on_complete callback: everything after the outcome."""
        return Signature(
            _without_outcome(self.fn),
            name=self.name,
            context_types=(Context, SyncContext),
            largest=self.mp.max_payload,
        )

    # As a worker sees it

    def handler(self) -> Handler:
        """Return this function for the workers."""
        given = self.defaults.get("retry")
        shape = None
        if self._batch is not None:
            shape = BatchShape(self._batch[0], self._batch[1], self._read_item, self._call_batch)
        process = (self.fn.__module__, self.fn.__qualname__)
        return Handler(
            self.name,
            self._where,
            self._invoke,
            self.signature.encode_result,
            given,
            shape,
            process if self._where is Where.PROCESS else None,
            self.signature.decode,
            self.signature,
        )

    def _invoke(self, job: Job) -> Any:  # noqa: ANN401 - whatever the function returns
        if job.leased.pool.endswith(CALLBACKS):
            return self._call_back(job)
        args, kwargs = self.signature.decode(job.leased.call.payload)
        if self.signature.wants_context:
            return self.fn(self._context(job), *args, **kwargs)
        return self.fn(*args, **kwargs)

    def _call_back(self, job: Job) -> Any:  # noqa: ANN401
        args, kwargs = self.callback_signature.decode(job.leased.call.payload)
        try:
            outcome = Outcome.of(_ending(job.leased.options), self.mp.tasks)
        except ResultUnreadable as error:
            # Another worker may have the function that returned it as it was.
            raise Misfit(error.message, "outcome") from error
        if self.signature.wants_context:
            return self.fn(self._context(job), outcome, *args, **kwargs)
        return self.fn(outcome, *args, **kwargs)

    def _read_item(self, job: Job) -> Any:  # noqa: ANN401 - an item of any type
        return self.signature.decode(job.leased.call.payload)[0][0]

    def _call_batch(self, jobs: list[Job], items: list[Any]) -> Any:  # noqa: ANN401
        if self.signature.wants_context:
            return self.fn(self._context(jobs[0]), items)
        return self.fn(items)

    def run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        """Run in a process of its own: decode, call, encode. An error says what it means."""
        try:
            return self._run_in_child(payload, msgspec.msgpack.decode(context, type=Brief), channel)
        except BaseException as error:
            verdict = msgspec.msgpack.encode(_verdict(error))
            error.__millpond_wish__ = lambda: verdict  # type: ignore[attr-defined]
            raise

    def _run_in_child(self, payload: bytes, brief: Brief, channel: Channel) -> bytes:
        args, kwargs = self.signature.decode(payload)
        if self.signature.wants_context:
            args = [SyncContext(ChildJob(brief, channel)), *args]
        probes = self.mp.hooks.probes
        with contextlib.nullcontext() if probes is None else probes.inside(brief.trace):
            result = self.fn(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        return self.signature.encode_result(result)

    def _context(self, job: Job) -> Context | SyncContext:
        return Context(job) if self._where is Where.LOOP else SyncContext(job)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Optioned(Generic[P, R_co]):
    """A registered function with options for its next calls."""

    __slots__ = ("_options", "function")

    def __init__(self, function: TaskFunction[P, R_co, Any], options: Mapping[str, Any]) -> None:
        self.function = function
        self._options = options

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R_co]:
        """Return a call with these arguments and options."""
        return BoundCall(self.function, args, kwargs, self._options)

    @property
    def pool(self) -> Pool:
        """The pool it is submitted to where none is named."""
        return self.function.pool

    @property
    def sync(self) -> SyncTaskFunction[P, R_co]:
        """The function with these options, as threads submit it."""
        from millpond.pool.sync.api import SyncTaskFunction  # noqa: PLC0415 - it knows tasks

        return SyncTaskFunction(self)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Submit a call with these options to the function's own pool."""
        return await self.function.pool.submit(self.bind(*args, **kwargs))

    def each(self, items: Iterable[Any]) -> Iterator[BoundCall[R_co]]:
        """Yield one call for each item, which is its only argument."""
        return (BoundCall(self.function, (item,), {}, self._options) for item in items)


Async: TypeAlias = Coroutine[Any, Any, T]
Running: TypeAlias = Coroutine[object, Never, T]
"""What an `async def` gives when called: as any coroutine, but without an Any in its type, which
would leave `submit(fn)` and `map(fn, ...)` undecided between a task and a plain callable."""


class TaskDecorator(Protocol):
    """What `@pool.task(...)` gives: it turns a function into a registered one."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, Outcome, P], Async[T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Context, Outcome, P], Running[T]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Outcome, P], Async[T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Outcome, P], Running[T]]]: ...
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
        self, fn: Callable[Concatenate[SyncContext, Outcome, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, Outcome, P], T]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Outcome, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Outcome, P], T]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncContext, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, P], T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> TaskFunction[P, T, Callable[P, T]]: ...


class BatchDecorator(Protocol):
    """What `@pool.batch_task(...)` gives."""

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


def _ending(stored: bytes) -> Ending:
    """Return how the task of a callback ended."""
    try:
        return msgspec.msgpack.decode(stored, type=Ending)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the outcome stored for a callback: {error}") from error


def _verdict(error: BaseException) -> Verdict:
    """Return what an exception in a child means for its attempt."""
    return Verdict(
        kinds=tuple(qualified_name(kind) for kind in type(error).__mro__),
        give_up=isinstance(error, GiveUp),
        retry_in=_retry_in(error),
        spend=getattr(error, "spend", True),
        hold=error.scope if isinstance(error, Throttled) else None,
        bad_result=isinstance(error, BadResult),
        unreadable=isinstance(error, Unreadable),
        misfit=error.field if isinstance(error, Misfit) else None,
    )


def _retry_in(error: BaseException) -> float | None:
    if isinstance(error, Throttled):
        return error.retry_after
    return error.seconds if isinstance(error, RetryLater) else None


def default_options(timeout: object, retry: Policy | None, priority: int | None) -> dict[str, Any]:
    """Return the options a function gives to each of its calls."""
    given = {"timeout": timeout, "priority": priority}
    options = dict(checked({name: value for name, value in given.items() if value is not None}))
    if retry is not None:
        options["retry"] = policy("retry", retry)
    return options


def _where(fn: Callable[..., Any], executor: str | None) -> Where:
    if executor is not None:
        return Where(check.one_of("executor", executor, ("thread", "process")))
    return Where.LOOP if is_async(fn) else Where.THREAD


def _check_kind(fn: Callable[..., Any], name: str, where: Where) -> None:
    """Refuse what can be registered but never run."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(
            "task", name, "yields, and a task returns: collect a list, or ctx.submit each item"
        )
    if where is Where.PROCESS and "<locals>" in getattr(fn, "__qualname__", ""):
        raise ConfigError(
            "executor",
            "process",
            f"needs a function at the top of a module, where the process finds it by name; "
            f"{fn.__qualname__} is not",
        )


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling a function gives a coroutine, as far as can be told before."""
    if type(fn) is FunctionType:
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


def _checked_key(signature: Signature, key: KeyOf | None) -> KeyOf | None:
    if isinstance(key, str) and key not in signature.parameters:
        known = ", ".join(signature.parameters) or "none"
        raise ConfigError("key", key, f"is not a parameter of the task (it has: {known})")
    return key


def _without_outcome(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same parameters but for the outcome, to be looked at only."""
    signature = inspect.signature(fn)
    names = list(signature.parameters)
    hints = dict(getattr(fn, "__annotations__", {}))
    first = names[0] if names else None
    context_first = first is not None and str(hints.get(first, "")).rsplit(".", 1)[-1].strip(
        "'\"<>"
    ) in ("Context", "SyncContext")
    if hints.get(first or "") in (Context, SyncContext):
        context_first = True
    at = 1 if context_first else 0
    if len(names) <= at:
        raise ConfigError(
            "on_complete", fn.__name__, "must take the outcome as its first parameter"
        )
    outcome = names[at]

    @functools.wraps(fn)
    def stand_in(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Never called."""

    left = [p for name, p in signature.parameters.items() if name != outcome]
    stand_in.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    stand_in.__annotations__ = {name: hint for name, hint in hints.items() if name != outcome}
    return stand_in
