"""The PostgreSQL store: one server, many processes on many machines."""
