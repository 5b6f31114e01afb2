"""URLs of stores for logs: without passwords."""

from __future__ import annotations

import re

_QUERY = re.compile("[?#]")


def shown(url: str | None) -> str:
    """Return a URL without its password and without its query."""
    if url is None:
        return "memory"
    scheme, strokes, rest = url.partition("://")
    if not strokes and "=" in url:
        # A DSN of keywords, such as host=... password=...: any of its values may be the secret.
        return f"{url.partition('=')[0]}=***"
    if not strokes and "@" in url:
        return f"{url.partition(':')[0]}:***"
    if any("@" in part for part in _QUERY.split(rest)[1:]):
        # The password has a ? in it, or the query an @: show neither, lest a part of it is shown.
        return f"{scheme}{strokes}***"
    # The last @ ends the password, whatever else is in it.
    who, at, place = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    path = _QUERY.split(place)[0]
    return f"{scheme}{strokes}{user}{':***' if colon else ''}{at}{path}"
