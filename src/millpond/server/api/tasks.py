"""Tasks: lists by conditions, counts, one task's story, its result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.lifecycle import Transition
from millpond.errors import UnknownTask
from millpond.runtime.error_info import read
from millpond.server import contract, cursors, redaction, shapes
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.site import Site, answer, site_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter
    from millpond.runtime.waiting.task_result import TaskResult

router = APIRouter(tags=["tasks"])

SCAN = 1000
"""Rows that one request reads, at most, to find tasks."""

MOST_COUNTED = 10_000
"""Tasks that are counted, and that one bulk action changes."""

COUNT_SCAN = 50_000
"""Rows that a count reads, at most."""

PAGE = 500

AUDIT_RECORDS = 10
"""How much of the audit is read in each part of a task's story: five rows for each record."""

HISTORY_RECORDS = 200
"""The same of a page of its history."""

FOLLOW_UP_RECORDS = 100
"""Records behind the end of a task among which its follow-ups are."""

MOST_FOLLOW_UPS = 50

LONG_QUEUE = 20_000
"""To say how many are ahead takes reading the queue: in a longer one that is left out."""


@router.get("/tasks", **operation(contract.TaskPage, errors=(404,)))
async def list_tasks(
    request: Request,
    *,
    pool: given.Pool = None,
    status: given.Status = None,
    function: given.Function = None,
    key: given.Key = None,
    label: given.Labels = [],  # noqa: B006 - FastAPI copies it
    error: given.Error = None,
    run: given.Run = None,
    min_age: given.Age = None,
    max_age: given.Age = None,
    before: given.Moment = None,
    system: given.System = False,
    limit: given.Limit = 50,
    after: given.After = None,
) -> Response:
    """List tasks that meet all conditions, pool by pool.

    Queued and running tasks come in the order of the queue, scheduled ones by when they are due,
    ended ones with the latest first; without a status the live ones first, the latest first.
    """
    site = site_of(request)
    now = site.now()
    wanted = given.wanted(
        now,
        status=status,
        function=function,
        key=key,
        label=label,
        error=error,
        run=run,
        min_age=min_age,
        max_age=max_age,
        before=before,
    )
    names = await site.pool_names(pool, system=system)
    page = await site.view.search(
        names,
        wanted,
        after=None if after is None else cursors.read(after),
        limit=limit,
        scan=SCAN,
        now=now,
    )
    return answer(
        contract.TaskPage(
            items=[shapes.task_item(task, now) for task in page.tasks],
            next=None if page.next is None else cursors.written(page.next),
            partial=page.partial,
            at=now,
        )
    )


async def every(
    site: Site, pools: list[str], wanted: TaskFilter, *, most: int
) -> tuple[list[Task], bool]:
    """Return up to `most` tasks that meet conditions, and whether there may be more."""
    tasks: list[Task] = []
    after, scan = None, COUNT_SCAN
    while scan > 0:
        page = await site.view.search(
            pools,
            wanted,
            after=after,
            limit=min(PAGE, most - len(tasks)),
            scan=SCAN,
            now=site.now(),
        )
        scan -= SCAN
        tasks += page.tasks
        if page.next is None:
            return tasks, False
        if len(tasks) >= most:
            return tasks, True
        after = page.next
        # Others have their turn in between.
        await asyncio.sleep(0)
    return tasks, True


@router.get("/tasks/count", **operation(contract.TaskCount, errors=(404,)))
async def count_tasks(
    request: Request,
    *,
    pool: given.Pool = None,
    status: given.Status = None,
    function: given.Function = None,
    key: given.Key = None,
    label: given.Labels = [],  # noqa: B006 - FastAPI copies it
    error: given.Error = None,
    run: given.Run = None,
    min_age: given.Age = None,
    max_age: given.Age = None,
    before: given.Moment = None,
    system: given.System = False,
) -> Response:
    """Count the tasks that meet all conditions, up to 10,000: what a bulk action would be about."""
    site = site_of(request)
    now = site.now()
    wanted = given.wanted(
        now,
        status=status,
        function=function,
        key=key,
        label=label,
        error=error,
        run=run,
        min_age=min_age,
        max_age=max_age,
        before=before,
    )
    names = await site.pool_names(pool, system=system)
    tasks, more = await every(site, names, wanted, most=MOST_COUNTED)
    return answer(contract.TaskCount(count=len(tasks), more=more, at=now))


@router.get("/tasks/{task}", **operation(contract.TaskStory, errors=(404,)))
async def show_task(
    request: Request, task: given.OneTask, *, payload: given.Payload = False
) -> Response:
    """Return one task: where it is and why, its attempts, its history, what followed from it."""
    site = site_of(request)
    record = await known_task(site, given.number(task))
    now = site.now()
    history, complete = await _history(site, record)
    error = read(record.error)
    by = record.new.submitted_by
    callback = record.new.on_complete
    return answer(
        contract.TaskStory(
            task=shapes.task_item(record, now),
            why=await _why(site, record),
            attempts=shapes.attempts(history, now),
            history=[shapes.audit_item(one) for one in history],
            history_complete=complete,
            traceback=None if error is None else error.traceback or None,
            on_complete=None if callback is None else callback.function,
            parent=by.removeprefix("task:") if by.startswith("task:") else None,
            follow_ups=[shapes.task_item(one, now) async for one in _follow_ups(site, record)],
            trace=shapes.trace_of(record, site.settings.trace_url),
            payload=_payload(site, record) if payload else None,
            at=now,
        )
    )


