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


REFUSED = "refused with ConfigError (MILL-003); in SQL with SQLSTATE ML003"
LARGE = "refused with PayloadTooLarge (MILL-014); in SQL with SQLSTATE ML014"
CUT = "cut"

TABLE: tuple[Bound, ...] = (
    Bound(
        "MAX_SECONDS",
        "every duration: `delay`, `expires_in`, `timeout`, `wait`, `lease`, `Keep`, `Rate.per`, "
        "the delays of a `Retry`, `RetryLater`, what a retry function returns, `grace`, `aging`",
        "seconds",
        REFUSED,
        "ten years; added to any moment that is allowed, the sum is exact to the microsecond",
    ),
    Bound(
        "MAX_MOMENT",
        "every moment: `run_at`, `before`",
        "seconds since 1970",
        REFUSED,
        "2200-01-01; before the year 2255 a float of seconds is exact to the microsecond",
    ),
    Bound(
        "MAX_THROTTLE",
        "how long one `Throttled` holds its key or pool back",
        "seconds",
        "shortened to it",
        "a day: a peer's header must not stop a pool for years",
    ),
    Bound(
        "MAX_NAME",
        "names of pools, tasks, aliases, budgets, triggers, schedules, events and bulkheads",
        "characters",
        REFUSED,
        "plain ASCII: they are part of indexes, paths, log lines and metrics",
    ),
    Bound(
        "MAX_KEY",
        "`key`, the value a fair pool shares by, `idempotency_key`, the `lane=` or `key=` of an "
        "order",
        "bytes of UTF-8",
        REFUSED,
        "key, share and owner share one index row of 2,704 bytes",
    ),
    Bound(
        "MAX_FUNCTION",
        "the function of a call; of a closure, the name that is recorded",
        "bytes of UTF-8",
        "refused; a closure's name is cut",
        "a task that waits for a worker that knows its function is indexed by it",
    ),
    Bound("MAX_LABELS", "labels of one task", "labels", REFUSED, "each list shows them"),
    Bound("MAX_LABEL_NAME", "the name of a label", "bytes of UTF-8", REFUSED, "as above"),
    Bound(
        "MAX_LABEL",
        "the value of a label",
        "bytes of UTF-8",
        REFUSED,
        "a fair pool may share by it, so it may be as long as a key",
    ),
    Bound("MAX_SUBMITTED_BY", "`submitted_by`", "bytes of UTF-8", REFUSED, "each list shows it"),
    Bound(
        "MAX_EVENT_ID",
        "the id of an event",
        "bytes of UTF-8",
        REFUSED,
        "with the names of event and trigger it is an idempotency key",
    ),
    Bound("MAX_RUN_NAME", "the name of a run", "bytes of UTF-8", REFUSED, "it is indexed"),
    Bound("MAX_STEP_NAME", "a step of `ctx.once`", "bytes of UTF-8", REFUSED, "it is a name"),
    Bound(
        "MAX_PROGRESS",
        "the text of `ctx.progress`",
        "bytes of UTF-8",
        CUT,
        "it is shown, and should not cost a task its life",
    ),
    Bound("MAX_ERROR_TYPE", "the type's name of a stored error", "characters", CUT, "it is shown"),
    Bound("MAX_ERROR_MESSAGE", "the message of a stored error", "characters", CUT, "it is shown"),
    Bound("MAX_TRACEBACK", "a stored traceback: its end", "characters", CUT, "it is shown"),
    Bound(
        "MAX_PAYLOAD",
        "the arguments of a call, its result and the payload of an event, unless "
        "`Millpond(max_payload=)` says otherwise",
        "bytes of JSON",
        LARGE,
        "a queue is not where files belong",
    ),
    Bound(
        "MAX_SUBMITTED_BODY",
        "on PostgreSQL, a whole task of a role that may only submit: its arguments, labels and "
        "all else, whatever `max_payload` says",
        "bytes",
        "refused with SQLSTATE ML014",
        "`max_payload` is a setting of a process, and such a role may call the function by hand",
    ),
    Bound("MOST_PAYLOAD", "`max_payload` itself", "bytes", REFUSED, "one message to a process"),
    Bound(
        "MAX_COUNT",
        "`priority` (and its negative), `weight`, `attempts`, `max_concurrent`, `max_per_key`, "
        "the depth of a bound, `Rate.n`, `lanes` and every other number of things",
        "",
        REFUSED,
        "a whole number of 32 bits",
    ),
    Bound("MAX_NUMBER", "`revision`", "", REFUSED, "a whole number of 64 bits"),
)
