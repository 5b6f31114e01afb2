"""Cursors: where a list goes on, as a text that clients pass back unread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from millpond.server.refusals import Refused

if TYPE_CHECKING:
    from millpond.store.protocol import Cursor


def written(cursor: Cursor) -> str:
    """Return where a list goes on as a text."""
    pool, place = cursor
    if place is None:
        return f"::{pool}"
    moment, number = place
    since = "" if math.isinf(moment) else repr(moment)
    return f"{since}:{number}:{pool}"


def read(cursor: str) -> Cursor:
    """Return where a list goes on; refuse what is no cursor."""
    moment, _, rest = cursor.partition(":")
    number, colon, pool = rest.partition(":")
    if colon and not moment and not number:
        return pool, None
    try:
        at = float(moment) if moment else math.inf
        place = at, int(number)
    except ValueError:
        raise bad() from None
    if not colon or math.isnan(at) or not 0 <= place[1] < 1 << 63:
        raise bad()
    return pool, place


def number(cursor: str | None) -> int:
    """Return the number that a cursor of a simple list is; 0 = the beginning."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise bad()
    return int(cursor)


def bad() -> Refused:
    """Return the refusal of a text that is no cursor."""
    message = "after is not a cursor: pass what a page returned as next"
    return Refused(422, "bad_cursor", message, fields={"after": "not a cursor"})
