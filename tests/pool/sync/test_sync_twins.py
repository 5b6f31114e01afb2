"""Every public async method has an equal one for threads in the sync classes."""

import inspect
import re
from typing import Any, get_overloads

import pytest

from millpond import Millpond, TaskFunction
from millpond.core.event import Event
from millpond.pool.budget import Budget, SyncBudget
from millpond.pool.events.receipt import Emission
from millpond.pool.events.sync import SyncEmission, SyncTrigger
from millpond.pool.events.trigger import Trigger
from millpond.pool.handle import Handle, SyncHandle
from millpond.pool.map import Mapped, SyncMapped
from millpond.pool.pool import Pool
from millpond.pool.runs.run import Run, SyncRun
from millpond.pool.runs.stream import Stream, SyncStream
from millpond.pool.schedules.schedule import Schedule, SyncSchedule
from millpond.pool.sync_millpond import SyncMillpond
from millpond.pool.sync_pool import SyncPool
from millpond.pool.task import Optioned, SyncTaskFunction

mp = Millpond()
pool = mp.pool("twins")
budget = mp.budget("twins", 1)
schedule = mp.cron("twins", every=60)
trigger = mp.trigger("twins", on="twins", into=pool, make=lambda _: None)
emission: Any = Emission(None, Event("twins", "1"), None, None)  # type: ignore[arg-type]

TWINS: list[tuple[type, type]] = [
    (Millpond, SyncMillpond),
    (Pool, SyncPool),
    (Handle, SyncHandle),
    (Mapped, SyncMapped),
    (Run, SyncRun),
    (Stream, SyncStream),
    (Budget, SyncBudget),
    (Schedule, SyncSchedule),
    (Trigger, SyncTrigger),
    (Emission, SyncEmission),
]
INSTANCES: dict[type, Any] = {
    Millpond: mp,
    SyncMillpond: mp.sync,
    Pool: pool,
    SyncPool: pool.sync,
    Run: pool.run(),
    SyncRun: pool.sync.run(),
    Stream: pool.stream([]),
    Budget: budget,
    SyncBudget: budget.sync,
    Schedule: schedule,
    SyncSchedule: schedule.sync,
    SyncStream: pool.sync.stream([]),
    Trigger: trigger,
    SyncTrigger: mp.sync.get_trigger("twins"),
    Emission: emission,
}
DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__await__": "get",
}
NOT_PROMISED: dict[type, set[str]] = {
    # The access to the sync side, and a setting that needs no store.
    Millpond: {"sync", "url"},
    Pool: {"sync"},
    Budget: {"sync"},
    Schedule: {"sync"},
}
OTHERWISE = {
    # `await` takes no arguments; a thread that waits for a handle can say for how long.
    (Handle, "__await__"): "(self, timeout: 'Seconds | None' = None) -> 'R_co'",
    (Mapped, "__await__"): "(self) -> 'list[R_co]'",
    (Mapped, "__aiter__"): "(self) -> 'Iterator[R_co]'",
    # asynccontextmanager hides its return type.
    (Millpond, "worker"): re.sub(
        r"-> .*", "-> 'AbstractContextManager[Worker]'", str(inspect.signature(SyncMillpond.worker))
    ),
}
WORDS = [
    (r"\bHandle\[", "SyncHandle["),
    (r"\bMapped\[", "SyncMapped["),
    (r"\bRun\b", "SyncRun"),
    (r"\bBudget\b", "SyncBudget"),
    (r"\bSchedule\b", "SyncSchedule"),
    (r"\bStream\b", "SyncStream"),
    (r"\bTrigger\b", "SyncTrigger"),
    (r"\bEmission\b", "SyncEmission"),
    (r"\bAsyncIterator\[", "Iterator["),
    (r"\bAwaitable\[(.*)\]$", r"\1"),
]


