"""Privileges of the database user, and the grants that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.store.postgres.errors import missing_rights
from millpond.store.postgres.quoting import quoted

if TYPE_CHECKING:
    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

_LOOK = """\
SELECT current_user::text, current_database()::text,
       has_database_privilege(current_database(), 'CREATE'),
       n.oid IS NOT NULL,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       coalesce(has_schema_privilege(n.oid, 'CREATE'), false)
  FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = %s"""

_LACKING = """\
SELECT p.name
  FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY p (name, place)
 WHERE EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = %s AND c.relkind IN ('r', 'p')
                  AND c.relname LIKE 'millpond\\_%%'
                  AND (c.relname NOT IN ('millpond_schema', 'millpond_functions')
                       OR p.name = 'SELECT')
                  AND NOT has_table_privilege(c.oid, p.name))
 ORDER BY p.place"""


class Rights(msgspec.Struct, frozen=True):
    """What a user may do with a database and with the schema of a store in it."""

    user: str
    database: str
    makes_schemas: bool
    schema_exists: bool
    uses_schema: bool
    makes_tables: bool


def rights(connection: Connection, address: Address) -> Rights:
    """Return the user's privileges."""
    (row,) = connection.execute(_LOOK, [address.schema]).fetchall()
    return msgspec.convert(dict(zip(Rights.__struct_fields__, row, strict=True)), Rights)


def check_use(found: Rights, address: Address) -> None:
    """Raise if the schema exists and the user has no USAGE on it."""
    if found.schema_exists and not found.uses_schema:
        grant = f"GRANT USAGE ON SCHEMA {quoted(address.schema)} TO {quoted(found.user)}"
        raise missing_rights(address, [grant], f"it may not use the schema {address.schema}")


def check_migration(found: Rights, address: Address) -> None:
    """Raise if a migration is needed and the user may not create tables."""
    user, schema = quoted(found.user), quoted(address.schema)
    if not found.schema_exists and not found.makes_schemas:
        raise missing_rights(
            address,
            [f"GRANT CREATE ON DATABASE {quoted(found.database)} TO {user}"],
            f"it may not create the schema {address.schema}",
            f"; or make it yourself: CREATE SCHEMA {schema} AUTHORIZATION {user}",
        )
    if found.schema_exists and not found.makes_tables:
        raise missing_rights(
            address,
            [f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"],
            f"it may not create tables in the schema {address.schema}",
            "; or let the owner of the schema run `millpond migrate`",
        )


def check_tables(
    connection: Connection, found: Rights, address: Address, *, to_read: bool = False
) -> None:
    """Raise if the tables exist and the user may not read (and write) them."""
    lacking = [str(right) for (right,) in connection.execute(_LACKING, [address.schema])]
    if to_read:
        lacking = [right for right in lacking if right == "SELECT"]
    if lacking:
        names = ", ".join(lacking)
        schema, user = quoted(address.schema), quoted(found.user)
        grant = f"GRANT {names} ON ALL TABLES IN SCHEMA {schema} TO {user}"
        raise missing_rights(address, [grant], f"it lacks {names} on tables of the store")
