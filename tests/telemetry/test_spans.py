"""Spans: a submit, an attempt, and the link between them, whatever way a task goes."""

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as trace_context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from tests.pool.fleet import Fleet
from tests.telemetry.tracing import Traced, identity, links, parent

from millpond import (
    Context,
    Failed,
    Middleware,
    Millpond,
    Outcome,
    PoolFull,
    Retry,
    SyncContext,
    bounded,
)
from millpond.core.control import DeclareDead
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.runtime.jobs.policy import Carried
from millpond.store.memory import MemoryStore


@pytest.mark.rows("HN-26")
async def test_an_attempt_is_linked_to_its_submit() -> None:
    """The submit is part of the caller's trace; the attempt begins its own, and points back."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task(key="to")
    async def send(to: str) -> None:
        await asyncio.sleep(1)

    async with app.mp:
        with app.tracer.start_as_current_span("request"):
            handle = await send.submit("ada")
        await handle
    request, submit, process = (
        app.span("request"),
        app.span("submit mail"),
        app.span("process mail"),
    )
    assert (SpanKind.PRODUCER, SpanKind.CONSUMER) == (submit.kind, process.kind)
    assert identity(request) == parent(submit)
    assert None is parent(process)
    assert [identity(submit)] == links(process)
    assert {
        "messaging.system": "millpond",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(handle.id),
        "millpond.function": "send",
        "millpond.key": "ada",
    } == app.attributes(submit)
    answer = app.attributes(process)
    assert answer.pop("messaging.client.id").endswith("/1")
    assert {
        "messaging.system": "millpond",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(handle.id),
        "millpond.function": "send",
        "millpond.key": "ada",
        "millpond.attempt": 1,
        "millpond.wait": 0.0,
        "millpond.outcome": "completed",
    } == answer


async def test_waiting_is_counted_from_the_moment_it_might_have_started() -> None:
    """A task that was delayed by its submitter did not wait for that long."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None:
        await asyncio.sleep(5)

    async with app.mp:
        await send.options(delay=3600).submit()
        await asyncio.sleep(3598)
        await send.submit()
        await mail.drain()
    first, second = app.spans("process mail")
    assert (0.0, 3.0) == (
        app.attributes(first)["millpond.wait"],
        app.attributes(second)["millpond.wait"],
    )


async def test_each_attempt_is_a_span_and_all_point_at_one_submit() -> None:
    """The first that failed says so, with its exception, and that it is tried again."""
    app = Traced()
    mail = app.mp.pool("mail", retry=Retry.constant(60, attempts=2))

    @mail.task
    async def send() -> None:
        raise ConnectionError("no answer")

    async with app.mp:
        await (await send.submit()).wait()
    attempts = app.spans("process mail")
    assert ["retry", "failed"] == [app.attributes(one)["millpond.outcome"] for one in attempts]
    assert [1, 2] == [app.attributes(one)["millpond.attempt"] for one in attempts]
    assert {(identity(app.span("submit mail")),)} == {tuple(links(one)) for one in attempts}
    for one in attempts:
        assert StatusCode.ERROR is one.status.status_code
        assert "ConnectionError" == app.attributes(one)["error.type"]
        (event,) = one.events
        assert "no answer" == dict(event.attributes or {})["exception.message"]


async def test_what_a_handler_does_is_part_of_its_attempt() -> None:
    """Its own spans, on the loop and in threads; and what it submits, in whichever way."""
    app = Traced()
    mail = app.mp.pool("mail", max_concurrent=4)

    @mail.task
    async def send(ctx: Context) -> None:
        with app.tracer.start_as_current_span("lookup"):
            await asyncio.sleep(0)
        await ctx.submit(receipt.bind())
        await mail.submit(quick.bind())

    @mail.task
    def receipt(ctx: SyncContext) -> None:
        with app.tracer.start_as_current_span("in a thread"):
            ctx.submit(quick.bind())

    @mail.task
    async def quick() -> None: ...

    async with app.mp:
        await send.submit()
        await mail.drain()
    by_function = {
        app.attributes(span)["messaging.message.id"]: span for span in app.spans("process mail")
    }
    submits = {
        app.attributes(span)["messaging.message.id"]: span for span in app.spans("submit mail")
    }
    assert by_function.keys() == submits.keys()
    for task, process in by_function.items():
        assert [identity(submits[task])] == links(process)
    sent, received = (
        next(
            one for one in by_function.values() if app.attributes(one)["millpond.function"] == name
        )
        for name in ("send", "receipt")
    )
    assert identity(sent) == parent(app.span("lookup"))
    assert identity(received) == parent(app.span("in a thread"))
    parents = [parent(span) for span in submits.values()]
    assert [None, identity(sent), identity(sent)] == parents[:3]
    assert identity(app.span("in a thread")) == parents[3]


