"""Registering and submitting: tasks and their options."""

import asyncio
import functools
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from millpond import (
    ConfigError,
    Context,
    Handle,
    Keep,
    Millpond,
    Rate,
    Retry,
    RetryLater,
    TaskFailed,
    bounded,
    fair_round_robin,
    priority,
)
from millpond.errors import BadPayload, DuplicateName, NotOpen, NotSupported
from millpond.pool.internals import internals_of
from millpond.pool.pool_submitter import PoolSubmitter

# Registering


async def test_a_task_called_directly_is_just_its_function() -> None:
    """No pool, no limit, no record: the function itself, open or not."""
    mp = Millpond()
    pool = mp.pool("direct")

    @pool.task
    async def double(n: int) -> int:
        """Double it."""
        return n * 2

    assert 6 == await double(3)
    assert ("double", "Double it.") == (double.__name__, double.__doc__)


def test_a_task_has_the_name_of_its_function_or_its_own() -> None:
    """name= wins over the function's name, and the module plays no part."""
    mp = Millpond()

    @mp.task
    async def plain() -> None: ...

    @mp.task(name="other")
    async def named() -> None: ...

    assert ["plain", "other"] == [plain.name, named.name]
    assert {"plain", "other"} == set(mp.tasks)


def test_a_task_name_is_unique_per_millpond() -> None:
    """The same name twice on one object is an error; on two objects it is not."""
    one, two = Millpond(), Millpond()

    async def work() -> None: ...

    one.task(work)
    two.task(work)
    with pytest.raises(DuplicateName, match="work") as caught:
        one.task(work)
    assert ("task", "work") == (caught.value.kind, caught.value.name)
    with pytest.raises(DuplicateName, match="work"):
        one.task(name="new", aliases=["work"])(work)
    assert {"work"} == set(one.tasks)


async def test_an_alias_runs_tasks_stored_under_the_old_name() -> None:
    """A task that is stored under an old name runs the function that has it as an alias."""
    mp = Millpond()
    pool = mp.pool("renamed")

    @pool.task(aliases=["old"])
    async def new(n: int) -> int:
        return n

    async with mp:
        assert mp.tasks["old"] is mp.tasks["new"] is new
        # As an old process would have stored it.
        call = new.bind(5)
        call.function.name = "old"
        assert 5 == await (await pool.submit(call))


