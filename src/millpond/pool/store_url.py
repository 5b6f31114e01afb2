"""Store URLs: the store that a URL names, and the URL without its password."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.store.url_redaction import shown as shown

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.store.postgres.url import Address

Place: TypeAlias = "Path | Address"
"""The place of a store: a file, or a server."""


def place_of(url: str | None) -> Place | None:
    """Return the file or server that a URL names, None for memory; BadStoreURL for any other.

    Each kind of store is imported when a URL names it: memory needs none of them.
    """
    if url is None:
        return None
    from millpond.store.postgres.url import address_of, check_driver, is_postgres  # noqa: PLC0415

    if is_postgres(url):
        address = address_of(url)
        check_driver()
        return address
    from millpond.store.sqlite.url import path_of  # noqa: PLC0415

    return path_of(url)
