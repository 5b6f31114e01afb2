"""Set up logging to stderr, unless the application has set up its own."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from millpond.core.escape import plain

if TYPE_CHECKING:
    from types import TracebackType

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LEVELS = ("debug", "info", "warning", "error")


class PlainFormatter(logging.Formatter):
    """One line per record, and a traceback below it, with control characters escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as it is called there
        """Return the line of a record."""
        return plain(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Return a traceback."""
        return plain(super().formatException(ei), lines=True)

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Return the stack of a record."""
        return plain(super().formatStack(stack_info), lines=True)


def set_up(level: str | None) -> None:
    """Write logs of this level to stderr; None = info.

    If the application set up logging when it was imported, only an explicit level changes that.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainFormatter(FORM))
        root.addHandler(handler)
        root.setLevel((level or "info").upper())
    elif level is not None:
        root.setLevel(level.upper())
