"""What each page of the reference shows, in order, and the words it begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millpond as mill
from millpond.integrations import pytest_plugin
from millpond.pool.budget import Budget, BudgetSnapshot, SyncBudget
from millpond.pool.events.sync import SyncTrigger
from millpond.pool.handler_transaction import SyncTransaction, Transaction
from millpond.pool.map import Mapped, SyncMapped
from millpond.pool.runs.run import SyncRun
from millpond.pool.runs.stream import Stream, SyncStream
from millpond.pool.schedules.schedule import Schedule, SyncSchedule
from millpond.pool.task import Optioned
from millpond.testing import clock, eager, fault_injection
from millpond.testing.lab import Hung, Lab, NotEnded, lab

ALIASES = {
    "AnyPool": "Pool",
    "CancelMode": 'Literal["cooperative", "interrupt"]',
    "Callback": "BoundCall | TaskFunction",
    "Durability": 'Literal["full", "normal"]',
    "Executor": 'Literal["thread", "process"]',
    "HandlerConnection": "Connection",
    "Hook": "Callable[[HookEvent], object]",
    "KeyOf": "str | Callable[..., str | None]",
    "Make": "Callable[[Event], BoundCall | None]",
    "Missed": 'Literal["once", "all", "skip"]',
    "OwnPool": "Pool",
    "Policy": "Retry | Callable[[int, BaseException], float | None]",
    "QueueOrder": "Order",
    "QueueName": 'Literal["fifo", "lifo", "priority"]',
    "Raised": "BaseException | type[BaseException]",
    "Resources": "Callable[[], AsyncContextManager]",
    "Scope": 'Literal["key", "pool"]',
    "Seconds": "float | timedelta",
    "Verb": "str",
    "When": 'Literal["before", "after"]',
}
"""Names of types that the source uses for itself, as a user would write them."""


@dataclass(frozen=True)
class Class:
    """A class that users call: a table of attributes, and an entry for each method."""

    kind: type
    name: str
    """The name of an object in the page: `pool`."""
    twin: type | None = None
    """The class for threads."""
    for_threads: str = ""
    """How to get it, where that is not `<name>.sync`."""
    made: bool = False
    """Whether users call the class itself."""


@dataclass(frozen=True)
class Value:
    """A value that users read: one table."""

    kind: type
    source: str


@dataclass(frozen=True)
class Function:
    """A function."""

    function: Callable[..., Any]


@dataclass(frozen=True)
class Fixture:
    """A fixture of pytest."""

    function: Callable[..., Any]


@dataclass(frozen=True)
class Page:
    """One page."""

    title: str
    intro: str
    parts: tuple[Class | Value | Function | Fixture, ...]


PAGES = {
    "millpond.md": Page(
        "Millpond",
        """
A `Millpond` is one store with its pools and its tasks. This page also has what it declares:
budgets, schedules, triggers and middleware. [Options](options.md) says what each option means.
""",
        (
            Class(mill.Millpond, "mp", mill.SyncMillpond, made=True),
            Class(Budget, "budget", SyncBudget),
            Value(BudgetSnapshot, "`budget.snapshot()`"),
            Class(Schedule, "schedule", SyncSchedule),
            Class(mill.Trigger, "trigger", SyncTrigger, "`mp.sync.trigger(...)` returns a"),
            Value(mill.Event, "the argument of a task that a trigger submits"),
            Class(mill.Middleware, "middleware", made=True),
        ),
    ),
    "pool.md": Page(
        "Pool",
        """
