"""Bad input: refused where it is given, by name, and nothing is stored."""

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import ConfigError, Millpond, MillpondError, Retry, TaskFailed, fifo
from millpond.errors import (
    BadPayload,
    DuplicateName,
    NotSupported,
    PayloadTooLarge,
    UnknownPool,
)

pytestmark = pytest.mark.usefixtures("any_pace")


@dataclass
class Point:
    x: int
    y: int


class Shop:
    """A paused pool with a task of many types, and a check that nothing was stored."""

    def __init__(self) -> None:
        self.mp = Millpond()
        self.pool = self.mp.pool("work")

        @self.pool.task
        async def order(
            count: int, name: str = "x", *, at: Point | None = None, tags: list[str] | None = None
        ) -> None: ...

        self.order: Any = order


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        (("one",), {}, "count"),
        ((1.5,), {}, "count"),
        ((None,), {}, "count"),
        ((True,), {}, "count"),
        ((1, 2), {}, "name"),
        ((1,), {"at": {"x": 1}}, "at"),
        ((1,), {"at": Point("a", 2)}, "at"),  # type: ignore[arg-type]
        ((1,), {"tags": ["a", 2]}, "tags"),
        ((1,), {"tags": "abc"}, "tags"),
        ((1, "\ud800"), {}, "name"),
        ((), {}, "count"),
        ((1, "a", "b"), {}, "positional"),
        ((1,), {"missing": 1}, "missing"),
    ],
)
async def test_a_wrong_argument_is_refused_by_the_name_of_its_parameter(
    args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    """BadPayload is a TypeError that names the task and the parameter; nothing is stored."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.pause()
        ways: list[Callable[[], Any]] = [
            lambda: shop.order.submit(*args, **kwargs),
            lambda: shop.pool.submit(shop.order.bind(*args, **kwargs)),
            lambda: shop.pool.try_submit(shop.order.bind(*args, **kwargs)),
            lambda: shop.pool.submit_many([shop.order.bind(1), shop.order.bind(*args, **kwargs)]),
        ]
        for way in ways:
            with pytest.raises(TypeError, match=named) as caught:
                await way()
            assert "order" in str(caught.value)
        assert 0 == await shop.pool.size()
        assert [] == await shop.pool.tasks()


async def test_an_argument_that_is_too_large_is_refused() -> None:
    """max_payload is a mebibyte; the error says how large it was."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(PayloadTooLarge):
            await shop.order.submit(1, "x" * (2 << 20))
        assert 0 == await shop.pool.size()


async def test_max_payload_bounds_arguments_and_results() -> None:
    """An argument beyond it is refused; a result beyond it ends the task as bad_result."""
    mp = Millpond(max_payload=100)
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def repeat(text: str, times: int) -> str:
        return text * times

    async with mp:
        with pytest.raises(PayloadTooLarge) as caught:
            await repeat.submit("x" * 100, 1)
        assert 100 == caught.value.limit
        assert "x" * 98 == await (await repeat.submit("x", 98))
        with pytest.raises(TaskFailed, match="the limit is 100") as failed:
            await (await repeat.submit("x", 99))
        assert "bad_result" == failed.value.reason
    for impossible in (0, -1, 1.5, 64 << 20):
        with pytest.raises(ConfigError, match="max_payload"):
            Millpond(max_payload=impossible)  # type: ignore[arg-type]


async def test_imports_are_imported_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, since declaring does no I/O; one module alone must be in a list."""
    (tmp_path / "more_tasks_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    mp = Millpond(imports=["more_tasks_of_mine"])
    assert "more_tasks_of_mine" not in sys.modules
    async with mp:
        assert "more_tasks_of_mine" == sys.modules.pop("more_tasks_of_mine").__name__
    lost = Millpond(imports=["no_such_module_of_mine"])
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_mine"):
        await lost.__aenter__()
    assert not lost.is_open
    with pytest.raises(ConfigError, match="must be a list of modules"):
        Millpond(imports="more_tasks_of_mine")


async def test_an_argument_that_would_not_survive_is_refused() -> None:
    """A value that JSON cannot hold, or would read back as another, is refused at submit."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def anything(value: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    async with mp:
        await pool.pause()
        for value in (object(), {1, 2}, (1, 2), {1: "a"}, float("nan"), endless, rounds, b"raw"):
            with pytest.raises(BadPayload):
                await anything.submit(value)
        assert 0 == await pool.size()


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("priority", "high"),
        ("priority", 1.5),
        ("priority", True),
        ("priority", 2**40),
        ("key", 5),
        ("key", ""),
        ("labels", ["a"]),
        ("labels", {"a": 1}),
        ("idempotency_key", ""),
        ("idempotency_key", 7),
        ("dedupe", "sometimes"),
        ("delay", -1),
        ("delay", float("nan")),
        ("delay", "soon"),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 - that is what is wrong with it
        ("run_at", float("inf")),
        ("expires_in", 0),
        ("timeout", 0),
        ("timeout", -5),
        ("retry", 3),
        ("on_complete", "notify"),
        ("weight", 0),
        ("weight", 1.5),
        ("submitted_by", 5),
    ],
)
async def test_a_bad_option_is_refused_by_name(option: str, bad: Any) -> None:
    """Wherever options are given, the error names the option and nothing is stored."""
    shop = Shop()
    options: Any = {option: bad}
    with pytest.raises(ConfigError, match=option):
        shop.order.options(**options)
    with pytest.raises(ConfigError, match=option):
        shop.order.bind(1).options(**options)
    async with shop.mp:
        await shop.pool.pause()
        for way in (shop.pool.submit, shop.pool.try_submit):
            with pytest.raises(ConfigError, match=option):
                await way(shop.order.bind(1), **options)
        with pytest.raises(ConfigError, match=option):
            await shop.pool.submit_many([shop.order.bind(1)], **options)
        assert 0 == await shop.pool.size()


