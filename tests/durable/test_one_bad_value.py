"""One value that cannot be stored: its own task fails with the error, and every other goes on."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millpond import Context, Millpond, Retry, RetryLater, TaskFailed, Throttled, fair_round_robin
from millpond.core import bounds
from millpond.core.lease import LeaseRequest
from millpond.errors import ConfigError, StoreError, Unstorable, UnstorableText
from millpond.pool.internals import internals_of

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-02")]

WITHIN = 30.0
"""Seconds within which all must have ended, on a busy machine."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Give the URL of a store of each kind."""
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    given: str = request.getfixturevalue("postgres_url")
    return given


def refuses(mp: Millpond, verb: str, of: Callable[[Any], bool], error: Exception) -> list[Any]:
    """Let a verb fail whenever it is given a thing that is meant; return how often it did."""
    store: Any = internals_of(mp).runtime.store
    carry_out, times = getattr(store, verb), []

    async def refusing(given: Any, **options: Any) -> Any:
        if any(map(of, given if isinstance(given, Sequence) else [given])):
            times.append(given)
            raise error
        return await carry_out(given, **options)

    setattr(store, verb, refusing)
    return times


ERRORS = [
    UnstorableText("no such text", path="here"),
    OverflowError("too large"),
    ValueError("not a value"),
    StoreError("refused a statement"),
    RuntimeError("a bug"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_settlement_that_the_store_refuses_fails_its_own_task(
    where: str | None, error: Exception
) -> None:
    """So it does for any error of the store; the settlements beside it are stored."""
    mp = Millpond(where, work=True)
    pool, other = mp.pool("items", max_concurrent=8), mp.pool("others", max_concurrent=2)

    @pool.task
    async def item(n: int) -> int:
        return n

    @other.task
    async def aside(n: int) -> int:
        return -n

    async with mp, asyncio.timeout(WITHIN):
        times = refuses(mp, "settle", lambda one: one.result == b"3", error)
        handles = [await item.submit(n) for n in range(8)]
        asides = [await aside.submit(n) for n in range(4)]
        good = [n for n in range(8) if n != 3]
        assert good == [await handles[n] for n in good]
        assert [0, -1, -2, -3] == [await one for one in asides]
        with pytest.raises(TaskFailed) as caught:
            await handles[3]
        assert ("unstorable", 1) == (caught.value.reason, caught.value.attempts)
        assert str(error.args[0]) in caught.value.error_message
        assert times
        # A handle made later reads the same.
        ended = await (await mp.handle(handles[3].id)).wait()
        assert "failed" == ended.status


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
async def test_a_submit_that_the_store_refuses_fails_its_own_caller(
    where: str | None, error: Exception
) -> None:
    """Those that went to the store in the same verb are stored."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=8)

    @pool.task
    async def item(n: int) -> int:
        return n

    async with mp, asyncio.timeout(WITHIN):

        def is_bad(batch: Any) -> bool:
            return any(new.key == "bad" for new in batch.tasks)

        refuses(mp, "submit", is_bad, error)
        keys = ["bad" if n == 5 else f"k{n}" for n in range(20)]
        sent = (pool.submit(item.bind(n), key=key) for n, key in enumerate(keys))
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert [5] == [n for n, one in enumerate(answers) if isinstance(one, Exception)]
        assert type(error) is type(answers[5])
        for n, handle in enumerate(answers):
            if n != 5:
                assert n == await handle  # type: ignore[misc]


async def test_a_pool_that_cannot_be_leased_from_stops_no_other(where: str | None) -> None:
    """It is left alone for a moment and tried again; the others do not wait for it."""
    mp = Millpond(where, work=True)
    bad, good = mp.pool("bad"), mp.pool("good", max_concurrent=2)

    @mp.task
    async def item(n: int) -> int:
        return n

    async with mp, asyncio.timeout(WITHIN):
        broken = True

        def is_bad(ask: LeaseRequest) -> bool:
            return broken and ask.pool == "bad"

        times = refuses(mp, "lease", is_bad, UnstorableText("no such text", path="here"))
        late = await bad.submit(item.bind(1))
        for n in range(20):
            assert n == await (await good.submit(item.bind(n)))
        assert times
        broken = False
        assert 1 == await late


async def every_moment() -> AsyncIterator[None]:
    """Yield again and again, with a moment between."""
    while True:
        yield
        await asyncio.sleep(0.01)  # the caller asks the store, which gives no event


def _later(seconds: float) -> Exception:
    later = RetryLater(0.0)
    later.seconds = seconds
    return later


def _throttled(seconds: float) -> Exception:
    throttled = Throttled(0.0)
    throttled.retry_after = seconds
    return throttled


@pytest.mark.parametrize(
    "raising",
    [lambda: RetryLater(1e305), lambda: _later(1e305), lambda: _later(float("nan"))],
    ids=["made so", "set later", "not a number"],
)
async def test_a_delay_beyond_any_date_fails_the_task_that_asks_for_it(
    where: str | None, raising: Callable[[], Exception]
) -> None:
    """With the error that says so, and every other task of the worker goes on."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=4)

    @pool.task(retry=Retry.never())
    async def item(n: int) -> int:
        if n == 1:
            raise raising()
        return n

    async with mp, asyncio.timeout(WITHIN):
        handles = [await item.submit(n) for n in range(4)]
        assert [0, 2, 3] == [await handles[n] for n in (0, 2, 3)]
        with pytest.raises(TaskFailed) as caught:
            await handles[1]
        assert "MILL-003" in caught.value.error_message


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), -1.0, 1e300, "soon", 10**400])
async def test_a_policy_that_returns_no_valid_delay_fails_its_task(
    where: str | None, delay: Any
) -> None:
    """The worker checks the delay that a retry function returns like any other."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=4)

    @pool.task(retry=lambda _attempt, _error: delay)
    async def item(n: int) -> int:
        if n == 1:
            raise OSError("try me")
        return n

    async with mp, asyncio.timeout(WITHIN):
        handles = [await item.submit(n) for n in range(3)]
        assert [0, 2] == [await handles[n] for n in (0, 2)]
        with pytest.raises(TaskFailed, match="MILL-003"):
            await handles[1]


@pytest.mark.parametrize("seconds", [1e8, 1e300, 2.0 * 86_400])
async def test_throttled_holds_for_a_day_at_most(where: str | None, seconds: float) -> None:
    """However long the peer said, and however it came into the exception."""
    assert bounds.MAX_THROTTLE == Throttled(seconds).retry_after
    mp = Millpond(where, work=True)
    pool, other = mp.pool("items"), mp.pool("others")

    @mp.task
    async def item(*, hold: bool) -> int:
        if hold:
            raise _throttled(seconds)
        return 1

    async with mp, asyncio.timeout(WITHIN):
        held = await pool.submit(item.bind(hold=True))
        assert 1 == await (await other.submit(item.bind(hold=False)))
        async for _ in every_moment():
            record = await internals_of(mp).runtime.view.task(held.id)
            if record is not None and record.error:
                break
        assert record is not None
        assert record.due <= internals_of(mp).runtime.clock() + bounds.MAX_THROTTLE
        await held.cancel()


BYPASSED: dict[str, Callable[[], Exception]] = {
    "retry later": lambda: RetryLater(1e305),
    "set later": lambda: _later(1e305),
}


@pytest.mark.parametrize("case", BYPASSED)
async def test_a_value_that_got_past_the_bounds_fails_its_own_task(
    where: str | None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no bound in force the store meets the value itself, and only its task is lost."""
    monkeypatch.setattr(bounds, "MAX_SECONDS", 1e308)
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=4)

    @pool.task
    async def item(n: int) -> int:
        if n == 1:
            raised = BYPASSED[case]()
            raise raised
        return n

    async with mp, asyncio.timeout(WITHIN):
        handles = [await item.submit(n) for n in range(4)]
        assert [0, 2, 3] == [await handles[n] for n in (0, 2, 3)]
        with pytest.raises(TaskFailed) as caught:
            await handles[1]
        assert "unstorable" == caught.value.reason
        assert isinstance(caught.value.__cause__, Unstorable)


