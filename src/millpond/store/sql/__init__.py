"""Tables kept in rows of a database: what every database store has in common."""
