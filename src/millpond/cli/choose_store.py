"""Choose the store: from the command line, the environment, or an application."""

from __future__ import annotations

import os

from millpond.cli.exits import Exit, Refusal

STORE, APP = "MILLPOND_STORE", "MILLPOND_APP"
"""Environment variables that name the store or the application."""


def url_of(store: str | None, app: str | None) -> str:
    """Return the URL of the store. The command line goes before the environment."""
    if store is None and app is None:
        store, app = os.environ.get(STORE) or None, os.environ.get(APP) or None
    if store is not None:
        return store
    if app is None:
        raise Refusal(
            Exit.USAGE, f"no store given: use --store URL or --app MODULE:NAME, or set {STORE}"
        )
    from millpond.cli.load_app import load

    url = load(app).url
    if url is None:
        message = f"{app} keeps its pools in memory, where no other process can see them"
        raise Refusal(Exit.APP, message)
    return url