@pytest.mark.parametrize(
    "options",
    [
        {"submitted_by": "\ud800"},
        {"submitted_by": "a\0b"},
        {"submitted_by": "x" * 2_000},
        {"delay": 1e305},
        {"run_at": 1e300},
        {"expires_in": 1e300},
        {"timeout": 1e300},
        {"labels": {"a": "\ud800"}},
        {"labels": {"a\0": "b"}},
        {"labels": {str(n): "" for n in range(65)}},
        {"labels": {"a": "\u65e5" * 400}},
        {"key": "\u65e5" * 512},
        {"idempotency_key": "\u65e5" * 512},
        {"weight": 2**31},
        {"priority": 10**400},
    ],
    ids=lambda options: str(options)[:24],
)
async def test_a_follow_up_that_cannot_be_stored_is_refused_in_the_handler(
    where: str | None, options: dict[str, Any]
) -> None:
    """The call raises, so the handler fails where it went wrong, and nothing else does."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=4, retry=Retry.never())

    @pool.task
    async def leaf() -> int:
        return 7

    @pool.task
    async def item(ctx: Context, n: int) -> int:
        if n == 1:
            await ctx.submit(leaf.bind(), **options)
        return n

    async with mp, asyncio.timeout(WITHIN):
        handles = [await item.submit(n) for n in range(3)]
        assert [0, 2] == [await handles[n] for n in (0, 2)]
        with pytest.raises(TaskFailed, match="MILL-003"):
            await handles[1]
        with pytest.raises(ConfigError):
            await pool.submit(leaf.bind(), **options)


async def test_the_longest_key_and_share_fit_the_widest_index(where: str | None) -> None:
    """Text that no database can compress, as long as it may be, in key and share at once."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", queue=fair_round_robin("tenant"), max_per_key=1, max_concurrent=2)
    dice = random.Random(5)

    def text() -> str:
        return "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(bounds.MAX_KEY // 3))

    @pool.task
    async def item(n: int) -> int:
        return n

    async with mp, asyncio.timeout(WITHIN):
        made = [
            await pool.submit(item.bind(n), key=text(), labels={"tenant": text()}) for n in range(3)
        ]
        closure = await pool.submit(lambda: 4, key=text(), labels={"tenant": text()})
        assert [0, 1, 2] == [await one for one in made]
        assert 4 == await closure
        for options in ({"key": "\u65e5" * 512}, {"labels": {"tenant": "\u65e5" * 512}}):
            with pytest.raises(ConfigError, match="bytes in UTF-8"):
                await pool.submit(item.bind(9), **options)


