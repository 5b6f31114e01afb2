"""All tables of a store, as one object."""

from __future__ import annotations

from millpond.store.verbs.tables.retention import RetentionTables


class Tables(RetentionTables):
    """Everything that a store keeps: the verbs work on this."""