A pool has one limit and one queue, for all who submit to it. `**options` are the [options of a
task](options.md#options-of-a-task). [The pool's own options](options.md#mppool) are on the same
page. A [`Handle`](handle.md) is a submitted task, a [`Run`](run.md) several of them.
""",
        (
            Class(mill.Pool, "pool", mill.SyncPool),
            Class(Mapped, "mapped", SyncMapped, "`pool.sync.map(...)` returns a"),
            Function(mill.adaptive),
        ),
    ),
    "task.md": Page(
        "Tasks and calls",
        """
`@pool.task` and `@mp.task` turn a function into a `TaskFunction`. `fn.bind(...)` makes a
`BoundCall`: the function with its arguments, ready to submit. [How to submit
tasks](../how-to/submit-tasks.md) shows both.
""",
        (
            Class(mill.TaskFunction, "fn"),
            Class(mill.BoundCall, "call"),
            Class(Optioned, "optioned"),
        ),
    ),
    "handle.md": Page(
        "Handle",
        """
A handle is one submitted task. `submit`, `submit_many`, `try_submit` and `mp.handle(id)` return it.
""",
        (
            Class(mill.Handle, "handle", mill.SyncHandle, "`pool.sync.submit(...)` returns a"),
            Value(mill.Status, "`handle.status`, `TaskInfo.status`"),
            Value(
                mill.Reason,
                "`handle.reason`, `handle.rejection_reason` and the `reason` of errors and reports",
            ),
        ),
    ),
    "run.md": Page(
        "Run and Stream",
        """
A run is a group of tasks with one end: those that you submit through it, and those that they
submit. [How to wait for many tasks](../how-to/wait-for-many-tasks.md) compares the ways to use one.
""",
        (
            Class(mill.Run, "run", SyncRun, "`pool.sync.run(...)` returns a"),
            Class(Stream, "stream", SyncStream, "`pool.sync.stream(...)` returns a"),
        ),
    ),
    "context.md": Page(
        "Context",
        """
A handler that has a parameter of the type `Context` (or `SyncContext`, in a plain `def`) gets the
context of its attempt: what it runs, and what it can do besides returning a result. Times are
seconds since 1970 by the clock of the store.
""",
        (
            Class(mill.Context, "ctx", mill.SyncContext, "A plain `def` handler gets a"),
            Class(Transaction, "tx", SyncTransaction, "`with ctx.transaction() as tx` gives a"),
            Value(mill.CancelReason, "`ctx.cancel_reason`"),
            Class(mill.GiveUp, "error"),
            Class(mill.Cancelled, "error"),
            Class(mill.RetryLater, "error", made=True),
            Class(mill.Throttled, "error", made=True),
            Class(mill.Failed, "failed", made=True),
        ),
    ),
    "bulkhead.md": Page(
        "Bulkhead and Permit",
        """
A bulkhead limits how many callers are inside a piece of code of one process. [The first
tutorial](../tutorial/01-first-bulkhead.md) begins with it.
""",
        (
            Class(mill.Bulkhead, "bulkhead", made=True),
            Class(mill.Permit, "permit"),
            Value(
                mill.Rejection, "`case Rejection(reason=...)`, which matches those of pools, too"
            ),
            Value(mill.PermitRejection, "`acquire`, `try_acquire`, `would_admit`"),
            Value(mill.RejectReason, "`PermitRejection.reason`, `BulkheadRejected.reason`"),
            Value(mill.Capacity, "`PermitRejection.capacity`, `HookEvent.capacity`"),
            Value(mill.Stats, "`bulkhead.stats()`"),
            Value(mill.Leftover, "`bulkhead.drain()`"),
            Value(mill.HookEvent, "`on_admit`, `on_reject`, `on_release` and `on_close`"),
        ),
    ),
    "testing.md": Page(
        "Testing",
        """
`millpond.testing` runs your handlers in plain tests, on virtual time. [How to test your
handlers](../how-to/test-your-handlers.md) has examples. `lab`, `eager` and `Lab` are in
`millpond.testing`, the clock in `millpond.testing.clock`. pytest finds the three fixtures by
itself.
""",
        (
            Function(lab),
            Function(eager),
            Class(Lab, "bench"),
            Class(fault_injection.Fault, "fault"),
            Class(NotEnded, "error"),
            Class(Hung, "error"),
            Fixture(pytest_plugin.millpond_app),
            Fixture(pytest_plugin.millpond_lab),
            Fixture(pytest_plugin.millpond_eager),
            Function(clock.run_virtual),
            Class(clock.VirtualClock, "clock", made=True),
            Class(clock.VirtualLoop, "loop", made=True),
            Class(clock.Deadlock, "error"),
        ),
    ),
}
"""The pages by their names in docs/reference."""
