"""The site: the open Millpond that a server shows, and what its routes share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.event import SYSTEM
from millpond.errors import NotOpen, UnknownPool
from millpond.pool.internals import internals_of
from millpond.server.refusals import Refused
from millpond.server.security import ACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    from millpond.core.control import Command
    from millpond.pool.millpond import Millpond
    from millpond.runtime.runtime import Runtime
    from millpond.server.limits import Limits
    from millpond.server.live import Live
    from millpond.server.security import Guard
    from millpond.server.settings import Settings
    from millpond.store.protocol import ControlAnswer, PoolInFull, PoolView
    from millpond.store.view import View

    T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Site:
    """What the routes of one server work with."""

    guard: Guard
    live: Live

    def __init__(self, mp: Millpond, settings: Settings, limits: Limits) -> None:
        self.mp = mp
        self.settings = settings
        self.limits = limits

    @property
    def runtime(self) -> Runtime:
        """The runtime of the Millpond; NotOpen unless the Millpond is open on this loop."""
        runtime = internals_of(self.mp).runtime
        if runtime.loop is not asyncio.get_running_loop():
            raise NotOpen("the Millpond of the dashboard is open on another loop than the server's")
        return runtime

    @property
    def view(self) -> View:
        """The reading side of the store."""
        return self.runtime.view

    def now(self) -> float:
        """Return the time of the store."""
        return self.runtime.clock()

    async def pool(self, name: str) -> PoolView:
        """Return a pool by the name that the store knows it by."""
        found = await self.view.pool(name, now=self.now(), measured=False)
        if found is None:
            raise unknown_pool(name)
        return found

    async def pool_in_full(self, name: str) -> PoolInFull:
        """Return a pool with its units, revisions and budgets."""
        found = await self.view.pool_in_full(name, now=self.now())
        if found is None:
            raise unknown_pool(name)
        return found

    async def pool_names(self, only: str | None, *, system: bool = False) -> list[str]:
        """Return the pool that is named, or all; those of the system where they are wanted.

        Whether there is a pool of this name, the search finds out.
        """
        if only is not None:
            return [only]
        # As of at most a second ago: to read all pools for every page would take longer than it.
        views, _ = await self.live.overview()
        names = [view.spec.name for view in views]
        return [name for name in names if system or not name.startswith(SYSTEM)]

    async def order(self, order: Command, pool: str) -> ControlAnswer:
        """Have an order about a pool carried out, and let workers of this process notice it."""
        runtime = self.runtime
        answer = await runtime.control.order(order)
        runtime.control.give_back_prefetched(pool)
        runtime.maintenance.nudge()
        runtime.submitter.room(pool)
        return answer


def unknown_pool(name: str) -> UnknownPool:
    """Return the error about a pool that was never declared."""
    return UnknownPool(f"no pool named {name!r} was declared", pool=name)


def site_of(request: Request) -> Site:
    """Return the site that a request is for."""
    site: Site = request.app.state.site
    return site


def actor_of(request: Request) -> str:
    """Return who sends a request, as the audit names it."""
    actor: str = request.scope[ACTOR]
    return actor


def path_to(request: Request, path: str) -> str:
    """Return a path of the API as clients ask for it, wherever the server is mounted."""
    return f"{request.scope.get('root_path', '')}/api/v1{path}"


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return data as a JSON response."""
    return Response(_encode(value), status, dict(headers or {}), "application/json")


async def body_of(request: Request, kind: type[T]) -> T:
    """Read the body of a request; refuse what is not of its kind, by the field that is wrong."""
    raw = await request.body()
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(400, "bad_json", f"the body is not JSON: {error}") from None


def _invalid(message: str, kind: type) -> Refused:
    """Return the refusal of a body, naming the field that is wrong."""
    reason, _, path = message.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    if not field and reason.startswith("Object contains unknown field"):
        field, reason = reason.split("`")[1], "is not a field of this request"
        known = sorted(one.name for one in msgspec.structs.fields(kind))
        message = f"unknown field {field!r}; there are: {', '.join(known)}"
    return Refused(422, "invalid_request", message, fields={field or "body": reason})
