"""Log records of this library: their pool and task, and no text that forges another record.

Every record has a `pool` and a `task`, which may be None. They come from the `extra` of the log
call, else from the job whose handler runs.
"""

from __future__ import annotations

import logging
import traceback
from textwrap import indent
from typing import TYPE_CHECKING

from millpond.core.escape import MultilineText, plain
from millpond.core.task import CALLBACKS
from millpond.runtime.jobs.job import current_job

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = (
    "millpond",
    "millpond.cli",
    "millpond.cron",
    "millpond.hints",
    "millpond.hooks",
    "millpond.joins",
    "millpond.server",
    "millpond.session",
    "millpond.maintenance",
    "millpond.poll",
    "millpond.postgres",
    "millpond.processes",
    "millpond.renewal",
    "millpond.report",
    "millpond.runtime",
    "millpond.sqlite",
    "millpond.store",
    "millpond.submit",
    "millpond.tasks",
    "millpond.telemetry",
    "millpond.watchdog",
    "millpond.webhooks",
    "millpond.worker",
)
"""Every logger of this library; what a filter of one sees is not seen by that of its parent."""


class TaskFilter(logging.Filter):
    """Puts `pool`, `task`, `function` and `attempt` on every record; lets all of them pass.

    Add it to a log handler to use them in its format, also for records of your own handlers and of
    the code they call. A field without a value is `missing`.
    """

    def __init__(self, missing: str | None = "-") -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the fields of a record."""
        fields = vars(record)
        known = _of_the_job(fields)
        for name in ("pool", "task", "function", "attempt"):
            if fields.get(name) is None:
                fields[name] = known.get(name, self._missing)
        return True


def _of_the_job(fields: dict[str, object]) -> dict[str, object]:
    """Return the fields of the running job, unless the record is about another task."""
    job = current_job.get()
    if job is None:
        return {}
    leased = job.leased
    known = {
        "pool": leased.pool.removesuffix(CALLBACKS),
        "task": leased.fence.task,
        "function": leased.call.function,
        "attempt": leased.fence.attempt,
    }
    given = {name: fields[name] for name in ("pool", "task") if fields.get(name) is not None}
    return known if given.items() <= known.items() else {}


class EscapingFilter(logging.Filter):
    """Escapes text from outside: names, keys, paths, messages of errors; lets all records pass.

    Line ends would forge records, and other control characters and marks that change the direction
    of writing would control or deceive a terminal. Our records have such text as arguments.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the arguments of a record, and its traceback where that has to be."""
        arguments = record.args
        if isinstance(arguments, tuple):
            record.args = tuple(map(_escaped, arguments))
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and not record.exc_text:
            record.exc_text = _safe_traceback(error)
        return True


def _escaped(argument: object) -> object:
    """Return an argument as it is if its text is harmless, else its text, escaped."""
    if argument is None or isinstance(argument, (int, float)):
        return argument
    try:
        text = str(argument)
    except Exception:  # noqa: BLE001 - an exception of a user's may be as broken as it likes
        return f"({type(argument).__name__} without a text)"
    if text.isprintable():
        return argument
    return plain(text, lines=True) if isinstance(argument, MultilineText) else plain(text)


def _safe_traceback(error: BaseException) -> str | None:
    """Return a traceback whose lines are all indented; None if nothing in it comes from outside."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip("\n")
        if plain(text, lines=True) == text and not any(map(_says_lines, _chain(error))):
            return None
    except Exception:  # noqa: BLE001 - as above
        return "    (its traceback could not be read)"
    return indent(plain(text, lines=True), "    ")


def _says_lines(error: BaseException) -> bool:
    """Return whether an error writes lines of its own into a traceback."""
    return "\n" in str(error) or bool(getattr(error, "__notes__", None))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give an error, those it came from and those it is made of."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__cause__, one.__context__, *parts) if other]


def mark_ours() -> None:
    """Add both filters to every logger of this library."""
    for name in OURS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, TaskFilter) for one in logger.filters):
            logger.addFilter(TaskFilter(missing=None))
        if not any(isinstance(one, EscapingFilter) for one in logger.filters):
            logger.addFilter(EscapingFilter())
