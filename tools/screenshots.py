"""Take the screenshots of the README: `make screenshots`.

It opens the dashboard of a busy shop in Chromium, waits until the sparklines have a past, and
writes docs/images/*.png. With the font Inter installed (Debian: fonts-inter) they look best.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright
from tests.server.browsing import FLAGS, find_chromium
from tools.lively_store import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import Browser, Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = (
    ("dashboard-pools", "#/pools", "light"),
    ("dashboard-pool", "#/pools/mail", "dark"),
)
PAST = 300.0
"""Seconds that a full sparkline shows."""

LARGEST = 200_000
CHANNELS = {2: 3, 6: 4}
"""Bytes of a pixel: without and with transparency."""

SIX_BITS = bytes(value & 0xFC | value >> 6 for value in range(256))
SIGNATURE = b"\x89PNG\r\n\x1a\n"


async def main() -> None:
    past = float(sys.argv[1]) if len(sys.argv) > 1 else PAST
    async with served() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS)
        )
        pages = [(name, await _opened(browser, address + at, how)) for name, at, how in SHOTS]
        await asyncio.sleep(past)
        for name, page in pages:
            await _taken(page, IMAGES / f"{name}.png")
        await browser.close()


async def _opened(browser: Browser, address: str, scheme: str) -> Page:
    context = await browser.new_context(
        viewport={"width": 1280, "height": 800},
        device_scale_factor=1.25,
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = await context.new_page()
    await page.goto(address)
    return page


async def _taken(page: Page, file: Path) -> None:
    smaller = recompressed(await page.screenshot())
    _write(file, smaller)
    print(f"{file.name}: {len(smaller):,} bytes")
    if len(smaller) > LARGEST:
        raise SystemExit(f"{file.name} has more than {LARGEST:,} bytes")


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)


def recompressed(png: bytes) -> bytes:
    """Return the same picture in fewer bytes, with six bits for each colour.

    Browsers compress for speed. Flat colours compress best without the filters of PNG.
    """
    chunks = _chunks(png)
    header = next(data for kind, data in chunks if kind == b"IHDR")
    width, height, depth, colours = struct.unpack_from(">IIBB", header)
    if depth != 8 or colours not in CHANNELS:
        raise SystemExit(f"a picture with {depth} bits and colours of kind {colours}")
    filtered = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    rows = _unfiltered(filtered, width * CHANNELS[colours], height, CHANNELS[colours])
    packed = zlib.compress(b"".join(b"\0" + row.translate(SIX_BITS) for row in rows), 9)
    parts = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _unfiltered(filtered: bytes, length: int, height: int, step: int) -> Iterator[bytes]:
    """Yield the rows of a picture as they are: each was stored as a difference to others."""
    above = bytes(length)
    for number in range(height):
        start = number * (length + 1)
        kind, row = filtered[start], bytearray(filtered[start + 1 : start + 1 + length])
        for at in range(length if kind else 0):
            left = row[at - step] if at >= step else 0
            corner = above[at - step] if at >= step else 0
            row[at] = (row[at] + _guess(kind, left, above[at], corner)) & 0xFF
        above = bytes(row)
        yield above


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    """Return what a filter of PNG expects a byte to be."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    whole = left + up - corner
    return min((left, up, corner), key=lambda one: abs(whole - one))


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], len(SIGNATURE)
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        found.append((kind, png[place + 8 : place + 8 + length]))
        place += length + 12
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    asyncio.run(main())
