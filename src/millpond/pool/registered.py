"""A registered function: the internal object behind `TaskFunction`, and calls with arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from millpond.core import validation as check
from millpond.core.task import Call
from millpond.errors import ConfigError
from millpond.pool.payload.signature import MISSING, Signature
from millpond.runtime.jobs.batch_call import Failed
from millpond.runtime.jobs.job import Where

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool

KeyOf: TypeAlias = str | Callable[..., str | None]
Executor: TypeAlias = Literal["thread", "process"]


class Registration(NamedTuple):
    """What a function is registered with."""

    name: str | None = None
    key: KeyOf | None = None
    aliases: Iterable[str] = ()
    executor: str | None = None
    batch: tuple[int, float] | None = None
    """Size and linger of a batch task; None for any other."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Options of each of its calls."""
    ignore_result: bool = False
    """Whether results are dropped: nothing is stored, and a caller gets None."""


class Registered:
    """A function with what is needed to call it as a task: types, key, options, executor."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        context_types: tuple[type, ...],
        largest: int,
        find_pool: Callable[[str], DeclaredPool],
        pool: DeclaredPool | None = None,
        given: Registration,
    ) -> None:
        self.fn = fn
        self.name = name
        self.pool = pool
        """The pool that its calls go to where none is named."""
        self.find_pool = find_pool
        """Finds a pool of its Millpond by the stored name."""
        self.aliases = tuple(check.name("aliases", alias) for alias in given.aliases)
        self.defaults = given.defaults
        self.ignore_result = given.ignore_result
        self._context_types = context_types
        self._largest = largest
        self.signature = Signature(
            fn,
            name=name,
            context_types=context_types,
            outcome_types=(Failed,),
            batch=given.batch is not None,
            largest=largest,
        )
        self._key = _checked_key(self.signature, given.key)
        self.where = _where(fn, given.executor)
        _check_kind(fn, name, self.where)
        self.batch = given.batch

    @property
    def has_key(self) -> bool:
        """Whether the arguments of a call say its key."""
        return self._key is not None

    def key_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the key of a call, from its `key=` parameter or function."""
        if self._key is None:
            return None
        if callable(self._key):
            return self._key(*args, **kwargs)
        value = self.signature.argument(args, kwargs, self._key)
        return None if value is MISSING or value is None else str(value)

    @functools.cached_property
    def callback_signature(self) -> Signature:
        """Its parameters as an on_complete callback: all but the outcome."""
        return Signature(
            _without_outcome(self.fn, self._context_types),
            name=self.name,
            context_types=self._context_types,
            largest=self._largest,
        )


class Invocation(msgspec.Struct, eq=False):
    """A registered function with arguments and options: the internal object behind `BoundCall`."""

    registered: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any] = {}

    def options_within(self, submit: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options in force: the call's own, over its submit's, over its function's."""
        defaults = self.registered.defaults
        if not submit and not self.options:
            return defaults
        return {**defaults, **submit, **self.options}

    def encode(self) -> Call:
        """Return the call as data; BadPayload for arguments that cannot be stored."""
        function = self.registered
        return Call(function.name, function.signature.encode(self.args, self.kwargs))

    def encode_callback(self) -> Call:
        """Return the call as an on_complete callback: it gets the outcome as first argument."""
        function = self.registered
        return Call(function.name, function.callback_signature.encode(self.args, self.kwargs))

    def key(self) -> str | None:
        """Return the key that its function derives from the arguments."""
        return self.registered.key_of(self.args, self.kwargs)

    def argument(self, name: str) -> Any:  # noqa: ANN401 - an argument of any type
        """Return the argument of a name, or None."""
        value = self.registered.signature.argument(self.args, self.kwargs, name)
        return None if value is MISSING else value

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.registered.name}({', '.join(arguments)})"


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling a function gives a coroutine, as far as its definition says."""
    if type(fn) is FunctionType:
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


def _where(fn: Callable[..., Any], executor: str | None) -> Where:
    if executor is not None:
        return Where(check.one_of("executor", executor, ("thread", "process")))
    return Where.LOOP if is_async(fn) else Where.THREAD


def _check_kind(fn: Callable[..., Any], name: str, where: Where) -> None:
    """Refuse a function that can be registered but never run."""
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


def _checked_key(signature: Signature, key: KeyOf | None) -> KeyOf | None:
    if isinstance(key, str) and key not in signature.parameters:
        known = ", ".join(signature.parameters) or "none"
        raise ConfigError("key", key, f"is not a parameter of the task (it has: {known})")
    return key


def _without_outcome(fn: Callable[..., Any], contexts: tuple[type, ...]) -> Callable[..., Any]:
    """Return a stand-in with the parameters of a callback but the outcome, to read types from."""
    signature = inspect.signature(fn)
    names = list(signature.parameters)
    hints = dict(getattr(fn, "__annotations__", {}))
    first = names[0] if names else None
    context_first = first is not None and str(hints.get(first, "")).rsplit(".", 1)[-1].strip(
        "'\"<>"
    ) in {kind.__name__ for kind in contexts}
    if hints.get(first or "") in contexts:
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
