"""Scopes: how far a pool reaches, and how its name is kept apart from others of the same name.

    session   one process: pools in memory, and only those
    app       everybody who uses the store: pools of a durable store that say nothing else
    pipeline, tenant, org
              whoever names the same scope_id: two of them may have pools of one name

The store knows a pool of the first two by its name, any other by its id, `tenant:acme:reviews`. No
name begins like that and no scope_id has a colon, so no two pools are ever taken for each other.

A session pool in a file would be written to disk only to be forgotten with its process: a second
Millpond, in memory, does that better. So a durable store has none.
"""

from __future__ import annotations

from millpond.core import validation as check
from millpond.core.validation import LONGEST_NAME
from millpond.errors import ConfigError, NotSupported

NAMED = ("pipeline", "tenant", "org")
"""Scopes of which there are many: each has an id."""

SCOPES = ("session", "app", *NAMED)


def default_scope(*, durable: bool) -> str:
    """Return how far a pool reaches that does not say."""
    return "app" if durable else "session"


def check_scope(scope: str | None, scope_id: str | None, *, durable: bool) -> None:
    """Object to a scope that a store cannot have, or that lacks its id."""
    if scope is not None:
        check.one_of("scope", scope, SCOPES)
    own = scope or default_scope(durable=durable)
    if own != "session" and not durable:
        raise NotSupported(
            f"scope={scope!r} needs a durable store: a pool in memory lives and ends with its "
            'process (scope="session")',
            feature="scope",
        )
    if own == "session" and durable:
        raise ConfigError(
            "scope",
            scope,
            "is that of pools in memory, which end with their process: leave it out here, or make "
            "the pool on a second Millpond()",
        )
    if own in NAMED:
        check_scope_id(own, scope_id)
    elif scope_id is not None:
        where = "of a durable store's whole app" if durable else "in memory"
        raise ConfigError("scope_id", scope_id, f"means nothing for a pool {where}")


def check_scope_id(scope: str, scope_id: str | None) -> None:
    """Object to an id that could not be told from the rest of a pool's."""
    if scope_id is None:
        raise ConfigError("scope_id", None, f"must say whose pool it is: {scope} what?")
    check.name("scope_id", scope_id)
    if ":" in scope_id:
        raise ConfigError(
            "scope_id", scope_id, "may have no colon: it stands between scope and name"
        )


def prefix_of(scope: str, scope_id: str) -> str:
    """Return what the stored names of all pools of a scope begin with."""
    return f"{scope}:{scope_id}:"


def stored_name(name: str, scope: str | None, scope_id: str | None) -> str:
    """Return the name by which the store knows a pool."""
    check.name("name", name)
    first, colon, _ = name.partition(":")
    if colon and first in SCOPES:
        raise ConfigError("name", name, "begins like the id of a scope: say scope=, scope_id=")
    if scope not in NAMED or scope_id is None:
        return name
    stored = prefix_of(scope, scope_id) + name
    if len(stored) > LONGEST_NAME:
        reason = f"has more than {LONGEST_NAME} characters with scope and scope_id before it"
        raise ConfigError("name", name, reason)
    return stored
