"""Roles: the privileges of an owner, worker, submitter or reader of a store.

An owner makes and migrates the tables. A worker reads and writes them, and changes none. Who only
submits calls two functions, which do it with the owner's rights, and sees no table at all. Who only
reads sees all of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.server_functions import PUBLIC

if TYPE_CHECKING:
    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

FOR_SUBMITTERS = PUBLIC
"""SECURITY DEFINER functions: callable only with a grant."""

FOR_WORKERS = ("millpond_compact", "millpond_turn_audit")
"""SECURITY DEFINER functions that keep tables short, as only their owner may: for workers alone."""

_HELD = """\
SELECT coalesce(pg_has_role(n.nspowner, 'USAGE'), false),
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       coalesce((SELECT bool_and(has_function_privilege(f.oid, 'EXECUTE'))
                   FROM pg_proc f WHERE f.pronamespace = n.oid AND f.proname = 'submit'), false),
       ARRAY(SELECT p.name FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p (name)
              WHERE NOT EXISTS (SELECT 1 FROM pg_class c
                                 WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v')
                                   AND c.relname LIKE 'millpond\\_%%'
                                   AND (p.name = 'SELECT'
                                     OR c.relname NOT IN ('millpond_schema', 'millpond_functions'))
                                   AND (p.name = 'SELECT' OR c.relkind <> 'v')
                                   AND NOT has_table_privilege(c.oid, p.name)))
  FROM pg_namespace n WHERE n.nspname = %s"""


class Role(StrEnum):
    """A role for a store."""

    OWNER = "owner"
    WORKER = "worker"
    SUBMITTER = "submitter"
    READER = "reader"


def grants(role: Role, user: str, schema: str) -> list[str]:
    """Return the grants of a role for a user; the owner runs them.

    A user who may create schemas runs those of the owner role itself.
    """
    place, who = quoted(schema), quoted(user)
    if role is Role.OWNER:
        return [f"CREATE SCHEMA IF NOT EXISTS {place} AUTHORIZATION {who}"]
    use = f"GRANT USAGE ON SCHEMA {place} TO {who}"
    if role is Role.SUBMITTER:
        calls = ", ".join(f"{place}.{name}" for name in FOR_SUBMITTERS)
        return [use, f"GRANT EXECUTE ON FUNCTION {calls} TO {who}"]
    # Of tables that a later release makes, too.
    later = f"ALTER DEFAULT PRIVILEGES IN SCHEMA {place} GRANT"
    if role is Role.READER:
        return [
            use,
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {place} TO {who}",
            f"{later} SELECT ON TABLES TO {who}",
        ]
    releases = f"{place}.millpond_schema, {place}.millpond_functions"
    all_rights = "SELECT, INSERT, UPDATE, DELETE"
    return [
        use,
        f"GRANT {all_rights} ON ALL TABLES IN SCHEMA {place} TO {who}",
        # Which release the tables are of is for the owner to say.
        f"REVOKE INSERT, UPDATE, DELETE ON {releases} FROM {who}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {place} TO {who}",
        f"{later} {all_rights} ON TABLES TO {who}",
        f"{later} EXECUTE ON FUNCTIONS TO {who}",
    ]


def role_of(connection: Connection, address: Address) -> Role | None:
    """Return the role of the user of a connection; None if it has none."""
    row = connection.execute(_HELD, [address.schema]).fetchone()
    if row is None:
        return None
    owns, uses, submits, tables = row
    if owns:
        return Role.OWNER
    if not uses:
        return None
    if len(tables) == 4:
        return Role.WORKER
    if "SELECT" in tables:
        return Role.READER
    return Role.SUBMITTER if submits else None
