"""Locks of the database that stand for something of ours: their numbers are made here only.

A transaction takes one with `pg_advisory_xact_lock` and has it until it ends, however it ends.
"""

from __future__ import annotations

import hashlib


def to_migrate(schema: str) -> int:
    """Return the number of the lock that whoever changes the tables of a schema takes."""
    return _number(f"millpond migrates {schema}")


def to_write(schema: str) -> int:
    """Return the number of the lock that whoever writes to a store takes: writers take turns."""
    return _number(f"millpond writes {schema}")


def _number(what: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(what.encode(), digest_size=8).digest(), "big", signed=True
    )
