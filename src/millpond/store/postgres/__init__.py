"""The PostgreSQL store: one server, many processes on many machines.

Nothing is imported here: Millpond parses a URL without the driver, which may not be installed.
"""
