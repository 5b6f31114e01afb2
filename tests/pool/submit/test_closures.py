"""Closures: code that lives as long as its process."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from tests.pool.fleet import Fleet

from millpond import Millpond, Retry, TaskFailed
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="no tenant")


@pytest.mark.rows("HN-24")
async def test_a_closure_runs_in_a_copy_of_its_submitters_context() -> None:
    """It sees the variables as they were at submit; its own changes do not leak."""
    mp = Millpond()
    pool = mp.pool("ambient")
    seen: list[str] = []

    async def work() -> str:
        seen.append(tenant.get())
        await asyncio.sleep(1)
        seen.append(tenant.get())
        tenant.set("changed")
        return tenant.get()

    async with mp:
        tenant.set("acme")
        await pool.pause()
        first = await pool.submit(work)
        tenant.set("globex")
        second = await pool.submit(work)
        tenant.set("initech")
        await pool.resume()
        assert ["changed", "changed"] == [await first, await second]
        assert "initech" == tenant.get()
    assert ["acme", "acme", "globex", "globex"] == seen


@pytest.mark.rows("HN-24")
async def test_each_attempt_of_a_closure_starts_in_the_submitters_context() -> None:
    """The next attempt does not see the changes of a failed one."""
    mp = Millpond()
    pool = mp.pool("ambient", retry=Retry.constant(1.0))
    seen: list[str] = []

    async def work() -> None:
        seen.append(tenant.get())
        tenant.set("dirty")
        if len(seen) < 2:
            raise ValueError

    async with mp:
        tenant.set("acme")
        await (await pool.submit(work))
    assert ["acme", "acme"] == seen


@pytest.mark.rows("HN-24")
@pytest.mark.real_loop
async def test_a_plain_function_runs_in_a_thread_in_its_submitters_context() -> None:
    """A `def` closure sees the variables too, beside the loop."""
    mp = Millpond()
    pool = mp.pool("threads")

    def work() -> tuple[str, bool]:
        return tenant.get(), threading.current_thread() is threading.main_thread()

    async with mp:
        tenant.set("acme")
        assert ("acme", False) == await (await pool.submit(work))


async def test_a_call_does_not_take_the_submitters_context_with_it() -> None:
    """A call is data: it runs in the context the Millpond was opened in, as on any machine."""
    mp = Millpond()
    pool = mp.pool("calls")

    @pool.task
    async def work() -> str:
        return tenant.get()

    async with mp:
        tenant.set("acme")
        assert "no tenant" == await (await work.submit())


async def test_a_closure_may_return_anything() -> None:
    """Its result is not stored, so it need not survive: the very object comes back."""
    mp = Millpond()
    pool = mp.pool("objects")
    made = object()

    async def work() -> object:
        return made

    async with mp:
        handle = await pool.submit(work)
        assert made is await handle
        assert made is handle.result
        again = await mp.handle(handle.id)
        assert made is await again


@pytest.mark.rows("HN-14")
async def test_a_closure_that_raises_fails_its_own_task_only() -> None:
    """It is retried like a call, ends failed with its message, and the pool goes on."""
    mp = Millpond()
    pool = mp.pool("fails")
    tries: list[int] = []

    async def bad() -> None:
        tries.append(1)
        raise ValueError("broken")

    async def good() -> str:
        return "fine"

    async with mp:
        handle = await pool.submit(bad)
        with pytest.raises(TaskFailed, match="broken") as caught:
            await handle
        assert (3, 3) == (caught.value.attempts, len(tries))
        assert "fine" == await (await pool.submit(good))


@pytest.mark.parametrize("strict", [{"lanes": 2}, {"ordered": True}], ids=["lanes", "ordered"])
async def test_a_closure_cannot_go_into_lanes(strict: dict[str, object]) -> None:
    """A lane must not wait for code that may be gone: the error says to use a task."""
    mp = Millpond()
    pool = mp.pool("strict", **strict)  # type: ignore[arg-type]

    async def work() -> None: ...

    async with mp:
        with pytest.raises(ConfigError, match="use a task"):
            await pool.submit(work, key="a")
        assert 0 == (await pool.snapshot()).total


async def test_closures_leave_nothing_behind() -> None:
    """The process drops the code of a closure when its task has ended, in whichever status."""
    mp = Millpond()
    pool = mp.pool("tidy", retry=Retry.never())

    async def good() -> None: ...
    async def bad() -> None:
        raise ValueError

    async with mp:
        await mp.wait([await pool.submit(good), await pool.submit(bad)])
        await pool.pause()
        await (await pool.submit(good)).cancel()
        await pool.submit(good, expires_in=5.0)
        await asyncio.sleep(10)
        await pool.submit(good, idempotency_key="k")
        await pool.submit(good, idempotency_key="k")
        assert 1 == len(internals_of(mp).runtime.closures)
        await pool.purge()
        assert {} == internals_of(mp).runtime.closures


@pytest.mark.parametrize("stored", [True, False])
async def test_the_code_of_a_cancelled_submit_is_kept_until_it_is_known(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit may reach a shared store after its caller has gone: then it runs, as any other."""
    mp = Fleet().millpond(work=True)
    pool = mp.pool("work")
    ran: list[str] = []

    async def closure() -> None:
        ran.append("closure")

    async with mp:
        await internals_of(pool).ready()
        submit = internals_of(mp).runtime.store.submit

        async def later(*args: Any) -> Any:
            await asyncio.sleep(0.5)
            return await submit(*args) if stored else None

        sent: list[asyncio.Task[Any]] = []

        async def on_its_way(*args: Any) -> Any:
            sent.append(asyncio.create_task(later(*args)))
            return await asyncio.shield(sent[-1])

        monkeypatch.setattr(
            internals_of(mp).runtime.env,
            "store",
            Over(internals_of(mp).runtime.store, submit=on_its_way),
        )
        submitting = asyncio.create_task(pool.submit(closure))
        await asyncio.sleep(0.1)
        submitting.cancel()
        await asyncio.sleep(5)
        assert (["closure"] if stored else []) == ran
        await asyncio.sleep(100)
        assert {} == internals_of(mp).runtime.closures
    assert len(ran) == stored


class Over:
    """A store with some of its verbs replaced."""

    def __init__(self, store: Any, **verbs: Any) -> None:
        self._store = store
        vars(self).update(verbs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
