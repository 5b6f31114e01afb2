"""The backlog of a pool over rows, with only what is in reach in memory.

`core.order` makes every decision. What differs here is where its lines, groups, units and timers
come from: a unit is read when a verb mentions it, a line page by page. What changed is written when
the verbs of the transaction are done.
"""

from millpond.store.sql.backlog.backlog import SqlBacklog

__all__ = ["SqlBacklog"]
