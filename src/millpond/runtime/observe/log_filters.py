"""Our log records: what they are about, and nothing in them that looks like another record.

Every record of ours says which pool and which task it is about, or None.

What one is about stands in `extra` where it is made. One that is made while a handler runs, and
does not say, is about the handler's task.
"""

from __future__ import annotations

import logging
import traceback
from textwrap import indent
from typing import TYPE_CHECKING

from millpond.core.escape import MultilineText, one_line, several_lines
from millpond.core.task import CALLBACKS
from millpond.runtime.worker.job import current_job

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = (
    "millpond",
    "millpond.cli",
    "millpond.cron",
    "millpond.hints",
    "millpond.hooks",
    "millpond.joins",
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

    Add it to a handler, and they can stand in its format, also for records of your own handlers and
    of whatever these call. What a record is not about is `missing`.
    """

    def __init__(self, missing: str | None = "-") -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Say what a record is about."""
        told = vars(record)
        known = _of_the_job(told)
        for name in ("pool", "task", "function", "attempt"):
            if told.get(name) is None:
                told[name] = known.get(name, self._missing)
        return True


def _of_the_job(told: dict[str, object]) -> dict[str, object]:
    """Return what is known of the task at work here, unless the record is about something else."""
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
    about = {name: told[name] for name in ("pool", "task") if told.get(name) is not None}
    return known if about.items() <= known.items() else {}


class EscapingFilter(logging.Filter):
    """Escapes what others chose: names, keys, paths, messages of errors; lets all records pass.

    Line ends would forge records, and other control characters and marks that change the direction
    of writing would drive or deceive a terminal. Records of ours have them as arguments.
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
    return several_lines(text) if isinstance(argument, MultilineText) else one_line(text)


def _safe_traceback(error: BaseException) -> str | None:
    """Return a traceback whose lines are all indented; None if nothing in it comes from outside."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip("\n")
        if several_lines(text) == text and not any(map(_says_lines, _chain(error))):
            return None
    except Exception:  # noqa: BLE001 - as above
        return "    (its traceback could not be read)"
    return indent(several_lines(text), "    ")


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
    """Have our own records marked and escaped, whatever handlers there are."""
    for name in OURS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, TaskFilter) for one in logger.filters):
            logger.addFilter(TaskFilter(missing=None))
        if not any(isinstance(one, EscapingFilter) for one in logger.filters):
            logger.addFilter(EscapingFilter())