async def test_one_submit_of_many_is_one_span() -> None:
    """Each of its tasks points at it."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send(number: int) -> None: ...

    async with app.mp:
        await mail.submit_many(send.each(range(3)))
        await mail.drain()
        await mail.drain(send.each(range(2)), run="nightly")
    many, seed = app.spans("submit mail")
    assert 3 == app.attributes(many)["messaging.batch.message_count"]
    assert "messaging.message.id" not in app.attributes(many)
    assert 2 == app.attributes(seed)["messaging.batch.message_count"]
    origins = [links(span)[0] for span in app.spans("process mail")]
    assert [*[identity(many)] * 3, *[identity(seed)] * 2] == origins


async def test_a_batch_is_one_span_that_points_at_all_it_came_from() -> None:
    """Three tasks of two submits in one call: one attempt's span, two links."""
    app = Traced()
    mail = app.mp.pool("mail", max_concurrent=10)

    @mail.batch_task(size=3)
    async def send(items: list[int]) -> list[int | Failed]:
        return [Failed("no") if item == 2 else item for item in items]

    async with app.mp:
        await mail.submit_many([send.bind(1), send.bind(2)])
        await mail.submit(send.bind(3))
        await asyncio.sleep(0.5)
    process = app.spans("process mail")[0]
    assert 3 == app.attributes(process)["messaging.batch.message_count"]
    assert [identity(one) for one in app.spans("submit mail")] == links(process)
    counted = app.measured("messaging.client.consumed.messages")
    assert {"completed": 2, "retry": 1} == {
        answer["millpond.outcome"]: value for answer, value in counted
    }


async def test_a_callback_points_at_the_submit_of_its_task() -> None:
    """A callback has no submit of its own: it links to the submit of its task."""
    app = Traced()
    mail = app.mp.pool("mail")

    @app.mp.task
    async def on_end(outcome: Outcome) -> None: ...

    @mail.task
    async def send() -> None: ...

    async with app.mp:
        await send.options(on_complete=on_end.bind()).submit()
        await mail.drain()
    _, callback = app.spans("process mail")
    assert "on_end" == app.attributes(callback)["millpond.function"]
    assert [identity(app.span("submit mail"))] == links(callback)


async def test_a_closure_runs_inside_its_own_attempt() -> None:
    """Not inside its submit, though it sees all else that its submitter saw."""
    app = Traced()
    jobs = app.mp.pool("jobs")

    async def work() -> None:
        with app.tracer.start_as_current_span("inside"):
            pass

    async with app.mp:
        await (await jobs.submit(work))
    process = app.span("process jobs")
    assert identity(process) == parent(app.span("inside"))
    assert [identity(app.span("submit jobs"))] == links(process)


async def test_one_trace_from_end_to_end_for_those_who_want_that() -> None:
    """The attempt is then a child of its submit, and linked to it nevertheless."""
    app = Traced(one_trace=True)
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    async with app.mp:
        await (await send.submit())
    submit, process = app.span("submit mail"), app.span("process mail")
    assert identity(submit) == parent(process)
    assert [identity(submit)] == links(process)


async def test_baggage_goes_along_within_reason() -> None:
    """What the submitter set is there in the handler; what would fill the store is not."""
    app = Traced()
    mail = app.mp.pool("mail")
    seen = []

    @mail.task
    async def send() -> None:
        seen.append(baggage.get_baggage("tenant"))

    async with app.mp:
        for much in (0, 3):
            context = baggage.set_baggage("tenant", "acme")
            for number in range(much):
                context = baggage.set_baggage(f"more{number}", "x" * 2000, context)
            token = trace_context.attach(context)
            await (await send.submit())
            trace_context.detach(token)
    assert ["acme", None] == seen
    assert [1, 1] == [len(links(one)) for one in app.spans("process mail")]


async def test_a_refusal_is_an_error_of_its_submit() -> None:
    """Whether it is raised or returned; and nothing is processed for it."""
    app = Traced()
    jobs = app.mp.pool("jobs", backpressure=bounded(1, on_full="fail_submitter"))
    await_it = asyncio.Event()

    @jobs.task
    async def work() -> None:
        await await_it.wait()

    async with app.mp:
        await work.submit()
        await asyncio.sleep(0)
        await work.submit()
        with pytest.raises(PoolFull):
            await work.submit()
        assert not await jobs.try_submit(work.bind())
        with pytest.raises(ConfigError):
            await jobs.submit(work.bind().options(dedupe="run"))
        await_it.set()
        await jobs.drain()
    refused = [one for one in app.spans("submit jobs") if one.status.status_code.name == "ERROR"]
    assert ["queue_full", "queue_full", "millpond.errors.ConfigError"] == [
        app.attributes(one)["error.type"] for one in refused
    ]
    assert [({"queue_full"}, 2)] == [
        ({answer["millpond.reason"]}, value)
        for answer, value in app.measured("millpond.tasks.rejected")
    ]


