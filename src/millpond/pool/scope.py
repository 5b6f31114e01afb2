"""Scopes: which processes share a pool, and how pools of the same name are kept apart.

    session   one process: the scope of pools in memory, and only of those
    app       all processes that use the store: the default in a durable store
    pipeline, tenant, org
              all processes that name the same scope_id: each id may have a pool of one name

The stored name of a pool of the first two is its name, of any other its id, such as
`tenant:acme:reviews`. No name begins like that and no scope_id has a colon, so no two pools have
the same stored name.

A durable store has no session pools: its pools outlive the process. A second Millpond, in memory,
has them.
"""

from __future__ import annotations

from millpond.core import validation as check
from millpond.core.validation import LONGEST_NAME
from millpond.errors import ConfigError, NotSupported

NAMED = ("pipeline", "tenant", "org")
"""Scopes of which there are many: each has an id."""

SCOPES = ("session", "app", *NAMED)


def default_scope(*, durable: bool) -> str:
    """Return the scope of a pool that declares none."""
    return "app" if durable else "session"


def check_scope(scope: str | None, scope_id: str | None, *, durable: bool) -> None:
    """Raise for a scope that the store cannot have, or that lacks its id."""
    if scope is not None:
        check.one_of("scope", scope, SCOPES)
    own = scope or default_scope(durable=durable)
    if own != "session" and not durable:
        raise NotSupported(
            f"scope={scope!r} needs a durable store: a pool in memory ends with its process "
            '(scope="session")',
            feature="scope",
        )
    if own == "session" and durable:
        raise ConfigError(
            "scope",
            scope,
            "is the scope of pools in memory, which end with their process: leave it out here, or "
            "make the pool on a second Millpond()",
        )
    if own in NAMED:
        check_scope_id(own, scope_id)
    elif scope_id is not None:
        where = "of a durable store's whole app" if durable else "in memory"
        raise ConfigError("scope_id", scope_id, f"means nothing for a pool {where}")


def check_scope_id(scope: str, scope_id: str | None) -> None:
    """Raise ConfigError for an id that a stored name cannot contain."""
    if scope_id is None:
        raise ConfigError("scope_id", None, f'is required with scope="{scope}"')
    check.name("scope_id", scope_id)
    if ":" in scope_id:
        raise ConfigError(
            "scope_id",
            scope_id,
            "must not contain a colon: it separates scope and name",
        )


def prefix_of(scope: str, scope_id: str) -> str:
    """Return the prefix of the stored names of all pools of a scope."""
    return f"{scope}:{scope_id}:"


def stored_name(name: str, scope: str | None, scope_id: str | None) -> str:
    """Return the stored name of a pool."""
    check.name("name", name)
    first, colon, _ = name.partition(":")
    if colon and first in SCOPES:
        raise ConfigError("name", name, "begins like the id of a scope: give scope= and scope_id=")
    if scope not in NAMED or scope_id is None:
        return name
    stored = prefix_of(scope, scope_id) + name
    if len(stored) > LONGEST_NAME:
        reason = f"has more than {LONGEST_NAME} characters with scope and scope_id before it"
        raise ConfigError("name", name, reason)
    return stored
