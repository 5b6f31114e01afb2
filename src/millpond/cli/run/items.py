"""Read items, and name them.

The name of an item is a digest of its text, and a count if the same text came before. So the same
list, given again longer, shorter or in another order, names the same items.
"""

from __future__ import annotations

import base64
import contextlib
import os
import stat
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

from millpond.cli.exits import Exit, Refusal
from millpond.cli.run.process import readable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

AT_ONCE = 1_000
"""How many items are submitted in one batch."""

CHUNK = 1 << 16


class Splitter:
    """Cuts bytes that come in chunks into items."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the items that are complete now."""
        *complete, self._rest = (self._rest + chunk).split(self._end)
        return self._items(complete)

    def last(self) -> list[str]:
        """Return the last item, if nothing ends it."""
        rest, self._rest = self._rest, b""
        return self._items([rest] if rest else [])

    def _items(self, found: list[bytes]) -> list[str]:
        # An empty line is no item, as with xargs; with another delimiter an item may be empty.
        return [os.fsdecode(one) for one in found if one or self._end != b"\n"]


async def read(descriptor: int, end: bytes) -> AsyncIterator[list[str]]:
    """Yield the items of a file or pipe as they come."""
    splitter = Splitter(end)
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if not is_file:
            with contextlib.suppress(OSError, ValueError):
                # Something that is always ready, such as /dev/null, cannot be waited for.
                await readable(descriptor)
        chunk = os.read(descriptor, CHUNK)
        found = splitter.feed(chunk) if chunk else splitter.last()
        for first in range(0, len(found), AT_ONCE):
            yield found[first : first + AT_ONCE]
        if not chunk:
            return


def opened(path: str) -> int:
    """Return an open file of items; `-` is the standard input."""
    if path == "-":
        return 0
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        message = f"--arg-file: {path} cannot be read: {error.strerror}"
        raise Refusal(Exit.USAGE, message) from None


async def words(given: Sequence[str]) -> AsyncIterator[list[str]]:
    """Yield the items of a command line."""
    for first in range(0, len(given), AT_ONCE):
        yield list(given[first : first + AT_ONCE])


class ItemNames:
    """Gives each item a name; items of the same text are numbered."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._again: Counter[bytes] = Counter()

    def name(self, item: str) -> str:
        """Return the name of the next item of this text."""
        digest = blake2b(os.fsencode(item), digest_size=16).digest()
        if digest not in self._seen:
            self._seen.add(digest)
            return digest.hex()
        self._again[digest] += 1
        return f"{digest.hex()}+{self._again[digest]}"


# A payload is JSON, which has no bytes; they are stored as base64 behind a NUL.
_AS_BYTES = "\0"


def packed(item: str) -> str:
    """Return an item as text that can be stored; bytes that are not UTF-8 are encoded."""
    try:
        item.encode()
    except UnicodeEncodeError:
        pass
    else:
        if not item.startswith(_AS_BYTES):
            return item
    return _AS_BYTES + base64.b64encode(os.fsencode(item)).decode()


def unpacked(stored: str) -> str:
    """Return the item that `packed` encoded."""
    if not stored.startswith(_AS_BYTES):
        return stored
    return os.fsdecode(base64.b64decode(stored.removeprefix(_AS_BYTES)))