async def test_an_unknown_option_is_a_type_error() -> None:
    """A misspelt option is not ignored."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TypeError, match="prioritty"):
            await shop.pool.submit(shop.order.bind(1), prioritty=3)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="delay"):
            await shop.pool.submit(shop.order.bind(1), delay=1, run_at=5.0)
        assert 0 == await shop.pool.size()


@pytest.mark.parametrize(
    "work", [None, 5, "name", [1], asyncio.Event], ids=["none", "int", "str", "list", "class"]
)
async def test_submitting_anything_but_work_is_a_type_error(work: Any) -> None:
    """Only calls and functions of no arguments are work; a class is one too."""
    mp = Millpond()
    pool = mp.pool("work")
    async with mp:
        if callable(work):
            return
        with pytest.raises(TypeError, match="call or a function"):
            await pool.submit(work)
        assert 0 == await pool.size()


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("max_concurrent", "many"),
        ("max_concurrent", 1.5),
        ("max_concurrent", -1),
        ("queue", "random"),
        ("backpressure", "block"),
        ("max_per_key", 0),
        ("rate", 5),
        ("lanes", 0),
        ("max_callbacks", 0),
        ("retry", 5),
        ("on_dead_letter", "call me"),
        ("on_empty", 5),
    ],
)
async def test_a_bad_pool_is_refused_by_name_and_not_made(option: str, bad: Any) -> None:
    """The name is free afterwards."""
    mp = Millpond()
    options: Any = {option: bad}
    with pytest.raises((ConfigError, TypeError), match=option):
        mp.pool("work", **options)
    mp.pool("work")


async def test_names_are_unique_and_plain() -> None:
    """Pools and tasks: twice is an error that names the way out; odd names are refused."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> None: ...

    with pytest.raises(DuplicateName, match="get_pool"):
        mp.pool("work")
    with pytest.raises(DuplicateName, match="name="):
        pool.task(name="job")(rounds)
    with pytest.raises(DuplicateName):
        pool.task(name="other", aliases=["job"])(rounds)
    for name in ("", "a b", "../etc", "x" * 200, "a~callbacks"):
        with pytest.raises(ConfigError, match="name"):
            mp.pool(name)
    with pytest.raises(TypeError):
        pool.task(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="missing"):
        pool.task(name="keyed", key="missing")(rounds)