async def test_a_settle_that_came_too_late_says_so() -> None:
    """Its handler returned, but the task is another's by then: the span must not say completed."""
    app = Traced(Fleet().millpond(work=True))
    mail = app.mp.pool("mail", retry=Retry.constant(0.0))

    @mail.task
    async def send(ctx: Context) -> None:
        if ctx.attempt == 1:
            (worker,) = internals_of(app.mp).runtime.workers
            await internals_of(app.mp).runtime.store.control(DeclareDead(worker.name))

    async with app.mp:
        await (await send.submit())
    stale, completed = app.spans("process mail")
    assert ["stale", "completed"] == [
        app.attributes(span)["millpond.outcome"] for span in (stale, completed)
    ]
    assert StatusCode.ERROR is stale.status.status_code
    assert links(stale) == links(completed)


@pytest.mark.real_loop
async def test_a_handler_that_commits_is_at_work_until_it_returns(tmp_path: Path) -> None:
    """Its span says completed, and ends with the handler, not with the commit."""
    app = Traced(Millpond(f"sqlite:///{tmp_path}/work.db", work=True))
    mail = app.mp.pool("mail")
    goes_on = asyncio.Event()

    @mail.task
    async def send(ctx: Context) -> None:
        await ctx.commit(lambda connection: connection.execute("SELECT 1"))
        await goes_on.wait()

    async with app.mp:
        await (await send.submit())
        assert [] == app.spans("process mail")
        goes_on.set()
        await mail.submit(time.time)
        await mail.drain()
    assert "completed" == app.attributes(app.spans("process mail")[0])["millpond.outcome"]


async def test_the_span_of_an_abandoned_attempt_ends() -> None:
    """Closing over a running handler gives the task back, and its span says so."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None:
        await asyncio.sleep(3600)

    async with app.mp:
        await send.submit()
        await asyncio.sleep(1)
    process = app.span("process mail")
    assert "released" == app.attributes(process)["millpond.outcome"]
    assert StatusCode.UNSET is process.status.status_code


@pytest.mark.real_loop
async def test_a_submit_from_a_thread_is_part_of_that_threads_trace() -> None:
    """What is done for it on the loop knows who asked."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    def request() -> None:
        with app.tracer.start_as_current_span("request"):
            send.sync.submit().get()

    async with app.mp:
        await asyncio.to_thread(request)
    submit = app.span("submit mail")
    assert identity(app.span("request")) == parent(submit)
    assert [identity(submit)] == links(app.span("process mail"))


