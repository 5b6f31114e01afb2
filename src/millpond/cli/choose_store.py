"""Which store is meant: of the line, of the environment, or of an application."""

from __future__ import annotations

import os

from millpond.cli.exits import Exit, Refusal

STORE, APP = "MILLPOND_STORE", "MILLPOND_APP"
"""Where the store is looked for, if the line does not name one."""


def url_of(store: str | None, app: str | None) -> str:
    """Return the URL of the store that is meant: what the line says goes before the environment."""
    if store is None and app is None:
        store, app = os.environ.get(STORE) or None, os.environ.get(APP) or None
    if store is not None:
        return store
    if app is None:
        raise Refusal(
            Exit.USAGE, f"which store? say --store URL or --app MODULE:NAME, or set {STORE}"
        )
    from millpond.cli.load_app import load

    url = load(app).url
    if url is None:
        message = f"{app} keeps its pools in memory, where nobody else can see them"
        raise Refusal(Exit.APP, message)
    return url
