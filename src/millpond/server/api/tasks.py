"""Tasks: lists by conditions, counts, one task's story, its result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.lifecycle import Status
from millpond.core.why import Facts, explain
from millpond.errors import UnknownTask
from millpond.pool.why import why
from millpond.runtime.error_info import read
from millpond.server import contract, cursors, redaction, shapes
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.site import Site, answer, site_of

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter
    from millpond.runtime.waiting.task_result import TaskResult

router = APIRouter(tags=["tasks"])

SCAN = 200
"""Rows that one request for a list reads, at most, to find tasks; pages go on by themselves."""

BULK_SCAN = 1000
"""Rows that one step of a count reads, at most."""

MOST_COUNTED = 10_000
"""Tasks that are counted, and that one bulk action changes."""

COUNT_SCAN = 50_000
"""Rows that a count reads, at most."""

PAGE = 500

HISTORY_RECORDS = 200
"""Records of a task that a page of its history has at most."""

LONG_QUEUE = 200
"""To say how many are ahead takes reading the queue: in a longer one that is left out."""


Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait for the end, at most 60.")]


@router.get("/tasks", **operation(contract.TaskPage, errors=(404,)))
async def list_tasks(
    request: Request,
    *,
    wanted: given.Conditions,
    pool: given.Pool = None,
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
    names = await site.pool_names(pool, system=system)
    page = await site.view.search(
        names,
        wanted,
        after=None if after is None else cursors.read(after),
        limit=limit,
        # Without conditions nearly every row is shown, and no more are read than that.
        scan=max(SCAN, limit) if wanted.plain else SCAN,
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
            scan=BULK_SCAN,
            now=site.now(),
        )
        scan -= BULK_SCAN
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
    wanted: given.Conditions,
    pool: given.Pool = None,
    system: given.System = False,
) -> Response:
    """Count the tasks that meet all conditions, up to 10,000: what a bulk action would be about."""
    site = site_of(request)
    now = site.now()
    names = await site.pool_names(pool, system=system)
    tasks, more = await every(site, names, wanted, most=MOST_COUNTED)
    return answer(contract.TaskCount(count=len(tasks), more=more, at=now))


@router.get("/tasks/{task}", **operation(contract.TaskStory, errors=(404,)))
async def show_task(
    request: Request, task: given.OneTask, *, payload: given.Payload = False
) -> Response:
    """Return one task: where it is and why, its attempts, its history, what followed from it."""
    site = site_of(request)
    identifier = given.number(task)
    story = await site.view.story(identifier)
    if story is None:
        raise await _unknown(site, identifier)
    record, now = story.task, site.now()
    error = read(record.error)
    by = record.new.submitted_by
    callback = record.new.on_complete
    return answer(
        contract.TaskStory(
            task=shapes.task_item(record, now),
            why=await _why(site, record, now),
            attempts=shapes.attempts(story.records, now, running=record.status is Status.RUNNING),
            history=[shapes.audit_item(one) for one in story.records],
            history_complete=story.complete,
            traceback=None if error is None else error.traceback or None,
            on_complete=None if callback is None else callback.function,
            parent=by.removeprefix("task:") if by.startswith("task:") else None,
            follow_ups=[shapes.task_item(one, now) for one in story.follow_ups],
            trace=shapes.trace_of(record, site.settings.trace_url),
            payload=_payload(site, record) if payload else None,
            at=now,
        )
    )


async def _why(site: Site, task: Task, now: float) -> str:
    """Return why a task does not run; of one that has ended, its own record says so."""
    if task.status.terminal:
        ended = Facts(task=task.new.id, pool=task.new.pool, status=task.status, reason=task.reason)
        return explain(ended, now)
    return await why(site.runtime, task.new.id, most=LONG_QUEUE)


async def known_task(site: Site, identifier: int) -> Task:
    """Return a task, or refuse an id that is unknown or forgotten."""
    record = await site.view.task(identifier)
    if record is None:
        raise await _unknown(site, identifier)
    return record


async def _unknown(site: Site, identifier: int) -> UnknownTask:
    (status,) = await site.view.status((identifier,))
    message = f"no task {identifier} is known"
    if status == "expired":
        message = f"task {identifier} has ended and is no longer kept"
    return UnknownTask(message, task_id=identifier)


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
    wait: Wait = 0.0,
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
        # Unmasked: the client that waits for it may read it.
        result=msgspec.Raw(task.result) if ended and task.result else None,
        error=shapes.error_of(task.error) if ended else None,
        reason=task.reason,
    )
