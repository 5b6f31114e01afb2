"""The PostgreSQL store: one server, many processes on many machines.

Nothing is imported here: a URL is looked at without the driver, which may not be installed.
"""
