"""The tables the verbs work on.

The verbs speak to them through `Rows` (`core/rows.py`) and the protocols in `rows`. Here they are
dictionaries. A store on disk has repositories: `get` reads a row once, and `write` saves all that
the verb changed.

Each file adds one subject to the class before it: `audit`, `verb` (one verb begins and ends),
`workers`, `queue`, `runs`, `tasks` (`move` is the one place where a task changes its status),
`attempts`, `retention`.
"""

from millpond.store.verbs.tables.change_order import by_pool_and_place
from millpond.store.verbs.tables.pools import MEASURED, PoolTable, lane_without_key
from millpond.store.verbs.tables.retention import Tables
from millpond.store.verbs.tables.rows import Deadlines, DictRuns
from millpond.store.verbs.tables.tasks import due_of, expiry_of
from millpond.store.verbs.tables.verb import Leader
from millpond.store.verbs.tables.workers import StopRequests, by_expiry

__all__ = [
    "MEASURED",
    "Deadlines",
    "DictRuns",
    "Leader",
    "PoolTable",
    "StopRequests",
    "Tables",
    "by_expiry",
    "by_pool_and_place",
    "due_of",
    "expiry_of",
    "lane_without_key",
]
