"""Numbers in the SQL, by name; a test compares both."""

TURN_BITS = 5
"""After 2**5 updates a hot row gets a new version past its dead ones."""

LEASES_LOOKED_AT = 1024
"""How many of the latest leases are searched; older ones are renumbered in time."""

BANDS = 32
"""How many ranks of a queue have their own start of search; more share one."""

WALKED_PAST = 64
"""Below so many removed rows a scan passes them without an update."""

MOSTLY_DEAD = 1600
"""Bytes of a small table for each live row; where it has more, most rows are dead."""
