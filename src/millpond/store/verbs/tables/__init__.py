"""The tables the verbs work on.

They are dictionaries here. A store on disk keeps the same tables as rows: it reads a row when a
verb asks for it, and writes what changed when the verb is over.

Each file adds one subject to the class before it: `audit`, `verb` (one verb begins and ends),
`workers`, `queue`, `runs`, `tasks` (`move` is the one place where a task changes its status),
`attempts`, `retention`.
"""

from millpond.store.verbs.tables.change_order import by_pool_and_place
from millpond.store.verbs.tables.pools import MEASURED, PoolTable, lane_without_key
from millpond.store.verbs.tables.retention import Tables
from millpond.store.verbs.tables.verb import Leader
from millpond.store.verbs.tables.workers import StopRequests

__all__ = [
    "MEASURED",
    "Leader",
    "PoolTable",
    "StopRequests",
    "Tables",
    "by_pool_and_place",
    "lane_without_key",
]