def names(kind: type) -> set[str]:
    """Return the public names of a class, with the async terms replaced by those of threads."""
    of_instances = {"id"} if kind is Handle else set()
    found = set(dir(INSTANCES.get(kind, kind))) | of_instances
    found -= NOT_PROMISED.get(kind, set())
    shown = {name for name in found if not name.startswith("_")}
    return (
        shown
        | {DUNDERS[name] for name in DUNDERS if name in found}
        | (found & set(DUNDERS.values()))
    )


def translated(annotation: Any, pool_word: str) -> Any:
    """An annotation of the loop's API as it must stand in that of threads."""
    if not isinstance(annotation, str) or "SyncPool" in annotation or "SyncBudget" in annotation:
        # Both sides take the same type here.
        return annotation
    for word, other in [*WORDS, (r"\bPool\b", pool_word)]:
        annotation = re.sub(word, other, annotation)
    return annotation


def as_sync(function: Any) -> inspect.Signature:
    """The signature that the twin of a function must have."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=translated(each.annotation, "Pool | SyncPool"))
        for each in signature.parameters.values()
    ]
    returns = translated(signature.return_annotation, "SyncPool")
    return signature.replace(parameters=parameters, return_annotation=returns)


def methods() -> list[Any]:
    """Each pair of methods of each pair of classes."""
    found = []
    for theirs, ours in TWINS:
        for name in sorted(vars(theirs)):
            twin = DUNDERS.get(name, name)
            method = vars(theirs)[name]
            if twin in names(theirs) and inspect.isfunction(method):
                found.append(pytest.param(theirs, ours, name, id=f"{ours.__name__}.{twin}"))
    return found


@pytest.mark.parametrize(("theirs", "ours"), TWINS, ids=lambda kind: kind.__name__)
def test_neither_side_has_a_name_that_the_other_lacks(theirs: type, ours: type) -> None:
    """A method, property or attribute added on one side only is found here."""
    assert names(theirs) == names(ours)


@pytest.mark.parametrize(("theirs", "ours", "name"), methods())
def test_twins_have_one_signature(theirs: type, ours: type, name: str) -> None:
    """Names, kinds, defaults and annotations of the parameters, and the return types, are equal."""
    method = getattr(theirs, name)
    twin = getattr(INSTANCES.get(ours, ours), DUNDERS.get(name, name))
    if name in ("task", "batch_task"):
        # Registering is no twin but the very same method.
        assert getattr(INSTANCES[theirs], name) == twin
        return
    twin = getattr(ours, DUNDERS.get(name, name))
    expected = OTHERWISE.get((theirs, name), str(as_sync(method)))
    assert expected == str(inspect.signature(twin))
    assert [as_sync(one) for one in get_overloads(method)] == [
        inspect.signature(one) for one in get_overloads(twin)
    ]


def test_the_way_into_a_worker_has_the_parameters_of_its_twin() -> None:
    """`worker` returns another kind of context manager; all else about it agrees."""
    expected = list(as_sync(Millpond.worker).parameters.values())
    assert expected == list(inspect.signature(SyncMillpond.worker).parameters.values())


@pytest.mark.parametrize("theirs", [TaskFunction, Optioned])
def test_all_that_a_task_does_on_the_loop_it_does_from_a_thread(theirs: type) -> None:
    """Submitting is the one thing a registered function does that touches a store."""
    asynchronous = {n for n, m in vars(theirs).items() if inspect.iscoroutinefunction(m)}
    shown = {name for name in vars(SyncTaskFunction) if not name.startswith("_")}
    assert {"submit"} == asynchronous == shown
    submit: Any = theirs.submit  # type: ignore[attr-defined]
    assert as_sync(submit) == inspect.signature(SyncTaskFunction.submit)


@pytest.mark.parametrize(("theirs", "ours"), TWINS, ids=lambda kind: kind.__name__)
def test_nothing_on_the_threads_side_is_a_coroutine(theirs: type, ours: type) -> None:
    """Each call of a thread returns the value itself."""
    public = [name for name in vars(ours) if not name.startswith("_")]
    assert [] == [name for name in public if inspect.iscoroutinefunction(vars(ours)[name])]
