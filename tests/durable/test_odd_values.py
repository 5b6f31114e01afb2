"""Odd values at every door: each is taken and done, or refused by name; its neighbours are done."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond import Context, Millpond, RetryLater, TaskFailed, Throttled, fair_round_robin
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-02")]

NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 1e305, -1e305, math.inf, math.nan, 2**31, 2**63, 0, -1]),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(["", "\0", "a\0b", "\ud800", "\u65e5" * 341, "\u65e5" * 512, "x" * 3_000]),
)
OPTIONS = st.one_of(
    st.fixed_dictionaries({"priority": NUMBERS}),
    st.fixed_dictionaries({"weight": NUMBERS}),
    st.fixed_dictionaries({"key": TEXTS}),
    st.fixed_dictionaries({"idempotency_key": TEXTS}),
    st.fixed_dictionaries({"submitted_by": TEXTS}),
    st.fixed_dictionaries({"labels": st.dictionaries(TEXTS, TEXTS, max_size=3)}),
    st.fixed_dictionaries({"labels": st.fixed_dictionaries({"tenant": TEXTS})}),
    st.fixed_dictionaries({"key": TEXTS, "labels": st.fixed_dictionaries({"tenant": TEXTS})}),
    st.fixed_dictionaries({"delay": NUMBERS}),
    st.fixed_dictionaries({"run_at": NUMBERS}),
    st.fixed_dictionaries({"expires_in": NUMBERS}),
    st.fixed_dictionaries({"timeout": NUMBERS}),
)

DO = settings(
    max_examples=1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
"""One example holds many values: to open a store costs more than what is done in it."""


def raising(deed: tuple[str, Any], ctx: Context) -> None:
    """Do one thing with an odd value that a handler may do without waiting."""
    what, value = deed
    match what:
        case "later":
            raise RetryLater(value, spend=False)
        case "throttled":
            raise Throttled(value, scope="key")
        case "weight":
            ctx.settle_weight(value)
        case "message":
            raise ValueError(value)
        case _:
            raise type(value if value.isidentifier() else "Odd", (Exception,), {})(value)


def shop(url: str | None) -> tuple[Millpond, Any, Any, dict[int, tuple[str, Any]]]:
    """Return an application, and the odd deeds of its handlers by number of the task."""
    mp = Millpond(url, work=True)
    pool = mp.pool("items", max_concurrent=8, queue=fair_round_robin("tenant"), max_per_key=4)
    deeds: dict[int, tuple[str, Any]] = {}

    @pool.task(retry=lambda attempt, error: None)  # noqa: ARG005 - no second attempt
    async def item(ctx: Context, n: int) -> int:
        if n in deeds:
            what, value = deeds[n]
            if what == "progress":
                await ctx.progress(0.5, value)
            elif what == "once":
                await ctx.once(value, lambda: asyncio.sleep(0, 1))
            elif what == "submit":
                await ctx.submit(item.bind(-n), **value)
            else:
                raising(deeds[n], ctx)
        return n

    return mp, pool, item, deeds


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Give the URL of a store of each kind."""
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('odd')}/work.db"
    given_url: str = request.getfixturevalue("postgres_url")
    return given_url


@given(st.lists(OPTIONS, min_size=25, max_size=25))
@DO
async def test_odd_options_of_a_submit(store: str | None, many: list[dict[str, Any]]) -> None:
    """Refused with an error of ours, or stored; and plain tasks beside them are done."""
    mp, pool, item, _ = shop(store)
    async with mp, asyncio.timeout(60):
        sent = [pool.submit(item.bind(n), **options) for n, options in enumerate(many)]
        plain = [item.submit(1_000 + n) for n in range(20)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            assert not isinstance(answer, BaseException) or isinstance(answer, MillpondError)
        handles = await asyncio.gather(*plain)
        assert [1_000 + n for n in range(20)] == [await one for one in handles]


DEEDS = st.one_of(
    st.tuples(st.sampled_from(["later", "throttled", "weight"]), NUMBERS),
    st.tuples(st.sampled_from(["message", "type", "progress", "once"]), TEXTS),
    st.tuples(st.just("submit"), OPTIONS),
)


@given(st.lists(DEEDS, min_size=25, max_size=25))
@DO
async def test_odd_values_that_come_out_of_handlers(
    store: str | None, many: list[tuple[str, Any]]
) -> None:
    """Their tasks end or wait, and every plain task that runs among them is done."""
    mp, pool, item, deeds = shop(store)
    deeds.update(enumerate(many, 1))
    async with mp, asyncio.timeout(60):
        # Each task has a key of its own, so a throttled one holds back no other.
        odd = [await pool.submit(item.bind(n), key=f"odd{n}") for n in deeds]
        plain = [await item.submit(1_000 + n) for n in range(20)]
        assert [1_000 + n for n in range(20)] == [await one for one in plain]
        for n, handle in enumerate(odd, 1):
            if many[n - 1][0] in ("later", "throttled"):
                continue
            with suppress(TaskFailed):
                await handle
        record = [await internals_of(mp).runtime.view.task(one.id) for one in odd]
        assert all(one is not None and one.reason != "unstorable" for one in record)