async def test_any_pool_takes_any_registered_call() -> None:
    """@pool.task sets the default pool only; @mp.task sets none."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")

    @one.task
    async def mine() -> str:
        return "mine"

    @mp.task
    async def unowned() -> str:
        return "unowned"

    async with mp:
        assert "one" == (await mine.submit()).pool
        assert "two" == (await two.submit(mine.bind())).pool
        assert "unowned" == await (await two.submit(unowned.bind()))
        with pytest.raises(ConfigError, match="pool"):
            await unowned.submit()


@pytest.mark.parametrize("key", ["tenant", lambda n, tenant: f"{tenant}/{n}"])
async def test_key_names_a_parameter_or_is_a_function_of_the_arguments(key: Any) -> None:
    """key= derives the key from the call; a key given at submit wins."""
    mp = Millpond()
    pool = mp.pool("keys")

    @pool.task(key=key)
    async def work(n: int, tenant: str) -> None: ...

    async with mp:
        await pool.pause()
        expected = "acme" if key == "tenant" else key(1, "acme")
        assert expected == (await work.submit(1, "acme")).key
        assert "own" == (await work.options(key="own").submit(1, "acme")).key


def test_a_key_that_is_no_parameter_is_refused_where_it_is_given() -> None:
    """A misspelt key= is an error at import, which lists the parameters."""
    mp = Millpond()
    with pytest.raises(ConfigError, match="tenant_id"):

        @mp.task(key="tennant_id")
        async def work(tenant_id: str) -> None: ...


async def test_the_context_is_the_first_parameter_where_wanted() -> None:
    """`ctx: Context` is given by the worker and is no argument of bind."""
    mp = Millpond()
    pool = mp.pool("context")

    @pool.task
    async def work(ctx: Context, n: int) -> tuple[str, int, int]:
        return ctx.pool, ctx.attempt, n

    async with mp:
        assert ("context", 1, 5) == await (await work.submit(5))


# Submitting


async def test_one_submit_for_a_call_a_closure_and_a_function() -> None:
    """submit takes a call, any function of no arguments, async or not, and a task itself."""
    mp = Millpond()
    pool = mp.pool("any")

    @pool.task
    async def call(n: int = 1) -> int:
        return n

    async def closure() -> str:
        return "closure"

    class Callable:
        async def __call__(self) -> str:
            return "object"

    async with mp:
        assert 5 == await (await pool.submit(call.bind(5)))
        assert "closure" == await (await pool.submit(closure))
        assert 3 == await (await pool.submit(functools.partial(inspect.unwrap(call), 3)))
        assert "object" == await (await pool.submit(Callable()))
        assert 7 == await (await call.submit(7))
        assert 8 == await (await call.options(priority=1).submit(8))


async def test_a_registered_function_itself_is_a_call_and_never_a_closure() -> None:
    """submit(fn) means submit(fn.bind()): it has a name, and no owner."""
    mp = Millpond()
    pool = mp.pool("bare")

    @pool.task
    async def bare() -> str:
        return "bare"

    async with mp:
        handle = await pool.submit(bare)
        assert "bare" == await handle
        records = [r async for r in mp.audit(pool) if r.task == handle.id]
    assert {("bare", None)} == {(record.function, record.owner) for record in records}


@pytest.mark.parametrize("wrong", [None, 5, "name"])
async def test_submitting_anything_but_a_call_or_function_is_refused(wrong: Any) -> None:
    """The error says what submit takes."""
    mp = Millpond()
    pool = mp.pool("wrong")
    async with mp:
        with pytest.raises(TypeError, match="takes a call or a function"):
            await pool.submit(wrong)
        assert 0 == await pool.size()


async def test_a_coroutine_is_refused_with_advice() -> None:
    """A coroutine has been called already: the error says what to submit instead."""
    mp = Millpond()
    pool = mp.pool("wrong")

    async def work() -> None: ...

    async with mp:
        started = work()
        with pytest.raises(TypeError, match=r"functools\.partial"):
            await pool.submit(started)  # type: ignore[call-overload]
        started.close()


async def test_submit_many_is_one_batch_in_order() -> None:
    """Handles come back in the order of the calls, each call with its own options."""
    mp = Millpond()
    pool = mp.pool("many")

    @pool.task
    async def work(n: int) -> int:
        return n

    async with mp:
        calls = (work.bind(n).options(priority=n) for n in range(3))
        handles = await pool.submit_many(calls, labels={"batch": "1"})
        assert [0, 1, 2] == [handle.priority for handle in handles]
        assert [{"batch": "1"}] * 3 == [handle.labels for handle in handles]
        assert [0, 1, 2] == [await handle for handle in handles]
        assert [] == await pool.submit_many([])
        each = await pool.submit_many(work.each([7, 8]))
        assert [7, 8] == [await handle for handle in each]


@pytest.mark.rows("DE-20")
@pytest.mark.parametrize("queue", [priority(), fair_round_robin("n")], ids=lambda one: one.kind)
@pytest.mark.parametrize("options", [{}, {"timeout": 9.0}, {"idempotency_key": "of all"}])
async def test_a_task_in_a_batch_equals_one_submitted_alone(
    queue: Any, options: dict[str, Any]
) -> None:
    """Tasks of a batch are copied from one another: their own options must survive."""
    mp = Millpond()
    pool = mp.pool("batch", queue=queue)

    @pool.task(name="plain", retry=Retry(attempts=4), priority=2)
    async def plain(n: int, text: str = "") -> None: ...

    @pool.task(name="keyed", key="tenant")
    async def keyed(tenant: str) -> None: ...

    calls = [
        *(plain.bind(n) for n in range(3)),
        plain.bind(3, text="é"),
        plain.bind(n=4).options(idempotency_key="k4"),
        plain.bind(5).options(idempotency_key="k5"),
        plain.bind(6),
        plain.bind(7).options(priority=3),
        plain.bind(7).options(idempotency_key="k7"),
        plain.bind(7),
        plain.bind(7).options(idempotency_key="k8", priority=3),
        plain.bind(8).options(idempotency_key=None),  # type: ignore[arg-type]
        *(keyed.bind(f"tenant {n}") for n in range(3)),
        functools.partial(print),
    ]
    async with mp:
        await internals_of(pool).ready()
        submitter = PoolSubmitter(internals_of(pool))
        batch = (await submitter.prepare(calls, options)).batch
        alone = [(await submitter.prepare([call], options)).batch.tasks[0] for call in calls]
    assert len({task.id for task in batch.tasks}) == len(calls)
    assert [replace(task, id=1) for task in batch.tasks] == [replace(task, id=1) for task in alone]


async def test_a_batch_with_one_bad_call_stores_nothing() -> None:
    """All calls are made ready before any is sent."""
    mp = Millpond()
    pool = mp.pool("atomic")

    @pool.task
    async def work(n: int) -> None: ...

    async with mp:
        with pytest.raises(BadPayload):
            await pool.submit_many([work.bind(1), work.bind("two")])  # type: ignore[arg-type]
        assert 0 == (await pool.snapshot()).total


@pytest.mark.parametrize("name", ["prioritty", "idempotent", "block", "connections"])
async def test_an_unknown_option_is_a_type_error(name: str) -> None:
    """A misspelt option is never ignored, wherever it is given; the error lists the known ones."""
    mp = Millpond()
    pool = mp.pool("options")

    @pool.task
    async def work() -> None: ...

    async with mp:
        for give in (
            lambda **options: pool.submit(work.bind(), **options),
            lambda **options: pool.try_submit(work.bind(), **options),
            lambda **options: pool.submit_many([work.bind()], **options),
        ):
            with pytest.raises(TypeError, match=f"{name}.*idempotency_key"):
                await give(**{name: 1})
        given: dict[str, Any] = {name: 1}
        with pytest.raises(TypeError, match=name):
            work.options(**given)
        with pytest.raises(TypeError, match=name):
            work.bind().options(**given)
        assert 0 == (await pool.snapshot()).total


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", "high"),
        ("priority", True),
        ("key", ""),
        ("key", 5),
        ("labels", ["a"]),
        ("labels", {"a": 1}),
        ("dedupe", "never"),
        ("delay", -1),
        ("delay", float("nan")),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 - without a zone, on purpose
        ("expires_in", 0),
        ("timeout", 0),
        ("retry", 3),
        ("on_complete", lambda: None),
        ("weight", 0),
        ("submitted_by", 5),
    ],
)
async def test_an_impossible_option_is_refused_by_name(option: str, value: Any) -> None:
    """Each option is checked where it is given, and nothing is stored."""
    mp = Millpond()
    pool = mp.pool("options")

    @pool.task
    async def work() -> None: ...

    async with mp:
        with pytest.raises(ConfigError) as caught:
            await pool.submit(work.bind(), **{option: value})
        assert caught.value.option.startswith(option)
        assert 0 == (await pool.snapshot()).total


async def test_the_options_of_a_call_win_over_those_of_its_submit_and_of_its_function() -> None:
    """Nearest wins: the call's own, then the submit's, then the function's."""
    mp = Millpond()
    pool = mp.pool("nearest")

    @pool.task(priority=1)
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        assert 1 == (await work.submit()).priority
        assert 2 == (await pool.submit(work.bind(), priority=2)).priority
        call = work.bind().options(priority=3)
        assert 3 == (await pool.submit(call, priority=2)).priority
        assert 4 == (await pool.submit(call.options(priority=4))).priority
        assert 5 == (await work.options(priority=5).submit()).priority


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
async def test_delay_puts_the_start_off(delay: Any) -> None:
    """A delayed task starts when the delay is over, and is counted as scheduled until then."""
    mp = Millpond()
    pool = mp.pool("later")
    loop = asyncio.get_running_loop()

    @pool.task
    async def work() -> float:
        return loop.time()

    async with mp:
        await asyncio.sleep(10)
        handle = await work.options(delay=delay).submit()
        snapshot = await pool.snapshot()
        assert (1, 1, "scheduled") == (snapshot.queued, snapshot.scheduled, snapshot.state)
        assert 100.0 == pytest.approx(await handle, abs=0.001)


