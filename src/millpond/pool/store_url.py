"""Addresses: which store a URL means, and how it is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.store.url_redaction import shown as shown

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.store.postgres.url import Address

Place: TypeAlias = "Path | Address"
"""Where a store is: in a file, or on a server."""


def place_of(url: str | None) -> Place | None:
    """Return what a URL names, None for memory; BadStoreURL for what names no store.

    Each kind of store is imported when it is asked for: memory needs nothing of it.
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