@pytest.mark.rows("TR-24")
@pytest.mark.parametrize("text", ["a\0b", "\0", "\\ \0 {", "x" * 9_000, "\u65e5" * 4_000])
async def test_every_store_takes_the_same_progress_texts(where: str | None, text: str) -> None:
    """Also one with a NUL in it, and the beginning of one that is too long."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items")

    @pool.task
    async def item(ctx: Context) -> int:
        await ctx.progress(0.5, text)
        return 1

    async with mp, asyncio.timeout(WITHIN):
        handle = await item.submit()
        assert 1 == await handle
        record = await internals_of(mp).runtime.view.task(handle.id)
        assert record is not None
        assert record.progress is not None
        assert text.startswith(record.progress[1])
        assert len(record.progress[1].encode()) <= bounds.MAX_PROGRESS
        assert text == record.progress[1] or len(text.encode()) > bounds.MAX_PROGRESS


@pytest.mark.parametrize("urgency", [10**399, -(10**399), "9" * 400, 1e308])
async def test_a_number_too_large_for_a_priority_is_none(where: str | None, urgency: Any) -> None:
    """The event is delivered with the default, as where there is nothing at the path."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items")
    seen: list[Any] = []

    @pool.task
    async def item(payload: Any) -> None:
        seen.append(payload)

    mp.trigger(
        "t", on="happened", into=pool, task=item, priority_from="urgency", key_from="urgency"
    )
    async with mp, asyncio.timeout(WITHIN):
        emission = await mp.emit("happened", {"urgency": urgency})
        (receipt,) = await emission.receipts()
        assert ("submitted", 0) == (
            receipt.outcome,
            (await mp.handle(receipt.task_id or 0)).priority,
        )


async def test_a_task_that_asks_to_be_tried_at_once_for_ever_leaves_the_loop_to_others(
    where: str | None,
) -> None:
    """It is not charged, so nothing ends it; whatever else runs in the process goes on."""
    mp = Millpond(where, work=True)
    pool = mp.pool("items", max_concurrent=2)

    @pool.task
    async def again() -> None:
        raise RetryLater(0.0, spend=False)

    @pool.task
    async def item(n: int) -> int:
        return n

    async with mp, asyncio.timeout(WITHIN):
        handle = await again.submit()
        for n in range(5):
            assert n == await (await item.submit(n))
        await handle.cancel()
        assert "cancelled" == (await handle.wait()).status
