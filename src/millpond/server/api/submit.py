"""Submit: a call by the name of its function, from any language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from millpond.core import bounds
from millpond.core.event import SYSTEM
from millpond.core.lifecycle import Status
from millpond.core.spec import OrderKind
from millpond.core.task import Call, Dedupe, NewTask
from millpond.errors import BadPayload, ConfigError, PayloadTooLarge, UnknownPool
from millpond.pool.declared_pool import attempts_of
from millpond.pool.internals import internals_of
from millpond.pool.payload.signature import fingerprint
from millpond.pool.refusals import error_of
from millpond.runtime.jobs.outcome import Unreadable
from millpond.server import contract
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.site import Site, actor_of, answer, body_of, path_to, site_of
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from millpond.core.spec import PoolSpec
    from millpond.pool.task import TaskFunction
    from millpond.store.protocol import Admission

router = APIRouter(tags=["submit"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=bounds.MAX_KEY,
        description="The same key, function and arguments are one task, however often it is sent.",
    ),
]


@router.post(
    "/pools/{pool:path}/tasks",
    **operation(
        contract.Receipt,
        takes=contract.Submission,
        status=202,
        errors=(404,),
        says="The task is stored; Location names it.",
        known="Its idempotency key was known: Location names the task that it stands for.",
    ),
)
async def submit(
    request: Request, pool: given.OnePool, idempotency_key: IdempotencyKey = None
) -> Response:
    """Submit a call by name. A worker that knows the function runs it; the server need not.

    429 and 503 say why the pool refuses, and when to try again.
    """
    site = site_of(request)
    body = await body_of(request, contract.Submission)
    if pool.startswith(SYSTEM):
        raise UnknownPool(f"no pool named {pool!r} takes submits", pool=pool)
    view = await site.pool(pool)
    new = _task(site, view.spec, body, _key(body, idempotency_key), actor_of(request))
    done = await site.runtime.submitter.submit(Batch(tasks=(new,)), wait=0.0)
    if done.refusal is not None:
        raise error_of(done.refusal, 1)
    return _taken(request, new, done.admissions[0])


def _key(body: contract.Submission, header: str | None) -> str | None:
    own = body.options.idempotency_key
    if header is not None and own is not None and header != own:
        message = "the header Idempotency-Key and options.idempotency_key differ"
        fields = {"options.idempotency_key": "is not that of the header"}
        raise Refused(422, "invalid_request", message, fields=fields)
    return header if header is not None else own


def _taken(request: Request, new: NewTask, admission: Admission) -> Response:
    """Return the answer to a submit that was not refused."""
    if admission.status is Status.REJECTED:
        message = f"pool {new.pool!r} is full and dropped the task: {admission.reason}"
        fields = {"pool": new.pool, "reason": admission.reason}
        raise Refused(429, "MILL-033", message, fields=fields, retry_after=1.0)
    location = path_to(request, f"/tasks/{admission.task}")
    receipt = contract.Receipt(
        id=str(admission.task),
        pool=new.pool,
        status=str(admission.status),
        duplicate=admission.duplicate,
        location=location,
        lane=admission.lane,
        sequence=admission.sequence,
        position=admission.position,
    )
    return answer(receipt, 200 if admission.duplicate else 202, {"location": location})


def _task(
    site: Site,
    spec: PoolSpec,
    body: contract.Submission,
    idempotency_key: str | None,
    actor: str,
) -> NewTask:
    """Return the task that a request describes; refuses what could not be stored, or read."""
    known = site.mp.tasks.get(body.function)
    options = body.options
    payload, key = _payload(site, body, known)
    key = options.key if options.key is not None else key
    if key is None and known is None and spec.backpressure and spec.backpressure.per_key:
        reason = "must be given: the pool bounds what waits of each key (per_key)"
        raise ConfigError("key", None, reason)
    defaults = {} if known is None else internals_of(known).defaults
    attempts = options.attempts
    if attempts is None:
        retry = defaults.get("retry")
        attempts = spec.attempts if retry is None else attempts_of(retry)
    timeout = options.timeout if options.timeout is not None else defaults.get("timeout")
    return NewTask(
        id=site.runtime.new_id(),
        pool=spec.name,
        call=Call(body.function, payload),
        key=key,
        share=_share(spec, body, key),
        labels=options.labels,
        priority=options.priority or defaults.get("priority", 0),
        weight=options.weight,
        delay=options.delay or 0.0,
        run_at=options.run_at,
        expires_in=options.expires_in,
        timeout=timeout,
        attempts=attempts,
        idempotency_key=idempotency_key,
        dedupe=Dedupe(options.dedupe),
        fingerprint=fingerprint(body.function, payload) if idempotency_key else 0,
        submitted_by=actor,
    )


def _payload(
    site: Site, body: contract.Submission, known: TaskFunction[..., Any, Any] | None
) -> tuple[bytes, str | None]:
    """Return the arguments as they are stored, and the key that the function makes of them."""
    arguments = dict(body.kwargs)
    if body.args:
        arguments.update(_by_name(body, known))
    try:
        payload = msgspec.json.encode(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad(body.function, None, str(error)) from None
    largest = internals_of(site.mp).owner.max_payload
    if len(payload) > largest:
        message = f"the arguments have {len(payload):,} bytes, and may have {largest:,}"
        raise PayloadTooLarge(message, task=body.function, size=len(payload), limit=largest)
    if known is None:
        return payload, None
    try:
        positional, words = internals_of(known).signature.decode(payload)
    except Unreadable as error:
        raise _bad(body.function, getattr(error, "field", None) or None, str(error)) from None
    return payload, internals_of(known).key_of(tuple(positional), words)


def _by_name(
    body: contract.Submission, known: TaskFunction[..., Any, Any] | None
) -> dict[str, Any]:
    """Return arguments that were given by position, by the names of the parameters."""
    if known is None:
        reason = "this server does not know the function: give its arguments by name, as kwargs"
        raise _bad(body.function, "args", reason)
    names = internals_of(known).signature.parameters
    if len(body.args) > len(names):
        raise _bad(body.function, "args", f"it takes {len(names)}, and {len(body.args)} were given")
    twice = [name for name in names[: len(body.args)] if name in body.kwargs]
    if twice:
        raise _bad(body.function, twice[0], "was given twice")
    return dict(zip(names, body.args, strict=False))


def _bad(function: str, parameter: str | None, reason: str) -> BadPayload:
    where = f"{function}({parameter})" if parameter else function
    return BadPayload(f"{where}: {reason}", task=function, parameter=parameter, reason=reason)


def _share(spec: PoolSpec, body: contract.Submission, key: str | None) -> str | None:
    """Return the partition in a fair pool: labels, else the argument, else the key."""
    if spec.order.kind is not OrderKind.FAIR:
        return None
    name = spec.order.key
    if name in body.options.labels:
        return body.options.labels[name]
    argument = body.kwargs.get(name)
    return key if argument is None else str(argument)