async def known_task(site: Site, identifier: int) -> Task:
    """Return a task, or refuse an id that is unknown or forgotten."""
    record = await site.view.task(identifier)
    if record is not None:
        return record
    (status,) = await site.view.status((identifier,))
    message = f"no task {identifier} is known"
    if status == "expired":
        message = f"task {identifier} has ended and is no longer kept"
    raise UnknownTask(message, task_id=identifier)


@router.get("/tasks/{task}/history", **operation(contract.TaskHistory, errors=(404,)))
async def list_history(
    request: Request, task: given.OneTask, after: given.After = None
) -> Response:
    """Search the audit for one task, from its submit on; a page may be empty and not the last."""
    site = site_of(request)
    record = await known_task(site, given.number(task))
    since = record.submitted_at
    page = await site.view.audit(
        after=cursors.number(after), since=since, limit=HISTORY_RECORDS, task=record.new.id
    )
    more = page.next < await site.view.audit_end()
    return answer(
        contract.TaskHistory(
            items=[shapes.audit_item(one) for one in page.records],
            next=str(page.next) if more else None,
        )
    )


async def _why(site: Site, task: Task) -> str:
    """Return why a task does not run; in a very long queue without how many are ahead."""
    if not task.status.terminal:
        pool = await site.pool(task.new.pool)
        if pool.queued > LONG_QUEUE:
            return _short_why(task, pool.queued, site.now())
    return await site.mp.why(task.new.id)


def _short_why(task: Task, queued: int, now: float) -> str:
    state = shapes.task_state(task, now)
    if state == "queued":
        return f"queued, among {queued:,} tasks that wait in its pool"
    return f"running on worker {task.worker}" if state == "running" else state


async def _history(site: Site, task: Task) -> tuple[list[Record], bool]:
    """Return what the audit tells of a task, and whether all of it was read.

    The audit is searched from the submit on, for as long as that is quick. Of a long one only the
    parts around the latest start and the end are read besides.
    """
    moments = [task.submitted_at, task.started_at, task.finished_at]
    found: dict[int, Record] = {}
    complete = True
    upto = -1
    for number, moment in enumerate(sorted({one for one in moments if one is not None})):
        page = await site.view.audit(since=moment, limit=AUDIT_RECORDS, task=task.new.id)
        if number == 0:
            end = await site.view.audit_end()
            complete = page.next >= end
        for record in page.records:
            found[hash((record.at, record.event, record.attempt, record.detail))] = record
        if complete or page.next <= upto:
            break
        upto = page.next
    if task.status.terminal and not complete:
        events = [record.event for record in found.values()]
        complete = Transition.SUBMIT in events and len(found) >= 2 * task.runs
    return sorted(found.values(), key=lambda record: record.at), complete


async def _follow_ups(site: Site, task: Task) -> AsyncIterator[Task]:
    """Yield the tasks that were stored with the end of a task: its follow-ups and its callback."""
    if task.finished_at is None:
        return
    page = await site.view.audit(since=task.finished_at, limit=FOLLOW_UP_RECORDS)
    count = 0
    for record in page.records:
        if record.at > task.finished_at or count == MOST_FOLLOW_UPS:
            return
        if record.event is not Transition.SUBMIT or record.task is None:
            continue
        found = await site.view.task(record.task)
        if found is None:
            continue
        if found.new.submitted_by == f"task:{task.new.id}" or record.cause == task.new.id:
            count += 1
            yield found


def _payload(site: Site, task: Task) -> contract.Payload:
    words = site.settings.redact
    return contract.Payload(
        arguments=redaction.shown(task.new.call.payload, words),
        result=redaction.shown(task.result, words),
        steps=redaction.redacted(
            {name: redaction.shown(value, words) for name, value in (task.steps or {}).items()},
            words,
        ),
    )


@router.get("/tasks/{task}/result", **operation(contract.TaskResult, errors=(404,)))
async def wait_for_result(
    request: Request,
    task: given.OneTask,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for the end.")] = 0.0,
) -> Response:
    """Return how a task ended and its result; while it has not, wait up to `wait` seconds."""
    site = site_of(request)
    identifier = given.number(task)
    record = await known_task(site, identifier)
    if record.status.terminal or not wait:
        end = site.runtime.waiting.read(record) if record.status.terminal else None
        return answer(_result(record, end))
    with site.limits.waiter():
        try:
            async with asyncio.timeout(wait):
                end = await site.runtime.waiting.end_of(identifier)
        except TimeoutError:
            end = None
    return answer(_result(await known_task(site, identifier), end))


def _result(task: Task, end: TaskResult | None) -> contract.TaskResult:
    ended = end is not None and task.status.terminal
    return contract.TaskResult(
        id=str(task.new.id),
        status=str(task.status),
        done=ended,
        result=_plain(task.result) if ended else None,
        error=shapes.error_of(task.error) if ended else None,
        reason=task.reason,
    )


def _plain(stored: bytes | None) -> Any:  # noqa: ANN401 - any JSON
    """Return a result as plain data: whoever waits for it is who it is for."""
    return None if not stored else msgspec.Raw(stored)
