"""The SQLite store: one file, no server, many processes of one machine."""