async def test_modes_are_checked_before_anything_is_done() -> None:
    """A misspelt cancel mode cancels nothing."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.pause()
        handle = await shop.order.submit(1)
        for way in (
            lambda: handle.cancel("hard"),
            lambda: shop.pool.cancel_all(mode="hard"),  # type: ignore[arg-type]
            lambda: shop.mp.cancel(handle.id, mode="hard"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError, match="mode"):
                await way()
        assert "queued" == (await handle.refresh()).status


async def test_every_refusal_is_a_millpond_error_with_a_code() -> None:
    """One root, a code, and fields."""
    shop = Shop()
    with pytest.raises(MillpondError) as caught:
        shop.mp.pool("work")
    assert caught.value.code.startswith("MILL-")
    with pytest.raises(NotSupported):
        shop.mp.pool("other", scope="tenant", scope_id="acme")
    with pytest.raises(ConfigError, match="attempts"):
        Retry(attempts=0)


@pytest.mark.parametrize(
    ("option", "mistake", "advice"),
    [
        ("queue", fifo, "must be priority(), fifo(), lifo() or fair_round_robin()"),
        ("backpressure", 100, "must be bounded(...), fail_fast() or ring_buffer(...)"),
        ("rate", 5, "must be a Rate, such as Rate(100, per=60), or a list of them"),
        ("rate", [5], "must be a Rate, such as Rate(100, per=60)"),
    ],
)
async def test_a_likely_mistake_is_refused_with_the_right_call(
    option: str, mistake: Any, advice: str
) -> None:
    """The message of a bad pool option says how a good one is written."""
    with pytest.raises(MillpondError, match=re.escape(advice)):
        Millpond().pool("work", **{option: mistake})


async def test_functions_that_could_never_run_are_not_registered() -> None:
    """A generator, a lambda without a name, and a local function for a process."""
    shop = Shop()

    def numbers() -> Any:
        yield 1

    async def pages() -> Any:
        yield 1

    for yields in (numbers, pages):
        with pytest.raises(ConfigError, match="yields, and a task returns"):
            shop.pool.task(yields)
    with pytest.raises(ConfigError, match="is required for <function"):
        shop.pool.task(lambda: 1)
    with pytest.raises(ConfigError, match="needs a function at the top of a module"):
        shop.pool.task(executor="process")(local)
    assert ["order"] == list(shop.mp.tasks)


def made() -> Callable[[], int]:
    def inner() -> int:
        return 1

    return inner


local = made()


@pytest.mark.parametrize(
    ("work", "needed"),
    [(lambda x: x, "x"), (lambda *, word: word, "word"), (lambda x, y=1: (x, y), "x")],
)
async def test_a_function_that_needs_arguments_is_refused_at_submit(work: Any, needed: str) -> None:
    """It could only fail in each attempt; parameters with defaults and *args are allowed."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TypeError, match=f"needs {needed!r}"):
            await shop.pool.submit(work)
        assert 0 == await shop.pool.size()
        await shop.pool.pause()
        await shop.pool.submit(lambda x=1, *y, **z: (x, y, z))
        assert 1 == await shop.pool.size()


async def test_a_run_is_seeded_with_a_list() -> None:
    """One call alone is a TypeError that shows the list it must be in."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TypeError, match=re.escape("a list of calls: [order(1)]")):
            await shop.pool.drain(shop.order.bind(1))
        with pytest.raises(TypeError, match="a list of calls"):
            shop.pool.stream(shop.order.bind(1))


async def test_orders_refuse_bad_arguments_by_name() -> None:
    """A key is text; ids come in a list, or a text would be taken for a list of letters."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(ConfigError, match="key=5 must be a string"):
            await shop.pool.pause(key=5)  # type: ignore[arg-type]
        handle = await shop.order.submit(1)
        for given in (handle, handle.id, str(handle.id)):
            with pytest.raises(TypeError, match=re.escape("a list of ids or handles: [")):
                await shop.pool.redrive(given)  # type: ignore[arg-type]


async def test_the_audit_of_an_unknown_pool_raises() -> None:
    """A mistyped name is an error; a pool id is accepted as a name."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(UnknownPool, match="'shpo'"):
            [record async for record in shop.mp.audit("shpo")]
        assert [record async for record in shop.mp.audit(shop.pool.id)]
