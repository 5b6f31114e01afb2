"""Sessions: who asks and what that one may do; logging in and out of a browser."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from millpond.server import contract
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.security import ACTOR, SESSION, csrf_subject
from millpond.server.sessions import COOKIE, SESSION_LASTS
from millpond.server.site import Site, answer, body_of, site_of
from millpond.store.url_redaction import shown

router = APIRouter(tags=["session"])


@router.get("/session", **operation(contract.SessionInfo))
async def show_session(request: Request) -> Response:
    """Return who asks and what that one may do; nothing more to whom the token is missing."""
    return answer(_info(site_of(request), request))


@router.post("/session", **operation(contract.SessionInfo, takes=contract.Login))
async def log_in(request: Request) -> Response:
    """Exchange a token for the cookie of a session."""
    site = site_of(request)
    login = await body_of(request, contract.Login)
    site.limits.check_login()
    holder = site.guard.tokens.holder(login.token)
    if holder is None:
        raise Refused(401, "wrong_token", "this is not a token of this server")
    session = site.guard.sessions.begin(holder)
    client = request.client.host if request.client else "unknown"
    request.scope[SESSION], request.scope[ACTOR] = session, f"http:{holder or client}"
    response = answer(_info(site, request))
    response.set_cookie(
        COOKIE,
        session.id,
        max_age=int(SESSION_LASTS),
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.delete("/session", **operation(None, status=204, says="The session is over."))
async def log_out(request: Request) -> Response:
    """End the session."""
    session = request.scope.get(SESSION)
    if session is not None:
        site_of(request).guard.sessions.end(session)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")
    return response


def _info(site: Site, request: Request) -> contract.SessionInfo:
    from millpond import __version__  # noqa: PLC0415 - the package imports much of itself

    actor = request.scope.get(ACTOR)
    known = actor is not None
    return contract.SessionInfo(
        authenticated=known,
        token_required=bool(site.guard.tokens),
        actor=actor,
        actions=site.settings.allow_actions,
        csrf=site.guard.sessions.csrf(csrf_subject(request.scope)) if known else None,
        version=__version__ if known else None,
        store=shown(site.mp.url or "memory") if known else None,
        now=site.now() if known else None,
    )
