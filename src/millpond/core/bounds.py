"""Bounds: how large a value may be, in one table, for every way into a store.

Each is checked where the value enters: in Python by `validation`, in SQL by the functions of the
inbox, which have the same numbers (a test compares them). Every store can keep a value that passes.

Times. A store keeps a moment as a float of seconds on a whole microsecond. Below 2**53
microseconds, which is the year 2255, such a float is exact. So a moment is at most the start of
2200, and a duration ten years: the sum of both still is exact.

Texts are measured in bytes of UTF-8, because that is what an index row of PostgreSQL holds: 2,704
bytes in all. The widest index has the pool's number, a key, a share and the owner of a closure.
"""

from __future__ import annotations

from typing import NamedTuple

DAY = 86_400.0

MAX_SECONDS = 3_650 * DAY
MAX_MOMENT = 7_258_118_400.0
MAX_THROTTLE = DAY

MAX_NAME = 128
MAX_KEY = 1_024
MAX_OWNER = 256
MAX_FUNCTION = 256
MAX_LABELS = 64
MAX_LABEL_NAME = 256
MAX_LABEL = 1_024
MAX_SUBMITTED_BY = 1_024
MAX_EVENT_ID = 512
MAX_RUN_NAME = 512
MAX_RUN_RESULTS = 100
MAX_STEP_NAME = 512
MAX_PROGRESS = 4_096
MAX_ERROR_TYPE = 512
MAX_ERROR_MESSAGE = 4_096
MAX_TRACEBACK = 16_384

MAX_PAYLOAD = 1 << 20
MOST_PAYLOAD = 32 << 20
MAX_BODY = MOST_PAYLOAD + (1 << 20)
MAX_SUBMITTED_BODY = MAX_PAYLOAD + (256 << 10)

MAX_COUNT = 2**31 - 1
MIN_PRIORITY = -(2**31)
MAX_NUMBER = 2**63 - 1
MAX_RANK = 2**62

MAX_INDEX_ROW = 2_704
"""The most bytes of one row in a B-tree of PostgreSQL with pages of 8 KiB."""


class Bound(NamedTuple):
    """A line of the table."""

    constant: str
    applies_to: str
    unit: str
    beyond: str
    """What happens to a value beyond it."""
    why: str


REFUSED = "refused: `ConfigError` (MILL-003), in SQL SQLSTATE ML003"
LARGE = "refused: `PayloadTooLarge` (MILL-014), in SQL SQLSTATE ML014"
CUT = "cut"

TABLE: tuple[Bound, ...] = (
    Bound(
        "MAX_SECONDS",
        "every duration: `delay`, `expires_in`, `timeout`, `wait`, `lease`, `Keep`, `Rate.per`, "
        "the delays of a `Retry`, `RetryLater`, the result of a retry function, `grace`, `aging`",
        "seconds",
        REFUSED,
        "ten years; added to any allowed time, the sum is exact to the microsecond",
    ),
    Bound(
        "MAX_MOMENT",
        "every point in time: `run_at`, `before`",
        "seconds since 1970",
        REFUSED,
        "2200-01-01; a float of seconds is exact to the microsecond until the year 2255",
    ),
    Bound(
        "MAX_THROTTLE",
        "how long one `Throttled` holds back its key or pool",
        "seconds",
        "shortened",
        "one day; a header from another service must not stop a pool for years",
    ),
    Bound(
        "MAX_NAME",
        "names of pools, tasks, aliases, budgets, triggers, schedules, events and bulkheads",
        "characters",
        REFUSED,
        "plain ASCII, because names are part of indexes, paths, log lines and metrics",
    ),
    Bound(
        "MAX_KEY",
        "`key`, the share of a fair pool, `idempotency_key`, the `lane=` or `key=` of a control "
        "command",
        "bytes of UTF-8",
        REFUSED,
        "key, share and owner must fit into one index row of 2,704 bytes",
    ),
    Bound(
        "MAX_FUNCTION",
        "the function name of a call, or the recorded name of a closure",
        "bytes of UTF-8",
        "refused; the name of a closure is cut",
        "parked tasks are indexed by it",
    ),
    Bound("MAX_LABELS", "labels of one task", "labels", REFUSED, "lists show them"),
    Bound("MAX_LABEL_NAME", "the name of a label", "bytes of UTF-8", REFUSED, "lists show it"),
    Bound(
        "MAX_LABEL",
        "the value of a label",
        "bytes of UTF-8",
        REFUSED,
        "a fair pool may use it as the share, so it may be as long as a key",
    ),
    Bound("MAX_SUBMITTED_BY", "`submitted_by`", "bytes of UTF-8", REFUSED, "lists show it"),
    Bound(
        "MAX_EVENT_ID",
        "the id of an event",
        "bytes of UTF-8",
        REFUSED,
        "event name, trigger id and event id together form an idempotency key",
    ),
    Bound("MAX_RUN_NAME", "the name of a run", "bytes of UTF-8", REFUSED, "it is indexed"),
    Bound(
        "MAX_RUN_RESULTS",
        "tasks whose results `run.on_complete` gets, with at most `MAX_PAYLOAD` bytes together",
        "tasks",
        "left out; `RunOutcome.left_out` counts them",
        "they are stored with the callback, in the transaction that ends the run",
    ),
    Bound(
        "MAX_STEP_NAME", "the step name of `ctx.once`", "bytes of UTF-8", REFUSED, "it is a name"
    ),
    Bound(
        "MAX_PROGRESS",
        "the text of `ctx.progress`",
        "bytes of UTF-8",
        CUT,
        "it is only shown, so a long text does not fail the task",
    ),
    Bound(
        "MAX_ERROR_TYPE", "the type name of a stored error", "characters", CUT, "it is only shown"
    ),
    Bound(
        "MAX_ERROR_MESSAGE", "the message of a stored error", "characters", CUT, "it is only shown"
    ),
    Bound(
        "MAX_TRACEBACK",
        "a stored traceback",
        "characters",
        "cut; its end is kept",
        "it is only shown",
    ),
    Bound(
        "MAX_PAYLOAD",
        "the arguments of a call, its result and the payload of an event; "
        "`Millpond(max_payload=)` changes it",
        "bytes of JSON",
        LARGE,
        "a queue is not a file store",
    ),
    Bound(
        "MAX_SUBMITTED_BODY",
        "on PostgreSQL, a whole task of a role that may only submit: arguments, labels and all "
        "other options, whatever `max_payload` says",
        "bytes",
        "refused: SQLSTATE ML014",
        "`max_payload` is a setting of one process, and such a role can call the function directly",
    ),
    Bound(
        "MOST_PAYLOAD", "`max_payload` itself", "bytes", REFUSED, "one message to a child process"
    ),
    Bound(
        "MAX_COUNT",
        "`priority` (also negative), `weight`, `attempts`, `max_concurrent`, `max_per_key`, the "
        "depth of a bound, `Rate.n`, `lanes` and every other count",
        "",
        REFUSED,
        "a 32-bit integer",
    ),
    Bound("MAX_NUMBER", "`revision`", "", REFUSED, "a 64-bit integer"),
)
