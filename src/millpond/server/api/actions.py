"""Actions: orders about pools, tasks and runs; the audit names who gave each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import APIRouter
from msgspec import UNSET
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.control import Close, Pause, Purge, Redrive, Resize, Resume
from millpond.core.log_fields import about
from millpond.pool.internals import internals_of
from millpond.pool.lane_or_key import unit_of
from millpond.pool.shown_state import shown_task_state
from millpond.server import contract
from millpond.server.api import parameters as given
from millpond.server.api.tasks import MOST_COUNTED, PAGE, every, known_task
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.site import Site, actor_of, answer, body_of, site_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Command

router = APIRouter(tags=["actions"])
log = logging.getLogger("millpond.server")

_ERRORS = (404, 409)


def _changed(what: str, *, optional: bool = False, takes: type = contract.UnitOrder) -> dict:  # type: ignore[type-arg]
    return operation(
        contract.Changed, takes=takes, errors=_ERRORS, says=what, required=not optional
    )


@router.post("/pools/{pool:path}/pause", **_changed("It starts nothing more.", optional=True))
async def pause(request: Request, pool: given.OnePool) -> Response:
    """Start nothing more, of a pool or of one key or lane; what runs goes on."""
    unit = await _unit(request, pool)
    return await _ordered(request, pool, Pause(pool, unit, actor_of(request)), "pause")


@router.post("/pools/{pool:path}/resume", **_changed("It starts work again.", optional=True))
async def resume(request: Request, pool: given.OnePool) -> Response:
    """Start work again, of a pool or of one key or lane."""
    unit = await _unit(request, pool)
    return await _ordered(request, pool, Resume(pool, unit, actor_of(request)), "resume")


@router.post("/pools/{pool:path}/purge", **_changed("What waited is cancelled.", optional=True))
async def purge(request: Request, pool: given.OnePool) -> Response:
    """Cancel everything that waits in a pool, or of one key or lane; what runs goes on."""
    unit = await _unit(request, pool)
    return await _ordered(request, pool, Purge(pool, unit, by=actor_of(request)), "purge")


@router.post(
    "/pools/{pool:path}/resize", **_changed("The limit is set.", takes=contract.ResizeOrder)
)
async def resize(request: Request, pool: given.OnePool) -> Response:
    """Let at most so many tasks of a pool run at a time; a lower limit is reached as work ends."""
    body = await body_of(request, contract.ResizeOrder)
    await site_of(request).pool(pool)
    order = Resize(pool, body.limit, body.revision, actor_of(request))
    return await _ordered(request, pool, order, "resize")


@router.post("/pools/{pool:path}/close", **operation(contract.Changed, errors=_ERRORS))
async def close(request: Request, pool: given.OnePool) -> Response:
    """Take no more work from outside, for good; what is queued still runs."""
    await site_of(request).pool(pool)
    return await _ordered(request, pool, Close(pool, actor_of(request)), "close")


async def _unit(request: Request, pool: str) -> str | None:
    """Return the key or lane that a request names, None for the whole pool."""
    body = await body_of(request, contract.UnitOrder)
    view = await site_of(request).pool(pool)
    return unit_of(view.spec, pool, body.lane, body.key)


async def _ordered(request: Request, pool: str, order: Command, action: str) -> Response:
    done = await site_of(request).order(order, pool)
    _log(request, action, done.count, pool)
    return answer(contract.Changed(action=action, changed=done.count, pool=pool))


@router.post(
    "/tasks/{task}/cancel",
    **_changed("It is cancelled, or asked to stop.", optional=True, takes=contract.CancelOrder),
)
async def cancel(request: Request, task: given.OneTask) -> Response:
    """Cancel a task: at once if it waits; if it runs it is asked to stop, and not tried again."""
    body = await body_of(request, contract.CancelOrder)
    site, identifier = site_of(request), given.number(task)
    await known_task(site, identifier)
    count = await site.runtime.control.cancel(
        (identifier,), interrupt=body.interrupt, by=actor_of(request)
    )
    return await _one_changed(request, "cancel", identifier, count)


@router.patch(
    "/tasks/{task}",
    **operation(
        contract.TaskUpdated, takes=contract.TaskUpdate, errors=_ERRORS, says="It is changed."
    ),
)
async def update(request: Request, task: given.OneTask) -> Response:
    """Change a task that no worker has yet: its arguments, priority, time or labels.

    It keeps its id, its key and its place. `run_at` and `delay` reschedule it, `{"delay": 0}` lets
    it start now. 409 refuses a task that runs or has ended, and a `revision` that is not its own.
    """
    site, identifier = site_of(request), given.number(task)
    body = await body_of(request, contract.TaskUpdate)
    changes = {name: value for name, value in asdict(body).items() if value is not UNSET}
    arguments, revision = changes.pop("kwargs", None), changes.pop("revision", None)
    if not changes and arguments is None:
        raise Refused(422, "invalid_request", "there is nothing to change")
    await known_task(site, identifier)
    waiting = internals_of(site.mp).waiting
    await waiting.change(identifier, arguments, changes, revision=revision, by=actor_of(request))
    record = await known_task(site, identifier)
    _log(request, "update", 1, record.new.pool, identifier)
    return answer(
        contract.TaskUpdated(
            id=task,
            pool=record.new.pool,
            state=shown_task_state(record, site.now()),
            revision=record.new.revision,
        )
    )


@router.post("/tasks/{task}/redrive", **operation(contract.Changed, errors=_ERRORS))
async def redrive(request: Request, task: given.OneTask) -> Response:
    """Queue a failed or cancelled task again, at the tail, with a new budget of attempts."""
    site, identifier = site_of(request), given.number(task)
    record = await known_task(site, identifier)
    order = Redrive((identifier,), by=actor_of(request))
    count = (await site.order(order, record.new.pool)).count
    return await _one_changed(request, "redrive", identifier, count)


async def _one_changed(request: Request, action: str, task: int, count: int) -> Response:
    record = await known_task(site_of(request), task)
    _log(request, action, count, record.new.pool, task)
    return answer(
        contract.Changed(
            action=action,
            changed=count,
            matched=1,
            pool=record.new.pool,
            status=str(record.status),
        )
    )


@router.post("/tasks/bulk", **_changed("How many tasks matched and changed.", takes=contract.Bulk))
async def bulk(request: Request) -> Response:
    """Cancel or redrive the tasks that meet conditions, up to 10,000, if no more than said.

    Count them first (`GET /tasks/count`), and pass the moment of the count as `before` and
    `ended_before`, so that none has joined since. Fewer are fine: the others have moved on. If
    there are more, nothing is done.
    """
    site = site_of(request)
    body = await body_of(request, contract.Bulk)
    chosen = body.filter
    wanted = given.wanted(site.now(), chosen)
    names = await site.pool_names(chosen.pool)
    tasks, more = await every(site, names, wanted, most=MOST_COUNTED)
    if len(tasks) > body.expect:
        message = f"{len(tasks):,} tasks meet the conditions now, and {body.expect:,} were expected"
        fields = {"count": len(tasks), "expect": body.expect, "more": more}
        raise Refused(409, "count_changed", message, fields=fields)
    ids = [task.new.id for task in tasks]
    changed = await _all(site, body.action, ids, actor_of(request))
    _log(request, f"bulk {body.action}", changed, chosen.pool)
    return answer(
        contract.Changed(
            action=body.action, changed=changed, matched=len(ids), more=more, pool=chosen.pool
        )
    )


async def _all(site: Site, action: str, tasks: Sequence[int], actor: str) -> int:
    """Carry out an action page by page, so that others have their turn; return how many changed."""
    changed = 0
    for first in range(0, len(tasks), PAGE):
        page = tuple(tasks[first : first + PAGE])
        if action == "cancel":
            changed += await site.runtime.control.cancel(page, interrupt=False, by=actor)
        else:
            changed += (await site.runtime.control.order(Redrive(page, by=actor))).count
    site.runtime.maintenance.nudge()
    return changed


@router.post("/runs/{run}/cancel", **operation(contract.Changed, errors=_ERRORS))
async def cancel_run(request: Request, run: given.OneTask) -> Response:
    """Stop a run: waiting tasks are cancelled, running ones asked to stop, and no more follow."""
    site, identifier = site_of(request), given.number(run)
    view = await site.view.run(identifier)
    if view is None:
        raise Refused(404, "unknown_run", f"no run {run} is known")
    await site.runtime.control.cancel_run(identifier, by=actor_of(request))
    _log(request, "cancel run", view.live, view.pool)
    return answer(
        contract.Changed(action="cancel", changed=view.live, matched=view.live, pool=view.pool)
    )


def _log(
    request: Request, action: str, count: int, pool: str | None, task: int | None = None
) -> None:
    log.info(
        "%s: %s, %d changed",
        actor_of(request),
        action,
        count,
        extra=about("server.action", pool=pool, task=task, action=action, by=actor_of(request)),
    )
