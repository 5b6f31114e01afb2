"""Servers and files for tests: PostgreSQL, PgBouncer, proxies that fail, SQLite files that fail."""