async def test_run_at_takes_a_datetime_or_a_number() -> None:
    """A datetime needs a zone; a time in the past means now."""
    mp = Millpond()
    pool = mp.pool("at", max_concurrent=10)
    loop = asyncio.get_running_loop()

    @pool.task
    async def work() -> float:
        return loop.time()

    async with mp:
        await asyncio.sleep(10)
        moment = datetime.fromtimestamp(500, tz=UTC)
        by_datetime = await work.options(run_at=moment).submit()
        by_number = await work.options(run_at=400.0).submit()
        past = await work.options(run_at=5.0).submit()
        assert [10.0, 400.0, 500.0] == [
            pytest.approx(await handle, abs=0.001) for handle in (past, by_number, by_datetime)
        ]
        with pytest.raises(ConfigError, match="exclude"):
            work.options(run_at=moment, delay=1.0)


async def test_expires_in_fails_tasks_that_start_too_late() -> None:
    """A task that could not start in time ends failed: expired, and never runs."""
    mp = Millpond()
    pool = mp.pool("expires")
    ran: list[str] = []

    @pool.task
    async def work(name: str, seconds: float) -> None:
        ran.append(name)
        await asyncio.sleep(seconds)

    async with mp:
        await work.submit("long", 100.0)
        late = await work.options(expires_in=timedelta(seconds=50)).submit("late", 1.0)
        timely = await work.options(expires_in=150).submit("timely", 200.0)
        await mp.wait([late, timely])
        assert ("failed", "expired") == (late.status, late.reason)
        assert "completed" == timely.status
    assert ["long", "timely"] == ran