@pytest.mark.real_loop
async def test_a_submit_in_a_transaction_of_the_callers_is_linked_too(tmp_path: Path) -> None:
    """It is stored by another connection, with all that it carries."""
    app = Traced(Millpond(f"sqlite:///{tmp_path}/work.db", work=True))
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    async with app.mp:
        with contextlib.closing(sqlite3.connect(tmp_path / "work.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            handle = await mail.submit(send.bind(), connection=connection)
            connection.commit()
        await handle
    assert [identity(app.span("submit mail"))] == links(app.span("process mail"))
    assert [1] == [value for _, value in app.measured("messaging.client.sent.messages")]


class Deaf:
    """A store whose answers to settlements are lost, the first or all of them."""

    def __init__(self, *, always: bool) -> None:
        self._store = MemoryStore(clock=asyncio.get_running_loop().time)
        self._always = always
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, *args: Any, **kwargs: Any) -> Any:
        """Carry out the verb, and lose the answer."""
        answer = await self._store.settle(*args, **kwargs)
        if self._always or not self.lost:
            self.lost += 1
            raise ConnectionError("the answer was lost")
        return answer


@pytest.mark.memory("the store is one that is deaf")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_that_was_lost_is_found_out(fails: bool) -> None:
    """The settlement is sent again, and was applied before: the span has the right outcome."""
    app = Traced(Millpond(work=True))
    deaf = Deaf(always=False)
    internals_of(app.mp).owner.make_store = lambda: deaf
    mail = app.mp.pool("mail", retry=Retry.constant(30, attempts=2))

    @mail.task
    async def send(ctx: Context) -> None:
        if fails and ctx.attempt == 1:
            raise ConnectionError

    async with app.mp:
        await (await send.submit())
        await asyncio.sleep(1)
    assert 1 == deaf.lost
    outcomes = [app.attributes(span)["millpond.outcome"] for span in app.spans("process mail")]
    assert (["retry", "completed"] if fails else ["completed"]) == outcomes


@pytest.mark.memory("the store is one that is deaf")
async def test_the_span_of_an_unsettled_attempt_ends_on_close() -> None:
    """It has no outcome, because there is none."""
    app = Traced(Millpond(work=True))
    deaf = Deaf(always=True)
    internals_of(app.mp).owner.make_store = lambda: deaf
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    async with app.mp:
        await send.submit()
        await asyncio.sleep(1)
        assert [] == app.spans("process mail")
    assert "millpond.outcome" not in app.attributes(app.span("process mail"))


async def test_a_task_that_was_known_is_not_sent_again() -> None:
    """The second submit says that it is a duplicate, and of which task."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    async with app.mp:
        first = await send.options(idempotency_key="once").submit()
        await send.options(idempotency_key="once").submit()
        await mail.drain()
    answer = [app.attributes(span) for span in app.spans("submit mail")]
    assert [None, True] == [one.get("millpond.duplicate") for one in answer]
    assert [str(first.id)] * 2 == [one["messaging.message.id"] for one in answer]
    assert [1] == [value for _, value in app.measured("messaging.client.sent.messages")]


async def test_telemetry_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A span processor of the user's raises at every turn; tasks do not notice."""

    class Broken(SpanProcessor):
        def on_start(self, span: Span, parent_context: object = None) -> None:
            raise LookupError("no collector")

        def on_end(self, span: ReadableSpan) -> None:
            raise LookupError("no collector")

    app = Traced()
    app.provider.add_span_processor(Broken())
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> int:
        return 7

    async with app.mp:
        assert 7 == await (await send.submit())
        assert app.mp.counts.observer_errors > 0
    assert "telemetry failed" in caplog.text
    assert not trace.get_current_span().get_span_context().is_valid


async def test_it_can_be_ended_and_not_begun_twice() -> None:
    """What it returned ends it; then tasks are as plain as they were before."""
    app = Traced()
    mail = app.mp.pool("mail")

    @mail.task
    async def send() -> None: ...

    with pytest.raises(ConfigError, match="already instrumented"):
        Traced(app.mp)
    app.stop()
    async with app.mp:
        handle = await send.submit()
        await handle
        task = await internals_of(app.mp).runtime.view.task(handle.id)
        assert task is not None
        assert b"" == task.new.options
    assert [] == app.spans()
    Traced(app.mp).stop()


@pytest.mark.parametrize("traced", [False, True])
async def test_a_task_is_stored_with_its_trace_and_no_more(traced: bool) -> None:
    """A W3C header, where there is a trace; the retry policy it carries is none the worse."""
    app = Traced()
    if not traced:
        app.stop()
    mail = app.mp.pool("mail")

    @mail.task
    async def send(fail: bool) -> None:
        if fail:
            raise ConnectionError

    async with app.mp:
        handle = await send.options(retry=Retry.constant(1, attempts=5)).submit(fail=True)
        await handle.wait()
        task = await internals_of(app.mp).runtime.view.task(handle.id)
        assert task is not None
        assert 5 == task.attempt
        carried = msgspec.msgpack.decode(task.new.options, type=Carried)
        assert (["traceparent"] if traced else []) == list(carried.trace)
        assert 55 * traced == sum(map(len, carried.trace.values()))


@pytest.mark.real_loop
async def test_the_name_of_a_span_does_not_say_whose_pool_it_is(tmp_path: Path) -> None:
    """There may be as many tenants as customers; the destination says which."""
    app = Traced(Millpond(f"sqlite:///{tmp_path}/work.db", work=True))
    reviews = app.mp.pool("reviews", scope="tenant", scope_id="acme")
    async with app.mp:
        await (await reviews.submit(time.time))
    for name in ("submit reviews", "process reviews"):
        assert "tenant:acme:reviews" == app.attributes(app.span(name))["messaging.destination.name"]


@pytest.mark.real_loop
async def test_the_span_of_an_attempt_is_current_in_a_middleware() -> None:
    """On the loop and in a thread: an attribute that it sets is on that span."""

    class Marking(Middleware):
        def before(self, ctx: Context | SyncContext) -> None:
            trace.get_current_span().set_attribute("seen", ctx.function)

    app = Traced()
    mail = app.mp.pool("mail")
    app.mp.add_middleware(Marking())

    @mail.task
    async def on_loop() -> None: ...

    @mail.task
    def in_thread() -> None: ...

    async with app.mp:
        for task in (on_loop, in_thread):
            await asyncio.wait_for(await task.submit(), 20)
    spans = app.spans("process mail")
    assert ["on_loop", "in_thread"] == [app.attributes(span)["seen"] for span in spans]
