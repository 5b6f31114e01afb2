"""The HTTP API and the dashboard: `millpond serve`, or mounted in an ASGI app of your own.

It needs the extra `server`: pip install 'millpond[server]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.pool.millpond import Millpond
    from millpond.server.application import Server
    from millpond.server.settings import Options

__all__ = ["app"]


def app(mp: Millpond, **options: Unpack[Options]) -> Server:
    """Return an ASGI app that shows a Millpond and, if `allow_actions` says so, controls it.

    Serve it by itself, and it opens the Millpond as the server starts; mount it in another app,
    and that one opens it.
    """
    # FastAPI takes half a second to import, and most programs never serve anything.
    from millpond.server.application import Server  # noqa: PLC0415
    from millpond.server.settings import Settings  # noqa: PLC0415

    return Server(mp, Settings.of(options))