@pytest.mark.parametrize("limit", [5, timedelta(seconds=5)])
async def test_timeout_is_one_attempts_run_time(limit: Any) -> None:
    """Waiting does not count; an attempt that runs for longer fails, and so does the next."""
    mp = Millpond()
    pool = mp.pool("slow", retry=Retry.constant(1.0, attempts=2, jitter=0.0))
    loop = asyncio.get_running_loop()

    @pool.task
    async def work() -> None:
        await asyncio.sleep(1000)

    async with mp:
        await pool.pause()
        handle = await work.options(timeout=limit).submit()
        await asyncio.sleep(100)
        await pool.resume()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert ("TimeoutError", 2) == (caught.value.error_type, caught.value.attempts)
        assert 111.0 == pytest.approx(loop.time(), abs=0.1)


async def test_seconds_may_be_timedelta_everywhere() -> None:
    """Each option in seconds takes a timedelta."""
    minute = timedelta(minutes=1)
    assert Rate(5, per=60.0) == Rate(5, per=minute)
    assert priority(aging=60.0) == priority(aging=minute)
    assert Retry(initial=60.0, max_delay=60.0, give_up_after=60.0) == Retry(
        initial=minute, max_delay=minute, give_up_after=minute
    )
    assert Retry.constant(60.0) == Retry.constant(minute)
    assert Retry.linear(60.0, max_delay=60.0) == Retry.linear(minute, max_delay=minute)
    assert 60.0 == RetryLater(minute).seconds
    assert Keep(completed=60.0, failed=60.0, keys=60.0, audit=60.0) == Keep(
        completed=minute, failed=minute, keys=minute, audit=minute
    )
    mp = Millpond(lease=minute)
    pool = mp.pool("delta", backpressure=bounded(1), rate_per_key=Rate(1, per=minute))

    @pool.batch_task(linger=minute, timeout=minute)
    async def work(items: list[int]) -> list[int]:
        return items

    async with mp, mp.worker(grace=minute):
        handle = await pool.submit(
            work.bind(1), wait=minute, delay=minute, expires_in=3 * minute, timeout=minute
        )
        await handle.wait(timeout=5 * minute)
        await mp.wait([handle], timeout=minute)
        await pool.drain(timeout=minute)


