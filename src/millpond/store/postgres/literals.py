"""Numbers that the SQL says by itself: here they have a name, and a test holds the two together."""

TURN_BITS = 5
"""After 2**5 writes a row that changes all the time begins a new turn, past its dead versions."""

LEASES_LOOKED_AT = 1024
"""How many of the latest leases are looked through; those that stay are numbered anew in time."""

BANDS = 32
"""How many ranks of a queue have a place of their own from which to look; more share one."""

WALKED_PAST = 64
"""Rows that have left a queue and are sooner walked past than written down."""
