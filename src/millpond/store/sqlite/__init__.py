"""The SQLite store: one file, no server, many processes of one machine."""

from millpond.store.sqlite.store import SqliteStore as SqliteStore