@pytest.mark.rows("HN-27")
async def test_submitted_by_has_its_defaults() -> None:
    """By default "user", inside a handler its task; an explicit value wins."""
    mp = Millpond()
    pool = mp.pool("who", max_concurrent=2)
    inner: list[Handle[None]] = []

    @pool.task
    async def leaf() -> None: ...

    @pool.task
    async def work(ctx: Context) -> None:
        inner.append(await leaf.submit())
        inner.append(await pool.submit(leaf.bind(), submitted_by="me"))
        inner.append(await ctx.submit(leaf.bind()))

    async with mp:
        handle = await work.submit()
        await pool.drain()
        own = f"task:{handle.id}"
        assert "user" == handle.submitted_by
        assert [own, "me", own] == [one.submitted_by for one in inner]
        assert [own, "me", own] == [(await mp.handle(one.id)).submitted_by for one in inner]
        given = await work.options(submitted_by="cron").submit()
        assert "cron" == given.submitted_by
        tasks = await pool.tasks()
        assert ["user", own, "me", own, "cron"] == [task.submitted_by for task in tasks]


@pytest.mark.memory("what is in memory has no connection to join")
async def test_connection_is_for_stores_with_a_database() -> None:
    """In memory there is no transaction to join, and the error says so."""
    mp = Millpond()
    pool = mp.pool("memory")

    @pool.task
    async def work() -> None: ...

    async with mp:
        for submit in (
            pool.submit(work.bind(), connection=object()),
            pool.submit_many([work.bind()], connection=object()),
        ):
            with pytest.raises(NotSupported, match="connection"):
                await submit
        assert 0 == (await pool.snapshot()).total


async def test_a_bad_argument_stores_nothing() -> None:
    """A call is checked against its annotations where it is submitted."""
    mp = Millpond()
    pool = mp.pool("typed")

    @pool.task
    async def work(n: int) -> None: ...

    async with mp:
        for bad in (work.bind("x"), work.bind(), work.bind(1, 2)):  # type: ignore[call-arg,arg-type]
            with pytest.raises(BadPayload):
                await pool.submit(bad)
        assert 0 == (await pool.snapshot()).total


async def test_nothing_can_be_submitted_while_it_is_closed() -> None:
    """Before and after `async with mp` every verb says NotOpen."""
    mp = Millpond()
    pool = mp.pool("closed")

    @pool.task
    async def work() -> None: ...

    async def try_everything() -> list[str]:
        said = []
        for verb in (
            work.submit(),
            pool.submit(work.bind()),
            pool.submit_many([work.bind()]),
            pool.try_submit(work.bind()),
            pool.size(),
            pool.snapshot(),
            pool.tasks(),
            pool.pause(),
            pool.resume(),
            pool.resize(1),
            pool.purge(),
            pool.cancel(1),
            pool.cancel_all(),
            pool.redrive([1]),
            pool.close(),
            pool.drain(),
            mp.status([1]),
            mp.handle(1),
            mp.cancel(1),
            mp.why(1),
            mp.unsettled(),
        ):
            with pytest.raises(NotOpen, match="async with mp"):
                await verb
            said.append("NotOpen")
        return said

    assert 21 == len(await try_everything())
    async with mp:
        await work.submit()
    assert 21 == len(await try_everything())


async def test_a_batch_task_that_is_alone_is_settled() -> None:
    """Its batch ends without any other task in the pool."""
    mp = Millpond()
    pool = mp.pool("batch")

    @pool.batch_task(size=10, linger=5.0)
    async def work(items: list[int]) -> list[int]:
        return [n * 2 for n in items]

    async with mp:
        handle = await work.submit(4)
        await handle.wait(timeout=60)
        assert 8 == handle.result


@pytest.mark.parametrize("option", ["priority", "weight"])
async def test_numbers_are_bounded_to_32_bits(option: str) -> None:
    """Thirty-one bits and a sign: the last that fits is taken, the next is refused by name."""
    mp = Millpond()
    pool = mp.pool("numbers")

    @pool.task
    async def work() -> None: ...

    least = -(2**31) if option == "priority" else 1
    fits: list[dict[str, Any]] = [{option: least}, {option: 2**31 - 1}]
    too_much: list[dict[str, Any]] = [{option: least - 1}, {option: 2**31}]
    async with mp:
        for options in fits:
            await (await pool.submit(work.bind(), **options))
        for options in too_much:
            with pytest.raises(ConfigError, match=option):
                await pool.submit(work.bind(), **options)
